"""`trainer.skip`: addresses that a fit leaves out, whatever else it does."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from penstock.errors import ConfigError
from penstock.loading.collate import Stack
from penstock.loading.loader import Loader
from penstock.loading.stream import StreamFetch
from penstock.loading.workers.executors import LoaderOptions
from penstock.order.address import Address, Skipped
from penstock.order.plan import StreamOrder, StreamPlan
from penstock.runs import checkpoint
from penstock.runs.run import Run
from tests.support import streams
from tests.support.program import run
from tests.support.resuming import EPOCHS, Case

STEPS = 6  # of each epoch in `Case`
LOADINGS = ({}, {"backend": "process", "num_workers": 2})


@dataclass
class Skipping(Case):
    skip: tuple = ()

    def loader(self, world=None, size=4, val=False, **options):
        made = super().loader(world, size, val, **options)
        if not val:
            made.plan.skipped = Skipped.of(list(self.skip))
        return made


def seen(steps):
    return [(one.epoch, one.step, one.samples, one.order, one.digest) for one in steps]


def some_ranges(seed):
    """One to three ranges among the addresses of three epochs, in mid-epoch and across epochs."""
    draw = np.random.default_rng(seed)
    places = [[epoch, step] for epoch in range(EPOCHS) for step in range(STEPS)] + [[EPOCHS, 0]]
    found = []
    for _ in range(draw.integers(1, 4)):
        first, last = np.sort(draw.choice(len(places) - 1, 2, replace=False))
        found.append([places[first], places[min(last, first + 9)]])
    return found


@pytest.mark.one_in(23)
@pytest.mark.parametrize(
    "kind",
    [
        Case(),
        Case("weighted"),
        Case("bucket"),
        Case("identity"),
        Case(stream="sharded", buffer=7),
        Case(options={"accumulate": 3}),
        Case(options={"max_steps": 7}),
        Case(stream="plain"),
    ],
    ids=["random", "weighted", "bucket", "identity", "sharded", "accumulate", "max_steps", "plain"],
)
@pytest.mark.parametrize("seed", range(6))
def test_the_ledger_is_that_of_all_batches_without_those(kind, seed, tmp_path):
    ranges = some_ranges(seed)
    whole = kind.fit(tmp_path / "whole")
    if "max_steps" in kind.options:  # reaches further, since what is left out is no step
        whole = replace(kind, options={}).fit(tmp_path / "all")
    case = Skipping(**vars(kind), skip=tuple(ranges))
    skipped = Skipped.of(ranges)
    expected = [one for one in seen(whole[1].steps) if one[:2] not in skipped]
    expected = expected[: case.options.get("max_steps", len(expected))]
    weights, written, result, _ = case.fit(tmp_path / "straight")
    assert seen(written.steps) == expected
    each = case.options.get("accumulate", 1)
    groups = {(epoch, step // each) for epoch, step, *_ in expected}
    assert result.history[-1]["step"] == len(groups)
    stops = np.random.default_rng(seed).integers(1, 5, 3).tolist()
    again = case.going_on(tmp_path / "left", stops, LOADINGS)
    assert seen(again[1]) == expected
    assert again[3].order == result.order
    assert torch.equal(again[0], weights)


def test_a_range_that_is_set_when_a_run_resumes(tmp_path):
    """As people do after a spike: from a checkpoint of before it."""
    case = Case(options={"accumulate": 2, "max_epochs": 2})
    whole = case.fit(tmp_path / "whole")
    _, before, _, stopped = case.fit(tmp_path / "run", stop=3)
    assert stopped
    state = checkpoint.find_newest(tmp_path / "run").state
    at = Address(state["loader"]["epoch"], state["loader"]["step"])
    assert at == (0, 2)  # the batch after it was learned from, and is dropped with its group
    skipping = Skipping(**vars(case), skip=([[0, 3], [0, 5]],))
    _, after, _, _ = skipping.fit(tmp_path / "run", resume=state)
    steps = seen(before.steps) + seen(after.steps)
    assert [one[:2] for one in steps[:4]] == [(0, 0), (0, 1), (0, 2), (0, 5)]
    assert steps == [one for one in seen(whole[1].steps) if one[:2] not in [(0, 3), (0, 4)]]


def test_epochs_that_are_left_out_whole_have_no_record(tmp_path):
    case = Skipping(options={"val_every": 3}, skip=([[0, 0], [1, 0]], [[2, 0], [3, 0]]))
    _, written, result, _ = case.fit(tmp_path)
    assert [one["epoch"] for one in written.records] == [1]
    assert "val/mse" in written.records[0]  # the last epoch that trains is validated
    assert (result.reason, result.best["epoch"]) == ("max_epochs", 1)
    state = checkpoint.find_newest(tmp_path).state
    assert case.fit(tmp_path, resume=state)[1].steps == []  # nothing is left
    with pytest.raises(ConfigError, match=r"trainer.skip.* leaves out every batch of trainer.max"):
        replace(case, skip=([[0, 0], [3, 0]],)).fit(tmp_path / "none")


def test_an_epoch_that_cannot_be_known_to_be_empty_ends_without_a_batch(tmp_path):
    """A stream of unknown length, of which all batches that it turns out to have are left out."""
    case = Skipping(stream="plain", options={"max_epochs": 2}, skip=([[0, 0], [0, 50]],))
    _, written, result, _ = case.fit(tmp_path)
    assert [one.epoch for one in written.steps] == [1] * 6
    assert [one["epoch"] for one in result.history] == [0, 1]


def test_a_group_whose_batches_are_all_left_out_makes_no_step(tmp_path):
    case = Skipping(options={"accumulate": 2, "max_epochs": 1}, skip=([[0, 2], [0, 5]],))
    _, written, result, _ = case.fit(tmp_path)
    assert [one.step for one in written.steps] == [0, 1, 5]
    assert result.history[-1]["step"] == 2


class Counting(streams.Plain):
    """A stream that notes which records are decoded."""

    def __init__(self, length):
        super().__init__(length)
        self.decoded = []

    def __iter__(self):
        return iter(range(self.length))

    def decode(self, record):
        self.decoded.append(record)
        return {"x": torch.tensor([record])}


def test_records_of_a_stream_are_passed_over_and_not_decoded():
    dataset, order = Counting(22), StreamOrder(0)
    fetch = StreamFetch(dataset, None, Stack(), 0, plan=StreamPlan(order, 4))
    plan = StreamPlan(order, 4, skipped=Skipped.of([[[0, 1], [0, 4]], [[1, 0], [2, 0]]]))
    with Loader(plan, fetch, LoaderOptions()) as loader:
        first = dataset.decoded
        assert [batch.request.step for batch in loader.epoch(0)] == [0, 4, 5]
        assert sorted(set(first)) == [0, 1, 2, 3, *range(16, 22)]
        dataset.decoded.clear()
        assert list(loader.epoch(1)) == []
        assert dataset.decoded == []
        assert next(iter(loader.epoch(0, start=2))).request.step == 4


FIT = ("experiment=sequences", "dataset.count=100", "batch.size=8", "trainer=quick")
FIT += ("trainer.max_epochs=2", "trainer.ledger=true", "trainer.digest=true", "tracker=none")
FIT += ("trainer.pictures=false", "trainer.baseline=false", "loader.num_workers=0")
FIT += ("loader.prefetch_factor=null", "loader.persistent_workers=null")
FIT += ("trainer.checkpoint.every_steps=4", "trainer.checkpoint.keep_last=9")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of two epochs of ten steps with checkpoints at steps 4, 8 ..."""
    from penstock import command

    folder = tmp_path_factory.mktemp("runs") / "whole"
    assert command.main([*FIT, f"run_dir={folder}", "trainer.progress=none"]) == 0
    return folder


