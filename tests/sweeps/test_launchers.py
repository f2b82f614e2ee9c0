"""Sweeps under other launchers: the results of jobs that run in this process, and no secrets."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import command
from penstock.addons.sweeps.job_result import read_results
from tests.own_parts import NUMBERS

pytestmark = pytest.mark.stress
ROOT = Path(__file__).parents[2]
PRESETS = sorted(path.stem for path in (ROOT / "conf" / "loader").glob("*.yaml"))
SECRET = "b1tter-sw33t"
RUN = [
    "--trust",
    "tests",
    "dataset=numbers",
    "batch.size=8",
    "tracker=none",
    "trainer.digest=true",
    "trainer.max_epochs=2",
    "trainer.pictures=false",
    "trainer.report=false",
    "trainer.progress=none",
    "cache_dir=cache",
    "+transform.train.note={_target_: tests.own_parts.noted, _partial_: true, note: here, "
    f"api_token: {SECRET}}}",
]
PLUGINS = {
    "joblib": ["hydra.launcher.n_jobs=2"],
    "submitit_local": ["hydra.launcher.timeout_min=5"],
    "ray": ["+hydra.launcher.ray.init.num_cpus=2"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the sweeps are; the one of the basic launcher is done."""
    folder = tmp_path_factory.mktemp("launchers")
    (folder / "conf" / "dataset").mkdir(parents=True)
    (folder / "conf" / "dataset" / "numbers.yaml").write_text(NUMBERS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("PENSTOCK_TRUST", "tests")
        assert command.main(words("basic")) == 0
    return folder


def words(launcher):
    return [
        "-m",
        "--config-dir",
        "conf",
        *RUN,
        f"loader={','.join(PRESETS)}",
        f"hydra/launcher={launcher}",
        *PLUGINS.get(launcher, ()),
        f"hydra.sweep.dir={launcher}",
        "hydra.output_subdir=.hydra",
    ]


def results(folder):
    found = read_results(folder)
    assert [one.status for _, one in found] == ["done"] * len(PRESETS)
    digests = {(folder / name / "digests.jsonl").read_text() for name, _ in found}
    assert len(digests) == 1, "one for all loaders"
    return digests, [(one.overrides, one.value, one.others) for _, one in found]


@pytest.mark.parametrize("launcher", PLUGINS)
def test_every_loader_gives_the_same_under_every_launcher(folder, launcher):
    pytest.importorskip(f"hydra_plugins.hydra_{launcher.removesuffix('_local')}_launcher")
    # As a program, and not from the folder of the code: jobs have to find it themselves.
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "run.py"), *words(launcher)],
        cwd=folder,
        env=outside,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(PRESETS)} jobs in {launcher}" in done.stdout
    digests, found = results(folder / launcher)
    expected_digests, expected = results(folder / "basic")
    assert digests == expected_digests
    assert found == expected
