"""Resuming a run: which one, with which overrides, and whether it is the same one.

A fingerprint does not depend on who loads the data, the machine or the number of processes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from penstock.config import targets
from penstock.config.compose import CONF
from penstock.config.identity import effect_of, identity, leaves
from penstock.config.schema import Config, Effect
from penstock.errors import ConfigError, Problem
from penstock.loading.fingerprint import differing
from penstock.order.address import Address, Skipped
from penstock.runs.manifest import has_manifest
from penstock.terminal import one_line

NOT_SET = "not set"
SKIP = "trainer.skip"  # may change from the checkpoint's address on
SCHEDULES = "scheduler.steps"  # of a fingerprint: the number of steps of each schedule
_SPANS = re.compile(r"\d{1,16}(\+\d{1,16}){0,999}", re.ASCII)
_COUNTS = {"total_steps", "T_max", "total_iters"}  # of steps, which the build supplies
_TIMED = re.compile(r"\d{4}-\d\d-\d\d/\d\d-\d\d-\d\d(/\d+)?$")  # a folder that is new each time


@dataclass(frozen=True)
class Source:
    """Where to resume from.

    Attributes:
        folder: the run's, to write in; None makes a new one.
        checkpoint: the file (or sharded checkpoint) to read; None takes the newest of the folder.
        required: whether it is an error if nothing is there.
    """

    folder: Path | None
    checkpoint: Path | None = None
    required: bool = True


def source(config: Config) -> Source | None:
    """The source that `resume` names; None if it is null.

    Raises:
        ConfigError: nothing is there, or never can be.
    """
    if config.resume is None:
        return None
    if config.resume == "auto":
        if _TIMED.search(config.run_dir) and not has_manifest(Path(config.run_dir)):
            raise ConfigError(
                Problem(
                    "resume",
                    f"auto resumes the run in run_dir, but {config.run_dir} is named "
                    "by the time of the start and new each time; set run_dir=outputs/<name> "
                    "(hydra.sweep.dir=... for a sweep)",
                )
            )
        return Source(Path(config.run_dir), required=False)
    path = Path(config.resume)
    if not path.exists():
        raise ConfigError(
            Problem(
                "resume",
                f"{path} does not exist; give the folder of a run, one of its checkpoints, or auto",
            )
        )
    if has_manifest(path):
        return Source(path)
    if path.is_file() or run_of(path) is not None:
        return Source(None, path)
    if (path / "multirun.yaml").exists():
        reason = f"{path} is a sweep's folder: type its command again, and it resumes"
        raise ConfigError(Problem("resume", reason))
    raise ConfigError(
        Problem(
            "resume", f"{path} is neither a run's folder (it has no manifest.json) nor a checkpoint"
        )
    )


def run_of(path: Path) -> Path | None:
    """The folder of the run that a run's folder or checkpoint belongs to."""
    for folder in (path, path.parent.parent):
        if has_manifest(folder):
            return folder
    return None


def key_of(word: str) -> str:
    """The key of an override."""
    return word.partition("=")[0].lstrip("+~")


@cache
def is_harmless(line: str) -> bool:
    """Whether no result depends on this override, so that it may differ between two commands of
    one sweep.
    """
    key, value = key_of(line).replace("/", "."), line.partition("=")[2]
    if effect_of(key) == Effect.NOTHING:
        return True
    # An option of a section such as `loader`, of which not every key is harmless.
    option = CONF / key / f"{value}.yaml"
    if not re.fullmatch(r"\w+=\w+", line) or not option.is_file():
        return False
    content = yaml.safe_load(option.read_text(encoding="utf-8"))
    keys = leaves({name: one for name, one in content.items() if name != "defaults"}, key)
    return all(effect_of(name) == Effect.NOTHING for name, _ in keys)


