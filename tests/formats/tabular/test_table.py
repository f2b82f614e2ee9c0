"""Tables: what training rows say, files of every kind, and what is wrong with them."""

import pickle
import re
from datetime import timedelta
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from penstock.addons.tabular.table import Table, TableMlp
from penstock.datasets.reading.base import Shares
from penstock.errors import ConfigError, DataError
from penstock.files.limits import DEFAULT

ROWS = 60


def frame():
    random = np.random.default_rng(0)
    numbers = random.normal(50, 9, ROWS).round(3)
    numbers[[3, 7]] = np.nan
    cities = np.array(["rome", "oslo", "bonn"], object)[random.integers(0, 3, ROWS)]
    cities[5] = None
    return pd.DataFrame(
        {
            "area": numbers,
            "rooms": random.integers(1, 9, ROWS),
            "city": cities,
            "built": (np.datetime64("1990-01-01") + random.integers(0, 9000, ROWS)).astype(str),
            "sold": np.array(["no", "yes"])[random.integers(0, 2, ROWS)],
            "price": (1e5 + 1e4 * random.normal(size=ROWS)).round(2),
        }
    )


def same(first, second):
    assert len(first) == len(second)
    for row in range(len(first)):
        for name, value in first[row].items():
            torch.testing.assert_close(value, second[row][name], rtol=0, atol=0)


def test_a_sample_is_encoded_by_what_training_rows_say():
    data = frame()
    train = Table(data, "sold", exclude=["price"])
    val = Table(data, "sold", "val", exclude=["price"])
    assert (len(train), len(val), train.classes) == (48, 12, ["no", "yes"])
    assert sorted([*train.rows, *val.rows]) == list(range(ROWS))
    area = data["area"][train.rows]
    names = val.names
    for row, sample in zip(val.rows, (val[place] for place in range(12)), strict=True):
        got = dict(zip(names, sample["numbers"].tolist(), strict=True))
        value = data["area"][row]
        expected = 0 if np.isnan(value) else (value - area.mean()) / area.std(ddof=0)
        assert got["area"] == pytest.approx(expected, abs=1e-6)
        assert got["area missing"] == np.isnan(value)
        day = pd.Timestamp(data["built"][row])
        since = (day - pd.Timestamp(0)).days
        assert got["built sine of week"] == pytest.approx(np.sin(2 * np.pi * since / 7), abs=1e-5)
        city = data["city"][row]
        code = 0 if city is None else ["bonn", "oslo", "rome"].index(city) + 2
        assert sample["categories"].tolist() == [code]
        assert sample["target"] == (data["sold"][row] == "yes")
    assert names == [
        *("area", "area missing", "rooms", "built"),
        *(f"built {part} of {cycle}" for cycle in ("year", "week") for part in ("sine", "cosine")),
    ]
    facts = {"num_numbers": 8, "cardinalities": [5], "num_classes": 2, "num_outputs": 2}
    assert train.facts == facts


def test_validation_rows_say_nothing_to_training():
    data = frame()
    train, val = (Table(data, "sold", split, exclude=["price"]) for split in ("train", "val"))
    changed = data.copy()
    changed.loc[val.rows, "area"] = 1e6
    changed.loc[val.rows, "city"] = "a city of validation"
    changed.loc[val.rows, "built"] = "2200-01-01"
    same(train, Table(changed, "sold", exclude=["price"]))
    other = Table(changed, "sold", "val", exclude=["price"])
    assert {int(other[row]["categories"]) for row in range(len(other))} == {1}  # unknown
    assert other.facts == train.facts
    assert other.fingerprint != val.fingerprint
    assert Table(changed, "sold", exclude=["price"]).fingerprint == train.fingerprint


def test_rows_are_kept_for_a_test():
    data = frame()
    splits = [
        Table(data, "sold", name, shares=Shares(test=0.25)) for name in ("train", "val", "test")
    ]
    assert [len(split) for split in splits] == [33, 12, 15]
    assert sorted(row for split in splits for row in split.rows) == list(range(ROWS))
    assert len({split.encoding["numbers"][0]["mean"] for split in splits}) == 1
    assert splits[1].rows.tolist() == Table(data, "sold", "val").rows.tolist()


