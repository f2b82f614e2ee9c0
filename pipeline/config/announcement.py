"""The first line of a run, printed before torch is imported, about half a second after the start.

    fit: training LandmarkNet on SyntheticFaces for 20 epochs; run folder outputs/DATE/TIME

It is made from the configuration alone, and has the names of what that calls.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock import seams
from penstock.config.schema import Config


def of_run(config: Config) -> str:
    """One line on what a single run will do; the parts of `config` need not have been looked at."""
    shown = config.model_dump()
    trainer, folder = config.trainer, ""
    length = f"for {trainer.max_epochs} epoch{'s' * (trainer.max_epochs != 1)}"
    if trainer.max_steps is not None:
        length += f", {trainer.max_steps} steps at most"
    task = seams.TASKS[config.task]
    if config.resume not in (None, "auto"):
        folder = f"; resuming {shown['resume']}"
    elif task.writes:
        folder = f"; run folder {shown['run_dir']}"
    data = name_of(shown["dataset"])
    names = {
        "data": data,
        "both": f"{name_of(shown['model'])} on {data}",
        "length": length,
        "measured": shown["checkpoint"] or shown["run"],
        "address": (config.epoch, config.step),
        "run": shown["run"],
        "sample": shown["sample"],
        "two": " and ".join(shown["runs"] or ["two runs"]),
        "runs": " and ".join(shown["runs"] or ["no run"]),
        "below": " and ".join(shown["runs"] or ["outputs", "multirun"]),
    }
    return f"{config.task}: {task.sentence.format_map(names)}{folder}"


def name_of(node: object) -> str:
    """The name of what a node calls, which may be another thing than the option of its group."""
    if not isinstance(node, Mapping):
        return "?"
    target = node.get("_target_")
    if str(target).endswith(".torchvision_model"):
        target = node.get("name", target)
    return str(target or "?").rpartition(".")[2]
