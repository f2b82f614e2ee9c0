"""Files of run folders that are large or a stranger's: bounded memory, or one message."""

import json
import os
import random
import sys

import numpy as np
import pytest

from penstock.addons.reports import time_spent
from penstock.addons.trackers.tracker import Measured
from penstock.errors import ConfigError, PenstockError
from penstock.files import plain_json
from penstock.files.plain_json import JsonError
from penstock.runs import left_out, measurements
from penstock.runs.record import RunRecord
from tests import warm
from tests.hostile_files import bounded

MIB = 1 << 20
MEMORY = 512 * MIB  # that reading a stranger's file may ask for

# Reads a file of the folder given as a run's report, a notebook or task=where does, and prints by
# how many MiB that raised the most memory that the process ever had.
PROGRAM = """
import resource, sys
from pathlib import Path
import numpy, pandas
from penstock import Run
from penstock.addons.reports import run_report
from penstock.runs import left_out
from penstock.runs.record import RunRecord
from penstock.order.address import Address
from penstock.addons.backwards.where import RunHistory

def most():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10

folder, small = map(Path, sys.argv[2:])
if sys.argv[1] == "ledger":
    RunHistory(RunRecord.read(small)).loss(Address(0, 7))
else:
    run_report.make(RunRecord.read(small))  # what is imported and drawn in any case
before = most()
if sys.argv[1] == "report":
    run_report.make(RunRecord.read(folder))
elif sys.argv[1] == "notebook":
    run = Run(folder)
    assert len(run.logs) > 1000 and list(run.logs["step"][:2]) == [1, 2]
elif sys.argv[1] == "ledger":
    assert RunHistory(RunRecord.read(folder)).loss(Address(0, 7)) == 7.0
else:
    assert left_out.read(folder / "quarantine.csv")[7].index == 7
print(most() - before)
"""


def run_folder(path):
    path.mkdir()
    (path / "config.yaml").write_text("trainer: {ledger: true}\n")
    manifest = {"status": "done", "overrides": [], "sessions": [], "monitor": "loss"}
    (path / "manifest.json").write_text(json.dumps(manifest))
    return path


def measured(step, **more):
    return {
        "event": "log",
        "epoch": 0,
        "step": step,
        "train/loss": 1 / step,
        "lr": 1e-3,
        "samples_per_second": 1000 + step % 37 / 7,
        "wait_share": step % 97 / 97,
        "ms/read": step % 89 / 89,
        "ms/collate": step % 83 / 83,
        "seconds": step / 100,
        **more,
    }


def lines_of(count, line):
    """`count` lines, as bytes, a few thousand at a time."""
    for start in range(0, count, 4096):
        some = (line(number) for number in range(start, min(start + 4096, count)))
        yield "".join(f"{one}\n" for one in some).encode()


