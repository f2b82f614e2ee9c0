"""A Slurm of one machine, for tests: its commands, which really run jobs.

    environment = fake_slurm.installed(folder)      # puts them on PATH

It does what the pages of the real commands say, as far as tests need it: options in the script,
arrays, variables of jobs and of steps, a signal to the tasks of a step some time after the start,
and requeueing, which ends what runs and starts the script again under the same number. A file for
each job in `folder` holds its state; nothing else outlives a test.
"""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

COMMANDS = ("sbatch", "srun", "scontrol", "sacct", "scancel")


def installed(folder):
    """The environment in which the commands are found."""
    folder.mkdir()
    for name in COMMANDS:
        text = f'#!/bin/sh\nexec {sys.executable} -S {__file__} {name} "$@"\n'
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SLURM", "MASTER", "WORLD", "RANK", "SUBMITIT"))
    }
    return {**clean, "PATH": f"{folder}:{clean['PATH']}", "FAKE_SLURM": str(folder)}


def options_of(words):
    """The options before the command, and the command."""
    found, rest = {}, list(words)
    while rest and rest[0].startswith("-"):
        name, equals, value = rest.pop(0).lstrip("-").partition("=")
        flags = ("unbuffered", "kill-on-bad-exit", "requeue")
        if not equals and name not in flags:
            value = rest.pop(0)
        found[name] = value
    return found, rest


def arguments(line):
    """The words of an #SBATCH line, as sbatch's get_argument reads them.

    Unlike a shell's, its backslash counts inside of single quotes, too.
    """
    found, word, at = [], None, 0
    quote, escaped = "", False
    while at < len(line):
        sign, at = line[at], at + 1
        if escaped:
            escaped = False
        elif sign == "\\":
            escaped = line[at : at + 1] != " "
            if escaped:
                continue
            sign, at = " ", at + 1
        elif sign == quote:
            quote = ""
            continue
        elif not quote and sign in "\"'":
            quote, word = sign, word or ""
            continue
        elif not quote and sign == "#":
            break
        elif not quote and sign.isspace():
            found += [] if word is None else [word]
            word = None
            continue
        word = (word or "") + sign
    if quote:
        sys.exit(f"sbatch: fatal: Unmatched `{quote}` in [{line}]")
    return found + ([] if word is None else [word])


def state_file(job):
    return Path(os.environ["FAKE_SLURM"], f"job-{job}.json")


def read(job):
    return json.loads(state_file(job).read_text())


def write(job, **news):
    known = read(job) if state_file(job).exists() else {}
    beside = state_file(job).with_suffix(f".{os.getpid()}")
    beside.write_text(json.dumps({**known, **news}))
    beside.replace(state_file(job))


def named(pattern, job, task=0):
    """A name of a file with its %A, %a, %j and %t."""
    array, _, index = str(job).partition("_")
    for sign, value in {"%A": array, "%a": index, "%j": job, "%t": task}.items():
        pattern = pattern.replace(sign, str(value))
    return pattern


def sbatch(words):
    script = words[-1]
    text = Path(script).read_text()
    told = {}
    for line in text.split("\n"):
        if line.strip() and not line.startswith("#"):
            break
        if line.startswith("#SBATCH"):
            told |= options_of(arguments(line.removeprefix("#SBATCH")))[0]
    number = 1 + len(list(Path(os.environ["FAKE_SLURM"]).glob("script-*")))
    kept = Path(os.environ["FAKE_SLURM"], f"script-{number}")  # Slurm keeps the text, too
    kept.write_text(text)
    print(f"Submitted batch job {number}", flush=True)
    first, last = (
        re.match(r"(\d+)-(\d+)", told.get("array", "")).groups() if "array" in told else (0, -1)
    )
    jobs = [f"{number}_{one}" for one in range(int(first), int(last) + 1)] or [str(number)]
    for job in jobs:
        write(job, state="PENDING", told=told)
        if os.fork() == 0:
            os.setsid()
            null = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(null, descriptor)
            run_job(job, kept, told)
            os._exit(0)


