"""The section `loader` as the options of a loader: where "auto" and null become values."""

import logging

import pytest

from penstock.config.loader_options import backend, resolve
from penstock.distributed import world
from penstock.transforms.image import Compose
from tests.config.unchecked import changed

pytestmark = pytest.mark.usefixtures("alone")


def test_auto_is_a_worker_for_each_core_and_16_at_most(monkeypatch):
    for cores, workers in ((1, 1), (10, 10), (64, 16)):
        monkeypatch.setattr(world, "usable_cpus", lambda cores=cores: cores)
        assert resolve(section(num_workers="auto"), "process").num_workers == workers


def section(**values):
    return changed({f"loader.{name}": value for name, value in values.items()}).loader


@pytest.mark.parametrize(
    ("asked", "accelerator", "pins"),
    [(None, True, True), (None, False, False), (True, False, True), (False, True, False)],
)
def test_pinning(asked, accelerator, pins, monkeypatch):
    monkeypatch.setattr(world, "has_accelerator", lambda: accelerator)
    assert resolve(section(pin_memory=asked), "main").pin_memory == pins


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
