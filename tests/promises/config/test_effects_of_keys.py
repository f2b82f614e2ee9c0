"""Each key of the schema, set to two values: what differs is what `config/identity.py` says of it.

A row of ROWS is a key with two values of it, and the other words without which it does nothing.
Both are trained, in process: batches, weights and measurements are compared; a checkpoint of the
first is resumed with the second value; and a sweep that is done is started again with it. So no key
is without effect and without a word: OF_TASKS and IGNORED say what the others are for.
"""

import json
import shutil
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import get_worker_info
from torchmetrics import Metric

import penstock
from penstock import command
from penstock.build.data import DataParts
from penstock.config.identity import effect_of, effects
from penstock.config.schema import TASK_KEYS, Effect
from penstock.distributed.world import World
from penstock.runs import checkpoint
from tests.support.own_parts import NUMBERS, Numbers

NOTHING, ROUNDING, RESULTS, VALIDATION, WEIGHTS, TRAINING, BATCHES, DATA = Effect
HERE = "tests.promises.config.test_effects_of_keys"

QUIET = (
    "tracker=none trainer.max_epochs=2 trainer.device=cpu batch.size=4 trainer.pictures=false "
    "trainer.report=false trainer.progress=none trainer.checkpoint.keep_last=9 "
    "trainer.checkpoint.every_steps=1"
).split()
IN_MAIN = ["loader.backend=main", "loader.num_workers=0"]
IN_WORKERS = ["loader.backend=process", "loader.num_workers=2"]
SMALL = [f"+transform.{split}.small._target_={HERE}.Small" for split in ("train", "val")]
DATASETS = {
    "numbers": ["dataset=numbers", "dataset.size=13", "optimizer.lr=0.01"],
    "noted": [
        "dataset=numbers",
        "dataset.size=13",
        f"+transform.train.jitter._target_={HERE}.Jitter",
    ],
    "pairs": ["dataset=numbers", "dataset.size=13", f"dataset._target_={HERE}.Pairs"],
    "pictures": [
        "dataset=image_folder",
        "dataset.root=pictures",
        "transform=none",
        "model=linear",
        "+model.in_features=48",
        *SMALL,
    ],
    "sequences": ["dataset=sequences", "dataset.count=20"],
}


class Pairs(Numbers):
    """Rows without names."""

    def __getitem__(self, index):
        return torch.tensor([float(index)]), index % 2, torch.ones(2)


class Jitter:
    def __call__(self, sample):
        return {**sample, "x": sample["x"] + torch.rand(1)}


class Add:
    def __init__(self, amount: float = 1.0):
        self.amount = amount

    def __call__(self, sample):
        return {**sample, "x": sample["x"] + self.amount}


class Small:
    """A picture as 48 numbers."""

    def __call__(self, sample):
        picture = torch.nn.functional.interpolate(sample["image"][None].float(), (4, 4))
        return {**sample, "image": picture.flatten() / 255}


class Blend:
    def __init__(self, by: float = 0.1):
        self.by = by

    def __call__(self, batch, random):
        return batch.replace({**batch, "x": batch["x"] * (1 + self.by)})


class Odd(Metric):
    """Of which nobody knows whether more is better: the number of odd labels."""

    def __init__(self):
        super().__init__()
        self.add_state("count", torch.tensor(0.0), dist_reduce_fx="sum")

    def update(self, outputs, targets):
        self.count += (outputs.argmax(1) % 2).sum()

    def compute(self):
        return self.count


def double(worker):
    """A `worker_init_fn` that changes its worker's dataset."""
    dataset = get_worker_info().dataset
    dataset.scale *= 2


@dataclass(frozen=True)
class Row:
    """Two values of a key.

    Attributes:
        values: the words that set them; `KEY=` is put before a value without a name.
        data: the name in DATASETS.
        words: what else both runs are given.
        where: what makes the batches.
        rounds: why perhaps less differs than the key says.
        continues: why a run may be resumed with the other value although something differs.
    """

    values: tuple[str, str]
    data: str = "numbers"
    words: list[str] = field(default_factory=list)
    where: list[str] = field(default_factory=lambda: IN_MAIN)
    rounds: str = ""
    continues: str = ""

    def given(self, key, which):
        """The words of one of the two."""
        value = self.values[which]
        named = value.partition("[")[0].partition("'")[0]
        last = value if "=" in named else f"{key}={value}"
        return [*QUIET, *DATASETS[self.data], *self.where, *self.words, last]


