"""Every row has one split; shares are exact, groups whole, and the order of rows is nothing.
All splits have the classes of training under the same numbers.
"""

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from penstock import build_val_loader, compose
from penstock.addons.splits.division import Division
from penstock.build.data import DataParts
from penstock.datasets.reading.base import Shares
from penstock.errors import ConfigError, DataError
from tests.support import program


def divide(division, table, *fold, names=None):
    """The split of each row of columns by name."""
    rows = len(next(iter(table.values())))
    return division.of(rows, lambda name: np.asarray(table[name]), names, *fold)


shares = st.floats(0.05, 0.45)


@given(rows=st.integers(3, 150), val=shares, test=shares, seed=st.integers(0, 3), data=st.data())
def test_shares_are_exact_and_the_order_of_rows_changes_nothing(rows, val, test, seed, data):
    names = np.array([b"n%d" % row for row in range(rows)])
    order = np.array(data.draw(st.permutations(range(rows))))
    kinds = np.arange(rows) % 3
    for more in ({}, {"stratify": "kind"}):
        division = Division(val, test, seed, **more)
        made = divide(division, {"kind": kinds}, names=names)
        counts = np.bincount(made, minlength=3)
        assert abs(counts[1] - val * rows) <= 1
        assert abs(counts[2] - test * rows) <= 1
        labels = kinds if more else None
        val_rows = Shares(val, seed=seed).rows("val", names, labels)  # as a dataset divides its own
        assert np.array_equal(np.flatnonzero(made == 1), val_rows)
        moved = divide(division, {"kind": kinds[order]}, names=names[order])
        assert np.array_equal(moved, made[order])
        larger = Division(min(val + 0.1, 0.5), test, seed, **more)
        larger = divide(larger, {"kind": kinds}, names=names)
        assert set(np.flatnonzero(made == 1)) <= set(np.flatnonzero(larger == 1))
        assert np.array_equal(made == 2, larger == 2)
        if more and rows >= 60:
            of_kind = [np.bincount(made[kinds == kind], minlength=3) for kind in range(3)]
            assert np.ptp(of_kind, axis=0).max() <= 3


@given(
    groups=st.lists(st.integers(0, 9), min_size=12, max_size=150),
    val=shares,
    test=shares,
    folds=st.integers(2, 4),
)
def test_a_group_and_a_moment_are_on_one_side(groups, val, test, folds):
    table = {"who": np.array(groups)}
    for column in ("group", "time"):
        made = divide(Division(val, test, **{column: "who"}), table)
        assert all(len(set(made[table["who"] == who])) == 1 for who in set(groups))
        if column == "time":
            latest = [table["who"][made == of].max() for of in range(3) if (made == of).any()]
            assert latest == sorted(latest)
        if len(set(groups)) >= 3:
            assert {1, 2} <= set(made) if column == "group" else 2 in made
    folded = [divide(Division(0, test, group="who"), table, folds, fold) for fold in range(folds)]
    assert len({(made == 2).tobytes() for made in folded}) == 1
    validated = sum((made == 1).astype(int) for made in folded)
    assert np.array_equal(validated, (folded[0] != 2).astype(int))  # each that does not test, once


def test_times_are_numbers_or_dates():
    days = np.array(["2024-02-01", "2024-01-09", "2024-03-01", "2024-01-10"])
    assert divide(Division(0.25, 0.25, time="day"), {"day": days}).tolist() == [1, 0, 2, 0]
    assert divide(Division(0.25, 0.25, time="t"), {"t": [3, 1, 4, 2]}).tolist() == [1, 0, 2, 0]
    for wrong in ("soon", "", None):
        with pytest.raises(ConfigError, match=r"split\.time: row 1 has '.*a number or a date"):
            divide(Division(0.1, time="day"), {"day": np.array(["2024-02-01", wrong], object)})


