"""Random configurations, run in every way that should make no difference.

    python -m tests.promises.stress.random_configurations --cases 2000 --seed 1
    python -m tests.promises.stress.random_configurations --seed 1 --case 17        one of them

A case is a configuration (`random_cases.py`) and legs: backends, ranks, killed workers, fits that
are stopped or killed and resumed. It is drawn from its seed and number alone. Checked is that
(a) the digests of all legs are equal, (b) ledgers and weights of resumed runs equal those of whole
ones, (c) the rows of each batch are what the sampler promises (`random_oracle.py`), and (d) what is
refused ends with code 2, one message and no folder. Of a case that fails, options are left out one
by one as long as it fails in the same way.

Each case is a forked process of this one, which has imported torch; the programs of a case run in
that process, or are forked from it, where signals or ranks need processes of their own.
"""

import argparse
import contextlib
import gc
import json
import os
import random
import re
import select
import shlex
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import torch
import torchmetrics.classification
import torchmetrics.regression  # noqa: F401  (imported once, and not by each case)

from penstock.errors import PenstockError
from tests.port import main as program
from tests.port import redirect
from tests.promises.stress import random_cases, random_files
from tests.promises.stress.random_legs import MAIN, Check, Failed, words_of

LIMIT = 180  # seconds of a case
# Failures with a cause that is known: what is found in them, and the cause.
KNOWN: tuple[tuple[str, str], ...] = (
    (r"rows: .*Error:.*'name'", "the pack of a table has its texts as columns, the table has not"),
)


def attempt(case, seed, number, files):
    """Run a case in a process of its own; {"counts", "failure", "command"}."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-random-"))
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        os.setsid()
        with os.fdopen(writer, "w") as pipe:
            pipe.write(json.dumps(_attempt(case, seed, number, folder)))
        os._exit(0)
    os.close(writer)
    until, text = time.monotonic() + LIMIT, b""
    while True:
        ready, _, _ = select.select([reader], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            found = {"counts": {}, "command": [], "failure": f"hang: not done in {LIMIT} s"}
            break
        piece = os.read(reader, 1 << 16)
        if not piece:
            if text:
                found = json.loads(text)
            else:
                found = {"counts": {}, "command": [], "failure": "crash: the process is gone"}
            break
        text += piece
    os.close(reader)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    shutil.rmtree(folder, ignore_errors=True)
    return found


def _attempt(case, seed, number, folder):
    os.chdir(folder)
    os.fsync = lambda descriptor: None  # no power is cut here
    redirect(folder / "log.out", folder / "log")
    torch.set_num_threads(1)
    counts, check, failure = Counter(), None, None
    try:
        check = Check(case, seed, number, folder, counts)
        check.run()
    except Failed as error:
        failure = str(error)
    except PenstockError as error:
        failure = f"{check.leg}: refused: {error}"
    except BaseException as error:
        last = traceback.format_exception(error)[-4:]
        failure = f"{check.leg if check else ''}: {type(error).__name__}: {error} {''.join(last)}"
    return {
        "counts": counts,
        "failure": failure,
        "command": check.command if check else [],
        "refused": check.reason if check else "",
    }


def kind_of(failure):
    """What two failures have in common that are one."""
    return re.sub(r"[0-9a-f]{6,}|\d+", "#", failure)[:60]


def shrunk(case, seed, number, files, failure):
    """The case without the options that it fails without."""
    for word in list(case.options):
        fewer = random_cases.Case(
            case.kind, case.name, case.base, [one for one in case.options if one != word]
        )
        found = attempt(fewer, seed, number, files)
        if found["failure"] and kind_of(found["failure"]) == kind_of(failure):
            case, failure = fewer, found["failure"]
    return case, failure


def run(cases, seed, files, only=None, shrink=True, say=print):
    """Run cases; executions by leg, and the failures."""
    os.environ["PENSTOCK_TRUST"] = random_cases.OWN
    torch.set_num_threads(1)
    warm_up(files)
    counts, refused, failures = Counter(), Counter(), []
    began, work = time.monotonic(), os.times()
    for number in [only] if only is not None else range(cases):
        case = random_cases.draw_case(seed, number, files)
        if only is not None:
            say(shlex.join(case.words))
        found = attempt(case, seed, number, files)
        counts.update(found["counts"])
        counts["cases"] += 1
        if found.get("refused"):
            refused[found["refused"]] += 1
        if found["failure"]:
            known = next((why for text, why in KNOWN if re.search(text, found["failure"])), None)
            if known is not None:
                counts[f"known: {known}"] += 1
                continue
            case, failure = (case, found["failure"])
            if shrink:
                case, failure = shrunk(case, seed, number, files, failure)
            failures.append((number, failure))
            say(
                f"--- seed {seed}, case {number} ({case.name}): {failure}\n    "
                f"{shlex.join(case.words)}\n    in {shlex.join(found['command'][-8:])}"
            )
        if (number + 1) % 50 == 0:
            say(summary(counts, failures, began, work))
    say(summary(counts, failures, began, work))
    say(f"refused, by the key that is told: {dict(refused)}")
    return counts, failures


def warm_up(files):
    """Import here what every case would import by and by: it takes a case longer than its work."""
    for name in ("sequences", "table"):
        case = random_cases.Case(
            None, name, list(random_cases.kinds(random.Random(0), files)[name].words)
        )
        with tempfile.TemporaryDirectory() as folder, (Path(folder) / "said").open("w") as said:
            words = [*words_of(case, folder), f"run_dir={folder}/run", "trainer.max_steps=2", *MAIN]
            with redirect_stdout(said), redirect_stderr(said):
                codes = [program([f"task={task}", *words]) for task in ("digest", "fit")]
            assert codes == [0, 0], (Path(folder) / "said").read_text()
    gc.collect()
    gc.freeze()


def summary(counts, failures, began, work):
    executions = sum(
        count for name, count in counts.items() if name != "cases" and "known" not in name
    )
    spent = sum(now - then for now, then in zip(os.times()[:4], work[:4], strict=True))
    return (
        f"{counts['cases']} cases, {executions} executions, {len(failures)} failures, "
        f"{time.monotonic() - began:.0f} s, {spent:.0f} s of CPU: {dict(counts)}"
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="this one alone")
    parser.add_argument("--files", type=Path, help="folder of the files that datasets read")
    parser.add_argument("--no-shrink", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = random_files.files_of((given.files or Path(folder) / "files").absolute())
        _, failures = run(
            given.cases,
            given.seed,
            files,
            given.case,
            not given.no_shrink,
            lambda text: print(text, flush=True),
        )
    return int(bool(failures))


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # C libraries would report what nobody has freed
