"""The option `trainer.checkpoint.memory_every_steps`."""

from __future__ import annotations

from typing import Literal

from penstock.config.sections import Option
from penstock.ranges import Count

every_steps = Option(Count | Literal["auto"] | None, "auto")