def test_any_dataset_is_divided_and_mistakes_are_said_before_it_is_opened(capsys):
    words = ["task=digest", "dataset=sequences", "dataset.count=40", "loader.num_workers=0"]
    seen = {}
    for name, more in (
        ("plain", ["split=val", "data.split={val: 0.25, test: 0.25, stratify: label}"]),
        ("fold", ["split=val", "data.folds=4", "data.fold=3"]),
        ("filter", ["split=train", "data.split={val: 0.5}", "data.filter='label < 2'"]),
    ):
        made = program.run(capsys, *words, "batch.size=8", "batch.tail=keep", *more)
        assert made.code == 0, made.err
        seen[name] = sum(int(line.split()[2]) for line in made.hashes)
    assert seen == {"plain": 10, "fold": 10, "filter": 15}
    for more, message in (
        (["data.split={va: 0.1}"], "data.split.va:"),
        (["data.split={val: 0.1, group: nobody}"], "no column 'nobody'"),
        (["data.split={val: 0.1, group: a, time: b}"], "divided by group and time; choose one"),
        (["data.split={val: 0.6, test: 0.5}"], "val is 0.6 and test 0.5; allowed: 0 to 1"),
        (["data.split.val=1"], "has no rows for the train split"),
        (["data.folds=4"], "data.fold:"),
        (["data.folds=4", "data.fold=4"], "data.fold:"),
        (["data.split.val=0", "split=val"], "has no rows for the val split"),
        (["data.split={val: 0, group: label}"], "says no share that validates"),
    ):
        refused = program.run(capsys, *words, *more)
        assert refused.code == 2
        assert message in refused.err


def test_a_class_of_ones_own_that_divides_nothing(monkeypatch):
    monkeypatch.setenv("PENSTOCK_TRUST", "tests")
    words = [
        "dataset={_target_: tests.support.own_parts.Unsplit}",
        "transform=none",
        "model=linear",
    ]
    with pytest.raises(ConfigError, match=r"or divide its rows: data\.split"):
        compose(*words, "objective=regression")
    config = compose(*words, "objective=regression", "data.split={val: 0.2, test: 0.2}")
    data = DataParts(config)
    rows = [getattr(data, name).dataset for name in ("train", "val", "test")]
    places = sorted(part.rows[place] for part in rows for place in range(len(part)))
    assert places == list(range(len(rows[0].dataset)))


def test_no_filter_moves_a_row_to_another_split():
    words = ["dataset=sequences", "dataset.count=60", "data.split.stratify=label"]
    one = DataParts(compose(*words, "data.filter='length > 20'", "data.val_filter=[]"))
    other = DataParts(compose(*words, "data.val_filter='length <= 20'"))
    parts = [{*part.dataset.rows.tolist()} for data in (one, other) for part in data.splits]
    assert parts[0] < parts[2]
    assert parts[3] < parts[1]
    assert parts[1] | parts[2] == {*range(60)}
    assert not parts[1] & parts[2]


def test_shares_of_what_is_said_and_of_what_is_not(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(1000))
    np.save(tmp_path / "a.offsets.npy", np.arange(0, 1001, 2))
    tokens = ["dataset=token_files", f"dataset.root={tmp_path}"]
    strokes = {"_target_": "penstock.datasets.sequences.SyntheticSequences", "count": 50}
    own = {"dataset": {**strokes, "count": 40}, "data": {"val_dataset": strokes}}
    (tmp_path / "dataset").mkdir()
    (tmp_path / "dataset/own.yaml").write_text(f"# @package _global_\n{yaml.safe_dump(own)}")
    for words, sizes in (
        (tokens, [495, 5]),
        ([*tokens, "data.split.test=0.1"], [445, 5]),
        (["dataset=sequences", "dataset.count=40"], [32, 8]),
        (["dataset=sequences", "dataset.count=40", "data.split={val: 0, test: 0.25}"], [30, 0]),
        (["dataset=own", "collate=pad"], [40, 50]),
        (["dataset=own", "collate=pad", "data.split.test=0.25"], [30, 50]),
    ):
        data = DataParts(compose(*words, "transform=none", config_dir=str(tmp_path)))
        assert [len(data.train.dataset), len(data.val.dataset)] == sizes, words


