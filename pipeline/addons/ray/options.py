"""The section `loader.ray`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from penstock.config.sections import Extension
from penstock.ranges import Count


class RaySection(Extension):
    """Where the actors of `loader.backend=ray` run; see docs/loading.md."""

    KEY = "loader.ray"

    address: str | None = None
    num_actors: Count | Literal["auto"] = "auto"
    cpus_per_actor: Annotated[float, Field(ge=0, le=10_000)] = 1.0
    # Ray writes the names into a list with commas, on a command line of its own.
    resources: dict[
        Annotated[str, Field(pattern=r"^[A-Za-z_][\w.:-]{0,99}$")],
        Annotated[float, Field(gt=0, le=10_000)],
    ] = {}
    runtime_env: dict[str, Any] = {}
    window: Annotated[float, Field(gt=0, le=1_000_000)] = 1.0
