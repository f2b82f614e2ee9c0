"""Sweeps through `hydra/launcher=submitit_slurm`: real jobs of tests/support/fake_slurm.py."""

import subprocess
import sys
import time

import pytest

from penstock.addons.sweeps.sweep import jobs_of
from tests.support import fake_slurm
from tests.support.own_parts import NUMBERS
from tests.support.program import ROOT

WORDS = (
    "-m --config-dir conf --trust tests dataset=numbers dataset.size=64 batch.size=4 "
    "tracker=none trainer.digest=true trainer.max_epochs=60 trainer.pictures=false "
    "trainer.report=false trainer.progress=none cache_dir=cache "
    "trainer.checkpoint.every_epochs=50 loader=debug seed=1,2"
).split()
SLURM = ["hydra/launcher=submitit_slurm", "hydra.launcher.timeout_min=60"]


def digests(folder):
    return [
        (job.path / file).read_text()
        for job in jobs_of(folder)
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
        until = time.monotonic() + 240
        ledgers = (tmp_path / "slurm_jobs").glob
        while not any(one.read_text().count("\n") > 40 for one in ledgers("*seed_1*/ledger.jsonl")):
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
    assert [job.status for job in jobs_of(tmp_path / "slurm_jobs")] == ["done", "done"]
    plain = sweep(tmp_path, "plain", environment=environment)
    assert plain.wait(300) == 0
    plain.stdout.close()
    assert digests(tmp_path / "slurm_jobs") == digests(tmp_path / "plain")