@pytest.mark.thorough
def test_a_table_is_encoded_by_the_rows_that_train_in_the_fold(tmp_path):
    pytest.importorskip("penstock.addons.tabular")
    lines = [f"{row},{'rare' if row == 7 else 'often'},{row % 2}" for row in range(20)]
    (tmp_path / "t.csv").write_text("\n".join(["x,kind,y", *lines]))
    words = ["dataset=table", f"dataset.root={tmp_path / 't.csv'}", "dataset.target=y"]
    for fold in range(4):
        data = DataParts(compose(*words, "data.folds=4", f"data.fold={fold}"))
        train, val = data.train.dataset, data.val.dataset
        assert sorted([*rows_of(train), *rows_of(val)]) == list(range(20))
        numbers = np.array([float(train[place]["numbers"][0]) for place in range(len(train))])
        assert abs(numbers.mean()) < 1e-6
        assert abs(numbers.std() - 1) < 1e-6
        for part in (train, val):  # the same statistics in both
            for place, row in enumerate(rows_of(part)):
                mean, scale = np.mean(rows_of(train)), np.std(rows_of(train))
                assert abs(float(part[place]["numbers"][0]) - (row - mean) / scale) < 1e-5
        known = len(train.dataset.encoding["categories"]["kind"])
        assert known == (1 if 7 in rows_of(val) else 2)


def rows_of(part):
    return [int(part.rows[place]) for place in range(len(part))]


def test_windows_are_not_dealt_out(capsys):
    pytest.importorskip("penstock.addons.forecasting")
    words = ["task=digest", "dataset=drawn_series", "data.split.group=series"]
    refused = program.run(capsys, *words)
    assert refused.code == 2
    assert "windows are divided by time" in refused.err


CLASSES = {"train": "abc", "fewer": "cb", "other": "bd"}
OURS, TORCHS = "penstock.datasets.image_folder.ImageFolder", "torchvision.datasets.ImageFolder"
TABLE = {"_target_": "penstock.addons.image_tables.image_table.ImageTable", "root": "."}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """For each of CLASSES a folder of pictures, a CSV and a table; "a" is black, "d" the lightest.

    Each row has `x`, the place of its class in the alphabet.
    """
    root = tmp_path_factory.mktemp("classes")
    for name, classes in CLASSES.items():
        rows = []
        for number, label in enumerate(classes * 4):
            path, x = f"{name}/{label}/{number}.png", "abcd".index(label)
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), (x, x, x)).save(root / path)
            rows.append({"path": path, "label": label, "text": str(x), "x": float(x)})
        table = pd.DataFrame(rows)
        table.to_csv(root / f"{name}.csv", index=False)
        table[["label", "x"]].to_parquet(root / f"{name}.parquet")
    return root


def node(reader, name):
    tables = "penstock.addons.tables"
    return {
        "folder": {"_target_": OURS, "root": name},
        "torchvision": {"_target_": TORCHS, "root": name},
        "text": {
            "_target_": f"{tables}.table.MappedTable", "root": f"{name}.csv", "text": "text",
        },
        "parquet": {"_target_": f"{tables}.table.MappedTable", "root": f"{name}.parquet"},
        "stream": {
            "_target_": f"{tables}.table.StreamedTable", "root": f"{name}.parquet"
        },
        "images": {**TABLE, "table": f"{name}.csv", "path": "path", "label": "label"},
        "labels": {**TABLE, "table": f"{name}.csv", "path": "path", "labels": "label"},
    }[reader]  # fmt: skip


SAMPLERS = {"stream": ["sampler=stream"]}
READERS = ["folder", "torchvision", "text", "parquet", "stream", "images", "labels"]


def pairs(reader, batch):
    """What a row shows, and the number that its class has."""
    shown = next(batch[name] for name in ("x", "image", "text") if name in batch)
    said = next(batch[name] for name in ("label", "labels") if name in batch)
    for x, label in zip(shown, said, strict=True):
        number = label.tolist().index(1.0) if reader == "labels" else int(label)
        yield int(x if isinstance(x, str) else np.asarray(x).max()), number


