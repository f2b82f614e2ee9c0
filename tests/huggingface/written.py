"""Folders as Hugging Face's `datasets` writes them, and the values that it reads there.

    python -P tests/huggingface/written.py FOLDER

With `datasets` installed, every kind of feature is saved in FOLDER in three ways. `expected.json`
has the rows as `datasets` gives them: bytes in hexadecimal digits, times as numbers of their unit.
`folder` writes the same files without it, for tests of anything else.
"""

import datetime
import decimal
import io
import json
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa

ROWS = 25
INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
TIMES = [
    "date32",
    "date64",
    "time32[s]",
    "time64[us]",
    "timestamp[ns]",
    "timestamp[s, tz=UTC]",
    "duration[ms]",
]


def picture(number, size=8, kind="PNG"):
    from PIL import Image

    pixels = np.arange(size * size * 3).reshape(size, size, 3) * (number + 1) % 256
    content = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(content, kind)
    return content.getvalue()


def recording(number):
    import soundfile

    content = io.BytesIO()
    values = np.arange((100 + number) * 2).reshape(-1, 2) % 17 / 20
    soundfile.write(content, values, 8000 + number, format=("WAV", "FLAC")[number % 2])
    return content.getvalue()


def row(number):
    """A value for each feature."""
    when = datetime.datetime(2020, 1, 1) + datetime.timedelta(days=number, seconds=number)
    times = [
        when.date(),
        when.date(),
        when.time(),
        when.time(),
        when,
        when.replace(tzinfo=datetime.UTC),
        datetime.timedelta(seconds=number),
    ]
    return {
        **dict.fromkeys(INTEGERS, number),
        **dict(zip(TIMES, times, strict=True)),
        "float16": number / 4,
        "float32": number / 3,
        "float64": number / 3,
        "bool": number % 2 == 0,
        "string": f"é{number}",
        "large_string": f"long {number}",
        "binary": b"b%d" % number,
        "large_binary": b"B%d" % number,
        "decimal": decimal.Decimal(number) / 4,
        "nothing": None,
        "class": number % 3,
        "list": list(range(number % 4)),
        "fixed": [number, number + 1, number + 2.5],
        "texts": ["a", "b"] * (number % 2),
        "matrix": np.full((2, 3), number, np.float32),
        "open": np.full((number % 3 + 1, 2, 2), number),
        "holes": None if number % 4 == 0 else np.full((2, 2), number),
        "image": {"bytes": picture(number), "path": None},
        "audio": {"bytes": recording(number), "path": None},
        "nested": {"x": number, "inner": {"text": str(number), "class": number % 2}},
        "structs": [{"id": place, "name": str(place)} for place in range(number % 3)],
        "tags": [0, 1] * (number % 2),
        "number or null": None if number % 5 == 0 else number,
        "text or null": None if number % 5 == 0 else str(number),
        "large_list": [number / 2] * (number % 2),
        "lists": [[number, number + 1]] * 2,
    }


def write_all(root):
    """Save every kind of feature in three ways."""
    import datasets as hugging
    from datasets import Array2D, Array3D, Audio, ClassLabel, Image, LargeList, List, Value

    plain = [
        "float16",
        "float32",
        "float64",
        "bool",
        "string",
        "large_string",
        "binary",
        "large_binary",
    ]
    stored = {"bytes": Value("binary"), "path": Value("string")}
    features = {
        **{name: Value(name) for name in [*INTEGERS, *TIMES, *plain]},
        "decimal": Value("decimal128(10, 2)"),
        "nothing": Value("null"),
        "class": ClassLabel(names=["a", "b", "c"]),
        "list": List(Value("int32")),
        "fixed": List(Value("float64"), length=3),
        "texts": List(Value("string")),
        "matrix": Array2D((2, 3), "float32"),
        "open": Array3D((None, 2, 2), "int64"),
        "holes": Array2D((2, 2), "int16"),
        "image": Image(),
        "audio": stored,
        "nested": {
            "x": Value("int64"),
            "inner": {"text": Value("string"), "class": ClassLabel(names=["u", "v"])},
        },
        "structs": List({"id": Value("int32"), "name": Value("string")}),
        "tags": List(ClassLabel(names=["O", "B"])),
        "number or null": Value("int64"),
        "text or null": Value("string"),
        "large_list": LargeList(Value("float32")),
        "lists": List(List(Value("int8"))),
    }
    rows = list(map(row, range(ROWS)))
    whole = hugging.Dataset.from_list(rows, features=hugging.Features(features))
    whole = whole.cast_column("audio", Audio())  # encoding it needs another library
    whole.save_to_disk(root / "one", num_shards=2)
    parts = {"train": whole, "validation": whole.select([4, 3]), "test": whole.select(range(3))}
    hugging.DatasetDict(parts).save_to_disk(root / "divided")
    (root / "parquet" / "data").mkdir(parents=True)
    without = whole.remove_columns(["nothing"])
    without.to_parquet(root / "parquet" / "data" / "train-00000-of-00001.parquet")
    without.select([1]).to_parquet(root / "parquet" / "data" / "dev-00000-of-00001.parquet")
    read = hugging.load_from_disk(str(root / "one"))
    read = read.cast_column("audio", Audio(decode=False))
    read = read.cast_column("image", Image(decode=False))
    types = {field.name: field.type for field in read.features.arrow_schema}
    values = [
        {
            name: pa.scalar(value, types[name]).value if name in TIMES else plain_value(value)
            for name, value in read[number].items()
        }
        for number in range(ROWS)
    ]
    (root / "expected.json").write_text(json.dumps(values))


def plain_value(value):
    if isinstance(value, dict):
        return {name: plain_value(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [plain_value(inner) for inner in value]
    if isinstance(value, bytes):
        return value.hex()
    return float(value) if isinstance(value, decimal.Decimal) else value


def folder(path, table, features=None, files=2, group=10, **state):
    """A table in a folder of `Dataset.save_to_disk`."""
    path.mkdir(parents=True, exist_ok=True)
    names = [f"data-{number:05}-of-{files:05}.arrow" for number in range(files)]
    size = -(-len(table) // files)
    for number, name in enumerate(names):
        part = table.slice(number * size, size)
        with pa.OSFile(str(path / name), "wb") as sink, pa.ipc.new_stream(sink, part.schema) as to:
            to.write_table(part, max_chunksize=group)
    described = {"_data_files": [{"filename": name} for name in names], "_format_columns": None}
    (path / "state.json").write_text(json.dumps(described | state))
    (path / "dataset_info.json").write_text(json.dumps({"features": features}))
    return path


def divided(path, **parts):
    """Tables in a folder of `DatasetDict.save_to_disk`."""
    for name, table in parts.items():
        folder(path / name, table, files=1)
    (path / "dataset_dict.json").write_text(json.dumps({"splits": list(parts)}))
    return path


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