LONGER = "what it has trained so far stays; the rest is longer or shorter"
CPU = "with one process on a CPU nothing differs"
SHOWS = "these two differ in what is measured, or in no batch at all"
BLEND = f"+transform.train_batch.mix._target_={HERE}.Blend"
ADD = [f"+transform.{split}.add._target_={HERE}.Add" for split in ("train", "val")]
SKIP = ["bad_samples.on_error=skip", "bad_samples.budget=1.0"]
STILL = ["optimizer.lr=0", "scheduler=none"]  # so that no epoch is better than the first
PACKED = ["data.packed=auto", "pack.size=8"]

ROWS = {
    "seed": Row(("0", "1")),
    "batch.size": Row(("4", "5")),
    "batch.tail": Row(("keep", "drop")),
    "batch.val_size": Row(("2", "3"), rounds="sums of another size round otherwise"),
    "batch.balance": Row(("null", "length"), rounds=CPU),
    "run_dir": Row(("run_dir=one", "run_dir=other")),
    "cache_dir": Row(("one", "other"), "sequences"),
    "dataset": Row(("dataset.size=13", "dataset.size=14")),
    "data.packed": Row(("null", "auto"), "pictures", rounds="pixels are kept as they are"),
    "data.fields": Row(("data.fields=[x,label,a]", "data.fields=[x,label,b]"), "pairs"),
    "data.facts": Row(
        (
            "data.facts={num_outputs: 3, num_classes: 3}",
            "data.facts={num_outputs: 4, num_classes: 4}",
        ),
        words=["~objective.metrics.recall"],
        rounds="some datasets take them",
    ),
    "transform.train": Row(
        ("+transform.train.add.amount=1", "+transform.train.add.amount=2"), words=ADD
    ),
    "transform.val": Row(
        ("+transform.val.add.amount=1", "+transform.val.add.amount=-500"), words=ADD
    ),
    "transform.train_batch": Row(
        ("+transform.train_batch.mix.by=0.1", "+transform.train_batch.mix.by=0.2"), words=[BLEND]
    ),
    "transform.val_batch": Row(
        ("+transform.val_batch.mix.by=0.1", "+transform.val_batch.mix.by=0.2"),
        words=[BLEND.replace("train_batch", "val_batch")],
    ),
    "transform.views": Row(("transform.views=1", "transform.views=2"), words=ADD),
    "transform.batch_on": Row(("loader", "device"), words=[BLEND], rounds=CPU),
    "sampler": Row(("sampler=random", "sampler=sequential")),
    "collate": Row(("collate.value=0", "collate.value=1"), "sequences"),
    "loader.backend": Row(("process", "thread"), where=["loader.num_workers=2"]),
    "loader.num_workers": Row(("1", "3"), "noted", where=["loader.backend=process"]),
    "loader.prefetch_factor": Row(("1", "4"), "noted", where=IN_WORKERS),
    "loader.persistent_workers": Row(("false", "true"), "noted", where=IN_WORKERS),
    "loader.pin_memory": Row(("null", "false"), where=IN_WORKERS),
    "loader.timeout": Row(("0", "99"), where=IN_WORKERS),
    "loader.max_deaths": Row(("1", "4"), where=IN_WORKERS),
    "loader.worker_init_fn": Row(("null", f"{HERE}.double"), where=IN_WORKERS),
    "loader.multiprocessing_context": Row(("fork", "forkserver"), "noted", where=IN_WORKERS),
    "loader.generator": Row(("1", "2"), "noted", where=IN_WORKERS),
    "loader.slow_memory": Row(("0", "1"), where=IN_WORKERS),
    "bad_samples.on_error": Row(
        ("skip", "substitute"), "pictures", words=["limits.pixels=300", "bad_samples.budget=1.0"]
    ),
    "bad_samples.budget": Row(("0.9", "0.95"), "pictures", words=[*SKIP, "limits.pixels=300"]),
    "bad_samples.quarantine": Row(("null", "bad.csv"), "pictures", words=SKIP),
    "limits.record_bytes": Row(("100000", "900"), "pictures", words=SKIP),
    "limits.pixels": Row(("1000", "300"), "pictures", words=SKIP),
    "pack.size": Row(("8", "12"), "pictures", words=PACKED),
    "pack.format": Row(
        ("pixels", "encoded"),
        "pictures",
        words=["data.packed=auto"],
        rounds="pixels are kept as they are",
    ),
    "pack.out": Row(
        ("one", "other"),
        "pictures",
        words=PACKED,
        rounds="the same pack elsewhere",
    ),
    "model": Row(("+model.bias=true", "+model.bias=false")),
    "objective": Row(
        (
            "objective.loss._target_=torch.nn.CrossEntropyLoss",
            "objective.loss._target_=torch.nn.MultiMarginLoss",
        )
    ),
    "objective.metrics": Row(
        ("objective.metrics.accuracy.average=micro", "objective.metrics.accuracy.average=macro"),
        rounds=SHOWS,
    ),
    "optimizer": Row(("optimizer.lr=0.1", "optimizer.lr=0.2")),
    "scheduler": Row(("scheduler=none", "scheduler=cosine")),
    "schedule.warmup": Row(("0", "0.5"), words=["scheduler=cosine"]),
    "data.filter": Row(("null", "'length < 30'"), "sequences", words=["collate=pad"]),
    "trainer.max_epochs": Row(("2", "3"), continues=LONGER),
    "trainer.max_steps": Row(("5", "6"), continues=LONGER),
    "trainer.accumulate": Row(("1", "2")),
    "trainer.clip_norm": Row(("0.1", "0.2"), words=["optimizer=sgd"]),
    "trainer.precision": Row(("fp32", "bf16")),
    "trainer.compile": Row(
        ("false", "true"),
        rounds="a compiled model may round the same",
        continues="it rounds otherwise",
    ),
    "trainer.channels_last": Row(
        ("false", "true"), rounds="of no use without pictures", continues="it rounds otherwise"
    ),
    "trainer.device": Row(("auto", "cpu"), rounds="both are the CPU on this machine"),
    "trainer.log_every": Row(("1", "3")),
    "trainer.val_every": Row(("1", "2")),
    "trainer.monitor": Row(("recall/even", "recall/odd"), words=["trainer.mode=max"], rounds=SHOWS),
    "trainer.mode": Row(
        ("min", "max"),
        rounds=SHOWS,
        words=[f"+objective.metrics.odd._target_={HERE}.Odd", "trainer.monitor=odd"],
    ),
    "trainer.patience": Row(("1", "4"), words=["trainer.max_epochs=5", *STILL]),
    "trainer.checkpoint.every_epochs": Row(("1", "2")),
    "trainer.checkpoint.every_steps": Row(("1", "2")),
    "trainer.checkpoint.every_minutes": Row(("1", "2")),
    "trainer.checkpoint.keep_last": Row(("9", "8")),
    "trainer.baseline": Row(("true", "false")),
    "trainer.digest": Row(("true", "false")),
    "trainer.ledger": Row(("true", "false")),
    "trainer.progress": Row(("none", "plain")),
    "trainer.pictures": Row(("true", "false")),
    "trainer.report": Row(("true", "false")),
    "trainer.ema": Row(("0.5", "0.9")),
    "trainer.freeze.names": Row(("[bias]", "[weight]")),
    "trainer.freeze.until": Row(("1", "null"), words=["trainer.freeze.names=[bias]"]),
    "trainer.limit_batches.train": Row(("2", "3")),
    "trainer.limit_batches.val": Row(("1", "2")),
    "trainer.overfit_batches": Row(("1", "2")),
    "trainer.skip": Row(
        ("[[0,2],[0,3]]", "[[0,3],[1,0]]"), continues="the checkpoint has come to neither"
    ),
    "tracker": Row(("tracker=none", "tracker=tensorboard")),
}

