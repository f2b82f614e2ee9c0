r"""Patterns of the names of weights and modules.

    head                 the module `head` with all in it, or a weight of that name
    encoder.layer.*.norm `*` stands for any text, dots included, `?` for one character
    encoder.layer.%      `%` stands for a number

They become regular expressions that never look at a piece of a name twice: what stands between two
stars is found once, at its first place. The time is that of the name's length times the pattern's.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from penstock.errors import ConfigError, Problem

MOST = 200  # characters of a pattern
_SHOWN = 4


def listed(patterns: Sequence[str] | str) -> list[str]:
    """Patterns as a list; a single one stands for itself."""
    return [patterns] if isinstance(patterns, str) else list(patterns)


def numbers(pattern: str, name: str) -> tuple[int, ...] | None:
    """The numbers in the places of `%`, where a pattern names this or a module that it is in."""
    fitting = _compiled(pattern).match(name)
    return None if fitting is None else tuple(int(text) for text in fitting.groups() if text)


def matches(pattern: str, name: str) -> bool:
    """Whether a pattern names this, or a module that it is in."""
    return numbers(pattern, name) is not None


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    first, *others = (
        re.escape(piece).replace(r"\?", ".").replace("%", r"(\d++)")
        for piece in re.sub(r"\*+", "*", pattern).split("*")
    )
    end = r"(?:\..*)?\Z"  # with what is in it
    if not others:
        return re.compile(first + end, re.DOTALL)
    *inner, last = others
    between = "".join(f"(?>.*?{piece})" for piece in inner)
    ending = rf"(?:.*{last}\Z|.*?{last}\.)" if last else ""
    return re.compile(first + between + ending, re.DOTALL)


def check(key: str, patterns: Iterable[str]) -> None:
    """Raise ConfigError for a text that is no pattern."""
    for pattern in patterns:
        if not isinstance(pattern, str) or not 0 < len(pattern) <= MOST:
            reason = f"{str(pattern)[:50]!r} is no pattern of names: a text of 1 to {MOST} letters"
            raise ConfigError(Problem(key, reason))


def check_used(key: str, patterns: Iterable[str], names: Sequence[str], what: str) -> None:
    """Raise ConfigError where a pattern names nothing.

    Args:
        names: of all that there is.
        what: these are, for the message.
    """
    patterns = list(patterns)
    check(key, patterns)
    if idle := [each for each in patterns if not any(matches(each, name) for name in names)]:
        known = dict.fromkeys(
            name.rsplit(".", depth)[0] for name in names for depth in range(name.count(".") + 1)
        )
        near = difflib.get_close_matches(idle[0].strip("*."), known, _SHOWN, 0.3)
        near = near or list(names)[:_SHOWN]
        reason = f"{', '.join(map(repr, idle))} names no {what}; there is {', '.join(near)} ..."
        raise ConfigError(Problem(key, reason))
