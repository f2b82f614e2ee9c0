"""`penstock.Run`: the folder of a run, whoever wrote it."""

import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch

from penstock import Run, command
from penstock.addons.reports.runs import find
from penstock.errors import ConfigError, PenstockError
from penstock.loading.batch import batch_hash
from penstock.runs.quarantine import Entry, QuarantineFile
from tests.support.program import run as run_program

RUN = (
    "trainer=quick",
    "trainer.max_steps=8",
    "trainer.digest=true",
    "trainer.pictures=false",
    "trainer.log_every=2",
    "loader=debug",
    "tracker=none",
    "trainer.device=cpu",
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, faces_root):
    folder = tmp_path_factory.mktemp("trained") / "outputs"
    words = [f"dataset.root={faces_root}", "dataset.count=60", "dataset.size=48", "batch.size=8"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder.parent)
        assert command.main([*words, *RUN, f"run_dir={folder}"]) == 0
    return folder


@pytest.fixture
def folder(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


def test_a_batch_is_the_one_that_the_run_had(folder, trained, capsys):
    run = Run(folder)
    digests = [json.loads(line) for line in (folder / "digests.jsonl").read_text().splitlines()]
    assert len(digests) == 6
    for one in digests[::2]:
        batch = run.batch(one["epoch"], one["step"])
        assert batch_hash([batch]) == one["hash"]
    words = json.loads((trained / "manifest.json").read_text())["overrides"]
    again = run_program(capsys, *words, "task=digest", "split=val")
    assert again.hashes[1].split()[3] == batch_hash([run.batch(0, 1, "val")])
    assert isinstance(batch["image"], torch.Tensor)


def test_another_batch_than_the_run_had_is_told(folder):
    path = folder / "digests.jsonl"
    path.write_text(path.read_text().replace('"hash": "', '"hash": "0'))
    with pytest.raises(PenstockError, match=r"batch \(0, 2\) .* the data or the code has changed"):
        Run(folder).batch(0, 2)
    path.unlink()
    Run(folder).batch(0, 2)
    with pytest.raises(ConfigError, match="has 6 steps"):
        Run(folder).batch(0, 6)


def test_a_batch_needs_no_tracker(folder):
    path = folder / "config.yaml"
    none, gone = "  none: null\n", "  none: {_target_: of_a_package.that_is_gone}\n"
    assert none in path.read_text()
    path.write_text(path.read_text().replace(none, gone))
    assert Run(folder).batch(0, 2)["image"].shape[0] == 8


def test_a_folder_from_a_stranger_runs_nothing(folder, tmp_path):
    path = folder / "config.yaml"
    text = path.read_text()
    target = "penstock.datasets.synthetic_faces.SyntheticFaces"
    assert target in text
    path.write_text(text.replace(target, "os.system"))
    with pytest.raises(ConfigError, match=r"dataset._target_.*os.system"):
        Run(folder).batch(0, 0)
    path.write_text(text.replace("seed: 0", "seed: ${oc.env:HOME}", 1))
    with pytest.raises(ConfigError, match="seed"):
        Run(folder).batch(0, 0)
    with pytest.raises(ConfigError, match="not a run's folder"):
        Run(tmp_path)


def test_a_run_and_its_report(folder):
    run = Run(folder)
    assert re.fullmatch(r"Run\('.*/run': done, 1 epochs\)", repr(run))
    assert run.report() == folder / "report.html"
    assert run.report().exists()


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
    (folder / "holder.txt").touch()
    return folder


def test_a_killed_run_is_distinguished_from_a_running_one(written):
    manifest = json.loads((written / "manifest.json").read_text())
    (written / "manifest.json").write_text(json.dumps({**manifest, "status": "running"}))
    assert Run(written).state == "killed"
    code = (
        "import fcntl, sys, time; f = open(sys.argv[1], 'r+'); fcntl.flock(f, fcntl.LOCK_EX); "
        "print('held', flush=True); time.sleep(100)"
    )
    command = [sys.executable, "-c", code, str(written / "holder.txt")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        assert Run(written).state == "running"
        other.kill()


def test_a_line_in_progress_is_left_out(written):
    for name in ("metrics.jsonl", "ledger.jsonl"):
        with (written / name).open("a") as file:
            file.write('{"event": "epoch", "epo')
    assert len(Run(written).metrics) == 1
    assert Run(written).ledger["step"].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("metrics.jsonl", '{"event": "epoch", "epoch": 0, "step": 6, "val/loss": "<script>"}'),
        ("metrics.jsonl", "[]"),
        ("ledger.jsonl", "{"),
        ("ledger.jsonl", '{"epoch": 9, "step": 0, "samples": 1, "order": "zz", "loss": "0x1p0"}'),
        ("ledger.jsonl", '{"epoch": 9, "step": 0}'),
    ],
)
def test_a_damaged_line_is_an_error(written, name, line):
    with (written / name).open("a") as file:
        file.write(line + "\n")
    run = Run(written)
    with pytest.raises(PenstockError, match=rf"{name}(, line \d+)? is broken: "):
        _ = run.metrics, run.ledger


def test_a_ledger_is_read_exactly(written):
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
    path = written / "ledger.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in [*lines, skipped]))
    ledger = Run(written).ledger
    pairs = zip(ledger["epoch"], ledger["step"], strict=True)
    assert list(pairs) == [divmod(n, 7) for n in range(100)]
    assert ledger["order"].dtype == np.uint64
    assert ledger["order"].tolist() == [step * 2**60 % 2**64 for step in range(100)]
    assert ledger["loss"].tolist() == [step / 3 for step in range(100)]
    path.write_text("")
    assert Run(written).ledger is None


def test_numbers_that_were_not_finite_or_not_measured_are_missing(written):
    with (written / "metrics.jsonl").open("a") as file:
        file.write('{"event": "epoch", "epoch": 1, "step": 4, "val/loss": null}\n')
        file.write('{"event": "epoch", "epoch": 2, "step": 6, "val/loss": null}\n')
    metrics = Run(written).metrics
    assert metrics["step"].tolist() == [2, 4, 6]
    assert metrics["val/loss"].isna().all()
    assert metrics["val/loss"].dtype == float


def test_a_run_without_ledger_and_quarantine(written):
    (written / "ledger.jsonl").unlink()
    assert Run(written).ledger is None
    assert Run(written).left_out.empty
    entries = [Entry("train", 7, path, 0, 0, 0, "odd", "f") for path in ("", "a.jpg")]
    QuarantineFile(written / "quarantine.csv").add(entries)
    left_out = Run(written).left_out
    assert [Entry(*row) for row in left_out.itertuples(index=False)] == entries[:1]
    (written / "config.yaml").write_text("{" * 400)
    with pytest.raises(ConfigError, match=r"is not a run's folder: config\.yaml: "):
        Run(written)
    assert list(find(written.parent)) == [written]
