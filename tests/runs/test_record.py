"""Reading the folder of a run, whoever wrote it."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock.errors import ConfigError, PenstockError
from penstock.runs import record
from penstock.runs.left_out import Entry
from penstock.runs.quarantine import QuarantineFile
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


@pytest.fixture
def written(tmp_path):
    """A run's folder of one epoch of two steps."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text("seed: 3\nmodel: {hidden: 8}\n")
    (folder / "manifest.json").write_text('{"status": "done", "sessions": [{"world": 1}]}')
    (folder / "metrics.jsonl").write_text('{"event": "epoch", "epoch": 0, "step": 2}\n')
    step = '{"epoch": 0, "step": %d, "samples": 1, "order": "00000000000000ff", "loss": "0x1p0"}\n'
    (folder / "ledger.jsonl").write_text(step % 0 + step % 1)
    (folder / "holder.json").touch()
    return folder


def test_a_killed_run_is_distinguished_from_a_running_one(written):
    manifest = json.loads((written / "manifest.json").read_text())
    (written / "manifest.json").write_text(json.dumps({**manifest, "status": "running"}))
    assert RunRecord.read(written).state == "killed"
    code = (
        "import fcntl, sys, time; f = open(sys.argv[1], 'r+'); fcntl.flock(f, fcntl.LOCK_EX); "
        "print('held', flush=True); time.sleep(100)"
    )
    command = [sys.executable, "-c", code, str(written / "holder.json")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        assert RunRecord.read(written).state == "running"
        other.kill()


def test_a_line_in_progress_is_left_out(written):
    with (written / "metrics.jsonl").open("a") as file:
        file.write('{"event": "epoch", "epo')
    assert len(RunRecord.read(written).epochs) == 1


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
def test_a_damaged_line_is_named(written, name, line):
    with (written / name).open("a") as file:
        file.write(line + "\n")
    record = RunRecord.read(written)
    with pytest.raises(PenstockError, match=f"{name}, line "):
        _ = record.epochs, record.ledger


def test_what_is_no_run_is_reported(tmp_path):
    with pytest.raises(ConfigError, match="is not a run's folder"):
        RunRecord.read(tmp_path)
    assert list(find(tmp_path)) == []


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


def test_a_run_without_ledger_and_quarantine(written):
    (written / "ledger.jsonl").unlink()
    record = RunRecord.read(written)
    assert record.ledger is None
    assert record.left_out == []
    (written / "config.yaml").write_text("{" * 400)
    with pytest.raises(ConfigError) as found:
        RunRecord.read(written)
    text = f"runs: {written} is not a run's folder: config.yaml: "
    assert str(found.value).startswith(text)
    assert len(str(found.value)) <= len(text) + 300


def test_samples_that_were_left_out_are_known(written):
    entries = [Entry("train", 7, path, 0, 0, 0, "odd", "f") for path in ("", "a.jpg")]
    QuarantineFile(written / "quarantine.csv").add(entries)
    record = RunRecord.read(written)
    assert record.left_out == entries
    (written / "quarantine.csv").write_text("a,b\n")


def test_lines_as_a_fit_writes_them_are_parsed_together():
    skipped = b'{"epoch": 0, "step": 1, "skipped_to": [0, 3]}\n'
    step = b'{"epoch": 0, "step": 3, "samples": 4, "order": "00000000000000ff", "loss": "0x1p0"}\n'
    for block, steps in ((skipped + step, [3]), (skipped, []), (b"", [])):
        assert record._parsed(block)[1].tolist() == steps
    with pytest.raises(ValueError, match=r"^$"):
        record._parsed(step + b"{}\n")
