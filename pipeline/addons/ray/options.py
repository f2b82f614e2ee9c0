"""The section `loader.ray`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from penstock.config.sections import BackendSection
from penstock.ranges import Count

if TYPE_CHECKING:
    from penstock.addons.ray.cluster import RayOptions


class RaySection(BackendSection):
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

    def workers(self, asked: int) -> int:
        return self.num_actors if asked and isinstance(self.num_actors, int) else asked

    def of_loader(self) -> RayOptions:
        from penstock.addons.ray.cluster import RayOptions

        return RayOptions(**self.model_dump(exclude={"num_actors"}))
