"""The machines that take part in a start of a run, and what has changed since the start before."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock import installed
from penstock.distributed import world
from penstock.distributed.group import Group
from penstock.errors import PenstockError
from penstock.files.plain_json import mapping
from penstock.runs.manifest import has_manifest, read_manifest

_LONGEST = 200  # characters of a name that a manifest gives


@dataclass(frozen=True)
class Member:
    """A rank at the start of a run.

    Attributes:
        host: name of its machine.
        launcher: that has started it, see `world.launcher_start`.
        restarted: whether that has started it before.
        copies: steps of the newest copy of the state that its machine has, by start of the run.
    """

    host: str
    launcher: str | None
    restarted: bool
    copies: Mapping[str, int]


class Machines:
    """All members of a start, by rank, beside the starts before it."""

    def __init__(self, members: Sequence[Member], folder: Path | None) -> None:
        self.members = members
        self._starts: list[Mapping[str, Any]] = []  # their entries in the manifest, the last first
        if folder is not None and has_manifest(folder):
            with suppress(PenstockError, ValueError):  # reported when it is opened
                starts = reversed(read_manifest(folder).get("sessions", []))
                self._starts = [mapping(start) for start in starts]
        self._before = self._starts[0] if self._starts else {}

    @property
    def facts(self) -> dict[str, Any]:
        """For the manifest's entry of this start."""
        launchers = sorted({member.launcher for member in self.members if member.launcher})
        return {"ranks": dict(self._now), "launchers": launchers} if launchers else {}

    @property
    def same_launch(self) -> bool:
        """Whether a launcher of the last start is still there: what that start had is lost."""
        before = self._before.get("launchers")
        return isinstance(before, list) and any(
            member.launcher in before for member in self.members if member.launcher
        )

    @property
    def started_again(self) -> bool:
        return self.same_launch or any(member.restarted for member in self.members)

    def newest_copy(self) -> tuple[int, int, str] | None:
        """Steps, rank and start of the newest state of the last start that a machine has.

        If that start ended before it had a copy, what it was resumed from is still in memory.
        """
        seam = installed.copies() if self.same_launch else None
        if seam is None:
            return None
        for entry in self._starts:
            start, resumed = str(entry.get("id")), str(entry.get("resumed"))
            copies = [
                (member.copies[start], -rank)
                for rank, member in enumerate(self.members)
                if start in member.copies
            ]
            if copies:
                steps, rank = max(copies)
                return steps, -rank, start
            if not seam.is_copy(Path(resumed)):
                break
        return None

    def changes(self) -> str:
        """Which machines have left or joined since the last start; "" if none."""
        known = self._before.get("ranks")
        if not self.same_launch or not isinstance(known, dict):
            return ""
        before = Counter(
            {str(host)[:_LONGEST]: count for host, count in known.items() if isinstance(count, int)}
        )
        left, joined = before - self._now, self._now - before
        total, size = before.total(), len(self.members)
        if not left and not joined:
            return ""
        parts = [
            f"{', '.join(sorted(names))} {verb}"
            for names, verb in ((left, "left"), (joined, "joined"))
            if names
        ]
        ranks = f"{size} of {total} ranks remain" if not joined else f"{size} ranks after {total}"
        return f"{'; '.join(parts)}; {ranks}"

    @property
    def _now(self) -> Counter[str]:
        return Counter(member.host for member in self.members)


def gather(group: Group) -> list[Member]:
    """All ranks' `Member`s, on all of them."""
    launcher = world.launcher_start()
    seam = installed.copies() if launcher and group.world.local_rank == 0 else None
    copies = seam.found() if seam is not None else {}
    own = Member(platform.node(), launcher, world.restarts() > 0, copies)
    return group.gather(own)