def opened(reader, train, val, monkeypatch, files, build=build_val_loader):
    monkeypatch.chdir(files)
    (files / "conf" / "dataset").mkdir(parents=True, exist_ok=True)
    other = {"val_dataset": node(reader, val)}
    text = yaml.safe_dump({"dataset": node(reader, train), "data": other})
    (files / "conf" / "dataset" / "two.yaml").write_text(f"# @package _global_\n{text}")
    words = ["transform=none", "collate=list", "loader=debug", "batch.size=8"]
    words += ["objective=classification", *SAMPLERS.get(reader, [])]
    return build(compose("dataset=two", *words, config_dir=str(files / "conf")))


@pytest.mark.parametrize("reader", READERS)
def test_a_number_means_one_class_in_all_splits(reader, files, monkeypatch):
    with opened(reader, "train", "train", monkeypatch, files) as loader:
        met = {pair for batch in loader for pair in pairs(reader, batch)}
    assert met == {(x, x) for x in map("abcd".index, CLASSES["train"])}
    if reader == "folder":  # which is told the classes of training
        with opened(reader, "train", "fewer", monkeypatch, files) as loader:
            assert {pair for batch in loader for pair in pairs(reader, batch)} == {(1, 1), (2, 2)}
        with pytest.raises(DataError, match="training split has no class 'd'"):
            opened(reader, "train", "other", monkeypatch, files)
        return
    for val, differ in (("fewer", r"\(a\)"), ("other", r"\(a, c, d\)")):
        said = rf"data.val_dataset: the val split and training have different classes {differ}"
        with pytest.raises(ConfigError, match=said):
            opened(reader, "train", val, monkeypatch, files)


def test_a_class_without_rows_is_an_empty_folder_or_is_named(files, monkeypatch, tmp_path):
    monkeypatch.chdir(files)
    (files / "val-fewer.csv").write_bytes((files / "fewer.csv").read_bytes())
    words = ["dataset=delimited_text", "dataset.root='{train,val-fewer}.csv'"]
    words += ["transform=none", "collate=list", "loader=debug"]
    batch = next(iter(build_val_loader(compose(*words, "dataset.classes=[a,b,c]"))))
    assert set(pairs("text", batch)) == {(1, 1), (2, 2)}
    for label in "abc":
        (tmp_path / label).mkdir()
    Image.new("RGB", (8, 8), (1, 1, 1)).save(tmp_path / "b" / "0.png")
    with opened("folder", "train", str(tmp_path), monkeypatch, files) as loader:
        assert {pair for batch in loader for pair in pairs("folder", batch)} == {(1, 1)}


def test_sources_that_are_read_as_one_have_the_same_classes(files, monkeypatch):
    monkeypatch.chdir(files)
    from penstock.addons.mixtures.mixture import Mixture
    from penstock.datasets.image_folder import ImageFolder

    assert Mixture({name: ImageFolder("train") for name in "ab"}).classes == ["a", "b", "c"]
    concat = {
        "_target_": "torch.utils.data.ConcatDataset",
        "datasets": [{"_target_": TORCHS, "root": name} for name in ("fewer", "other")],
    }
    (files / "conf" / "dataset").mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump({"dataset": concat, "data": {"validate": False}})
    (files / "conf" / "dataset" / "both.yaml").write_text(f"# @package _global_\n{text}")
    words = ["dataset=both", "transform=none", "collate=list", "objective=classification"]
    with pytest.raises(ConfigError, match=r"dataset: part 1 and part 0 have .* \(c, d\)"):
        DataParts(compose(*words, config_dir=str(files / "conf"))).train.dataset  # noqa: B018
    with pytest.raises(ConfigError, match=r"sources: other and fewer have different .* \(c, d\)"):
        Mixture({name: ImageFolder(name) for name in ("fewer", "other")})
