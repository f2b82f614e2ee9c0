"""The kind of machine of each rank: on machines of one kind, weights are equal to the bit."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

import torch

from penstock.distributed.group import Group
from penstock.terminal import one_line, say

if TYPE_CHECKING:
    from penstock.tasks.fit import Fit


def kind(device: str) -> str:
    """The parts of this machine that decide how it rounds: its processor or GPU, and torch."""
    processor = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    if device != "cpu":
        processor = torch.cuda.get_device_name(torch.device(device))
    return f"{processor}, torch {torch.__version__}"


def say_kinds(group: Group) -> None:
    """Say that ranks are of several kinds; all of them make this call."""
    kinds = sorted(set(group.gather(kind(group.world.device))))
    if len(kinds) > 1 and group.is_first:
        say(
            f"distributed.lanes: ranks are on machines of several kinds ({'; '.join(kinds)}), so "
            "the last bits of weights depend on which lanes each has"
        )


def note(fit: Fit) -> None:
    """Note the kind in the manifest, and say if the run was on another one before."""
    own = kind(fit.group.world.device)
    starts = fit.folder.manifest["sessions"][:-1]
    before = next((start["kind"] for start in reversed(starts) if "kind" in start), own)
    if before != own:
        say(
            f"distributed.lanes: this is a machine of another kind ({own}) than the run's last "
            f"({one_line(str(before))[:200]}), so the last bits of weights may differ"
        )
    fit.folder.note(kind=own)
