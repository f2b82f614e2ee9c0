"""Steps of a transform that say where they go: `_after_` or `_before_` another step.

    '+transform.train.gray={_target_: torchvision.transforms.v2.Grayscale, _before_: normalize}'

A mapping in YAML keeps the order in which its keys were first written, so a step that a command
line or an experiment adds would always come last. The order is settled once, when a configuration
has been composed; nothing after that sees the two words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.config.messages import nearest
from penstock.errors import Problem

AFTER, BEFORE = "_after_", "_before_"
SPLITS = ("train", "val", "train_batch", "val_batch")


def settle(transform: object, problems: list[Problem]) -> object:
    """The section `transform` with its steps in order, and without the two words.

    Args:
        transform: plain values, of whatever form.
        problems: gets one for each step whose place cannot be found; that step stays where it is.
    """
    if not isinstance(transform, Mapping):
        return transform
    return {
        name: _settled(steps, f"transform.{name}", problems)
        if name in SPLITS and isinstance(steps, Mapping)
        else steps
        for name, steps in transform.items()
    }


def _settled(steps: Mapping[str, Any], key: str, problems: list[Problem]) -> Mapping[str, object]:
    # Around each step, those that go before and after it, as they were written.
    around: dict[str, dict[str, list[str]]] = {name: {BEFORE: [], AFTER: []} for name in steps}
    wishes: dict[str, str] = {}
    for name, node in steps.items():
        keys = node if isinstance(node, Mapping) else {}
        wish = {word: keys[word] for word in (AFTER, BEFORE) if keys.get(word) is not None}
        if not wish:
            continue
        ((word, other), *second) = wish.items()
        if second:
            problem = f"has both {AFTER} and {BEFORE}; one of them says where it goes"
        elif not isinstance(other, str) or other not in steps:
            known = [str(step) for step in steps if step != name]
            problem = (
                f"{word}: {other} names no step{nearest(str(other), known)}; there is "
                f"{', '.join(known) or 'no other step'}"
            )
        else:
            around[other][word].append(name)
            wishes[name] = f"{word}: {other}"
            continue
        problems.append(Problem(f"{key}.{name}", problem))

    def group(name: str) -> list[str]:
        before = [step for other in around[name][BEFORE] for step in group(other)]
        return [*before, name, *(step for other in around[name][AFTER] for step in group(other))]

    order = [step for name in steps if name not in wishes for step in group(name)]
    for name in steps:
        if name not in order:
            reason = f"{wishes[name]} leads back to {name} itself, so it has no place"
            problems.append(Problem(f"{key}.{name}", reason))
            order.append(name)
    return {
        name: {word: value for word, value in steps[name].items() if word not in (AFTER, BEFORE)}
        if isinstance(steps[name], Mapping)
        else steps[name]
        for name in order
    }
