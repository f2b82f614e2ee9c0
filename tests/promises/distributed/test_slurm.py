"""Under Slurm: tasks of srun are ranks, and the line of the docs requeues what can go on."""

import json
import os
import re
import subprocess
import sys
import time

import pytest
import torch

from penstock.distributed import world
from tests.support import fake_slurm
from tests.support.program import ROOT, run

# As srun sets them for task 5 of 7 on three machines, and for one of two tasks on one machine.
THREE_MACHINES = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_NTASKS": "7",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "2",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_TASKS_PER_NODE": "3(x2),1",
    "SLURM_STEP_NODELIST": "gpu[03-04],big1",
    "SLURM_LAUNCH_NODE_IPADDR": "10.1.2.3",
}
ONE_MACHINE = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_NTASKS": "2",
    "SLURM_NODEID": "0",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_TASKS_PER_NODE": "2",
    "SLURM_STEP_NODELIST": "login1",
    "SLURM_LAUNCH_NODE_IPADDR": "10.1.2.3",
}
BATCH_SCRIPT = {
    "SLURM_JOB_ID": "4711",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NNODES": "1",
    "SLURM_JOB_NODELIST": "gpu03",
}


@pytest.fixture
def environment(monkeypatch):
    """Sets the variables of a process, and no others of a launcher."""

    def are(values):
        for name in os.environ:
            if name.startswith(("SLURM", "MASTER", "WORLD", "RANK", "LOCAL")):
                monkeypatch.delenv(name)
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return are


def place(task):
    described = world.launcher(task)
    return described["MASTER_ADDR"], described["MASTER_PORT"]


def test_a_task_is_a_rank(environment):
    environment(THREE_MACHINES)
    assert world.from_environment("cpu") == world.World(5, 7, 2, "cpu", 3)
    assert world.is_launched()
    address, port = place(THREE_MACHINES)
    assert address == "gpu03"
    assert (address, port) == place({**THREE_MACHINES, "SLURM_PROCID": "0"})
    assert port != place({**THREE_MACHINES, "SLURM_STEP_ID": "3"})[1]
    own = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
    assert place({**THREE_MACHINES, **own}) == ("10.0.0.1", "29500")


@pytest.mark.parametrize(
    ("machines", "first"),
    [
        ("gpu[03-04],big1", "gpu03"),
        ("big1,gpu[03-04]", "big1"),
        ("a1,a2", "a1"),
        ("gpu[07,09-12]", "gpu07"),
        ("r[1-2]n[3,5]", "r1n3"),
        ("", "127.0.0.1"),
    ],
)
def test_rank_0_is_on_the_first_machine(machines, first):
    assert place({**THREE_MACHINES, "SLURM_STEP_NODELIST": machines})[0] == first


@pytest.mark.parametrize(
    "alone",
    [{}, {**ONE_MACHINE, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, BATCH_SCRIPT],
    ids=["no Slurm", "one task", "a batch script"],
)
def test_what_is_no_task_among_others_is_alone(alone, environment):
    environment(alone)
    assert not world.is_launched()
    assert world.from_environment("cpu") == world.World()


def test_a_task_takes_the_only_gpu_that_it_is_shown(environment, monkeypatch):
    environment(THREE_MACHINES)
    monkeypatch.setattr(world, "has_accelerator", lambda: True)
    for count, device in ((1, "cuda:0"), (4, "cuda:2")):
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=count: count)
        assert world.from_environment("auto").device == device


def test_torchrun_under_srun_is_torchrun(environment):
    environment({**THREE_MACHINES, "WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"})
    assert world.from_environment("cpu").rank == 1


def test_tasks_that_would_train_apart_are_refused(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, value in {**ONE_MACHINE, "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}.items():
        monkeypatch.setenv(name, value)
    done = run(capsys, "dataset.count=20")
    assert done.code == 2
    assert "distributed.strategy: none, but 2 processes were started" in done.err
    assert "set distributed=ddp" in done.err
    monkeypatch.setenv("SLURM_PROCID", "1")
    monkeypatch.setenv("SLURM_LOCALID", "1")
    assert run(capsys, "dataset.count=20").err == "", "the first task of a machine says it"


def job_script():
    text = (ROOT / "docs" / "clusters.md").read_text()
    (script,) = re.findall(r"```sh\n(#!/bin/bash\n#SBATCH.*?)```", text, re.DOTALL)
    return script


@pytest.mark.parametrize(
    ("code", "requeued"), [(0, False), (75, True), (2, False), (1, False)], ids=str
)
def test_the_line_for_slurm_requeues_what_can_go_on_and_nothing_else(code, requeued, tmp_path):
    script = job_script()
    for name, does in {"srun": f"exit {code}", "scontrol": 'echo "$@" > requeued'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "job.sh").write_text(script.replace("#!/bin/bash", "#!/bin/bash\nset -e"))
    done = subprocess.run(
        ["bash", "job.sh"],
        cwd=tmp_path,
        check=False,
        timeout=600,
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "OUT": "x"},
    )
    assert (tmp_path / "requeued").exists() == requeued
    assert done.returncode == code


@pytest.mark.stress
def test_the_job_script_trains_is_stopped_requeued_and_done(tmp_path):
    """The script of the docs, with two tasks of a real fit; equal to one process."""
    words = (
        "dataset.count=200 dataset.size=32 batch.size=8 trainer.max_epochs=6 loader=debug "
        "trainer.baseline=false trainer.pictures=false tracker=none trainer.report=false "
        "trainer.digest=true trainer.device=cpu trainer.log_every=5"
    ).split()
    program = f"{sys.executable} {ROOT}/run.py {' '.join(words)}"
    script = job_script().replace("python run.py", program).replace("/shared/faces", "run")
    script = script.replace(
        "--nodes=2 --ntasks-per-node=8 --gpus-per-node=8",
        "--nodes=1 --ntasks-per-node=2 --output=log-%j",
    )
    (tmp_path / "job.sh").write_text(script)
    environment = {**fake_slurm.installed(tmp_path / "slurm"), "OMP_NUM_THREADS": "1"}
    ledger = tmp_path / "run" / "ledger.jsonl"

    def slurm(*command):
        subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)

    def wait(condition, seconds=240):
        until = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < until, (tmp_path / "log-1").read_text()
            time.sleep(0.02)

    slurm("sbatch", "job.sh")
    wait(lambda: ledger.exists() and len(ledger.read_text().splitlines()) > 30)
    slurm("scancel", "--signal=USR1", "1")
    job = tmp_path / "slurm" / "job-1.json"
    wait(lambda: json.loads(job.read_text())["state"] in ("COMPLETED", "FAILED"))
    said = (tmp_path / "log-1").read_text()
    print(said)
    assert json.loads(job.read_text())["state"] == "COMPLETED", said
    assert "SIGUSR1: saving after this step" in said
    assert said.count("resuming run at epoch") == 1
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert [one["world"] for one in manifest["sessions"]] == [2, 2]
    subprocess.run(
        [*program.split(), "run_dir=alone"],
        cwd=tmp_path,
        env=environment,
        check=True,
        capture_output=True,
        timeout=240,
    )
    digests = [(tmp_path / name / "digests.jsonl").read_text() for name in ("run", "alone")]
    assert digests[0] == digests[1]
    assert len(digests[0].splitlines()) == 120
