"""What several test files share.

It imports nothing slow at its top: the process that deals tests out to workers would wait for it.
"""

import atexit
import collections
import functools
import gc
import logging
import os
import sys

import pytest
from hypothesis import HealthCheck, settings

from penstock import late_imports

late_imports.install()  # as a command line does
gc.disable()  # until all tests are imported


@functools.cache
def reporters():
    """What leaves reports, as (module, name, function)."""
    from penstock.addons.reports import report, samples

    return [
        (module, name, getattr(module, name))
        for module, name in (
            (report, "leave"),
            (report, "of_sweep"),
            (samples, "write"),
        )
    ]


# How long an example takes says more of the machine than of the code.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")


@pytest.fixture(scope="session")
def faces_root(tmp_path_factory):
    """Where drawn faces go, once for all tests of a process."""
    return tmp_path_factory.mktemp("faces")


@pytest.fixture
def faces(faces_root, tmp_path, monkeypatch):
    """Overrides for a small set of drawn faces; the working folder is a new, empty one."""
    monkeypatch.chdir(tmp_path)
    return [f"dataset.root={faces_root}", "dataset.count=60", "dataset.size=48", "batch.size=8"]


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """Drawn data goes to a cache of this session, and not to that of whoever runs the tests.

    All of pytest's workers share it: to draw the default faces takes 5 s.
    """
    base = tmp_path_factory.getbasetemp()
    session = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_CACHE", str(session / "cache" / "penstock"))
        yield


@pytest.fixture(autouse=True)
def own_process():
    """What a command line sets for the rest of its process ends with a test that runs one."""
    os.environ.pop("PENSTOCK_COMMAND", None)  # a fixture of a module ran a command line
    environment, path, words = dict(os.environ), list(sys.path), sys.argv
    yield
    os.environ.clear()
    os.environ |= environment
    sys.path[:], sys.argv = path, words


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Tests run side by side; torch's threads would only wait for each other's cores."""
    import torch

    torch.set_num_threads(1)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Of a matrix marked `one_in(n)`, the default suite takes each n-th case, `thorough` the rest.

    With an n that does not divide the number of columns, it meets every row and every column.
    """
    numbers = collections.Counter()
    for item in items:
        if mark := item.get_closest_marker("one_in"):
            if numbers[item.function] % mark.args[0]:
                item.add_marker(pytest.mark.thorough)
            numbers[item.function] += 1


def pytest_collection_finish():
    """Leave what was imported to no more collections: they would go through it again and again."""
    gc.freeze()
    atexit.register(gc.unfreeze)  # or C libraries would report at the end what nobody has freed
    gc.enable()
    gc.set_threshold(20_000, 20, 50)  # a run makes few cycles and many objects


@pytest.fixture(scope="session", autouse=True)
def no_power_cut():
    """A killed process loses nothing that it wrote; only a power cut would, and no test cuts it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        patch.setattr(os, "fdatasync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_reports():
    """Fits and sweeps of this process leave no report.html, which takes 0.3 s.

    They do in tests that ask for `reports`, and in subprocesses.
    """
    with pytest.MonkeyPatch.context() as patch:
        for module, name, _ in reporters():
            patch.setattr(module, name, lambda *given, **named: None)
        yield


def leave_reports(patch, *names):
    """Put back what leaves reports: all of it, or the functions of these names."""
    for module, name, function in reporters():
        if not names or name in names:
            patch.setattr(module, name, function)


@pytest.fixture
def reports(monkeypatch):
    """Fits and sweeps of this test leave a report.html, as they do outside of tests."""
    leave_reports(monkeypatch)


@pytest.fixture(autouse=True)
def no_job():
    """Forget hydra's job."""
    from hydra.core.hydra_config import HydraConfig

    yield
    HydraConfig.instance().cfg = None


@pytest.fixture(autouse=True)
def root_logger():
    """Put the root logger back: hydra's `job_logging` gives it handlers for this test's streams."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)  # other loggers keep what the root's level was, and forget it here
