"""A rank that is gone: the others end, too, wherever they wait.

gloo tells those that exchange numbers with a process at that moment that it has ended. A rank that
waits for one of them waits on, for `distributed.timeout` seconds. So whoever is told leaves a note
where the ranks met, and a thread of every rank looks for it. A store that is gone says the same.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from penstock.distributed.launch import LOST
from penstock.distributed.presence import LateError
from penstock.distributed.world import launched_rank
from penstock.terminal import say

_LOOK = 0.25  # seconds between two looks for the note
_GRACE = 2.0  # seconds for the main thread to find out by itself
_NOTE = "lost"


@contextmanager
def ends_with_others(store: Any) -> Iterator[None]:
    """For the time of the context, end this process if another rank is gone.

    All ranks have to be in the context until no rank waits for another one any more.

    Args:
        store: where the ranks met; None alone.
    """
    if store is None:
        yield
        return
    # A connection of its own: the other one is locked while the main thread waits there.
    own = store.clone() if hasattr(store, "clone") else store
    done = threading.Event()
    thread = threading.Thread(target=_look, args=(own, done), name="penstock-lost", daemon=True)
    thread.start()
    try:
        yield
    except LateError:  # all know it
        raise
    except Exception:  # a loss, or an error of this rank, which is lost to the others
        # The store of a machine that has gone silently answers nothing, for minutes.
        note = threading.Thread(target=_leave_note, args=(own,), daemon=True)
        note.start()
        note.join(_GRACE)
        raise
    finally:
        done.set()
        thread.join(_LOOK)


def _leave_note(store: Any) -> None:
    with suppress(RuntimeError):
        store.set(_NOTE, "1")


def _look(store: Any, done: threading.Event) -> None:
    while not done.wait(_LOOK):
        with suppress(RuntimeError):  # the process that served the store is gone
            if not store.check([_NOTE]):
                continue
        if not done.wait(_GRACE):
            say(f"rank {launched_rank()[0]}: ends, as another rank is gone")
            os._exit(LOST)
        return