def run_job(job, script, told):
    """Run the script, again and again while it is requeued."""
    array, _, index = job.partition("_")
    for name in ("output", "error"):  # a real job starts seconds after it was submitted
        Path(named(told.get(name, "slurm"), job)).parent.mkdir(parents=True, exist_ok=True)
    tasks = int(told.get("ntasks-per-node", told.get("ntasks", 1)))
    variables = {
        "SLURM_JOB_ID": array if not index else str(1000 * int(array) + int(index)),
        "SLURM_NTASKS": str(tasks),
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_NNODES": "1",
        "SLURM_JOB_NODELIST": socket.gethostname(),
        "SLURM_NODEID": "0",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "FAKE_JOB": job,
        **({"SLURM_ARRAY_JOB_ID": array, "SLURM_ARRAY_TASK_ID": index} if index else {}),
    }
    for restarts in range(10):
        write(job, state="RUNNING", requeue=False, step=0, pids=[])
        with (
            open(named(told.get("output", "slurm-%j.out"), job), "ab") as out,
            open(named(told.get("error", told.get("output", "slurm-%j.out")), job), "ab") as err,
        ):
            done = subprocess.Popen(
                ["bash", str(script)],
                stdout=out,
                stderr=err,
                start_new_session=True,
                env={**os.environ, **variables, "SLURM_RESTART_COUNT": str(restarts)},
            )
            write(job, script=done.pid)
            code = done.wait()
        if not read(job)["requeue"]:
            write(job, state="COMPLETED" if code == 0 else "FAILED", code=code)
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(done.pid, signal.SIGKILL)  # what was left of it
    write(job, state="FAILED")


def srun(words):
    """Run the tasks of a step; the highest exit code is the step's."""
    given, command = options_of(words)
    job = os.environ["FAKE_JOB"]
    step, size = read(job)["step"], int(given.get("ntasks", os.environ["SLURM_NTASKS"]))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    variables = {
        "SLURM_STEP_ID": str(step),
        "SLURM_STEP_NUM_TASKS": str(size),
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_STEP_TASKS_PER_NODE": str(size),
        "SLURM_STEP_NODELIST": socket.gethostname(),
        "SLURM_NODEID": "0",
        "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
        "MASTER_PORT": str(port),  # a real cluster has no other tests on its ports
    }
    tasks = []
    for rank in range(size):
        with contextlib.ExitStack() as files:
            out, err = (
                files.enter_context(open(named(given[name], job, rank), "ab"))
                if name in given
                else None
                for name in ("output", "error")
            )
            mine = {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}
            tasks.append(
                subprocess.Popen(
                    command, env={**os.environ, **variables, **mine}, stdout=out, stderr=err
                )
            )
    write(job, pids=[one.pid for one in tasks], step=step + 1)
    signal.signal(signal.SIGTERM, lambda *_: None)  # the tasks get it, and srun waits for them
    kills = given.get("kill-on-bad-exit", "0") not in ("0",) and "kill-on-bad-exit" in given
    while any(one.poll() is None for one in tasks):
        if kills and any(one.poll() for one in tasks):
            time.sleep(2)
            for one in tasks:
                if one.poll() is None:
                    one.kill()
        time.sleep(0.05)
    write(job, pids=[])
    sys.exit(max(code if code >= 0 else 128 - code for code in (one.poll() for one in tasks)))


def scontrol(words):
    """`scontrol requeue JOB`: end what runs, and have it started again."""
    verb, number = words
    assert verb == "requeue", words
    job = of_number(number)
    write(job, requeue=True)
    scancel([number])


def scancel(words):
    """`scancel [--signal=NAME] JOB`: to the tasks of its steps; without a name it ends the job."""
    given, (number,) = options_of(words)
    job = of_number(number)
    name = given.get("signal", "TERM").removeprefix("SIG")
    for pid in read(job)["pids"]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.Signals[f"SIG{name}"])


def of_number(number):
    """A job by its number, or by that of its array and its place there."""
    if state_file(number).exists():
        return number
    return f"{int(number) // 1000}_{int(number) % 1000}"


def sacct(words):
    print("JobID|State|NodeList")
    for file in sorted(Path(os.environ["FAKE_SLURM"]).glob("job-*.json")):
        print(f"{file.stem[4:]}|{json.loads(file.read_text())['state']}|{socket.gethostname()}")


if __name__ == "__main__":
    {"sbatch": sbatch, "srun": srun, "scontrol": scontrol, "sacct": sacct, "scancel": scancel}[
        sys.argv[1]
    ](sys.argv[2:])