LARGE = {
    "report": ("metrics.jsonl", lambda number: json.dumps(measured(number + 1)), 230),
    "notebook": ("metrics.jsonl", lambda number: json.dumps(measured(number + 1)), 230),
    # Not as a fit writes it, so that it is read line by line.
    "ledger": (
        "ledger.jsonl",
        lambda number: (
            f'{{"epoch":0,"step":{number},"samples":8,'
            f'"order":"{number:x}","loss":"{float(number).hex()}"}}'
        ),
        75,
    ),
    "quarantine": (
        "quarantine.csv",
        lambda number: (
            ",".join(left_out.COLUMNS)
            if not number
            else f"train,{number - 1},faces/{number}.jpg,0,1,2,it is damaged,5f0c"
        ),
        50,
    ),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("reader", "size", "most"),
    [
        ("ledger", 2 * MIB, 12),
        ("report", 16 * MIB, 32),
        *(
            pytest.param(*row, marks=pytest.mark.stress)
            for row in (
                ("report", 654 * MIB, 600),
                ("notebook", 654 * MIB, 1000),
                ("ledger", 654 * MIB, 600),
                ("quarantine", 20 * MIB, 300),
            )
        ),
    ],
)
def test_a_large_file_takes_little_memory(tmp_path, reader, size, most):
    name, line, about = LARGE[reader]
    folder, empty = run_folder(tmp_path / "run"), run_folder(tmp_path / "empty")
    (empty / "metrics.jsonl").write_text(
        "".join(f"{json.dumps(measured(step))}\n" for step in range(1, 9))
    )
    (empty / "ledger.jsonl").write_bytes(b"".join(lines_of(9, LARGE["ledger"][1])))
    with (folder / name).open("wb") as file:
        for some in lines_of(size // about, line):
            file.write(some)
    done = warm.run(
        [sys.executable, "-c", PROGRAM, reader, str(folder), str(empty)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "MPLBACKEND": "agg"},
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < most


def test_measurements_are_the_records_that_were_written(tmp_path, monkeypatch):
    rng, records = random.Random(0), []
    for step in range(1, 400):
        one = measured(step, event=rng.choice(["log", "epoch"]))
        for name in ("grad_norm", "val/loss", "worker_deaths", "lr"):
            if rng.random() < 0.3:
                one[name] = rng.choice([None, 3, 0.1, -7, 2**100, 2.5e-300, step])
        records.append(one)
    path = tmp_path / "metrics.jsonl"
    monkeypatch.setattr(measurements, "_BLOCK", 3000)
    for separators in (None, (",", ":")):  # as a fit writes them, and otherwise
        lines = [json.dumps(one, separators=separators) for one in records]
        path.write_text("".join(f"{line}\n" for line in lines) + '{"event": "log", "ep')
        found = measurements.read(path)
        for event, series in found.items():
            wanted = [one for one in records if one["event"] == event]
            assert list(series) == wanted
            assert series[-3:] == wanted[-3:]
            values = np.array([one.get("grad_norm") for one in wanted], float)
            np.testing.assert_array_equal(series.column("grad_norm"), values)
            assert series.finite("grad_norm").tolist() == np.flatnonzero(~np.isnan(values)).tolist()
            assert series.column("step").dtype == np.int64
        assert list(measurements.read(path, ("epoch",))["epoch"]) == list(found["epoch"])


def test_lines_as_a_fit_writes_them_are_parsed_together(tmp_path, monkeypatch):
    monkeypatch.setattr(plain_json, "lines_of", None)  # which parses line by line
    records = [measured(step, event="log") for step in range(1, 400)]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    assert list(measurements.read(path)["log"]) == records


GOOD = '{"event": "log", "epoch": 0, "step": 1, "train/loss": 0.5}'
BROKEN = {
    "not JSON": "{",
    "blank": "",
    "another event": GOOD.replace("log", "end"),
    "no event": '{"epoch": 0, "step": 1}',
    "no step": '{"event": "log", "epoch": 0}',
    "a negative step": GOOD.replace("1,", "-1,"),
    "a step in words": GOOD.replace("1,", '"1",'),
    "a step that is not whole": GOOD.replace("1,", "1.5,"),
    "a text": GOOD.replace("0.5", '"0.5"'),
    "a truth value": GOOD.replace("0.5", "true"),
    "a list": GOOD.replace("0.5", "[0.5]"),
    "not a number": GOOD.replace("0.5", "NaN"),
    "infinite": GOOD.replace("0.5", "-Infinity"),
    "too large": GOOD.replace("0.5", "1e999"),
    "a million digits": GOOD.replace("0.5", "9" * 10**6),
    "many digits": GOOD.replace("0.5", "9" * 200),
    "a key twice": GOOD.replace("step", "epoch"),
    "a number twice": GOOD.replace("0.5", '0.5, "train/loss": 0.25'),
    "deep": GOOD.replace("0.5", "[" * 50_000),
    "deep mappings": GOOD.replace("0.5", '{"a": ' * 50_000),
    "a long name": GOOD.replace("train", "t" * 2000),
    "a list of records": f"[{GOOD}]",
    "two records": f"{GOOD},{GOOD}",
    "a number and a record": f"1,{GOOD}",
    "a record in two lines": GOOD.replace(', "train', ',\n"train'),
    "two in three lines": f"{GOOD},{GOOD[:20]}\n{GOOD[20:]}\n{GOOD}",
    "a line in a name": GOOD.replace("train", "tr\nain"),
    "a nested record": GOOD.replace("0.5}", f"{GOOD}\n}}"),
    "bytes that are no text": GOOD.replace("train", "\udcff"),
    "zeros": "\0" * 100,
    "a long line": GOOD.replace("train", "t" * (17 << 20)),
}


@pytest.mark.parametrize("line", BROKEN.values(), ids=BROKEN)
def test_broken_measurements_are_one_message(line, tmp_path):
    lines = f"{GOOD}\n{GOOD}\n{line}\n{GOOD}\n"
    (tmp_path / "metrics.jsonl").write_text(lines, errors="surrogateescape")
    with (
        bounded(MEMORY),
        pytest.raises(PenstockError, match=r"metrics\.jsonl, line 3 is ") as found,
    ):
        measurements.read(tmp_path / "metrics.jsonl")
    assert len(str(found.value)) < 400


def test_measurements_without_end_are_one_message(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with bounded(MEMORY), pytest.raises(PenstockError, match="line 1 is longer"):
        measurements.read(path)
    names = (GOOD.replace("loss", f"loss of {number}") for number in range(200))
    path.write_text("".join(f"{line}\n" for line in names))
    monkeypatch.setattr(measurements, "_MOST_NAMES", 100)
    with pytest.raises(PenstockError, match="line 99: it has more than 100 names"):
        measurements.read(path)
    monkeypatch.setattr(measurements, "_MOST_NAMES", 1000)
    monkeypatch.setattr(measurements, "_MOST_NUMBERS", 100)
    with pytest.raises(PenstockError, match="line 26: it has more than 100 numbers"):
        measurements.read(path)


def test_a_configuration_of_many_values_is_one_message(tmp_path):
    folder = run_folder(tmp_path / "run")
    (folder / "config.yaml").write_text("[" + "1, " * 1_300_000 + "1]")
    with bounded(MEMORY), pytest.raises(ConfigError, match="more than 200000 keys and values"):
        RunRecord.read(folder)


def test_a_record_of_a_quarantine_has_a_bound(tmp_path):
    path = tmp_path / "quarantine.csv"
    with path.open("w") as file:
        file.write(",".join(left_out.COLUMNS) + "\n")
        for _ in range(100):  # one record: each line ends inside of a quoted field
            file.write('"",' * 100_000 + '"\n",')
        file.write("\n")
    with bounded(MEMORY), pytest.raises(ConfigError, match="a line of more than 1 MiB"):
        left_out.read(path)


def test_a_key_twice_is_no_mapping():
    with pytest.raises(JsonError, match="the key 'a' twice"):
        plain_json.parse('{"b": 1, "a": 2, "c": {}, "a": 3}')


def test_points_for_trackers_come_by_step(tmp_path):
    folder = run_folder(tmp_path / "run")
    records = [measured(step, event="epoch" if step % 5 == 0 else "log") for step in (1, 2, 5, 3)]
    text = "".join(f"{json.dumps(one)}\n" for one in [*records, measured(5)])
    (folder / "metrics.jsonl").write_text(text)
    found = Measured(folder)
    assert [step for _, step in found] == [1, 2, 3, 5, 5]
    assert "train/loss" in found[3][0]
    assert "epoch/train/loss" in found[4][0]
    assert found[-1] == found[4]
    assert len(found[1:3]) == 2


def test_the_time_of_a_long_epoch_is_drawn(tmp_path):
    folder = run_folder(tmp_path / "run")
    lines = lines_of(1500, lambda number: json.dumps(measured(number + 1)))
    (folder / "metrics.jsonl").write_bytes(b"".join(lines))
    section = time_spent.section(RunRecord.read(folder))
    assert section is not None
    assert "Work on a sample" in str(section.body)
