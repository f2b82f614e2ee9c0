"""The section `loader` as the options of a loader: where "auto" and null become values."""

import logging

import pytest

from penstock.config import loader_options
from penstock.config.loader_options import backend, batch_bytes, budget, resolve
from penstock.distributed import world
from penstock.loading import memory
from penstock.transforms.image import Compose
from tests.config.unchecked import changed

pytestmark = pytest.mark.usefixtures("alone")


def section(**values):
    return changed({f"loader.{name}": value for name, value in values.items()}).loader


@pytest.mark.parametrize(
    ("values", "kind", "may_grow", "count", "most", "persists"),
    [
        ({"num_workers": 3}, "process", True, 3, None, True),
        ({"num_workers": 3, "persistent_workers": False}, "process", True, 3, None, False),
        ({"num_workers": 0}, "process", True, 0, None, False),
        ({"num_workers": 1}, "process", True, 1, None, True),
        ({"num_workers": 3}, "thread", True, 3, None, False),
        ({"num_workers": 3}, "main", True, 3, None, False),
        ({"num_workers": "auto"}, "process", True, 1, 16, True),
        ({"num_workers": "auto"}, "thread", True, 1, 16, False),
        ({"num_workers": "auto"}, "main", True, 4, None, False),
        ({"num_workers": "auto"}, "process", False, 4, None, True),
        ({"num_workers": "auto", "in_order": False}, "process", True, 4, None, True),
    ],
)
def test_workers(values, kind, may_grow, count, most, persists):
    options = resolve(section(**values), kind, may_grow)
    assert (options.backend, options.num_workers) == (kind, count)
    assert (options.auto and options.auto.most) == most
    assert options.persistent_workers == persists


def test_workers_of_many_cores(monkeypatch):
    monkeypatch.setattr(world, "usable_cpus", lambda: 10)
    options = resolve(section(num_workers="auto"), "process", True)
    assert (options.num_workers, options.auto.most) == (2, 20)


@pytest.mark.parametrize(
    ("asked", "accelerator", "pins"),
    [(None, True, True), (None, False, False), (True, False, True), (False, True, False)],
)
def test_pinning(asked, accelerator, pins, monkeypatch):
    monkeypatch.setattr(world, "has_accelerator", lambda: accelerator)
    assert resolve(section(pin_memory=asked), "main", False).pin_memory == pins


def test_bytes(monkeypatch):
    assert resolve(section(slow_memory=0.5), "main", False).slow_memory == 1 << 29
    assert budget(1.5) == 3 << 29
    monkeypatch.setattr(loader_options, "available", lambda: 1201)
    assert (budget(None), budget(None, 2)) == (600, 300)
    monkeypatch.setattr(world, "jobs_at_once", lambda: 3)
    assert budget(None, 2) == 100
    monkeypatch.setattr(loader_options, "available", lambda: 0)
    assert budget(None) is None
    options = resolve(section(num_workers="auto", max_memory=2.0), "process", True)
    assert options.auto.memory == 2 << 30


@pytest.mark.parametrize(
    ("values", "ranks", "arguments"),
    [
        ({"backend": "main", "num_workers": 5}, 1, (0, 2, 3)),
        ({"backend": "process", "num_workers": 5}, 1, (5, 2, 3)),
        ({"backend": "process", "num_workers": 5, "prefetch_factor": 4}, 2, (5, 4, 6)),
        ({"backend": "auto", "num_workers": "auto"}, 1, (4, 2, 3)),
    ],
)
def test_bytes_of_a_batch(values, ranks, arguments, monkeypatch):
    monkeypatch.setattr(world, "jobs_at_once", lambda: 3)
    assert batch_bytes(section(**values), ranks) == memory.of_a_batch(*arguments)
    monkeypatch.setattr(loader_options, "of_a_batch", lambda *given: given)
    assert batch_bytes(section(**values), ranks) == arguments


FOR_PROCESSES = [{"timeout": 5}, {"worker_init_fn": "a.b"}, {"multiprocessing_context": "fork"}]


@pytest.mark.parametrize(
    ("values", "decodes", "gathers", "expected"),
    [
        ({"backend": "main"}, True, True, "main"),
        ({"backend": "process"}, True, True, "process"),
        ({"backend": "auto"}, False, False, "process"),
        ({"backend": "auto"}, False, True, "thread"),
        ({"backend": "auto"}, True, False, "thread"),
        *(({"backend": "auto", **more}, False, True, "process") for more in FOR_PROCESSES),
        *(({"backend": "auto", **more}, True, False, "process") for more in FOR_PROCESSES),
    ],
)
def test_backends(values, decodes, gathers, expected):
    assert backend(section(**values), Compose({}), decodes, gathers) == expected


def test_steps_of_others_are_not_for_threads():
    steps = Compose({"mine": lambda sample: sample})
    assert backend(section(backend="auto"), steps, True, True) == "process"


@pytest.mark.parametrize(
    ("workers", "gathers", "said"),
    [
        ("auto", True, ["loader: as many threads as help"]),
        (3, True, ["loader: 3 threads"]),
        (3, False, ["loader: 3 processes"]),
        (0, True, []),
    ],
)
def test_the_log_says_what_was_chosen(workers, gathers, said, caplog):
    with caplog.at_level(logging.INFO, "penstock.config.loader_options"):
        backend(section(backend="auto", num_workers=workers), Compose({}), False, gathers, log=True)
        backend(section(backend="auto", num_workers=workers), Compose({}), False, gathers)
    assert caplog.messages == said
