"""Reading the folder of a run, whoever wrote it."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock.errors import ConfigError, PenstockError
from penstock.runs.record import RunRecord, find, read_ledger
from tests.program import run

ROOT = Path(penstock.__file__).parent.parent
SMALL = [
    "trainer=quick",
    "trainer.max_steps=6",
    "loader=debug",
    "trainer.pictures=false",
    "trainer.ledger=true",
    "trainer.device=cpu",
    "tracker=none",
]


@pytest.fixture
def done(faces, capsys, tmp_path):
    assert run(capsys, *faces, *SMALL, f"run_dir={tmp_path / 'run'}").code == 0
    return tmp_path / "run"


def test_a_run_is_read_as_it_was_written(done):
    record = RunRecord.read(done)
    assert record.state == "done"
    assert record.config["seed"] == 0
    assert [one["step"] for one in record.epochs] == [6]
    assert record.epochs[0]["val/loss"] == record.manifest["best"]["val/loss"]
    assert list(record.ledger.step) == [0, 1, 2, 3, 4, 5]
    assert np.isclose(record.ledger.loss.mean(), record.epochs[0]["train/loss"])
    assert record.ledger.order.dtype == np.uint64
    assert list(find(done.parent)) == [done]
    assert len(record.sessions) == 1


def test_a_killed_run_is_distinguished_from_a_running_one(done):
    manifest = json.loads((done / "manifest.json").read_text())
    (done / "manifest.json").write_text(json.dumps({**manifest, "status": "running"}))
    assert RunRecord.read(done).state == "killed"
    code = (
        "import fcntl, sys, time; f = open(sys.argv[1], 'r+'); fcntl.flock(f, fcntl.LOCK_EX); "
        "print('held', flush=True); time.sleep(100)"
    )
    command = [sys.executable, "-c", code, str(done / "holder.json")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        assert RunRecord.read(done).state == "running"
        other.kill()


@pytest.mark.thorough
def test_a_line_in_progress_is_left_out(done):
    with (done / "metrics.jsonl").open("a") as file:
        file.write('{"event": "epoch", "epo')
    assert len(RunRecord.read(done).epochs) == 1


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("metrics.jsonl", '{"event": "epoch", "epoch": 0, "step": 6, "val/loss": "<script>"}'),
        ("metrics.jsonl", '{"event": "other", "epoch": 0, "step": 6}'),
        ("metrics.jsonl", "[]"),
        ("ledger.jsonl", '{"epoch": 9, "step": 0, "samples": 1, "order": "zz", "loss": "0x1p0"}'),
        ("ledger.jsonl", '{"epoch": 0, "step": 0, "samples": 1, "order": "00", "loss": "0x1p0"}'),
    ],
)
def test_a_damaged_line_is_named(done, name, line):
    with (done / name).open("a") as file:
        file.write(line + "\n")
    record = RunRecord.read(done)
    with pytest.raises(PenstockError, match=f"{name}, line "):
        _ = record.epochs, record.ledger


def test_what_is_no_run_is_reported(tmp_path):
    with pytest.raises(ConfigError, match="is not a run's folder"):
        RunRecord.read(tmp_path)
    assert list(find(tmp_path)) == []


def test_a_fifo_in_the_place_of_a_file_keeps_nobody_waiting(done):
    (done / "ledger.jsonl").unlink()
    os.mkfifo(done / "ledger.jsonl")
    began = time.monotonic()
    with pytest.raises(PenstockError, match=r"ledger\.jsonl cannot be read: it is a FIFO"):
        _ = RunRecord.read(done).ledger
    assert time.monotonic() - began < 60


@pytest.mark.thorough
def test_reading_imports_no_torch():
    code = "import penstock.runs.record, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_a_ledger_is_read_the_same_by_blocks_and_line_by_line(tmp_path, monkeypatch):
    lines = [
        {
            "epoch": step // 7,
            "step": step % 7,
            "samples": 8,
            "order": f"{step * 2**60 % 2**64:016x}",
            "loss": (step / 3).hex(),
        }
        for step in range(100)
    ]
    path = tmp_path / "ledger.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines) + '{"epoch": 99, "st')
    monkeypatch.setattr("penstock.runs.record._BLOCK", 1000)
    by_block = read_ledger(path)
    spaced = "".join(f"{json.dumps(line, indent=None, separators=(',', ':'))}\n" for line in lines)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "ledger.jsonl").write_text(spaced)
    by_line = read_ledger(tmp_path / "other" / "ledger.jsonl")
    for name in ("epoch", "step", "samples", "order", "loss"):
        assert getattr(by_block, name).tolist() == getattr(by_line, name).tolist()
        assert getattr(by_block, name).dtype == getattr(by_line, name).dtype
    assert by_block.loss[5] == 5 / 3
    assert 5 <= len(read_ledger(path, least=5).loss) < 20
    path.write_text("")
    assert len(read_ledger(path).loss) == 0
