"""Sweeps through `hydra/launcher=submitit_slurm`: real jobs of tests/fake_slurm.py."""

import os
import pickle
import signal
import subprocess
import sys
import time

import pytest

from penstock.addons.sweeps import launching
from penstock.addons.sweeps.job_result import read_results
from penstock.errors import ConfigError
from tests import fake_slurm
from tests.own_parts import NUMBERS
from tests.program import ROOT, run

WORDS = [
    "-m",
    "--config-dir",
    "conf",
    "--trust",
    "tests",
    "dataset=numbers",
    "dataset.size=64",
    "batch.size=4",
    "tracker=none",
    "trainer.digest=true",
    "trainer.max_epochs=60",
    "trainer.pictures=false",
    "trainer.report=false",
    "trainer.progress=none",
    "cache_dir=cache",
    "trainer.checkpoint.every_epochs=50",
    "loader=debug",
    "seed=1,2",
]
SLURM = ["hydra/launcher=submitit_slurm", "hydra.launcher.timeout_min=60"]


def digests(folder):
    return [
        (folder / name / file).read_text()
        for name in ("0", "1")
        for file in ("digests.jsonl", "ledger.jsonl")
    ]


def sweep(folder, name, *more, environment):
    words = [sys.executable, str(ROOT / "run.py"), *WORDS, *more, f"hydra.sweep.dir={name}"]
    return subprocess.Popen(
        words,
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


@pytest.mark.stress
def test_a_preempted_job_is_requeued_and_resumes(tmp_path):
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    (tmp_path / "conf" / "dataset").mkdir(parents=True)
    (tmp_path / "conf" / "dataset" / "numbers.yaml").write_text(NUMBERS)
    environment = {**fake_slurm.installed(tmp_path / "slurm"), "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONPATH", None)
    running = sweep(tmp_path, "slurm_jobs", *SLURM, environment=environment)
    try:
        ledger = tmp_path / "slurm_jobs" / "0" / "ledger.jsonl"
        until = time.monotonic() + 240
        while not ledger.exists() or len(ledger.read_text().splitlines()) < 40:
            assert running.poll() is None, running.communicate()
            assert time.monotonic() < until
            time.sleep(0.01)
        # What Slurm sends some time before a job's limit, or before it is preempted.
        subprocess.run(["scancel", "--signal=USR1", "1_0"], env=environment, check=True)
        said, _ = running.communicate(timeout=300)
    finally:
        running.kill()
        running.communicate()
    print(said)
    logs = "".join(path.read_text() for path in (tmp_path / "slurm_jobs").rglob("*_log.*"))
    print(logs)
    assert running.returncode == 0, said
    assert "SIGUSR1: saving after this step" in logs
    assert "Requeued job 1_0" in logs
    assert "resuming" in logs
    assert [one.status for _, one in read_results(tmp_path / "slurm_jobs")] == ["done", "done"]
    plain = sweep(tmp_path, "plain", environment=environment)
    assert plain.wait(300) == 0
    plain.stdout.close()
    assert digests(tmp_path / "slurm_jobs") == digests(tmp_path / "plain")


class Evil:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.stress
def test_pickles_in_a_strangers_sweep_are_not_read(tmp_path):
    """A stored sweep with the results of its jobs, under the numbers that these will have."""
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    (tmp_path / "conf" / "dataset").mkdir(parents=True)
    (tmp_path / "conf" / "dataset" / "numbers.yaml").write_text(NUMBERS)
    folder, canary = tmp_path / "theirs", tmp_path / "canary"
    for job in ("1", "1_0", "1_1", "2", "2_0", "2_1"):
        place = folder / ".submitit" / job
        place.mkdir(parents=True)
        for name in (f"{job}_0_result.pkl", f"{job}_submitted.pkl"):
            (place / name).write_bytes(pickle.dumps(("success", Evil(canary))))
    environment = {**fake_slurm.installed(tmp_path / "slurm"), "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONPATH", None)
    typed = [sys.executable, str(ROOT / "run.py"), *WORDS, "trainer.max_epochs=1", *SLURM]
    typed.append(f"hydra.sweep.dir={folder}")
    done = subprocess.run(
        typed,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert not canary.exists(), "a pickle of the stranger's was read"
    assert done.returncode == 0, done.stdout + done.stderr
    assert [one.status for _, one in read_results(folder)] == ["done", "done"]
    (own,) = (path for path in (folder / ".submitit").iterdir() if len(path.name) == 16)
    assert own.stat().st_mode & 0o777 == 0o700


def test_every_launch_has_a_folder_of_its_own(tmp_path):
    sweep = tmp_path / "multirun" / "a"
    made = {launching.folder_of_jobs(f"{sweep}/.submitit/%j") for _ in range(3)}
    assert len(made) == 3
    assert {path.stat().st_mode & 0o777 for path in made} == {0o700}
    assert {path.parent for path in made} == {sweep / ".submitit"}
    assert sweep.stat().st_mode & 0o777 != 0o700, "reports in it are for others, too"
    for name in ("line\nbreak", "back\\slash", "pattern-%u"):
        with pytest.raises(ConfigError, match=r"hydra\.sweep\.dir: got"):
            launching.folder_of_jobs(f"{tmp_path}/{name}/.submitit/%j")
        assert not (tmp_path / name).exists()


def test_several_tasks_of_a_job_are_refused(capsys, tmp_path, monkeypatch):
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    monkeypatch.chdir(tmp_path)
    for name in ("tasks_per_node", "nodes"):
        done = run(capsys, "-m", "seed=1,2", *SLURM, f"hydra.launcher.{name}=2")
        assert done.code == 2
        assert f"hydra.launcher.{name}: got 2: a job of a sweep is one process" in done.err


def test_submitit_is_recognized(monkeypatch):
    from penstock.distributed import slurm

    assert not slurm.is_of_submitit(os.environ)
    job = {"SUBMITIT_EXECUTOR": "slurm"}
    kept = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        assert slurm.is_of_submitit(job)
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        assert not slurm.is_of_submitit(job), "the signal would end the process"
    finally:
        signal.signal(signal.SIGUSR1, kept)
