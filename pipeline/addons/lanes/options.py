"""The option `distributed.lanes`."""

from __future__ import annotations

from typing import Annotated

from penstock.config.sections import WEIGHTS, Option
from penstock.ranges import Count

lanes = Option(Annotated[Count | None, WEIGHTS], None)
