"""Filters and orders of orders: whatever samples, a filtered dataset is one with fewer rows."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import Sampler

import penstock
from penstock.addons.filters.rows import chosen
from penstock.build.data import DataParts
from penstock.command import main
from penstock.distributed.world import World
from penstock.errors import ConfigError, DataError
from penstock.loading.batch import batch_hash
from penstock.order.samplers import Order
from penstock.runs.folder import read_manifest
from tests.support.own_parts import Stream

ROWS = 120
TABLE = pd.DataFrame(
    {
        "length": 1 + np.arange(ROWS) * 7 % 31,
        "label": np.arange(ROWS) % 6,
        "hash": [f"{row % 100}" for row in range(ROWS)],
        "weight": 1.0 + np.arange(ROWS) % 3,
        "path": [f"/data/{row}.txt" for row in range(ROWS)],
    }
)


class Documents:
    """Documents of unequal length, of which all or `rows` are there."""

    columns = tuple(TABLE.columns)
    facts = {"num_classes": 6, "num_outputs": 6, "num_features": 1}

    def __init__(self, split="train", rows=None, damaged=()):
        self.rows = np.arange(ROWS) if rows is None else np.asarray(rows)
        self.metadata = TABLE.iloc[self.rows].reset_index(drop=True)
        self.damaged = damaged
        self.fingerprint = f"documents {self.rows.tolist()}"

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = int(self.rows[index])
        if row in self.damaged:
            raise DataError("it is damaged")
        tokens = torch.full((int(TABLE["length"][row]),), row)
        return {"tokens": tokens, "x": torch.rand(2), "row": row}


class Backwards(Sampler):
    """A person's own sampler, of torch's kind."""

    def __init__(self, data_source):
        self.data_source = data_source

    def __len__(self):
        return len(self.data_source)

    def __iter__(self):
        return iter(range(len(self))[::-1])


class EveryThird(Order):
    def __init__(self, length):
        self.length = length

    def size(self, epoch):
        return len(range(0, self.length, 3))

    def indices(self, epoch, start, stop):
        return np.arange(start, stop) * 3


def short(table, most=20):
    return table["length"] <= most


@pytest.fixture(autouse=True)
def trusting(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_TRUST", "tests")


HERE = "tests.algorithms.filters.test_filters"
BASE = [
    f"dataset={{_target_: {HERE}.Documents}}",
    "transform=none",
    "batch.size=6",
    "collate=list",
    "task=digest",
    "loader.num_workers=0",
    "objective.inputs=[x]",
    "objective.target=row",
]
SHORT = np.flatnonzero(TABLE["length"] < 25)


ROWS_OF = "_target_: penstock.addons.filters.rows.filtered"


def data_of(*overrides):
    return DataParts(penstock.compose(*BASE, *overrides), World())


def batches(data, epoch=0):
    fetch, plan = data.train.fetch(hashed=True), data.train.plan
    return [fetch(plan.request(epoch, step)) for step in range(plan.steps(epoch))]


ALL = ["sequential", "random", "bucket", "curriculum", "packed"]
SAMPLERS = {
    **{name: (f"sampler={name}",) for name in (*ALL, "subset", "identity", "weighted")},
    "packed": ("sampler=packed", "sampler.tokens=64", "collate=packed"),
    "tail": ("sampler=packed", "sampler.tokens=64", "sampler.split=tail", "collate=packed"),
    "repeated": ("sampler=repeated", "sampler.shorten=false"),
    "torch": ("sampler={_target_: torch.utils.data.RandomSampler}",),
    "torch's batches": (
        "sampler={_target_: torch.utils.data.BatchSampler, sampler: {_target_: "
        "torch.utils.data.RandomSampler}, batch_size: 5, drop_last: false}",
    ),
    "own": (f"sampler={{_target_: {HERE}.Backwards}}",),
    "own order": (f"sampler={{_target_: {HERE}.EveryThird}}",),
}
WHOLE = {*ALL, "tail", "repeated", "torch", "torch's batches", "own"}


@pytest.mark.one_in(14)
@pytest.mark.parametrize("name", SAMPLERS)
def test_each_sampler_sees_a_dataset_of_the_kept_rows(name):
    overrides = [one.replace("identities=8", "") for one in SAMPLERS[name]]
    overrides += ["sampler.identities=3", "sampler.samples=2"] if name == "identity" else []
    filtered = data_of(*overrides, 'data.filter="length < 25"')
    # Only these rows are there at all: the same order of them, and the same draws.
    alone = data_of(*overrides, f"+dataset.rows={SHORT.tolist()}")
    found, expected = batches(filtered), batches(alone)
    assert len(found) == len(expected) > 1
    assert [batch_hash([one]) for one in found] == [batch_hash([one]) for one in expected]
    own = filtered.train.dataset.rows
    rows = {int(own[row]) for batch in found for row in batch.indices.tolist()}
    assert rows <= set(SHORT.tolist())
    assert name not in WHOLE or rows == set(SHORT.tolist())


@pytest.mark.one_in(6)
@pytest.mark.parametrize("outer", ["packed", "repeated"])
@pytest.mark.parametrize(
    "inner",
    [
        "{_target_: penstock.order.samplers.Weighted, column: label, num_samples: 60}",
        "{_target_: penstock.order.samplers.Subset, fraction: 0.5}",
        "{_target_: penstock.order.samplers.Curriculum, column: length, stages: 3}",
        "{_target_: penstock.order.samplers.Repeated, times: 2}",
        "{_target_: torch.utils.data.RandomSampler}",
        f"{{_target_: {HERE}.EveryThird}}",
    ],
)
def test_orders_go_inside_of_others(outer, inner):
    packs = ["sampler.tokens=64", "sampler.window=30", "collate=packed"]
    rest = packs if outer == "packed" else []
    inside = f"++sampler.order={inner}"
    data = data_of(f"sampler={outer}", *rest, 'data.filter="length < 25"', inside)
    found = [row for batch in batches(data, epoch=1) for row in batch.indices.tolist()]
    order = data.train.plan.sampler.order
    whole = order.indices(1, 0, order.size(1)).tolist()
    if outer == "repeated":
        whole = whole[: len(whole) // 2] * 2
    assert sorted(found) == sorted(whole)
    assert max(found) < len(SHORT)


@pytest.mark.parametrize(
    ("sampler", "order", "reason"),
    [
        ("packed", "{_target_: penstock.order.samplers.Bucket}", "Bucket is no order"),
        ("repeated", "{_target_: penstock.order.plan.StreamOrder}", "reads a stream"),
        ("repeated", "random", "expected the node of one, or null"),
        ("bucket", "{_target_: penstock.order.samplers.Random}", "unknown argument of Bucket"),
        (
            "repeated",
            "{_target_: torch.utils.data.BatchSampler, sampler: {_target_: "
            "torch.utils.data.RandomSampler}, batch_size: 5, drop_last: false}",
            "TorchBatches is no order",
        ),
    ],
)
def test_what_cannot_go_inside_is_refused(sampler, order, reason):
    packs = ["collate=packed"] if sampler == "packed" else []
    with pytest.raises(ConfigError) as error:
        data_of(f"sampler={sampler}", *packs, f"++sampler.order={order}").train.plan  # noqa: B018
    assert [one.key for one in error.value.problems] == ["sampler.order"]
    assert reason in str(error.value)


def test_an_own_sampler_that_forms_batches_is_refused_when_it_is_built(monkeypatch):
    order = f"{{_target_: {HERE}.batches_of_two}}"
    data = data_of("sampler=repeated", f"sampler.order={order}")
    with pytest.raises(ConfigError, match=r"sampler\.order: TorchBatches is no order"):
        data.train.plan  # noqa: B018


def batches_of_two(length):
    return [[row, row + 1] for row in range(0, length - 1, 2)]


def test_repetitions_have_augmentations_of_their_own():
    data = data_of("sampler=repeated", "sampler.times=2")
    batch = batches(data)[0]
    rows, drawn = batch.indices, torch.stack(list(batch["x"]))
    assert rows[:3].tolist() == rows[3:].tolist()
    assert len({tuple(one) for one in drawn.tolist()}) == 6
    with pytest.raises(ConfigError, match=r"sampler\.times: 4 does not divide batch\.size=6"):
        data_of("sampler=repeated", "sampler.times=4").train.plan  # noqa: B018


FUNCTION = f"{{_target_: {HERE}.short, most: 20}}"


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("overrides", "kept"),
    [
        (
            ['data.filter=["length < 25", "label != 3"]'],
            lambda t: t[(t["length"] < 25) & (t["label"] != 3)],
        ),
        ([f"data.filter={FUNCTION}"], lambda t: t[t["length"] <= 20]),
        (
            [f'data.filter=["label < 2", {FUNCTION}]', "data.without=[0, 12, 118]"],
            lambda t: t[(t["label"] < 2) & (t["length"] <= 20)].drop([0, 12, 118], errors="ignore"),
        ),
        (["data.unique=hash"], lambda t: t.drop_duplicates("hash")),
        # The first of those that the filter leaves; left out by name, it has no successor.
        (
            ["data.filter=label > 1", "data.unique=hash", "data.without=[2]"],
            lambda t: t[t["label"] > 1].drop_duplicates("hash").drop([2]),
        ),
        (['data.filter="~hash.duplicated()"'], lambda t: t[~t["hash"].duplicated()]),
        (["data.without={train: [5], val: [6]}"], lambda t: t.drop([5])),
        (['data.filter="length > 0"'], lambda t: t),
    ],
)
def test_rows_that_are_chosen(overrides, kept):
    data = data_of(*overrides)
    rows = list(kept(TABLE).index)
    found = [data.train.dataset[index]["row"] for index in range(len(data.train.dataset))]
    assert found == rows
    assert sum(data.train.left_out.values()) == ROWS - len(rows)
    assert sum(data.val.left_out.values()) == ROWS - len(data.val.dataset)


def test_validation_has_a_filter_of_its_own():
    data = data_of('data.filter="label < 2"', 'data.val_filter="length < 25"')
    assert len(data.train.dataset) == (TABLE["label"] < 2).sum()
    assert len(data.val.dataset) == (TABLE["length"] < 25).sum()
    assert list(data.val.left_out) == ["data.val_filter (length < 25)"]
    data = data_of('data.filter="label < 2"', "data.val_filter=[]", "data.without={val: [0, 1]}")
    assert len(data.val.dataset) == ROWS - 2
    with pytest.raises(ConfigError, match=r"data\.val_filter: .*no column 'size'"):
        data_of('data.val_filter="size > 4"').val.dataset  # noqa: B018


def test_a_dataset_inside_of_another_has_a_filter_of_its_own():
    node = f"_target_: {HERE}.Documents"
    joined = (
        "dataset={_target_: torch.utils.data.ConcatDataset, datasets: ["
        f'{{{ROWS_OF}, dataset: {{{node}}}, filter: "length < 25", without: [0]}}, {{{node}}}]}}'
    )
    rest = [one for one in BASE if not one.startswith("dataset=")]
    data = DataParts(penstock.compose(joined, *rest), World())
    assert len(data.train.dataset) == len(SHORT) - 1 + ROWS
    assert len(data.val.dataset) == len(SHORT) + ROWS
    assert data.train.dataset[len(SHORT) - 1]["row"] == 0


def refusals(*overrides):
    with pytest.raises(ConfigError) as error:
        data_of(*overrides).train.dataset  # noqa: B018
    return {one.key: one.message for one in error.value.problems}


@pytest.mark.parametrize(
    ("override", "key", "message"),
    [
        ('filter="lenght < 3"', "filter", "no column 'lenght' (did you mean 'length'?)"),
        ("filter=3", "filter", "got 3"),
        ('filter=["length < 3", "__import__(\'os\')"]', "filter[1]", "may not be called"),
        ("filter={_target_: os.system}", "filter._target_", "may not be called from"),
        (f"filter={{_target_: {HERE}.short, least: 2}}", "filter.least", "unknown argument"),
        (f"filter={{_target_: {HERE}.wrong}}", "filter", "gave int64 (3,)"),
        (
            f"filter={{_target_: {HERE}.too_few}}",
            "filter",
            "gave bool (3,); a filter gives",
        ),
        ("unique=hsah", "unique", "no column 'hsah' (did you mean 'hash'?)"),
        ("unique=3", "unique", "got 3"),
        ("without=[1,500]", "without", "row 500 does not exist; the train split has 120 rows"),
        ("without=[a]", "without", "a valid"),
        ("without=nowhere.csv", "without", "'nowhere.csv' is no quarantine that can be read"),
    ],
)
def test_mistakes(override, key, message):
    found = refusals(f"data.{override}")
    assert list(found) == [f"data.{key}"]
    assert message in found[f"data.{key}"]


def wrong(table):
    return [1, 2, 3]


def too_few(table):
    return np.ones(3, bool)


def test_a_stream_has_no_rows_to_choose():
    with pytest.raises(ConfigError, match=r"data\.filter: chooses rows by index, and Stream"):
        chosen(Stream(), {"data.filter": "length < 3"}, "train")


def test_nothing_left_is_an_error_of_the_data():
    with pytest.raises(DataError, match=r"none of 120 .*: 120 by data.filter \(length < 0\)"):
        data_of('data.filter="length < 0"').train.dataset  # noqa: B018


def test_a_run_says_what_was_left_out_and_resumes_with_the_same_rows_alone(faces, capsys):
    run = [
        "trainer=quick",
        "loader.num_workers=0",
        "dataset.count=40",
        "trainer.pictures=false",
        "trainer.report=false",
        "trainer.baseline=false",
        "run_dir=run",
        *faces,
    ]
    chosen = "data.filter='pose == \"left\"'"
    assert main([*run, chosen, "data.without=[0]", "trainer.max_epochs=1"]) == 0
    told = capsys.readouterr().err
    manifest = read_manifest(Path("run"))
    reasons = manifest["data"]["left_out"]["train"]
    assert list(reasons) == ['data.filter (pose == "left")', "data.without"]
    assert f"left out  train: {next(iter(reasons.values()))} by data.filter (pose" in told
    assert " kept=" in manifest["data"]["train"]
    other = "data.filter='pose == \"right\"'"
    assert main(["resume=run", other, "trainer.max_epochs=2"]) == 2
    assert "dataset: is " in capsys.readouterr().err
    assert main(["resume=run", "trainer.max_epochs=2"]) == 0
    assert read_manifest(Path("run"))["data"]["left_out"]["train"] == reasons
