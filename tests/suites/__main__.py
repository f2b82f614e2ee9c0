"""Other projects' tests of their loaders, with ours in the place of torch's: which pass no more?

    python -m tests.suites FOLDER [--suites pytorch torchdata ...] [--results FOLDER]

FOLDER holds checkouts of the projects, each by its name in `SUITES`, as `git clone` leaves them;
those that are missing are left out. The projects' packages must be installed, with what their tests
import (parameterized, expecttest, cloudpickle, ...). Nothing of theirs is kept here.

Every suite is run with torch's class and with ours, in its order and reversed, in a process of its
own. A test that lasts longer than `--limit` seconds hangs: its stacks are printed, it is ended, and
the rest goes on in a new process. Results are lines in `--results`; a run that was broken off goes
on there, and what is to be run again is deleted there.

At the end stands what ours fails and torch's passes in the same order. Each such test has to be in
exceptions.yaml, with the reason; the exit code is 1 where one is not, or where one hangs.
"""

import argparse
import collections
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

import yaml

LOADERS = "torch", "penstock"
ORDERS = "forward", "reversed"
FAILED = "failed", "hangs", "crashes"


@dataclass(frozen=True)
class Suite:
    """A project's tests.

    Attributes:
        tests: files and folders that are run, in the order in which they are.
        root: below the checkout; where they are run.
        swapped: whose imports are ours, beside `tests`: `package:path`, in installed packages.
        chosen: pytest's `-k`.
        inside: folders of the checkout that Python imports from.
        classes: whose place ours takes.
    """

    tests: tuple[str, ...]
    root: str = "."
    swapped: tuple[str, ...] = ()
    chosen: str = ""
    inside: tuple[str, ...] = ()
    classes: str = "DataLoader"


SUITES = {
    "pytorch": Suite(("test_dataloader.py",), root="test"),
    "torchdata": Suite(
        tuple(
            f"test/stateful_dataloader/test_{name}.py"
            for name in ("dataloader", "state_dict", "sampler", "incremental_state", "hugging_face")
        ),
        inside=(".",),
        classes="DataLoader StatefulDataLoader",
    ),
    "lightning": Suite(
        (
            "tests_pytorch/loops",
            "tests_pytorch/trainer/test_dataloaders.py",
            "tests_pytorch/trainer/connectors/test_data_connector.py",
            "tests_pytorch/utilities/test_combined_loader.py",
            "tests_pytorch/utilities/test_data.py",
            "tests_pytorch/utilities/test_auto_restart.py",
            "tests_pytorch/core/test_datamodules.py",
        ),
        root="tests",
        swapped=("lightning:pytorch/demos",),
        inside=("src",),
    ),
    "accelerate": Suite(
        tuple(
            f"tests/test_{name}.py" for name in ("data_loader", "grad_sync", "state_checkpointing")
        ),
        swapped=("accelerate:test_utils",),
    ),
    "transformers": Suite(
        ("tests/trainer/test_trainer.py",),
        swapped=("transformers:trainer.py",),
        chosen="not Hub and not HyperParameter and not Optimizer",
    ),
}  # fmt: skip


