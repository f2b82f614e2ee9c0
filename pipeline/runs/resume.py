"""Resuming a run: whether it is the same one.

A run is the same one if its fingerprint is: every key that its weights depend on. Any other
difference is refused by its key, or allowed by `resume_despite`. Two may always differ: a run may
become longer, and leave out other batches from where it resumes on. A fingerprint does not depend
on who loads the data, the machine or the number of processes.

`tasks/opening.py` finds the checkpoint, and `training/loop.py` continues at its address.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import yaml

from penstock.config import targets
from penstock.config.compose import CONF
from penstock.config.identity import effect_of, identity, leaves
from penstock.config.schema import Config, Effect
from penstock.errors import Problem
from penstock.order.address import Address, Skipped, differing
from penstock.runs.folder import has_manifest
from penstock.terminal import one_line

SKIP = "trainer.skip"  # may change from the checkpoint's address on
SCHEDULES = "scheduler.steps"  # of a fingerprint: the number of steps of each schedule, a list
_COUNTS = {"total_steps", "T_max", "total_iters"}  # of steps, which the build supplies


def run_of(path: Path) -> Path | None:
    """The folder of the run that a run's folder or checkpoint belongs to."""
    return next((one for one in (path, path.parent.parent) if has_manifest(one)), None)


def key_of(word: str) -> str:
    """The key of an override."""
    return word.partition("=")[0].lstrip("+~")


@cache
def is_harmless(line: str) -> bool:
    """Whether no result depends on this override, so that it may differ between two commands of
    one sweep.
    """
    key = key_of(line).replace("/", ".")
    # An option of a section such as `loader`, of which not every key is harmless.
    trees = [
        yaml.safe_load(one.read_text("utf-8")) | {"defaults": {}}
        for one in [CONF / key / f"{line.partition('=')[2][:99]}.yaml"]
        if line.replace("=", "_", 1).isidentifier() and one.is_file()
    ]
    keys = [name for tree in trees for name, _ in leaves(tree, key)] or [key]
    return all(effect_of(one) == Effect.NOTHING for one in keys if one != f"{key}.defaults")


def fingerprint(config: Config, data: Mapping[str, str], moves: int) -> dict[str, Any]:
    """Everything that the weights of a fit depend on, by key.

    Args:
        data: the training loader's fingerprint; it stands for the dataset's arguments, so that a
            folder may move.
        moves: of the scheduler in the whole run; 0 without one.
    """
    schedules = {} if config.scheduler is None else {SCHEDULES: [moves]}
    return {**identity(config), SKIP: str(Skipped.of(config.trainer.skip)), **data, **schedules}


def differences(
    saved: Mapping[str, Any], own: Mapping[str, Any], at: Address, despite: Sequence[str]
) -> list[Problem]:
    """Why a checkpoint with the fingerprint `saved`, of the address `at`, is not this run's.

    Args:
        despite: keys that may differ, with the keys below them.
    """
    then, now = (Skipped.of(json.loads(facts.get(SKIP, "null"))) for facts in (saved, own))
    may_differ = [*despite, SCHEDULES, *([SKIP] if then.before(at) == now.before(at) else [])]
    problems = []
    # All differences at once, so that nobody resumes five times to learn of five keys.
    for key in differing(saved, own):
        if any(f"{key}.".startswith(f"{name}.") for name in may_differ):
            continue
        values = [one_line(str(facts.get(key, "not set"))) for facts in (own, saved)]
        reason = "is {} here and was {} in the run that is resumed; give the old value".format(
            *values
        )
        if key == SKIP:
            reason = (
                f"leaves out other batches than the run that is resumed before {at}, where its "
                f"checkpoint stands; keep those that it left out, {SKIP}={then.before(at) | now}, "
                "or resume from an older checkpoint"
            )
        # One answer allows all that a dataset is known by.
        name = "dataset" if key.startswith("dataset.") else key
        problems.append(
            Problem(one_line(key), f"{reason}, or resume regardless with 'resume_despite=[{name}]'")
        )
    return problems


def with_schedules(
    saved: Mapping[str, Any],
    own: Mapping[str, Any],
    done: int,
    scheduler: Mapping[str, Any] | None,
) -> tuple[Mapping[str, Any], int | None]:
    """The fingerprint `own` as that of a run that resumes from a checkpoint.

    If its length has changed, the rest gets a new schedule: [500, 300] are 500 steps of one and 300
    of the next. A schedule that does not depend on the number of steps continues.

    Args:
        saved: the checkpoint's fingerprint.
        done: moves of its scheduler.
        scheduler: this run's node.

    Returns:
        The fingerprint, and the steps of a new schedule if one begins here.
    """
    if scheduler is None or SCHEDULES not in own:
        return own, None
    # A run that had no schedule ends the empty one here.
    (moves,), before = own[SCHEDULES], list(saved.get(SCHEDULES, [done]))
    is_other = any(
        saved.get(key) != own.get(key)
        for key in {*saved, *own}
        if key.startswith(("scheduler.", "schedule.")) and key != SCHEDULES
    )
    # Nothing is left to schedule, or nothing has changed.
    if moves <= done or (sum(before) == moves and not is_other):
        return {**own, SCHEDULES: before}, None
    function = targets.resolve(scheduler["_target_"], "scheduler._target_")
    # A schedule that gets its length from the build cannot go on beyond it.
    lengths = _COUNTS.intersection(targets.arguments(function)) - scheduler.keys()
    is_constant = function.__name__ == "ConstantLR" and scheduler.get("factor") == 1
    if not is_other and (not lengths or is_constant):
        return {**own, SCHEDULES: before}, None  # by which its warm-up is made, a share of them
    # The last of them may have gone on beyond its length, as a constant one does in a longer run.
    ends = [0, *(min(end, done) for end in accumulate(before[:-1])), done, moves]
    spans = [end - begin for begin, end in pairwise(ends)]
    return {**own, SCHEDULES: [*filter(None, spans)]}, moves - done
