"""Steps of a transform that say where they go: `_after_` or `_before_` another step.

    '+transform.train.gray={_target_: torchvision.transforms.v2.Grayscale, _before_: normalize}'

A mapping in YAML has the order in which its keys were first written, so a step that a command line
or an experiment adds would always be the last one. Orders are settled once, when a configuration
has been composed: nothing behind that sees the two words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.config.messages import nearest
from pipeline.errors import Problem

AFTER, BEFORE = "_after_", "_before_"
SPLITS = ("train", "val", "train_batch", "val_batch")


def settle(transform: Any, problems: list[Problem]) -> Any:
    """The section `transform` with its steps where they want to be, and without the two words.

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


def _settled(steps: Mapping[str, Any], key: str, problems: list[Problem]) -> Mapping[str, Any]:
    wishes = {
        name: {word: node[word] for word in (AFTER, BEFORE) if node.get(word) is not None}
        for name, node in steps.items()
        if isinstance(node, Mapping)
    }
    wishes = {name: wish for name, wish in wishes.items() if wish}
    # Around each step, those that want to stand before and behind it, as they were written.
    around: dict[str, dict[str, list[str]]] = {name: {BEFORE: [], AFTER: []} for name in steps}
    for name, wish in wishes.items():
        problem = _problem(name, wish, steps)
        if problem:
            problems.append(Problem(f"{key}.{name}", problem))
            continue
        ((word, other),) = wish.items()
        around[other][word].append(name)
    placed = {name for here in around.values() for names in here.values() for name in names}
    order = [one for name in steps if name not in placed for one in _with_company(name, around)]
    for name in steps:
        if name not in order:
            reason = f"{_shown(wishes[name])} leads back to {name} itself, so it has no place"
            problems.append(Problem(f"{key}.{name}", reason))
            order.append(name)
    return {name: _without_words(steps[name]) for name in order}


def _with_company(name: str, around: Mapping[str, Mapping[str, list[str]]]) -> Iterator[str]:
    for other in around[name][BEFORE]:
        yield from _with_company(other, around)
    yield name
    for other in around[name][AFTER]:
        yield from _with_company(other, around)


def _problem(name: str, wish: Mapping[str, Any], steps: Mapping[str, Any]) -> str | None:
    if len(wish) == 2:
        return f"has both {AFTER} and {BEFORE}; one of them says where it goes"
    (other,) = wish.values()
    if not isinstance(other, str) or other not in steps:
        known = [str(step) for step in steps if step != name]
        there = ", ".join(known) or "no other step"
        return f"{_shown(wish)} names no step{nearest(str(other), known)}; there is {there}"
    return None


def _shown(wish: Mapping[str, Any]) -> str:
    return ", ".join(f"{word}: {other}" for word, other in wish.items())


def _without_words(node: Any) -> Any:
    if not isinstance(node, Mapping):
        return node
    return {name: value for name, value in node.items() if name not in (AFTER, BEFORE)}
