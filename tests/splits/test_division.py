"""Every row has one split; shares are exact, groups whole, and the order of rows is nothing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import compose
from penstock.addons.splits.division import Division
from penstock.build.data import DataParts
from penstock.errors import ConfigError
from tests import program


def divide(division, table, names=None):
    """The split of each row of columns by name."""
    rows = len(next(iter(table.values())))
    return division.of(rows, lambda name, _: np.asarray(table[name]), names)


shares = st.floats(0.05, 0.45)


@given(rows=st.integers(3, 150), val=shares, test=shares, seed=st.integers(0, 3), data=st.data())
def test_shares_are_exact_and_the_order_of_rows_changes_nothing(rows, val, test, seed, data):
    table = {"name": np.array([f"n{row}" for row in range(rows)]), "kind": np.arange(rows) % 3}
    order = np.array(data.draw(st.permutations(range(rows))))
    moved = {name: values[order] for name, values in table.items()}
    for more in ({}, {"stratify": "kind"}):
        division = Division(val, test, seed, by="name", **more)
        made = divide(division, table)
        counts = np.bincount(made, minlength=3)
        assert abs(counts[1] - val * rows) <= 1
        assert abs(counts[2] - test * rows) <= 1
        if not more:
            assert np.array_equal(divide(division, moved), made[order])
        larger = divide(Division(min(val + 0.1, 0.5), test, seed, by="name", **more), table)
        assert set(np.flatnonzero(made == 1)) <= set(np.flatnonzero(larger == 1))
        assert np.array_equal(made == 2, larger == 2)
        if more and rows >= 60:
            of_kind = [np.bincount(made[table["kind"] == kind], minlength=3) for kind in range(3)]
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
    folded = [
        divide(Division(0, test, group="who", folds=folds, fold=fold), table)
        for fold in range(folds)
    ]
    assert len({(made == 2).tobytes() for made in folded}) == 1
    validated = sum((made == 1).astype(int) for made in folded)
    assert np.array_equal(validated, (folded[0] != 2).astype(int))  # each that does not test, once


def test_columns_and_files_say_it(tmp_path):
    table = {"part": ["train", "Validation", "test", "val"], "when": ["2020-02-01", "x", "", None]}
    assert divide(Division(column="part"), table).tolist() == [0, 1, 2, 1]
    (tmp_path / "val.txt").write_text("b.png\n2\n\n")
    names = np.array([b"a.png", b"b.png", b"c.png"])
    files = {"val": str(tmp_path / "val.txt")}
    assert Division(files=files).of(3, None, names).tolist() == [0, 1, 1]
    (tmp_path / "val.txt").write_text("b.png\nd.png\n")
    with pytest.raises(ConfigError, match=r"line 2: there is no row 'd\.png' among 3"):
        Division(files=files).of(3, None, names)
    with pytest.raises(ConfigError, match="neither numbers nor dates"):
        divide(Division(0.1, time="when"), table)
    table["part"][1] = "holdout"
    with pytest.raises(ConfigError, match="'part' of row 1 is 'holdout'"):
        divide(Division(column="part"), table)


def test_any_dataset_is_divided_and_mistakes_are_said_before_it_is_opened(capsys, monkeypatch):
    words = ["task=digest", "dataset=sequences", "dataset.count=40", "loader.num_workers=0"]
    seen = {}
    for name, more in (
        ("plain", ["split=val", "+dataset.split={val: 0.25, test: 0.25, stratify: label}"]),
        ("fold", ["split=val", "+dataset.folds=4", "+dataset.fold=3"]),
        ("filter", ["split=train", "+dataset.split={val: 0.5}", "+dataset.filter='label < 2'"]),
    ):
        made = program.run(capsys, *words, "batch.size=8", "batch.tail=keep", *more)
        assert made.code == 0, made.err
        seen[name] = sum(int(line.split()[2]) for line in made.hashes)
    assert seen == {"plain": 10, "fold": 10, "filter": 15}
    for more, message in (
        (["+dataset.split={va: 0.1}"], "dataset.split.va: unknown"),
        (["+dataset.split={val: 0.1, group: nobody}"], "no column 'nobody'"),
        (["+dataset.split={val: 0.1, group: a, time: b}"], "divided by group already"),
        (["+dataset.split={val: 0.6, test: 0.5}"], "leave no rows to train on"),
        (["+dataset.folds=4"], "dataset.fold:"),
        (["+dataset.folds=4", "+dataset.fold=4"], "dataset.fold:"),
        (["+dataset.split={test: 0.5}"], "says no share that validates"),
    ):
        refused = program.run(capsys, *words, *more)
        assert refused.code == 2
        assert message in refused.err


def test_a_class_of_ones_own_that_divides_nothing(monkeypatch):
    monkeypatch.setenv("PENSTOCK_TRUST", "tests")
    words = ["dataset={_target_: tests.own_parts.Unsplit}", "transform=none", "model=linear"]
    with pytest.raises(ConfigError, match=r"or divide its rows: \+dataset\.split"):
        compose(*words, "objective=regression")
    config = compose(*words, "objective=regression", "+dataset.split={val: 0.2, test: 0.2}")
    data = DataParts(config)
    rows = [data.split(name).dataset for name in ("train", "val", "test")]
    places = sorted(part.row(place) for part in rows for place in range(len(part)))
    assert places == list(range(len(rows[0].dataset)))


@pytest.mark.thorough
def test_a_table_is_encoded_by_the_rows_that_train_in_the_fold(tmp_path):
    pytest.importorskip("penstock.addons.tabular")
    lines = [f"{row},{'rare' if row == 7 else 'often'},{row % 2}" for row in range(20)]
    (tmp_path / "t.csv").write_text("\n".join(["x,kind,y", *lines]))
    words = ["dataset=table", f"dataset.root={tmp_path / 't.csv'}", "dataset.target=y"]
    for fold in range(4):
        data = DataParts(compose(*words, "+dataset.folds=4", f"+dataset.fold={fold}"))
        train, val = data.train.dataset, data.val.dataset
        assert sorted([*rows_of(train), *rows_of(val)]) == list(range(20))
        numbers = np.array([float(train[place]["numbers"][0]) for place in range(len(train))])
        assert abs(numbers.mean()) < 1e-6
        assert abs(numbers.std() - 1) < 1e-6
        for part in (train, val):  # the same statistics in both
            for place, row in enumerate(rows_of(part)):
                mean, scale = np.mean(rows_of(train)), np.std(rows_of(train))
                assert abs(float(part[place]["numbers"][0]) - (row - mean) / scale) < 1e-5
        known = len(train.dataset.encoding.categories["kind"])
        assert known == (1 if 7 in rows_of(val) else 2)


def rows_of(part):
    return [int(part.row(place)) for place in range(len(part))]


def test_windows_are_not_dealt_out(capsys):
    pytest.importorskip("penstock.addons.forecasting")
    words = ["task=digest", "dataset=drawn_series", "+dataset.split={val: 0.5}"]
    refused = program.run(capsys, *words)
    assert refused.code == 2
    assert "windows are divided by time" in refused.err
