"""The option `distributed.lanes`."""

from __future__ import annotations

from typing import Annotated

from penstock.config.sections import WEIGHTS, Option
from penstock.ranges import Count

lanes = Option(Annotated[Count | None, WEIGHTS], None)


def fitting(count: int) -> str:
    """The numbers of ranks among which that many lanes can be shared out evenly, for messages."""
    return ", ".join(str(ranks) for ranks in range(1, count + 1) if not count % ranks)
