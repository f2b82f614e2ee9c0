"""A resumed run whose mixture has changed: from which step its batches are other ones."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from penstock.addons.mixtures.weights import Mixing, change
from penstock.errors import ConfigError, Problem
from penstock.files import plain_json
from penstock.order.address import Address

_SOURCE = re.compile(r"(\d{1,18}) samples, ")
_MAY_CHANGE = ("dataset.sources.", "dataset.weights.")


def explained(
    problems: Sequence[Problem], saved: Mapping[str, str], own: Mapping[str, str], at: Address
) -> list[Problem]:
    """`problems` with those of weights and sources in one, which says from which step they hold.

    Args:
        problems: differences of two runs' fingerprints.
        saved: fingerprint of the run that is resumed.
        own: of this one.
        at: where it resumes.
    """
    change = _change(problems, saved, own, at)
    if change is None:
        return list(problems)
    return [change, *(problem for problem in problems if not _is_of_data(problem.key))]


def _is_of_data(key: str) -> bool:
    return key == "dataset" or key.startswith("dataset.")


def _change(
    problems: Sequence[Problem], saved: Mapping[str, str], own: Mapping[str, str], at: Address
) -> Problem | None:
    of_data = [problem.key for problem in problems if _is_of_data(problem.key)]
    if not any(key.startswith(_MAY_CHANGE) for key in of_data):
        return None
    if any(key != "dataset" and not key.startswith(_MAY_CHANGE) for key in of_data):
        return None
    if any(" kept=" in facts.get("dataset", "") for facts in (saved, own)):
        return None  # a filter's rows may be others, too
    try:
        before, after = _mixing(saved), _mixing(own)
        size, batch = int(own["dataset.num_samples"]), int(own["batch.size"])
        sources = [_under(facts, "dataset.sources.") for facts in (saved, own)]
        begin = list(sources[1].items())[: len(sources[0])]
        if begin != list(sources[0].items()) or saved.get("batch.size") != own["batch.size"]:
            return None  # a source has gone, or is another one
        step = change(before, after)
    except (ConfigError, KeyError, TypeError, ValueError, OverflowError):  # of a foreign file
        return None
    unit = before.knots.removesuffix("s")
    if before.knots == "samples":
        done = at.epoch * size + at.step * batch
    else:
        steps = size // batch if own.get("batch.tail") == "drop" else -(-size // batch)
        done = at.epoch * steps + at.step
    if step is None:
        reason = "dataset.weights are written in another way, and no batch is another one"
    elif step >= done:
        reason = (
            f"dataset.weights differ from {unit} {step} of the run on, and it resumes at {unit} "
            f"{done}: all batches before {unit} {step} are the same as in the run that is resumed"
        )
    else:
        reason = (
            f"dataset.weights differ from {unit} {step} of the run on, and it has come to {unit} "
            f"{done}: it was trained on other batches from {step} to {done - 1} than this "
            f"configuration has there. Put the change at {unit} {done} or later"
        )
    return Problem("dataset", f"{reason}. To resume with it: 'resume_despite=[dataset]'")


def _under(facts: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {
        key.removeprefix(prefix): value for key, value in facts.items() if key.startswith(prefix)
    }


def _mixing(facts: Mapping[str, str]) -> Mixing:
    lengths = {}
    for name, text in _under(facts, "dataset.sources.").items():
        length = _SOURCE.match(text)
        if length is None:
            raise ValueError(text)
        lengths[name] = int(length[1])
    texts = _under(facts, "dataset.weights.").items()
    weights = {name: plain_json.parse(text) for name, text in texts}
    by_length = all(weight is None for weight in weights.values())
    return Mixing(
        lengths,
        None if by_length else weights,
        facts["dataset.linear"] == "True",
        "samples" if facts["dataset.knots"] == "samples" else "steps",
    )
