"""Other projects' tests of their loaders, with ours in the place of torch's: which pass no more?

    python -m tests.support.suites FOLDER [--suites pytorch torchdata ...] [--results FOLDER]

FOLDER holds checkouts of the projects, each by its name in `SUITES`, as `git clone` leaves them;
those that are missing are left out. The projects' packages must be installed, with what their tests
import (parameterized, expecttest, cloudpickle, ...). Nothing of theirs is kept here.

Every suite is run with our class, in its order and reversed, in a process of its own, and with
torch's class where ours fails (`--whole`: everywhere). A test that lasts longer than `--limit`
seconds hangs: its stacks are in the log, it is ended, and the rest goes on in a new process.
Results are lines in `--results`; a run that was broken off goes on there, and what is to be run
again is deleted there.

At the end stands what ours fails and torch's passes in the same order. Each such test has to be in
exceptions.yaml, with the reason; the exit code is 1 where one is not, where one hangs, or where a
file of tests could not be collected.
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

ORDERS = "forward", "reversed"
FAILED = "failed", "hangs", "crashes"
COLLECTING = 900  # seconds before the first test, and behind the last one


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
    parser = argparse.ArgumentParser(prog="python -m tests.support.suites")
    parser.add_argument("folder", type=Path, help="of the checkouts")
    parser.add_argument("--suites", nargs="+", choices=SUITES, default=list(SUITES))
    parser.add_argument("--orders", nargs="+", choices=ORDERS, default=ORDERS)
    parser.add_argument("--whole", action="store_true", help="all tests with torch's class, too")
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
            checkout = (options.folder / name).resolve()
            ours, theirs = (
                results / f"{name}.{loader}.{order}.jsonl" for loader in ("penstock", "torch")
            )
            run(SUITES[name], checkout, order, ours, options.limit, swaps=True)
            lost = [test for test, outcome in read(ours).items() if outcome in FAILED]
            only = None if options.whole else lost
            run(SUITES[name], checkout, order, theirs, options.limit, only=only)
            wrong += compared(
                f"{name}, {order}", read(ours), read(theirs), exceptions.get(name, {})
            )
            wrong += not_collected(ours)
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


def run(suite, checkout, order, file, limit, swaps=False, only=None):
    """Run all tests, or `only` some, that have no result yet, in as many processes as it takes."""
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
        "SUITES_ONLY": "" if only is None else str(file.with_suffix(".only")),
        "SUITES_SWAPPED": "",
        "SUITES_CLASSES": suite.classes,
    }
    if only is not None:
        file.with_suffix(".only").write_text(json.dumps(only))
    if swaps:
        environment["SUITES_SWAPPED"] = os.pathsep.join(map(str, places(suite, checkout)))
    command = [sys.executable, "-P", "-m", "pytest", "-p", "noting", "--assert=plain", "-q"]
    command += ["-p", "no:cacheprovider", "-o", "addopts=", "--tb=short", *suite.tests]
    command += ["-o", f"faulthandler_timeout={max(limit - 10, 1):.0f}"]  # prints the stacks
    command += ["-k", suite.chosen] if suite.chosen else []
    while not any("ended" in line for line in lines(file)):
        with file.with_suffix(".log").open("a") as log:
            process = subprocess.Popen(
                command, cwd=root, env=environment, stdout=log, stderr=log, start_new_session=True
            )
            ended = watch(process, file, limit)
        last = lines(file)[-1] if lines(file) else {}
        if "begun" in last:
            outcome = "crashes" if ended else "hangs"
            note(file, test=last["begun"], outcome=outcome, why=f"exit code {process.returncode}")
        elif process.returncode in (0, 1, 2, 5):
            note(file, ended=process.returncode)
        else:
            raise SystemExit(f"pytest ended with {process.returncode}: see {log.name}")


def watch(process, file, limit):
    """Wait for pytest; end all that it has started. Whether it ended by itself: no test hung."""
    began = time.time()
    while process.poll() is None:
        last = file.read_text().rstrip().rpartition("\n")[2]
        seconds = limit if last.startswith('{"begun"') else max(limit, COLLECTING)
        if time.time() - max(file.stat().st_mtime, began) > seconds:
            break
        time.sleep(0.2)
    ended = process.poll() is not None
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return ended


def note(file, **line):
    with file.open("a") as results:
        results.write(json.dumps(line) + "\n")


def lines(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def read(file):
    """Outcomes by test."""
    return {line["test"]: line["outcome"] for line in lines(file) if "test" in line}


def compared(name, ours, theirs, exceptions):
    """Print what differs; how many tests are ours to mend."""
    for loader, seen in (("penstock", ours), ("torch", theirs)):
        counts = collections.Counter(seen.values())
        text = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
        print(f"{name}, {loader}: {text}")
    lost = {
        test: outcome
        for test, outcome in ours.items()
        if outcome == "hangs" or (outcome in FAILED and theirs.get(test) == "passed")
    }
    wrong = [test for test in lost if test not in exceptions or lost[test] == "hangs"]
    for test in sorted(lost):
        print(f"  {lost[test]}: {test}: {exceptions.get(test, 'NOT LISTED')}")
    for test in sorted(set(exceptions) & {test for test in ours if ours[test] == "passed"}):
        print(f"  listed, and passes: {test}")
    print(f"  {len(lost)} of {len(ours)} are lost")
    return len(wrong)


def not_collected(file):
    """Print the files that pytest could not import: nobody knows what their tests would say."""
    files = {line["uncollected"]: line["why"] for line in lines(file) if "uncollected" in line}
    if not files and not read(file):
        files = {"anything": f"see {file.with_suffix('.log')}"}
    for name, why in files.items():
        print(f"  not collected: {name}: {why.strip().splitlines()[-1]}")
    return len(files)


if __name__ == "__main__":
    sys.exit(main())