def main(words=None):
    """Run what is not run yet, and compare; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.suites")
    parser.add_argument("folder", type=Path, help="of the checkouts")
    parser.add_argument("--suites", nargs="+", choices=SUITES, default=list(SUITES))
    parser.add_argument("--loaders", nargs="+", choices=LOADERS, default=LOADERS)
    parser.add_argument("--orders", nargs="+", choices=ORDERS, default=ORDERS)
    parser.add_argument("--results", type=Path, help="default: FOLDER/results")
    parser.add_argument("--limit", type=float, default=300, help="seconds of a test")
    options = parser.parse_args(words)
    results = (options.results or options.folder / "results").resolve()
    results.mkdir(parents=True, exist_ok=True)
    exceptions, wrong = listed(), 0
    for name in options.suites:
        if not (options.folder / name).is_dir():
            print(f"{name}: no {options.folder / name}")
            continue
        for order in options.orders:
            outcomes = {}
            for loader in options.loaders:
                file = results / f"{name}.{loader}.{order}.jsonl"
                checkout = (options.folder / name).resolve()
                run(SUITES[name], checkout, loader, order, file, options.limit)
                outcomes[loader] = read(file)
            wrong += compared(name, order, outcomes, exceptions.get(name, {}))
    return int(bool(wrong))


def listed():
    """Reasons by suite and test."""
    text = Path(__file__).with_name("exceptions.yaml").read_text()
    return {
        suite: {test: entry["why"] for entry in entries for test in entry["tests"]}
        for suite, entries in (yaml.safe_load(text) or {}).items()
    }


def places(suite, checkout):
    """What is swapped: paths."""
    yield checkout / suite.root / suite.tests[0].partition("/")[0]
    for place in suite.swapped:
        package, _, path = place.partition(":")
        spec = PathFinder.find_spec(package, [*imported_from(suite, checkout), *sys.path])
        if spec is not None and spec.submodule_search_locations:
            yield Path(spec.submodule_search_locations[0]) / path


def imported_from(suite, checkout):
    """Folders of the checkout that packages are in."""
    return [str(checkout / path) for path in suite.inside]


def run(suite, checkout, loader, order, file, limit):
    """Run all tests that have no result yet, in as many processes as it takes."""
    file.touch()
    root = checkout / suite.root
    paths = [str(Path(__file__).with_name("inside")), *imported_from(suite, checkout)]
    paths += filter(None, [os.environ.get("PYTHONPATH")])
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "HF_HUB_OFFLINE": "1",
        "SUITES_RESULTS": str(file),
        "SUITES_ORDER": order,
        "SUITES_SWAPPED": "",
        "SUITES_CLASSES": suite.classes,
    }
    if loader == "penstock":
        environment["SUITES_SWAPPED"] = os.pathsep.join(map(str, places(suite, checkout)))
    command = [sys.executable, "-P", "-m", "pytest", "-p", "noting", "--assert=plain", "-q"]
    command += ["-p", "no:cacheprovider", "-o", "addopts=", "--tb=short", *suite.tests]
    command += ["-k", suite.chosen] if suite.chosen else []
    while not any("ended" in line for line in lines(file)):
        with file.with_suffix(".log").open("a") as log:
            process = subprocess.Popen(
                command, cwd=root, env=environment, stdout=log, stderr=log, start_new_session=True
            )
            watch(process, file, limit)
        rest = {"begun": None, **lines(file)[-1]} if lines(file) else {"begun": None}
        if rest["begun"] is not None and "test" not in rest:
            outcome = "hangs" if process.returncode == -signal.SIGKILL else "crashes"
            note(file, test=rest["begun"], outcome=outcome, why=f"exit code {process.returncode}")
        elif process.returncode in (0, 1, 2, 5):
            note(file, ended=process.returncode)
        else:
            raise SystemExit(f"pytest ended with {process.returncode}: see {log.name}")


def watch(process, file, limit):
    """Wait for pytest; end it, with all that it has started, where a test hangs."""
    while process.poll() is None:
        time.sleep(0.2)
        since = time.time() - file.stat().st_mtime
        if since > limit:
            os.kill(process.pid, signal.SIGUSR1)  # prints the stacks
            time.sleep(2)
            break
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def note(file, **line):
    with file.open("a") as results:
        results.write(json.dumps(line) + "\n")


def lines(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def read(file):
    """Outcomes by test."""
    return {line["test"]: line["outcome"] for line in lines(file) if "test" in line}


def compared(name, order, outcomes, exceptions):
    """Print what differs; how many tests are ours to mend."""
    for loader, seen in outcomes.items():
        counts = collections.Counter(seen.values())
        text = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
        print(f"{name}, {order}, {loader}: {text}")
    if len(outcomes) < len(LOADERS):
        return 0
    theirs, ours = (outcomes[loader] for loader in LOADERS)
    lost = {
        test: outcome
        for test, outcome in ours.items()
        if outcome == "hangs" or (outcome in FAILED and theirs.get(test) == "passed")
    }
    missing = sorted(set(theirs) - set(ours))
    wrong = [test for test in lost if test not in exceptions or lost[test] == "hangs"]
    for test in sorted(lost):
        print(f"  {lost[test]}: {test}: {exceptions.get(test, 'NOT LISTED')}")
    for test in missing:
        print(f"  not run: {test}")
    for test in sorted(set(exceptions) & {test for test in ours if ours[test] == "passed"}):
        print(f"  listed, and passes: {test}")
    print(f"  {len(lost)} of {sum(each == 'passed' for each in theirs.values())} are lost")
    return len(wrong) + len(missing)


if __name__ == "__main__":
    sys.exit(main())
