"""Which runs share batches: those whose batches are the same, as far as anybody can tell."""

import json
import os
from pathlib import Path

import pytest

import penstock
from penstock import command
from penstock.addons.decode_pool import folder
from penstock.build.data import DataParts
from penstock.distributed.world import World
from penstock.errors import ConfigError
from tests import own_parts
from tests.program import run


@pytest.fixture(autouse=True)
def room(tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "_room", lambda: tmp_path / "room")
    (tmp_path / "room").mkdir()


def group(*words, split="train", world=None, **named):
    config = penstock.compose("task=fit", "loader.share=auto", *words)
    pool = DataParts(config, world or World()).split(split).loader(**named).exchange
    return None if pool is None else pool.group


@pytest.mark.stress
def test_runs_that_learn_in_another_way_share(faces):
    ours = group(*faces)
    others = (
        "optimizer.lr=0.1",
        "loader.num_workers=0",
        "trainer.max_epochs=9",
        "run_dir=there",
        "loader.share=sweep",
        "loader=threads",
        "task=digest",
        "model.width=8",
    )
    assert {group(*faces, one) for one in others} == {ours}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "word",
    [
        "seed=1",
        "batch.size=4",
        "batch.tail=drop",
        "sampler=sequential",
        "collate=list",
        "transform.train.flip=null",
        "bad_samples.on_error=skip",
        "dataset.seed=9",
        "dataset.count=50",
    ],
)
@pytest.mark.one_in(9)
def test_runs_with_other_batches_do_not(faces, word):
    assert group(*faces, word) != group(*faces)


@pytest.mark.thorough
def test_what_else_tells_batches_apart(faces, monkeypatch):
    ours = group(*faces)
    found = [
        ours,
        group(*faces, split="val"),
        group(*faces, hashed=True),
        group(*faces, world=World(1, 2)),
        group(*faces, world=World(0, 2)),
    ]
    assert len(set(found)) == len(found)
    config = penstock.compose("task=fit", *faces)
    path = next(DataParts(config).train.dataset.data_files())[1]
    times = Path(path).stat()
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns + 1))
    try:
        assert group(*faces) != ours, "the file was written since, with the same size"
    finally:
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert group(*faces) == ours
    monkeypatch.setattr("penstock.addons.decode_pool.build.version_of", lambda name: "99")
    assert group(*faces) != ours, "another torch may round in another way"


def test_tasks_that_measure_or_look_for_errors_share_nothing(faces):
    assert group(*faces, "task=profile") is group(*faces, "task=replay") is None


OWN = [
    "dataset._target_=tests.own_parts.Numbers",
    "~dataset.root",
    "~dataset.count",
    "~dataset.size",
    "~dataset.seed",
    "~dataset.val_fraction",
    "~dataset.reader",
    "transform=none",
]


def test_own_data_has_to_say_what_it_is(monkeypatch):
    monkeypatch.setenv("PENSTOCK_TRUST", "tests")
    assert group(*OWN) == group(*OWN) != group(*OWN, "+dataset.scale=2")
    monkeypatch.setattr("penstock.runs.identity.sources._of_files", lambda paths: "other")
    changed = group(*OWN)
    monkeypatch.undo()
    monkeypatch.setenv("PENSTOCK_TRUST", "tests")
    assert changed != group(*OWN), "a line of its code"
    monkeypatch.setattr(own_parts.Numbers, "fingerprint", None)
    with pytest.raises(ConfigError, match=r"loader.share: Numbers does not say .* `fingerprint`"):
        group(*OWN)


def mixture(*scales):
    sources = ", ".join(
        f"{name}: {{_target_: tests.own_parts.Numbers, size: 24, scale: {scale}}}"
        for name, scale in zip("ab", scales, strict=True)
    )
    return [
        "dataset=mixture",
        "~dataset.sources",
        "~dataset.weights",
        "transform=none",
        f"+dataset.sources={{{sources}}}",
    ]


@pytest.mark.thorough
def test_a_mixture_of_own_data_shares_or_says_which_source_does_not_say_what_it_is(monkeypatch):
    monkeypatch.setenv("PENSTOCK_TRUST", "tests")
    assert group(*mixture(1, 2)) == group(*mixture(1, 2)) != group(*mixture(1, 3))
    monkeypatch.setattr(own_parts.Numbers, "fingerprint", None)
    with pytest.raises(ConfigError, match=r"loader.share: .* does not say what .* `fingerprint`"):
        group(*mixture(1, 2))


@pytest.mark.stress
def test_a_sweep_in_turn_makes_each_batch_once(faces, capsys):
    words = [
        *faces,
        "trainer.max_epochs=2",
        "trainer.pictures=false",
        "loader.num_workers=0",
        "trainer.checkpoint=null",
    ]
    rates = "optimizer.lr=1e-2,1e-3"
    assert command.main(["-m", *words, rates, "hydra.sweep.dir=apart"]) == 0
    assert command.main(["-m", *words, rates, "hydra.sweep.dir=shared", "loader.share=auto"]) == 0
    for job in ("0", "1"):
        assert ledger(f"shared/{job}") == ledger(f"apart/{job}")
    taken = [[one["shared_batches"] for one in records(f"shared/{job}")] for job in ("0", "1")]
    assert taken == [[0, 0], [6, 6]]
    assert "6 batches of other runs" in capsys.readouterr().err
    assert "shared_batches" not in records("apart/0")[0]
    left = list(folder.PoolFolder("auto").path.parent.iterdir())
    assert left == [], "and nothing stays"


def test_a_digest_is_the_same(faces, capsys):
    alone = run(capsys, "task=digest", *faces)
    jobs = folder.JobsToCome("auto")
    shared = [run(capsys, "task=digest", *faces, "loader.share=auto") for _ in range(2)]
    jobs.end()
    assert shared[0].out == shared[1].out == alone.out


def ledger(where):
    with open(f"{where}/ledger.jsonl") as file:
        return file.read()


def records(where):
    """Those of epochs."""
    with open(f"{where}/metrics.jsonl") as file:
        found = map(json.loads, file)
        return [one for one in found if one["event"] == "epoch"]
