"""Reading the folder of a run, whoever wrote it."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock.errors import ConfigError, PenstockError
from penstock.order.address import Skipped
from penstock.runs.quarantine import Entry, QuarantineFile
from penstock.runs.record import RunRecord, find, read_ledger, skipped_in
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


def test_a_ledger_is_read_exactly(tmp_path):
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
    skipped = {"epoch": 14, "step": 2, "skipped_to": [15, 0]}
    path = tmp_path / "ledger.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in [*lines, skipped]) + '{"epoch": 9')
    ledger = read_ledger(path)
    assert list(zip(ledger.epoch, ledger.step, strict=True)) == [divmod(n, 7) for n in range(100)]
    assert ledger.order.dtype == np.uint64
    assert ledger.order.tolist() == [step * 2**60 % 2**64 for step in range(100)]
    assert ledger.loss.tolist() == [step / 3 for step in range(100)]
    assert set(ledger.samples) == {8}
    assert skipped_in(path) == Skipped.of([[14, 2], [15, 0]])
    path.write_text("")
    assert len(read_ledger(path).loss) == 0


def test_numbers_that_were_not_finite_or_not_measured_are_missing_in_their_columns(written):
    with (written / "metrics.jsonl").open("a") as file:
        file.write('{"event": "epoch", "epoch": 1, "step": 4, "val/loss": 0.1}\n')
        file.write('{"event": "epoch", "epoch": 2, "step": 6, "val/loss": null}\n')
    epochs = RunRecord.read(written).epochs
    assert epochs.names == ["epoch", "step", "val/loss"]
    assert epochs.column("step").tolist() == [2, 4, 6]
    assert epochs.column("val/loss")[1] == 0.1
    assert epochs.finite("val/loss").tolist() == [1]
    assert not len(epochs.finite("train/loss"))
    assert epochs[2]["val/loss"] is None
    assert epochs.address(1) == {"event": "epoch", "epoch": 1, "step": 4}


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
