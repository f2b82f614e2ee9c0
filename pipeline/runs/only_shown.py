"""Parts that only show something never fail a run: images, tables, reports, displays.

    with only_shown("the picture of predictions"):
        draw(...)

An error inside costs one warning that names what is missing and why. Requests to stop and Ctrl-C
come through. Nothing that a checkpoint, a metric or the manifest needs may be made inside.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.distributed.stop import Preempted
from penstock.distributed.world import launched_rank
from penstock.errors import PenstockError
from penstock.terminal import one_line, say

_LONGEST = 300  # characters of a reason


@contextmanager
def only_shown(what: str) -> Iterator[list[str]]:
    """Turn an error inside of the context into a warning that `what` is missing.

    Yields a list that has the reason then.
    """
    failed: list[str] = []
    try:
        yield failed
    except Preempted:
        raise
    except Exception as error:
        failed.append(reason(error))
        if launched_rank()[0] == 0:  # the others have the same to say
            say(f"WARNING: {what} is missing: {failed[0]}. The run is not affected")


def reason(error: BaseException) -> str:
    """An error in a line: its kind, unless its message is meant for people, and what it says."""
    lines = str(error).strip().splitlines()
    kind = [] if isinstance(error, PenstockError) and lines else [type(error).__name__]
    return one_line(": ".join([*kind, *lines[:1]]))[:_LONGEST].rstrip(".")