# The same keys where more or less follows from them.
MORE = {
    "trainer.val_every, which stops": (
        "trainer.val_every",
        Row(("1", "2"), words=["trainer.patience=1", "trainer.max_epochs=5", *STILL]),
    ),
    "batch.tail, nothing left": (
        "batch.tail",
        Row(("keep", "pad"), words=["dataset.size=12"], rounds="there is no smaller batch"),
    ),
    "limits.pixels, which ends the run": (
        "limits.pixels",
        Row(("1000", "2000"), "pictures", rounds=SHOWS),
    ),
    "bad_samples.on_error, after raise": (
        "bad_samples.on_error",
        Row(("raise", "skip"), "pictures", rounds=SHOWS),
    ),
    "transform.val, which moves the rate": (
        "transform.val",
        Row(  # losses 6.0, 5.7; 35.6, 34.0
            ("+transform.val.add.amount=1", "+transform.val.add.amount=-50"),
            words=[
                *ADD,
                "scheduler._target_=torch.optim.lr_scheduler.ReduceLROnPlateau",
                "scheduler=constant",
                "schedule.interval=epoch",
                "schedule.warmup=0",
                "scheduler.factor=0.1",
                "+scheduler.patience=0",
                "+scheduler.threshold=1",
                "+scheduler.threshold_mode=abs",
                "trainer.monitor=loss",
                "trainer.mode=min",
                "trainer.max_epochs=4",
            ],
        ),
    ),
}