def orders(folder):
    return {(row.epoch, row.step): row.order for row in Run(folder).ledger.itertuples()}


@pytest.mark.thorough
def test_a_resumed_run_leaves_out_what_lies_ahead(whole, tmp_path, capsys):
    spike, checkpoints = "trainer.skip=[[0,5],[0,7]]", whole / "checkpoints"
    done = run(
        capsys,
        f"resume={checkpoints / 'step-00000004.safetensors'}",
        spike,
        "trainer.progress=plain",
        f"run_dir={tmp_path / 'b'}",
    )
    assert done.code == 0, done.err
    assert "skips     [[[0,5],[0,7]]]" in done.err
    left = {at: one for at, one in orders(whole).items() if at >= (0, 4)}
    assert orders(tmp_path / "b") == {
        at: one for at, one in left.items() if at not in ((0, 5), (0, 6))
    }
    lines = (tmp_path / "b/ledger.jsonl").read_text().splitlines()
    assert json.loads(lines[1]) == {"epoch": 0, "step": 5, "skipped_to": [0, 7]}
    session = json.loads((tmp_path / "b/manifest.json").read_text())["sessions"][-1]
    assert session["skipped"] == [[[0, 5], [0, 7]]]
    # It is a key of the run from now on, and the batches before are what they were.
    again = run(capsys, f"resume={tmp_path / 'b'}", "trainer.max_epochs=3")
    assert again.code == 0, again.err
    told = run(capsys, "task=diff", f"runs=[{whole},{tmp_path / 'b'}]")
    assert ["trainer.skip", "-", "[[0,", "5],", "[0,", "7]]"] in map(
        str.split, told.out.splitlines()
    )
    assert "samples      the same at" in told.out
    assert (0, 5) not in orders(tmp_path / "b")


