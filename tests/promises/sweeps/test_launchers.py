"""Sweeps under Hydra's other launchers: the results of jobs that run in this process."""

import os
import subprocess
import sys

import pytest

from penstock.addons.sweeps.sweep import jobs_of
from tests.support.program import ROOT

LAUNCHERS = {
    "joblib": ["hydra.launcher.n_jobs=2"],
    "submitit_local": ["hydra.launcher.timeout_min=5"],
    "ray": ["+hydra.launcher.ray.init.num_cpus=2"],
}


def sweep(faces, folder, launcher):
    """As a program, and not from the folder of the code: jobs have to find it themselves."""
    words = ["-m", *faces, "batch.size=8", "trainer.max_epochs=1", "tracker=none", "seed=1,2"]
    words += ["loader=debug,default", "trainer.digest=true", "trainer.pictures=false"]
    words += [f"hydra/launcher={launcher}", *LAUNCHERS.get(launcher, ())]
    words += [f"hydra.sweep.dir={launcher}", "trainer.report=false", "trainer.progress=none"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "run.py"), *words],
        cwd=folder,
        env={name: value for name, value in environment.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 of 4 jobs" in done.stdout or "2 of 2 jobs" in done.stdout
    return [
        (job.settings, job.value, (job.path / "digests.jsonl").read_text())
        for job in jobs_of(folder / launcher)
    ]


@pytest.mark.thorough
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_jobs_under_every_launcher_are_the_same(launcher, faces, tmp_path):
    pytest.importorskip(f"hydra_plugins.hydra_{launcher.removesuffix('_local')}_launcher")
    assert sweep(faces, tmp_path, launcher) == sweep(faces, tmp_path, "basic")
