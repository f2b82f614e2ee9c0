"""A plugin for pytest in other people's suites: in which order, and what came of each test.

It appends a line of JSON to $SUITES_RESULTS when a test begins and when it has ended, so that
whoever waits sees one that hangs.
"""

import json
import os
from pathlib import Path

import pytest


def _note(**line):
    with open(os.environ["SUITES_RESULTS"], "a") as results:
        results.write(json.dumps(line) + "\n")


def _done():
    with open(os.environ["SUITES_RESULTS"]) as results:
        return {json.loads(line).get("test") for line in results}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    done = _done()
    items[:] = [item for item in items if item.nodeid not in done]
    if os.environ["SUITES_ONLY"]:
        only = json.loads(Path(os.environ["SUITES_ONLY"]).read_text())
        items[:] = [item for item in items if item.nodeid in only]
    if os.environ["SUITES_ORDER"] == "reversed":
        items.reverse()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    _note(begun=item.nodeid, tests=len(item.session.items))
    item.noted = "skipped", ""
    result = yield
    outcome, why = item.noted
    _note(test=item.nodeid, outcome=outcome, why=why)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    before = item.noted[0]
    if report.failed:
        item.noted = "failed", report.longreprtext[-1500:]
    elif report.when == "call" and before != "failed":
        item.noted = ("passed" if report.passed else "skipped"), ""
    return report


def pytest_collectreport(report):
    if report.failed:
        _note(uncollected=report.nodeid, why=report.longreprtext[-1500:])