IGNORED = {
    **dict.fromkeys(TASK_KEYS, "only the task that asks for it reads it"),
    "task": "chooses what is run, and nothing of how",
    "resume": "says where to begin; what is refused there is measured in each row",
    "resume_despite": "for rows of this table that are refused: tests/promises/tasks/test_fit.py",
    "sweep": "of sweeps alone: tests/promises/sweeps",
    "distributed": "starts processes: tests/distributed; rounding, by `ranks`",
    "loader.in_order": "what arrives first is by chance, and false is refused with checkpoints",
    "loader.ray": "needs Ray: tests/parts/ray/test_ray.py",
    "trainer.fast_dev_run": "sets other keys: tests/promises/config/test_compose.py",
    "trainer.warm_start": "names files: tests/parts/finetuning/test_finetuning.py",
    "limits.audio_seconds": "as limits.pixels, of sounds",
    "limits.levels": "pictures of 16 bits: tests/formats/datasets/test_image.py",
    "limits.expansion": "as limits.pixels, of compressed data",
    "limits.classes": "as limits.pixels, of labels",
    "limits.columns": "as limits.pixels, of lines",
    "data.fingerprint": "recorded by itself: tests/promises/runs/test_fingerprints.py",
    "files": "how data is fetched: tests/formats/storage",
    "data.batch_fields": "as data.fields, of a collate function: loading/test_own_samples.py",
    "data.val_filter": "as data.filter, of validation: tests/algorithms/filters/test_filters.py",
    "data.unique": "as data.filter",
    "data.without": "as data.filter",
    "data.split": "as data.filter: tests/algorithms/splits/test_division.py",
    "data.folds": "as data.split",
    "data.fold": "as data.split",
    "data.validate": "without validation: tests/promises/tasks/test_no_validation.py",
    "data.val_dataset": "as dataset",
    "data.test_dataset": "no training reads it",
    "trainer.groups": "as optimizer: tests/parts/finetuning/test_finetuning.py",
    "schedule.interval": "tests/parts/training/test_schedules.py",
}


def test_every_key_has_a_row_or_a_word():
    sections = {key.rpartition(".")[0] for key in effects()}
    known = {*effects(), "objective.metrics"} - sections
    ignored = {key for key in known for name in IGNORED if f"{key}.".startswith(f"{name}.")}
    rows = {key for key in known for row in ROWS if f"{row}.".startswith(f"{key}.")}
    assert known - rows - ignored == set() == ignored & rows, "give them a row or a word"
    assert all(any(f"{row}.".startswith(f"{key}.") for key in effects()) for row in ROWS)
    assert {
        name for name in IGNORED if not any(f"{key}.".startswith(f"{name}.") for key in known)
    } == set()


