"""`task=without`: a run goes on as if it had never seen a sample."""

import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

from penstock import compose
from penstock.addons.backwards.without import saved_in
from penstock.build.data import DataParts
from penstock.distributed.world import World
from penstock.order.randomness import hash64, hash64_each
from penstock.runs import left_out
from penstock.runs.record import by_address
from tests.hostile_files import bounded
from tests.packs.test_packed_runs import FIT as PACKED_FIT
from tests.packs.test_packed_runs import messages  # noqa: F401  (a fixture)
from tests.program import run

DATA = ("experiment=sequences", "dataset.count=60", "batch.size=8", "loader=debug")
FIT = (
    *DATA,
    "trainer=quick",
    "scheduler=none",
    "trainer.max_epochs=3",
    "trainer.max_steps=16",
    "trainer.ledger=true",
    "trainer.digest=true",
    "trainer.progress=none",
    "trainer.pictures=false",
    "trainer.baseline=false",
    "tracker=none",
    "trainer.checkpoint.every_steps=3",
    "trainer.checkpoint.keep_last=9",
)
KEPT = (
    "trainer.max_steps=14",
    "trainer.checkpoint.every_steps=3",
    "trainer.checkpoint.keep_last=9",
)
FACES = "{_target_: penstock.datasets.synthetic_faces.SyntheticFaces, root: null, size: 48, "
MIXTURE = (
    "dataset=mixture",
    f"dataset.sources.drawn={FACES}count: 30}}",
    f"dataset.sources.photographs={FACES}count: 20, seed: 1}}",
    "dataset.weights={drawn: 2, photographs: 1}",
    "batch.size=4",
    *FIT[3:],
)
SAMPLERS = {
    "random": (),
    "weighted": ("sampler=weighted", "sampler.column=label"),
    "bucket": ("sampler=bucket",),
    "packed": (),
    "mixture": (),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of two epochs and a half with a checkpoint every three steps."""
    from penstock import command

    folder = tmp_path_factory.mktemp("runs") / "a"
    assert command.main([*FIT, f"run_dir={folder}"]) == 0
    return folder


def told(out):
    """The lines of an answer by their first words, and the words of the command in it."""
    lines = out.splitlines()
    found = {line[:10].strip(): line[11:] for line in lines if line[10:11] == " "}
    return found, shlex.split(lines[-1])[2:]


def parts(*words):
    return DataParts(compose(*words), World()).train


def orders(folder):
    return {at: int(one["order"], 16) for at, one in by_address(folder / "ledger.jsonl")}


def digests(folder):
    return {at: one["hash"] for at, one in by_address(folder / "digests.jsonl")}


def share_in_order(plan, address, row):
    """What a row adds to the hash of its batch in the ledger, modulo 2^64."""
    request = plan.request(*address)
    positions = request.positions[: request.valid][request.indices[: request.valid] == row]
    key = np.full(len(positions), hash64("order", *address), np.uint64)
    rows = np.full(len(positions), row)
    mixed = hash64_each(key, positions.astype(np.uint64) + hash64_each(key + np.uint64(1), rows))
    return sum(mixed.tolist()) % 2**64


CASES = [
    (sampler, on_error) for sampler in SAMPLERS for on_error in ("raise", "skip", "substitute")
]


@pytest.mark.thorough
@pytest.mark.one_in(len(CASES))
@pytest.mark.parametrize(("sampler", "on_error"), CASES)
def test_the_printed_command_makes_a_run_that_never_sees_it(
    sampler, on_error, trained, request, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_TRUST", "tests")
    words = (*FIT, *SAMPLERS[sampler], f"bad_samples.on_error={on_error}")
    if sampler == "packed":
        words = (*request.getfixturevalue("messages"), *PACKED_FIT, *KEPT, words[-1])
    elif sampler == "mixture":
        words = (*MIXTURE, *KEPT, words[-1])
    if words == (*FIT, "bad_samples.on_error=raise"):
        shutil.copytree(trained, "a")
    else:
        done = run(capsys, *words, "run_dir=a")
        assert done.code == 0, done.err
    split, first = parts(*words), orders(Path("a"))
    plan = split.plan
    having = {
        row: [at for at in first if row in plan.request(*at).indices]
        for row in range(len(split.dataset))
    }
    row = next(row for row, found in having.items() if found and (0, 4) <= found[0] < (0, 6))
    asked = run(capsys, "task=without", f"sample={row}", "run=a")
    assert asked.code == 0, asked.err
    lines, command = told(asked.out)
    assert lines["seen"].startswith(f"first at epoch 0, step {having[row][0][1]}; the run has")
    assert lines["resumes"] == "from a/checkpoints/step-00000003.safetensors, at epoch 0, step 3"
    done = run(capsys, *command)
    assert done.code == 0, done.err
    again = orders(Path("a-without"))
    assert min(again) == (0, 3)
    # It is in no batch; every other sample is where it was, in the very same bits.
    for at, order in again.items():
        if at in having[row]:
            left = (first[at] - share_in_order(plan, at, row)) % 2**64
            assert (order == left) == (on_error != "substitute")
            assert order != first[at]
        elif at in first:
            assert order == first[at]
            assert digests(Path("a-without"))[at] == digests(Path("a"))[at]
    assert set(first) - set(again) == {(0, 0), (0, 1), (0, 2)}
    made = left_out.read("a-without/quarantine.csv")
    assert {one.index for one in made} == {row}


@pytest.mark.thorough
def test_without_an_old_checkpoint_it_begins_anew(trained, tmp_path, capsys):
    folder = shutil.copytree(trained, tmp_path / "a")
    row = int(parts(*FIT).plan.request(0, 1).indices[0])
    lines, command = told(run(capsys, "task=without", f"sample={row}", f"run={folder}").out)
    assert lines["resumes"] == "from the beginning: no checkpoint is older than that"
    assert command == [
        *FIT,
        f"bad_samples.quarantine={folder}-without.csv",
        f"run_dir={folder}-without",
    ]
    (entry,) = left_out.read(f"{folder}-without.csv")
    assert (entry.split, entry.index, entry.epoch, entry.step) == ("train", row, 0, 1)
    written = Path(f"{folder}-without.csv").read_bytes()
    again = run(capsys, "task=without", "sample=[0,1]", f"run={folder}")
    assert f"left out   {folder}-without-2.csv" in again.out
    assert Path(f"{folder}-without.csv").read_bytes() == written
    assert [one.index for one in left_out.read(f"{folder}-without-2.csv")] == [0, 1]


@pytest.mark.stress
def test_a_sample_named_by_its_path_and_rows_behind_filters_by_the_datasets_own(
    faces, tmp_path, capsys
):
    words = (
        *faces,
        "trainer.fast_dev_run=false",
        "trainer=quick",
        "trainer.max_steps=2",
        "trainer.checkpoint.every_steps=1",
        "trainer.checkpoint.keep_last=5",
        "loader=debug",
        "trainer.pictures=false",
        "trainer.baseline=false",
        "tracker=none",
        "+dataset.without=[2,3]",
    )
    assert run(capsys, *words, "run_dir=a").code == 0
    split = parts(*words)
    row = int(split.plan.request(0, 1).indices[3])
    own = split.dataset.row(row)
    assert own != row
    path = split.dataset.path(row)
    lines, command = told(run(capsys, "task=without", f"sample={path}", "run=a").out)
    assert lines["sample"] == f"row {own}  {path}"
    assert command[0] == "resume=a/checkpoints/step-00000001.safetensors"
    (entry,) = left_out.read("a-without.csv")
    assert (entry.index, entry.cause) == (own, f"task=without {path}")
    assert run(capsys, *command).code == 0
    assert [one.index for one in left_out.read("a-without/quarantine.csv")] == [own]


@pytest.mark.stress
def test_what_was_skipped_or_left_out_was_not_seen(trained, tmp_path, capsys):
    plan = parts(*FIT).plan
    row = int(plan.request(0, 1).indices[0])
    skip = "trainer.skip=[[0,1],[0,2]]"
    assert run(capsys, *FIT, skip, f"run_dir={tmp_path / 'a'}").code == 0
    lines, command = told(run(capsys, "task=without", f"sample={row}", f"run={tmp_path}/a").out)
    second = plan.steps_of(1, row)[0]
    assert lines["seen"].startswith(f"first at epoch 1, step {second}; ")
    # A run that began from its checkpoint can go back to what that one has.
    (start,) = (word.partition("=")[2] for word in command if word.startswith("resume="))
    later = next(one for one in saved_in(tmp_path / "a") if one.address > (1, 5))
    begun = run(capsys, f"resume={later.path}", f"run_dir={tmp_path / 'b'}")
    assert begun.code == 0, begun.err
    again = run(capsys, "task=without", f"sample={row}", f"run={tmp_path / 'b'}")
    assert f"resumes    from {start}, at" in again.out


@pytest.mark.stress
def test_a_sample_that_was_not_reached_or_never_will_be(tmp_path, capsys):
    short = (
        *FIT,
        "trainer.max_steps=3",
        "trainer.max_epochs=1",
        "sampler=subset",
        "sampler.fraction=null",
        f"sampler.indices=[{','.join(map(str, range(32)))}]",
        f"run_dir={tmp_path / 'a'}",
    )
    assert run(capsys, *short).code == 0
    order = parts(*short).plan
    last = int(order.request(0, 3).indices[0])
    lines, command = told(run(capsys, "task=without", f"sample={last}", f"run={tmp_path}/a").out)
    assert lines["seen"] == "not yet; the run has reached epoch 0, step 3"
    assert command[0] == f"resume={tmp_path}/a/checkpoints/step-00000003.safetensors"
    never = run(capsys, "task=without", "sample=40", f"run={tmp_path}/a")
    assert (never.code, "never, and the run never will" in never.out) == (0, True)
    assert not (tmp_path / "a-without-2.csv").exists()
    missing = run(capsys, "task=without", "sample=4")
    assert (missing.code, "run" in missing.err) == (2, True)


@pytest.mark.stress
def test_a_row_that_stood_in_for_a_bad_one_was_seen(tmp_path, capsys):
    """Where bad samples are substituted, a row is met at addresses that its order does not have."""
    bad = next(one for one in range(48) if parts(*FIT).plan.steps_of(0, one)[0] == 4)
    given = (*FIT, "bad_samples.on_error=substitute")
    assert run(capsys, *given, f"run_dir={tmp_path / 'z'}").code == 0
    assert run(capsys, "task=without", f"sample={bad}", f"run={tmp_path / 'z'}").code == 0
    listed = f"bad_samples.quarantine={tmp_path / 'z-without.csv'}"
    assert run(capsys, *given, listed, f"run_dir={tmp_path / 'a'}").code == 0
    split = parts(*given, listed)
    request = split.plan.request(0, 4)
    taken = split.fetch()(request).indices
    (stood_in,) = taken[taken != request.indices].tolist()
    lines, _ = told(run(capsys, "task=without", f"sample={stood_in}", f"run={tmp_path / 'a'}").out)
    assert lines["seen"].startswith(
        f"first at epoch 0, step {min(4, *split.plan.steps_of(0, stood_in))};"
    )
    named = left_out.read(tmp_path / "a-without.csv")
    assert [one.index for one in named] == [bad, stood_in]  # what was left out still is


def test_checkpoints_tell_where_they_stand(trained, tmp_path):
    folder = shutil.copytree(trained, tmp_path / "a") / "checkpoints"
    (folder / "step-00000006.safetensors").rename(folder / "set-aside-step-00000006.safetensors")
    (folder / "step-00000009.safetensors").write_bytes(b"damaged")
    found = {one.path.name: one for one in saved_in(folder.parent)}
    assert found["step-00000003.safetensors"].address == (0, 3)
    assert not found["set-aside-step-00000006.safetensors"].is_usable
    assert found["step-00000009.safetensors"].address is None
    assert "best.safetensors" in found


def test_the_head_of_a_checkpoint_has_a_bound(tmp_path):
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    for name, length in (("a", 1 << 40), ("b", 100 << 20)):
        with (folder / f"{name}.safetensors").open("wb") as file:
            file.write(length.to_bytes(8, "little") + b'{"__metadata__": ')
            file.truncate(min(length, 1 << 30))
    with bounded(512 << 20):
        found = saved_in(tmp_path)
    assert [one.is_usable for one in found] == [False, False]
    assert "more than 134217728" in found[0].trouble