def test_a_range_behind_the_checkpoint_is_refused(whole, tmp_path, capsys):
    here = f"resume={whole / 'checkpoints/step-00000008.safetensors'}", f"run_dir={tmp_path / 'b'}"
    refused = run(capsys, *here, "trainer.skip=[[0,5],[0,12]]")
    assert refused.code == 2
    assert (
        "trainer.skip: leaves out other batches than the run that is resumed before (0, 8), where "
        "its checkpoint stands"
    ) in refused.err
    assert "resume_despite=[trainer.skip]" in refused.err
    assert not (tmp_path / "b").exists()


@pytest.mark.stress
def test_what_a_run_has_left_out_stays_left_out(tmp_path, capsys):
    straight = tmp_path / "straight"
    assert run(capsys, *FIT, "trainer.skip=[[0,2],[0,3]]", f"run_dir={straight}").code == 0
    other = run(capsys, f"resume={straight}", "trainer.skip=null", "trainer.max_epochs=3")
    assert other.code == 2
    assert "keep those that it left out, trainer.skip=[[[0,2],[0,3]]]" in other.err


@pytest.mark.stress
def test_replay_and_digest_tell_what_is_left_out(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    skip = "trainer.skip=[[[0,2],[0,4]],[[0,9],[1,0]]]"
    plain, marked = (run(capsys, *FIT, "task=digest", *more) for more in ((), (skip,)))
    assert (plain.code, marked.code) == (0, 0)
    expected = [
        line if line.split()[1] not in "239" else f"0 {line.split()[1]} skipped"
        for line in plain.hashes
    ]
    assert marked.hashes == expected
    assert [line.split()[1:] for line in run(capsys, *FIT, "task=digest", skip, "steps=4").hashes][
        2:
    ] == [["2", "skipped"], ["3", "skipped"]]
    replayed = run(capsys, *FIT, "task=replay", "step=3", skip)
    assert replayed.code == 0
    assert "training leaves this batch out: trainer.skip=[[[0,2],[0,4]],[[0,9],[1,0]]]" in (
        replayed.err
    )
    assert plain.hashes[3] in replayed.out
    assert "leaves this batch out" not in run(capsys, *FIT, "task=replay", "step=4", skip).err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("[[3,5],[3,5]]", "the end of each is the first address after it"),
        ("5", "trainer.skip: Input should be a valid list, got 5"),
        ("[[0,0],[20,0]]", "leaves out every batch of trainer.max_epochs=2"),
    ],
)
def test_bad_ranges(given, message, tmp_path, capsys):
    refused = run(capsys, *FIT, f"trainer.skip={given}", f"run_dir={tmp_path / 'run'}")
    assert refused.code == 2
    assert message in refused.err
    assert not Path(tmp_path / "run").exists()


@pytest.mark.stress
def test_a_run_that_fails_on_a_batch_says_how_to_go_on_without_it(tmp_path, capsys):
    given = ("scheduler=none", "optimizer.lr=1e30", "trainer.checkpoint.every_steps=1")
    given += ("trainer.log_every=1", "trainer.skip=[[1,0],[1,1]]")
    failed = run(capsys, *FIT, *given, f"run_dir={tmp_path / 'run'}")
    assert failed.code == 1
    at = failed.err.partition("at epoch 0, step ")[2].partition(".")[0]
    skip = f"trainer.skip=[[[0,{at}],[0,{int(at) + 1}]],[[1,0],[1,1]]]"
    assert f"resume={tmp_path / 'run'} '{skip}'" in failed.err
    again = run(capsys, f"resume={tmp_path / 'run'}", skip)
    assert f"at epoch 0, step {at}" not in again.err.partition("error")[2]
