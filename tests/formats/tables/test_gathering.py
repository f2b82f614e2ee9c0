"""Batches gathered from columns are those of the samples, to the bit; so are the errors."""

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import build_train_loader, compose
from penstock.addons.filters.rows import KeptRows
from penstock.addons.mixtures.mixture import Mixture
from penstock.addons.tables.table import MappedTable, StreamedTable
from penstock.addons.tabular.table import Table
from penstock.datasets.arrays import Arrays
from penstock.datasets.reading.base import Shares
from penstock.errors import ConfigError, DataError
from penstock.loading.bad_samples import BadSamples
from penstock.loading.collate import Pad, Stack
from penstock.loading.fetch import Fetch
from penstock.loading.loader import Loader, LoaderOptions
from penstock.loading.stream import StreamFetch
from penstock.order.plan import Plan, StreamOrder, StreamPlan, StreamRequest
from penstock.order.samplers import Random, Sequential
from tests.support.gathering import assert_same, by_sample, gathers, made, never, requests_of
from tests.support.table_files import make, pa, write

ROWS = 23
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


def integers(bits, signed=True):
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return st.integers(low, high)


def lists(values, **sizes):
    return st.lists(values, **sizes)


# Type of a column -> what its cells are drawn from.
COLUMNS = {
    "int8": (pa.int8(), integers(8)),
    "int64": (pa.int64(), integers(64)),
    "uint16": (pa.uint16(), integers(16, signed=False)),
    "uint64": (pa.uint64(), integers(63, signed=False)),
    "bool": (pa.bool_(), st.booleans()),
    "float": (pa.float32(), FLOATS),
    "double": (pa.float64(), st.floats(allow_nan=False, allow_infinity=False)),
    "string": (pa.string(), st.text(st.characters(codec="utf-8"), max_size=9)),
    "large": (pa.large_string(), st.text("aé☃😀", max_size=3)),
    "coded": (pa.dictionary(pa.int8(), pa.string()), st.sampled_from(["x", "y", "zz"])),
    "fixed": (pa.list_(pa.float64(), 3), lists(FLOATS, min_size=3, max_size=3)),
    "pairs": (
        pa.list_(pa.list_(pa.uint8(), 2), 2),
        lists(lists(integers(8, signed=False), min_size=2, max_size=2), min_size=2, max_size=2),
    ),
    "list": (pa.list_(pa.int32()), lists(integers(32), max_size=5)),
    "steps": (
        pa.large_list(pa.list_(pa.float32(), 2)),
        lists(lists(FLOATS, min_size=2, max_size=2), max_size=3),
    ),
}


@st.composite
def tables(draw):
    chosen = draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=5, unique=True))
    columns = {}
    for name in chosen:
        type_, cells = COLUMNS[name]
        # One draw of a few cells, repeated: drawing each would take most of the time.
        some = draw(st.lists(cells, min_size=1, max_size=4))
        places = np.random.default_rng(draw(st.integers(0, 99))).integers(0, len(some), ROWS)
        values = [some[place] for place in places]
        if draw(st.integers(0, 5)) == 0:
            values[draw(st.integers(0, ROWS - 1))] = None
        if name in ("float", "double") and draw(st.integers(0, 5)) == 0:
            values[draw(st.integers(0, ROWS - 1))] = float("nan")
        columns[name] = pa.array(values, type_)
    return pa.table(columns)