def test_new_rows_are_encoded_by_what_training_rows_said(tmp_path):
    data, path = frame(), tmp_path / "n.csv"
    train = Table(data, "sold", exclude=["price"])
    new = data.drop(columns=["sold", "price"]).iloc[train.rows[:5]]
    new = new.assign(city=["rome", "paris", None, "oslo", "oslo"], row=2**53 + 1, id="nr 7")
    new.to_csv(path, index=False)
    rows = Table.unlabelled(str(path), train.learned, None, DEFAULT)
    assert [int(rows[row]["categories"]) for row in range(5)] == [4, 1, 0, 3, 3]
    for row in range(5):
        assert torch.equal(rows[row]["numbers"], train[row]["numbers"])
    # All cells stand beside a prediction as they are in the file, under a name of their own.
    cells = {"table/row": 2**53 + 1, "id": "nr 7", "city": None, "built": new["built"].iloc[2]}
    assert rows.about(2) == {"area": None, "rooms": new["rooms"].iloc[2], **cells}
    new.drop(columns="area").to_csv(path, index=False)
    with pytest.raises(ConfigError, match=r"dataset\.root: .*there is no column 'area'"):
        Table.unlabelled(str(path), train.learned, None, DEFAULT)


def test_files_of_every_kind_give_the_same_samples(tmp_path):
    from pyarrow import Table as Arrow
    from pyarrow import feather

    data = frame()
    expected = Table(data, "price", "val", exclude=["sold"])
    data.to_csv(tmp_path / "t.csv", index=False)
    data.to_csv(tmp_path / "t.tsv", index=False, sep="\t")
    data.to_csv(tmp_path / "semi.csv", index=False, sep=";", decimal=",", encoding="utf-16")
    data.assign(built=pd.to_datetime(data["built"])).to_parquet(tmp_path / "t.parquet")
    arrow = Arrow.from_pandas(data.astype({"city": "category"}))
    feather.write_feather(arrow, tmp_path / "t.arrow", compression="uncompressed")
    for name in ("t.csv", "t.tsv", "t.parquet", "t.arrow"):
        same(Table(str(tmp_path / name), "price", "val", exclude=["sold"]), expected)
    how = {"delimiter": ";", "decimal": ",", "encoding": "utf-16"}
    copy = pickle.loads(pickle.dumps(Table(str(tmp_path / "t.csv"), "price", exclude=["sold"])))
    assert [*copy.metadata] == ["row", "area", "rooms", "city", "built", "price"]
    semi = Table(str(tmp_path), "price", "val", "semi.csv", exclude=["sold"], **how)
    assert semi[0]["numbers"] == pytest.approx(expected[0]["numbers"], abs=1e-5)
    assert expected.facts["num_outputs"] == 1
    train = Table(data, "price", exclude=["sold"])
    assert expected.target_mean == [pytest.approx(data["price"][train.rows].mean())]