@pytest.fixture(scope="module")
def room(tmp_path_factory):
    """A folder with an option of a dataset of one's own, and pictures of two sizes."""
    place = tmp_path_factory.mktemp("keys")
    (place / "own" / "dataset").mkdir(parents=True)
    (place / "own" / "dataset" / "numbers.yaml").write_text(NUMBERS)
    draw = np.random.default_rng(0)
    for number in range(20):
        folder = place / "pictures" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        side = 16 if number % 5 else 24
        pixels = draw.integers(0, 256, (side, side, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return place


@pytest.fixture(autouse=True)
def inside(room, monkeypatch):
    monkeypatch.chdir(room)
    monkeypatch.setenv("PENSTOCK_TRUST", "tests")


def batches(words):
    """A hash of each batch of two epochs, by address, with all that the model is given of it."""
    config = penstock.compose(*words, config_dir="own")
    found = {}
    with DataParts(config, World()).train.loader() as loader:
        for epoch in range(2):
            for batch in loader.epoch(epoch):
                digest = blake2b(repr((batch.request.address, batch.indices)).encode())
                for name in sorted(batch):
                    value = batch[name]
                    digest.update(f"{name} {getattr(value, 'shape', value)}".encode())
                    digest.update(value.numpy().tobytes() if torch.is_tensor(value) else b"")
                found[batch.request.address] = digest.hexdigest()
    return found


def fitted(folder, words):
    """The exit code of a fit, and what it said."""
    shutil.rmtree(folder, ignore_errors=True)
    given = [word for word in words if not word.startswith("run_dir=")]
    return command.main(["--config-dir", "own", *given, f"run_dir={folder}"])


def weights(folder):
    state = checkpoint.load(steps_of(folder)[-1])
    digest = blake2b()
    for part in ("model", "averaged"):
        for name, value in sorted(state.get(part, {}).items()):
            digest.update(f"{part} {name}".encode() + value.float().numpy().tobytes())
    return int(state["updates"]), digest.hexdigest()


def steps_of(folder):
    return sorted(Path(folder, "checkpoints").glob("step-*"))


def results(folder):
    """What was measured at the end of each epoch, and which is best."""
    kept = ("event", "epoch", "step", "train/loss", "val/")
    lines = map(json.loads, Path(folder, "metrics.jsonl").read_text().splitlines())
    epochs = [
        {name: value for name, value in one.items() if name.startswith(kept)}
        for one in lines
        if one["event"] == "epoch"
    ]
    manifest = json.loads(Path(folder, "manifest.json").read_text())
    return epochs, manifest["best"]["epoch"], manifest["monitor"], manifest["mode"]


def is_resumed(key, row, folder):
    """Whether a run with the first value may continue with the second one."""
    early = steps_of("first")[0]
    shutil.rmtree(folder, ignore_errors=True)
    given = [word for word in row.given(key, 1) if not word.startswith("run_dir=")]
    code = command.main(["--config-dir", "own", *given, f"resume={early}", f"run_dir={folder}"])
    assert code in (0, 2)
    return code == 0


def keeps_a_done_job(key, row):
    """Whether a sweep with the first value, started again with the second, does no job anew."""
    shutil.rmtree("sweep", ignore_errors=True)
    for which in range(2):
        given = [word for word in row.given(key, which) if not word.startswith("run_dir=")]
        code = command.main(
            ["--config-dir", "own", "-m", *given, "task=digest", "steps=1", "hydra.sweep.dir=sweep"]
        )
        written = {path: path.stat().st_mtime_ns for path in Path("sweep").glob("*/manifest.json")}
        if which == 0:
            assert (code, len(written)) == (0, 1)
            before = written
    assert code in (0, 2)
    return code == 0 and written == before


CASES = {**{key: (key, row) for key, row in ROWS.items()}, **MORE}
TIERS = {
    "seed": [],
    "trainer.log_every": [pytest.mark.thorough],
    "trainer.val_every": [pytest.mark.thorough],
    "loader.worker_init_fn": [pytest.mark.thorough],
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=TIERS.get(name, [pytest.mark.stress])) for name in CASES]
)
def test_what_differs_is_what_the_key_says(name, capsys):
    key, row = CASES[name]
    shutil.rmtree("packs", ignore_errors=True)
    words = [row.given(key, which) for which in range(2)]
    Path("bad.csv").unlink(missing_ok=True)
    if key == "bad_samples.quarantine":
        assert fitted("first", [*words[0], "limits.pixels=300"]) == 0
        Path("bad.csv").write_bytes(Path("first/quarantine.csv").read_bytes())
    for folder, given in zip(("first", "second"), words, strict=True):
        assert fitted(folder, given) == 0, capsys.readouterr().err
    measured = NOTHING
    if results("first") != results("second"):
        measured = RESULTS
    if weights("first") != weights("second"):
        measured = WEIGHTS
    first, second = map(batches, words)
    changes = effect_of(key)
    both = first.keys() & second.keys() if changes < TRAINING else first.keys() | second.keys()
    if any(first.get(address) != second.get(address) for address in both):
        measured = TRAINING
    steers = any("patience" in word or "Plateau" in word for word in row.words)
    said = min(TRAINING, changes)
    if RESULTS <= changes < WEIGHTS:
        said = WEIGHTS if steers else RESULTS
    assert measured == said or (row.rounds and measured < said), (measured, said)

    resumed = is_resumed(key, row, "resumed")
    assert resumed == ((measured if changes == DATA else said) < WEIGHTS or bool(row.continues))
    if resumed and measured < WEIGHTS:
        assert weights("resumed") == weights("second"), "as if it had been trained so all along"

    kept = keeps_a_done_job(key, row)
    assert kept == (changes == NOTHING)
    assert not (kept and measured)
