"""A rank that hangs, anywhere in a real fit, in any way, under any launcher: the run ends soon with
one message and exit code 75, and resumed it is the run that it would have been.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.support import hanging
from tests.support.ports import free_port
from tests.support.program import ROOT

pytestmark = pytest.mark.stress
TIMEOUT = 6
GRACE = 120  # seconds for a rank to end by itself, once it was asked to
WORDS = (
    "dataset=hanging",
    "batch.size=8",
    "trainer.max_epochs=4",
    "trainer.log_every=2",
    "trainer.checkpoint.every_steps=5",
    "trainer.pictures=false",
    "trainer.report=false",
    "tracker=none",
    "trainer.digest=true",
    "trainer.device=cpu",
    "loader=debug",
    "trainer.progress=none",
    "run_dir=run",
    "resume=auto",
    "cache_dir=cache",
    f"distributed.timeout={TIMEOUT}",
)


def start(folder, launcher, *more, ranks=2, **environment):
    """The processes of a run; of our launcher or torchrun, or of each task of srun."""
    (folder / "conf" / "dataset").mkdir(parents=True, exist_ok=True)
    (folder / "conf" / "dataset" / "hanging.yaml").write_text(hanging.CONF)
    words = [str(ROOT / "run.py"), "--trust", "tests", "--config-dir", "conf", *WORDS, *more]
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SLURM", "MASTER", "WORLD", "RANK", "HANG"))
    }
    clean |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **environment}
    each = [{}]
    if launcher == "ours":
        words.append(f"distributed.nproc={ranks}")
    elif launcher == "torchrun":
        words = [
            "-m",
            "torch.distributed.run",
            "--master-port",
            str(free_port()),
            "--nproc-per-node",
            str(ranks),
            *words,
        ]
    else:
        step = {
            "SLURM_JOB_ID": "47",
            "SLURM_STEP_ID": "0",
            "SLURM_STEP_NUM_TASKS": str(ranks),
            "SLURM_STEP_NUM_NODES": "1",
            "SLURM_STEP_TASKS_PER_NODE": str(ranks),
            "SLURM_NODEID": "0",
            "SLURM_STEP_NODELIST": "here",
            "MASTER_PORT": str(free_port()),
        }
        each = [
            {**step, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)} for rank in range(ranks)
        ]
    with (folder / "log").open("a") as log:
        return [
            subprocess.Popen(
                [sys.executable, *words],
                cwd=folder,
                env=clean | own,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            for own in each
        ]


def ended(processes, seconds):
    """Exit codes; all are killed in the end."""
    until = time.monotonic() + seconds
    try:
        return [one.wait(max(0.1, until - time.monotonic())) for one in processes]
    finally:
        for one in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)


def outcome(folder, run="run"):
    return [(folder / run / name).read_text() for name in ("ledger.jsonl", "digests.jsonl")]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    found = {}

    def of(*more):
        if more not in found:
            folder = tmp_path_factory.mktemp("whole")
            codes = ended(start(folder, "ours", *more), 200)
            assert codes == [0], (folder / "log").read_text()
            found[more] = outcome(folder)
        return found[more]

    return of


DDP, FSDP = ("distributed=ddp",), ("distributed=fsdp",)
ADDED = ("distributed=ddp", "trainer.accumulate=3")
CASES = [
    ("ours", DDP, "train 1 stop"),
    ("ours", DDP, "update 0 gil"),
    ("ours", DDP, "val 1 spin"),
    ("ours", DDP, "background_save 0 deadlock"),
    ("ours", ADDED, "train 1 deadlock"),
    ("ours", FSDP, "train 0 spin"),
    ("torchrun", DDP, "train 0 stop"),
]


@pytest.mark.parametrize(("launcher", "more", "hang"), CASES, ids=lambda one: str(one))
def test_a_hang_ends_and_the_run_resumes(launcher, more, hang, tmp_path, undisturbed):
    expected = undisturbed(*more)
    once = tmp_path / "hung"
    processes = start(tmp_path, launcher, *more, HANG=hang, HANG_ONCE=str(once))
    try:
        while not once.exists():
            assert all(one.poll() is None for one in processes), (tmp_path / "log").read_text()
            time.sleep(0.05)
        begun = time.monotonic()
        codes = ended(processes, TIMEOUT + GRACE + 60)
    finally:
        print((tmp_path / "log").read_text())
    print(f"{time.monotonic() - begun:.1f} s, {codes}")
    said = (tmp_path / "log").read_text()
    assert codes in ([75], [1]), said
    assert said.count(f"Gone or late: rank {hang.split()[1]}.") == 1
    if launcher != "torchrun":  # it reports failures by a traceback of its own
        assert "Traceback" not in said
    assert ended(start(tmp_path, launcher, *more), 200) == [0] * len(processes), said
    assert outcome(tmp_path) == expected


@pytest.mark.parametrize("hang", ["train 1 gil", "train 0 stop"])
def test_all_start_again_by_themselves(hang, tmp_path, undisturbed):
    more = ("distributed=ddp", "distributed.max_restarts=1", "resume=null")
    (tmp_path / "run").mkdir()  # of another run, so that this one has run-2
    (tmp_path / "run" / "manifest.json").write_text('{"status": "done"}')
    processes = start(tmp_path, "ours", *more, HANG=hang, HANG_ONCE=str(tmp_path / "hung"))
    begun = time.monotonic()
    codes = ended(processes, 200 + GRACE)
    said = (tmp_path / "log").read_text()
    print(f"{said}\n{time.monotonic() - begun:.1f} s with start and end, {codes}")
    assert codes == [0], said
    assert said.count(f"Gone or late: rank {hang.split()[1]}.") == 1
    assert outcome(tmp_path, "run-2") == undisturbed("distributed=ddp")
    assert json.loads((tmp_path / "run-2" / "manifest.json").read_text())["status"] == "done"
