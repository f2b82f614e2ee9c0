"""The keys `out` and `format`."""

from __future__ import annotations

from typing import Annotated, Literal

from penstock.config.sections import TASK, Option

Format = Literal["weights", "torch", "onnx"]

OUT = Option(Annotated[str | None, TASK], None)  # the file that predictions or a model go to
FORMAT = Option(Annotated[Format, TASK], "weights")  # of an exported model
