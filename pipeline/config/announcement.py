"""The first line of a run, printed before torch is imported, about half a second after the start.

    fit: training landmark_net on synthetic_faces for 20 epochs; run folder outputs/DATE/TIME

It is made from the configuration alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from pipeline.config import disclosure
from pipeline.config.schema import Config

_WRITES = ("fit", "replay", "profile", "check")  # into the run's folder


def of_run(config: Config, choices: Mapping[str, Any]) -> str:
    """One line on what a single run will do.

    Args:
        config: typed; its parts have not been looked at.
        choices: the option chosen by group; a part without one goes by the name of what it calls.
    """
    shown = config.written()  # without secrets
    trainer, place = config.trainer, ""
    length = f"for {trainer.max_epochs} epoch{'s' * (trainer.max_epochs != 1)}"
    if trainer.max_steps is not None:
        length += f", {trainer.max_steps} steps at most"
    if config.resume not in (None, "auto"):
        place = f"; resuming {shown['resume']}"
    elif config.task in _WRITES:
        place = f"; run folder {shown['run_dir']}"
    data = _name("dataset", shown, choices)
    both = f"{_name('model', shown, choices)} on {data}"
    doing = {
        "fit": f"training {both} {length}",
        "validate": f"measuring {shown['checkpoint']} on {data}",
        "digest": f"hashing the batches of {data}",
        "replay": f"making batch ({config.epoch}, {config.step}) of {data} again",
        "verify": f"comparing {' and '.join(shown['runs'] or ['two runs'])}",
        "diff": f"comparing {' and '.join(shown['runs'] or ['two runs'])}",
        "check": f"reading every sample of {data}",
        "pack": f"packing {data}",
        "profile": f"timing the training of {both}",
        "tune": f"looking for the fastest loader for {both}",
        "runs": f"listing the runs below {' and '.join(shown['runs'] or ['outputs', 'multirun'])}",
        "show": f"the head of the report of {shown['run']}",
        "where": _asked(config, shown, data),
        "without": f"how {shown['run']} goes on without {shown['sample']}",
        "report": f"making the report of {' and '.join(shown['runs'] or ['no run'])}",
        "lr_find": f"looking for a learning rate for {both}",
    }[config.task]
    return f"{config.task}: {doing}{place}"


def _asked(config: Config, shown: Mapping[str, Any], data: str) -> str:
    of = data if config.run is None else shown["run"]
    if config.address is not None:
        return f"what stands at {tuple(config.address)} in {of}"
    return f"looking for {shown['sample']} in {of}"


def of_sweep(lines: Sequence[str], sizes: Sequence[int]) -> str:
    """One line on what a sweep will do.

    Args:
        lines: the overrides that it goes over, with all their values.
        sizes: how many values each has.
    """
    jobs = prod(sizes)
    over = f" over {' '.join(disclosure.words(lines))}" if lines else ""
    return f"a sweep of {jobs} {'job' if jobs == 1 else 'jobs'}{over}; all are checked first"


def of_study(lines: Sequence[str], trials: int) -> str:
    """One line on what a study of optuna's will do; arguments as for `of_sweep`."""
    over = " ".join(disclosure.words(lines))
    return f"a study of {trials} {'trial' if trials == 1 else 'trials'} over {over}"


def _name(part: str, shown: Mapping[str, Any], choices: Mapping[str, Any]) -> str:
    node = shown[part]
    called = str(node.get("_target_", "")).rpartition(".")[2]
    name = str(choices.get(part) or called or part)
    return f"{name} {node['name']}" if isinstance(node.get("name"), str) else name