def fingerprint(config: Config, data: Mapping[str, str], moves: int) -> dict[str, str]:
    """Everything that the weights of a fit depend on, by key.

    Args:
        data: the training loader's fingerprint; it stands for the dataset's arguments, so that a
            folder may move.
        moves: of the scheduler in the whole run; 0 without one.
    """
    parts = {**identity(config), SKIP: str(Skipped.of(config.trainer.skip)), **data}
    if config.scheduler is not None:
        parts[SCHEDULES] = str(moves)
    return parts


def differences(
    saved: Mapping[str, str], own: Mapping[str, str], at: Address, despite: Sequence[str]
) -> list[Problem]:
    """Why a checkpoint with the fingerprint `saved` is not this run's.

    A run may become longer, and leave out other batches from the checkpoint's address `at` on.

    Args:
        despite: keys that may differ, with the keys below them.
    """
    then, now = (Skipped.of(json.loads(facts.get(SKIP, "null"))) for facts in (saved, own))
    may_differ, problems = [*despite, SCHEDULES], []
    if then.before(at) == now.before(at):
        may_differ.append(SKIP)
    for key in differing(saved, own):
        ignored = any(f"{key}.".startswith(f"{name}.") for name in may_differ)
        if ignored:
            continue
        named = "dataset" if key.startswith("dataset.") else key
        reason = (
            f"is {own.get(key, NOT_SET)} here and was "
            f"{one_line(saved.get(key, NOT_SET))} in the run that is resumed, so it would "
            "not be the same run; give the old value"
        )
        if key == SKIP:
            reason = (
                f"leaves out other batches than the run that is resumed before {at}, where its "
                f"checkpoint stands; keep those that it left out, {SKIP}={then.before(at) | now}, "
                "or resume from an older checkpoint"
            )
        way = f"{reason}, or resume regardless with 'resume_despite=[{named}]'"
        problems.append(Problem(one_line(key), way))
    return problems


def spans(facts: Mapping[str, str]) -> list[int]:
    """The number of steps of each schedule of a run, by its fingerprint; empty: unknown."""
    text = facts.get(SCHEDULES, "")
    return list(map(int, text.split("+"))) if _SPANS.fullmatch(text) else []


def with_schedules(
    saved: Mapping[str, str],
    own: Mapping[str, str],
    done: int,
    scheduler: Mapping[str, object] | None,
) -> tuple[dict[str, str], int | None]:
    """The fingerprint `own` as that of a run that resumes from a checkpoint.

    If its length has changed, the rest gets a new schedule: "500+300" are 500 steps of one and 300
    of the next. A schedule that does not depend on the number of steps continues.

    Args:
        saved: the checkpoint's fingerprint.
        done: moves of its scheduler.
        scheduler: this run's node.

    Returns:
        The fingerprint, and the steps of a new schedule if one begins here.
    """
    before, now = spans(saved), spans(own)
    if not now or scheduler is None:
        return dict(own), None
    (moves,) = now
    other = _schedule(saved) != _schedule(own)
    if (sum(before) == moves and not other) or moves <= done:
        return {**own, SCHEDULES: saved.get(SCHEDULES, str(moves))}, None
    if not other and _is_endless(scheduler):
        return dict(own), None
    kept, left = [], done
    for span in before or [done]:
        kept.append(min(span, left))
        left -= kept[-1]
    parts = [*filter(None, kept), moves - done]
    return {**own, SCHEDULES: "+".join(map(str, parts))}, parts[-1]


def _schedule(facts: Mapping[str, str]) -> dict[str, str]:
    return {
        key: value
        for key, value in facts.items()
        if key.partition(".")[0] in ("scheduler", "schedule") and key != SCHEDULES
    }


def _is_endless(node: Mapping[str, object]) -> bool:
    """Whether a schedule is independent of the run's length, up to its warm-up."""
    from torch.optim.lr_scheduler import ConstantLR  # `--cfg` imports this file without torch

    function = targets.resolve(node["_target_"], "scheduler._target_")
    asked = _COUNTS.intersection(targets.arguments(function)) - node.keys()
    return not asked or (function is ConstantLR and node.get("factor") == 1)