@settings(max_examples=30, deadline=None)
@given(
    table=tables(),
    suffix=st.sampled_from(["parquet", "arrow", "compressed.feather"]),
    group=st.integers(1, ROWS),
    seed=st.none() | st.integers(0, 9),
    fraction=st.sampled_from([0.0, 0.3]),
    pad=st.booleans(),
)
def test_any_table(table, suffix, group, seed, fraction, pad, tmp_path_factory):
    root = tmp_path_factory.mktemp("table")
    write(root / f"x.{suffix}", table, group=group)
    options = {"shares": Shares(fraction), "cache_dir": str(root)}
    collate = Pad(value=3) if pad else Stack()
    data, other = (MappedTable(str(root), **options) for _ in range(2))
    requests = requests_of(data, seed=seed)
    assert_same(
        made(Fetch(data, None, collate, 0), requests),
        by_sample(Fetch(other, None, collate, 0), requests),
    )
    plan = StreamPlan(StreamOrder(3, 9 * (seed is not None), shuffle_shards=True), 6)
    requests = [StreamRequest(1, step) for step in range(len(data) // 6)]
    stream, other = (
        StreamFetch(StreamedTable(str(root), **options), None, collate, 0, plan=plan)
        for _ in range(2)
    )
    assert_same(made(stream, requests), by_sample(other, requests))


@pytest.fixture
def table(tmp_path):
    """50 rows in two files, row groups of 10, and nothing but columns that can be gathered."""
    write(tmp_path / "a.parquet", make(30, image=None))
    write(tmp_path / "b.parquet", make(20, first=30, image=None))
    return tmp_path


def test_batches_take_no_samples(table, monkeypatch):
    data = MappedTable(str(table), shares=Shares(0.0))
    work = Fetch(data, None, Pad(), 0)
    assert gathers(work, monkeypatch)
    assert_same(made(work, requests_of(data, seed=1)), by_sample(work, requests_of(data, seed=1)))
    stream = StreamedTable(str(table), shares=Shares(0.0), fields={"number": None, "vector": None})
    work = StreamFetch(stream, None, Stack(), 0, plan=StreamPlan(StreamOrder(0, 25, True), 6))
    monkeypatch.setattr(StreamedTable, "_samples", never)
    assert sorted(work(StreamRequest(0, 0))["number"].tolist()) != list(range(6))


@pytest.mark.parametrize("backend", ["process", "thread"])
def test_backends(table, backend):
    data = MappedTable(str(table))
    fetch = Fetch(data, None, Pad(), 0)
    with Loader(Plan(Random(len(data), 0), 8), fetch, LoaderOptions(backend, 2)) as loader:
        batches = list(loader) + list(loader)
    with Loader(Plan(Random(len(data), 0), 8), fetch) as loader:
        assert_same(batches, list(loader) + list(loader))


def test_a_copy_reads_anew(table):
    data = MappedTable(str(table))
    work = Fetch(data, None, Pad(), 0)
    batches = made(work, requests_of(data))
    copy = pickle.loads(pickle.dumps(data))
    assert_same(made(Fetch(copy, None, Pad(), 0), requests_of(data)), batches)


def test_a_filter(table, monkeypatch):
    data = MappedTable(str(table), shares=Shares(0.0))
    kept = KeptRows(data, np.arange(50) % 3 > 0, {})
    work = Fetch(kept, None, Pad(), 0)
    monkeypatch.setattr(MappedTable, "_samples", never)
    batches = made(work, requests_of(kept, seed=2))
    monkeypatch.undo()
    assert_same(batches, by_sample(work, requests_of(kept, seed=2)))


def test_a_mixture(table, tmp_path_factory, monkeypatch):
    more = tmp_path_factory.mktemp("more")
    write(more / "x.parquet", make(9, first=50, image=None), group=4)
    fields = dict.fromkeys(["number", "real", "text", "label", "vector"])
    sources = {
        "one": MappedTable(str(table), shares=Shares(0.0), fields=fields),
        "other": MappedTable(str(more), shares=Shares(0.0), fields=fields),
    }
    data = Mixture(sources)
    work = Fetch(data, None, Pad(), 0)
    with monkeypatch.context() as patch:
        patch.setattr(MappedTable, "_samples", never)
        batches = made(work, requests_of(data, seed=4))
    assert_same(batches, by_sample(work, requests_of(data, seed=4)))


def test_a_mixture_of_other_types(table, tmp_path_factory):
    more = tmp_path_factory.mktemp("more")
    write(more / "x.parquet", pa.table({"number": [0.5, 1.5]}))
    few = {"fields": {"number": None}, "shares": Shares(0.0)}
    data = Mixture({n: MappedTable(str(p), **few) for n, p in {"a": table, "b": more}.items()})
    work = Fetch(data, None, Stack(), 0)
    requests = [Plan(Sequential(52), 6).request(0, step) for step in (0, 8)]
    assert_same(made(work, requests), by_sample(work, requests))


TARGETS = {"class": {"target": "c"}, "number": {"target": "a"}}


@pytest.mark.parametrize("target", TARGETS)
def test_an_encoded_table(target, tmp_path, monkeypatch):
    path = tmp_path / "x.csv"
    path.write_text("a,b,c,d\n" + "".join(f"{n}.5,{n},{'xy'[n % 2]},t{n % 3}\n" for n in range(40)))
    data = Table(str(path), kind="class" if target == "class" else "number", **TARGETS[target])
    work = Fetch(data, None, Stack(), 0)
    with monkeypatch.context() as patch:
        patch.setattr(Table, "__getitem__", never)
        batches = made(work, requests_of(data, seed=4))
    assert_same(batches, by_sample(work, requests_of(data, seed=4)))


@pytest.mark.parametrize("targets", [np.arange(30) % 3, np.arange(60.0).reshape(30, 2)])
def test_arrays(targets, tmp_path, monkeypatch):
    np.save(tmp_path / "inputs.npy", np.arange(90, dtype=np.float64).reshape(30, 3))
    np.save(tmp_path / "targets.npy", targets)
    data = Arrays(str(tmp_path))
    work = Fetch(data, None, Stack(), 0)
    with monkeypatch.context() as patch:
        patch.setattr(Arrays, "__getitem__", never)
        batches = made(work, requests_of(data, seed=4))
    assert_same(batches, by_sample(work, requests_of(data, seed=4)))
    values = np.load(tmp_path / "inputs.npy")
    values[:, 1] = np.nan
    np.save(tmp_path / "inputs.npy", values)
    work = Fetch(Arrays(str(tmp_path)), None, Stack(), 0)
    assert "is not finite" in made(work, requests_of(data))[0]


class Doubled(MappedTable):
    """A person's own samples."""

    def __getitem__(self, index):
        return {"double": 2 * super().__getitem__(index)["number"]}

    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Wrapped:
    """Hands on the attributes of a dataset, and has samples of its own."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        return {"double": 2 * self.dataset[index]["number"]}

    def __getattr__(self, name):
        if name in ("dataset", "__getitems__") or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.dataset, name)


@pytest.mark.parametrize(
    "make_one", [Doubled, lambda root, **how: Wrapped(MappedTable(root, **how))]
)
def test_samples_of_ones_own(table, make_one):
    data = make_one(str(table), shares=Shares(0.0))
    assert data.fetches_batches
    batch = Fetch(data, None, Stack(), 0)(requests_of(data)[0])
    assert batch["double"].tolist() == [0, 2, 4, 6, 8, 10]


def test_a_transform_of_samples(table):
    data = MappedTable(str(table), shares=Shares(0.0))
    work = Fetch(data, lambda sample: {"x": sample["number"] + 1}, Stack(), 0)
    assert work(requests_of(data)[0])["x"].tolist() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("action", ["raise", "skip", "substitute"])
def test_a_bad_row_is_found(action, tmp_path):
    values = [float(row) for row in range(30)]
    values[17] = float("inf")
    write(tmp_path / "x.parquet", pa.table({"x": values, "n": pa.array([*range(29), None])}))
    data = MappedTable(str(tmp_path), shares=Shares(0.0))
    work = Fetch(data, None, Stack(), 0, bad=BadSamples(action, sampler=Sequential(len(data))))
    batches = made(work, requests_of(data))
    if action == "raise":
        assert "row 17, column 'x': inf is no finite number" in batches[2]
        assert "row 29, column 'n': None is no finite number" in batches[4]
        assert [isinstance(batch, str) for batch in batches] == [False, False, True, False, True]
    assert_same(batches, by_sample(work, requests_of(data)))


def test_lists_of_different_lengths_cannot_be_stacked(table):
    data = MappedTable(str(table), shares=Shares(0.0), fields={"sequence": None})
    assert "field 'sequence': " in made(Fetch(data, None, Stack(), 0), requests_of(data))[0]


@pytest.mark.parametrize(
    ("words", "backend"),
    [
        ([], "thread"),
        (["loader.timeout=60"], "process"),  # only those can be stopped
        (["transform=text"], "process"),  # words by words, in Python
    ],
)
def test_rows_without_transforms_are_gathered_in_threads(table, words, backend):
    common = ["dataset=parquet", f"dataset.root={table}", "loader=fast", "loader.num_workers=2"]
    chosen = ["dataset.fields={number: number, text: text}", "transform=none"]
    with build_train_loader(compose(*common, *chosen, *words)) as loader:
        assert loader.options.backend == backend


JOINED = {"features": {"columns": ["real", "number", "flag"]}, "whole": {"columns": ["number"]}}


def test_columns_that_are_put_together(table, monkeypatch):
    data = MappedTable(str(table), shares=Shares(0.0), fields=JOINED)
    assert torch.equal(data[7]["features"], torch.tensor([7 / 4, 7.0, 0.0]))
    assert torch.equal(data[7]["whole"], torch.tensor([7]))
    assert data.facts["num_features"] == 3
    assert {"real", "number", "flag"} <= set(data.metadata.columns)
    work = Fetch(data, None, Stack(), 0)
    assert gathers(work, monkeypatch)
    assert_same(made(work, requests_of(data, seed=0)), by_sample(work, requests_of(data, seed=0)))


def test_a_bad_cell_of_columns_that_are_put_together(tmp_path):
    write(tmp_path / "x.parquet", pa.table({"a": [1.0, 2.0], "b": pa.array([1, None])}))
    data = MappedTable(str(tmp_path), shares=Shares(0.0), fields={"x": {"columns": ["a", "b"]}})
    with pytest.raises(DataError, match=r"row 1, .*column 'b': None is no finite number"):
        data[1]


@pytest.mark.parametrize(
    ("choice", "match"),
    [
        ({"columns": ["real", "nmber"]}, r"x: there is no column 'nmber'; did you mean"),
        (
            {"columns": ["real", "text"]},
            r"column 'text' is string, which can be text, label, not number",
        ),
        ({"columns": "real"}, r"columns alone, a list of numbers"),
        ({"columns": []}, r"columns alone, a list of numbers"),
        ({"columns": [3]}, r"there is no column 3"),
        ({"columns": ["real"], "kind": "number"}, r"'kind': 'number'}; allowed: column and kind"),
    ],
)
def test_columns_that_cannot_be_put_together(table, choice, match):
    with pytest.raises(ConfigError, match=match):
        MappedTable(str(table), fields={"x": choice})


def test_columns_that_are_put_together_otherwise_are_other_data(tmp_path):
    table = pa.table({name: [0.0, 1.0] for name in ("a", "a b", "b c", "c")})
    write(tmp_path / "x.parquet", table)

    def fingerprint(*columns):
        fields = {"x": {"columns": list(columns)}}
        return MappedTable(str(tmp_path), fields=fields, shares=Shares(0.0)).fingerprint

    assert fingerprint("a b", "c") != fingerprint("a", "b c")
    assert fingerprint("a", "c") != fingerprint("c", "a")
