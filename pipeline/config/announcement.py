"""The first line of a run, printed before torch is imported, about half a second after the start.

    fit: training LandmarkNet on SyntheticFaces for 20 epochs; run folder outputs/DATE/TIME

It is made from the configuration alone, and has the names of what that calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from pipeline.config import disclosure
from pipeline.config.schema import Config

_WRITES = ("fit", "replay", "profile", "check")  # into the run's folder


def of_run(config: Config) -> str:
    """One line on what a single run will do; the parts of `config` need not have been looked at."""
    shown = config.written()  # without secrets
    trainer, place = config.trainer, ""
    length = f"for {trainer.max_epochs} epoch{'s' * (trainer.max_epochs != 1)}"
    if trainer.max_steps is not None:
        length += f", {trainer.max_steps} steps at most"
    if config.resume not in (None, "auto"):
        place = f"; resuming {shown['resume']}"
    elif config.task in _WRITES:
        place = f"; run folder {shown['run_dir']}"
    data = name_of(shown["dataset"])
    both = f"{name_of(shown['model'])} on {data}"
    doing = {
        "fit": f"training {both} {length}",
        # The run's folder may give the data, which is read later.
        "validate": f"measuring {shown['checkpoint'] or shown['run']}",
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


def name_of(node: Any) -> str:
    """The name of what a node calls, which may be another thing than the option of its group.

    A dataset that is given by split goes by the training split's.
    """
    if not isinstance(node, Mapping):
        return "?"
    target = node.get("_target_")
    if target is None and isinstance(node.get("train"), Mapping):
        return name_of(node["train"])
    if str(target).endswith(".torchvision_model"):
        target = node.get("name", target)
    return str(target or "?").rpartition(".")[2]
