"""The key `out`."""

from __future__ import annotations

from typing import Annotated

from penstock.config.sections import TASK, Option

OUT = Option(Annotated[str | None, TASK], None)  # the file that predictions are written to