def test_columns_are_what_they_are_said_to_be(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("zip,day,size,y\n" + "".join(f"0{n},{n + 1}.2.2020,x,{n}\n" for n in range(9)))
    data = Table(
        str(path),
        "y",
        kind="number",
        categories=["zip"],
        dates=["day"],
        date_format="%d.%m.%Y",
        exclude=["size"],
        shares=Shares(0),
    )
    assert data.encoding["categories"]["zip"] == [f"0{n}" for n in range(9)]
    assert data.names[0] == "day"
    assert data.classes == []
    assert Table(str(path), "y", exclude=["size", "day"]).classes == [str(n) for n in range(9)]
    gaps = pd.DataFrame({"x": [1, 2, 3, 4], "z": [4, 5.5, 6, np.nan]})
    kept = Table(gaps, "z", without_target="skip", shares=Shares(0))
    assert kept.rows.tolist() == [0, 1, 2]
    assert kept[1]["target"].tolist() == 5.5
    rare = pd.DataFrame({"c": list("aaabbc"), "y": [0, 1, 0, 1, 0, 1]})
    assert Table(rare, "y", rare=2, shares=Shares(0)).encoding["categories"]["c"] == ["a", "b"]


def test_categories_of_a_validation_file_are_those_of_training(tmp_path):
    """Also where it has fewer of them, all of which look like numbers."""
    (tmp_path / "a.csv").write_text("c,y\n" + "1.50,1\n+7,2\nnone at all,3\n" * 3)
    (tmp_path / "b.csv").write_text("c,y\n+7,1\n1.50,2\n")
    val = Table(str(tmp_path), "y", "val", "a.csv", "b.csv", kind="number")
    assert val.encoding["categories"] == {"c": ["+7", "1.50", "none at all"]}
    assert [int(sample["categories"]) for sample in (val[0], val[1])] == [2, 3]


def test_another_file_validates_with_the_classes_of_the_first(tmp_path):
    data = frame()
    data.to_csv(tmp_path / "a.csv", index=False)
    data[:10].to_csv(tmp_path / "b.csv", index=False)
    options = {"file": "a.csv", "val_file": "b.csv", "exclude": ["price"]}
    train, val = (Table(str(tmp_path), "sold", split, **options) for split in ("train", "val"))
    assert (len(train), len(val)) == (ROWS, 10)
    same(val, [train[row] for row in range(10)])
    data[:10].assign(sold="maybe").to_csv(tmp_path / "b.csv", index=False)
    with pytest.raises(
        DataError, match=r"b\.csv', row 0, column 'sold': 'maybe' is none of the classes no, yes"
    ):
        Table(str(tmp_path), "sold", "val", **options)
    data[:10].drop(columns="area").to_csv(tmp_path / "b.csv", index=False)
    with pytest.raises(ConfigError, match=r"b\.csv' there is no column 'area'"):
        Table(str(tmp_path), "sold", "val", **options)


BAD = {
    "": "cannot be read: Empty CSV file",
    "a,b\n": "has no rows",
    "a,b\n1,2\n\n3\n": r"Row #\d: Expected 2 columns, got 1: 3",
    "a,a\n1,2\n": "column 'a' appears twice",
    "a,b\n1,2\n,3\n": r"row 1, column 'a': a missing value is no target.*without_target=skip",
    "a,b\n1,2\n2,x\n": r"row 1, column 'b': 'x' is not a number",
    "a,b\n1,2\n2,inf\n": r"row 1, column 'b': 'inf' is not a number, or not finite",
    'a,b\n1,2\n2,"3\n': "a quoted field is not closed",
    "a,b\n1,\xfc\n": r"Row #2: .*invalid UTF8 data; .*dataset.encoding",
}


@pytest.mark.parametrize("text", BAD)
def test_what_is_wrong_with_a_file_is_reported_with_its_row(tmp_path, text):
    (tmp_path / "t.csv").write_text(text, encoding="latin-1")
    with pytest.raises(DataError, match=r"(?s)t\.csv'|column 'b'") as raised:
        Table(str(tmp_path / "t.csv"), "a", numbers=["b"], shares=Shares(0))
    assert re.search(BAD[text], str(raised.value))


def test_what_is_wrong_with_options_is_reported_with_the_key(tmp_path):
    data = frame()
    names = pd.DataFrame({"name": [f"n{n}" for n in range(300)], "y": [0, 1] * 150})
    for options, message in (
        ({"target": "prise"}, r"dataset\.target: .*no column 'prise'; did you mean 'price'"),
        ({"target": "sold", "exclude": ["pric"]}, r"dataset\.exclude: .*no column 'pric'"),
        ({"target": "sold", "numbers": ["area"], "dates": ["area"]}, r"also dataset\.numbers"),
    ):
        with pytest.raises(ConfigError, match=message):
            Table(data, **options)
    with pytest.raises(ConfigError, match=r"300 different texts.*dataset\.exclude=\[name\]"):
        Table(names, "y", shares=Shares(0))
    assert Table(names, "y", categories=["name"], shares=Shares(0)).facts["cardinalities"] == [302]
    with pytest.raises(DataError, match=r"cannot be read: No such file.*dataset\.root"):
        Table(str(tmp_path / "none.csv"), "y")
    frame().to_parquet(tmp_path / "l.parquet")
    (tmp_path / "d.parquet").write_bytes((tmp_path / "l.parquet").read_bytes()[:-40])
    with pytest.raises(DataError, match=r"d\.parquet"):
        Table(str(tmp_path / "d.parquet"), "y")


def test_a_text_that_is_not_utf_8_is_named(tmp_path):
    bad = pa.array([b"rome", b"\x9b", b"oslo"]).view(pa.string())  # Arrow looks at no text
    columns = {"plain": bad, "coded": pa.DictionaryArray.from_arrays(pa.array([0, 1, 2]), bad)}
    table = pa.table(columns | {"x": [1, 2, 3], "y": [1.5, 2, 3]})
    pq.write_table(table, tmp_path / "t.parquet")
    for column, other in (("plain", "coded"), ("coded", "plain")):
        with pytest.raises(DataError, match=r"t\.parquet' cannot be read: .*Invalid UTF8"):
            Table(str(tmp_path / "t.parquet"), "y", columns=[column], exclude=[other])
    assert len(Table(str(tmp_path / "t.parquet"), "y", exclude=[*columns], shares=Shares(0))) == 3


def test_models_take_any_columns():
    numbers, categories = torch.rand(4, 3), torch.tensor([[0, 1], [1, 0], [2, 3], [4, 1]])
    for model in (TableMlp(2, 3, [5, 4], hidden=[8]), TableMlp(2, 3, [5, 4], hidden=[])):
        assert model.eval()(numbers, categories).shape == (4, 2)
    none = torch.zeros(4, 0)
    assert TableMlp(1, 3, [], hidden=[8])(numbers, none.long()).shape == (4, 1)
    assert TableMlp(1, 0, [5, 4])(none, categories).shape == (4, 1)


NAMES = ("NA", "DE", "None", "nan", "null")


def sources(folder, cells, typed=None):
    """The same column `c` as CSV, as Parquet and as a frame, beside a number and a class."""
    count = 60
    others = {"x": range(count), "y": ["u", "v"] * (count // 2)}
    texts = [cells[row % len(cells)] for row in range(count)]
    column = pa.array([(typed or cells)[row % len(cells)] for row in range(count)])
    pd.DataFrame({"c": pd.Series(texts, dtype=object), **others}).to_csv(
        folder / "a.csv", index=False
    )
    table = pa.table({"c": column, **others})
    pq.write_table(table, folder / "a.parquet")
    frame = table.to_pandas(types_mapper=lambda kind: pd.ArrowDtype(kind))
    return str(folder / "a.csv"), str(folder / "a.parquet"), frame


def test_categories_that_are_called_na_are_names_in_every_kind_of_file(tmp_path):
    for source in sources(tmp_path, NAMES):
        assert Table(source, "y").encoding["categories"]["c"] == sorted(NAMES)
        without = Table(source, "y", missing=["", "NA", "null"])
        assert without.encoding["categories"]["c"] == ["DE", "None", "nan"]
        assert Table(source, "c").classes == sorted(NAMES)
    for cells in (["01234", "10115"], ["1", "?", "4"], ["1,5", "3"], ["1_000", "0x10"]):
        for source in sources(tmp_path, cells):
            assert Table(source, "y").encoding["categories"]["c"] == sorted(cells)


def test_marks_among_numbers_and_dates_are_no_value(tmp_path):
    for source in sources(tmp_path, ["1.5", "NA", "-2", "n/a"]):
        assert Table(source, "y", numbers=["c"]).names[:2] == ["c", "c missing"]
    for source in sources(tmp_path, ["2026-01-31", "NA", "9999-12-31"]):
        dates = Table(source, "y").encoding["numbers"][0]
        assert (dates["is_date"], dates["flagged"]) == (True, True)
        assert 1.4e6 < dates["mean"] < 1.6e6
    for source in sources(tmp_path, [20260131, 20260201]):
        dates = Table(source, "y", dates=["c"], date_format="%Y%m%d").encoding["numbers"][0]
        assert (dates["is_date"], round(dates["scale"], 1)) == (True, 0.5)


@pytest.mark.parametrize("base", [2**53, 2**63, -(2**63)])
def test_whole_numbers_are_exact_beside_missing_ones(tmp_path, base):
    names = [base, base + 1, base + 3]
    typed = pa.array([*names, None], pa.uint64() if base == 2**63 else pa.int64()).to_pylist()
    frames = sources(tmp_path, [*names, None], [Decimal(n) if n is not None else n for n in typed])
    for source in frames:
        assert sorted(map(int, Table(source, "c", without_target="skip").classes)) == names
        found = Table(source, "y", categories=["c"]).encoding["categories"]["c"]
        assert sorted(map(int, found)) == names


@pytest.mark.parametrize("cell", [[1, 2], b"a", {"a": 1}, timedelta(1), pd.Period("2026")])
def test_columns_that_are_no_values_are_left_out_and_refused_by_name(cell, caplog):
    frame = pd.DataFrame({"c": pd.Series([cell] * 60), "x": range(60), "y": ["u", "v"] * 30})
    assert Table(frame, "y").names == ["x"]
    assert "column 'c' is" in caplog.text
    with pytest.raises(DataError, match=r"column 'c' is .*exclude=\[c\]"):
        Table(frame, "y", numbers=["c"])
    mixed = frame.assign(c=pd.Series(["a", 1] * 30, dtype=object))
    with pytest.raises(pa.ArrowException, match="column c with type object"):
        Table(mixed, "y")


def test_a_column_that_is_constant_but_for_rounding_is_not_scaled():
    for low, high in ((0.3, 0.1 + 0.2), (1.0, 1.0 + 1e-12), (2**60, 2**60 + 1)):
        frame = pd.DataFrame({"z": [low, high] * 30, "x": np.arange(60.0), "y": ["a", "b"] * 30})
        train, val = Table(frame, "y"), Table(frame, "y", "val")
        frame.loc[val.rows, "z"] = 7.0
        val = Table(frame, "y", "val")
        assert max(float(val[row]["numbers"][0].abs()) for row in range(len(val))) <= 2**60
        regression = Table(frame.iloc[train.rows], "z")
        assert regression.target_scale == [1.0] or regression.classes
    single = pd.DataFrame({"z": np.array([0.3, 0.3 + 3e-8] * 30, np.float32), "y": range(60)})
    assert Table(single, "y", kind="number").encoding["numbers"][0]["scale"] == 1.0
    small = pd.DataFrame({"z": np.arange(60) * 1e-15, "y": range(60)})
    assert (
        Table(small, "y", kind="number").encoding["numbers"][0]["scale"] < 1e-13
    )  # a unit of its own
