"""Lanes: equal parts of every global batch, that ranks work on one after the other.

Lane l of L has the share that rank l of L ranks would have: its rows, its padding, its pairs. A
rank of W has the L / W lanes from rank x L / W on. The work of a lane follows from its number
alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from penstock.addons.lanes.lane_step import LaneStep, OwnLaneSteps, kind
from penstock.config.schema import Config
from penstock.distributed.world import World
from penstock.errors import ConfigError, Problem
from penstock.loading.batch import Batch
from penstock.order.keys import hash64
from penstock.terminal import one_line, say
from penstock.training.own_steps import OwnSteps

if TYPE_CHECKING:
    from penstock.tasks.fit import Fit


_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"  # without which cuBLAS adds up in any order


def of_run(config: Config, world: World) -> Lanes:
    """The lanes of a fit on this rank.

    Raises:
        ConfigError: they cannot be shared out evenly, or other keys exclude them.
    """
    if refused := list(problems(config)):
        raise ConfigError(refused)
    count = config.distributed.lanes or 1
    if count % world.size:
        reason = (
            f"{count} cannot be shared out evenly among {world.size} ranks; start "
            f"{fitting(count)} of them (distributed.nproc=...)"
        )
        raise ConfigError(Problem("distributed.lanes", reason))
    return Lanes(count, world)


def fitting(count: int) -> str:
    """The numbers of ranks among which that many lanes can be shared out evenly, for messages."""
    return ", ".join(str(ranks) for ranks in range(1, count + 1) if not count % ranks)


class Lanes:
    """The lanes of one rank; a context in which sums do not depend on the number of ranks.

    In it torch has one thread on a CPU, as sums in another number round differently, and takes
    deterministic algorithms on a GPU.

    Args:
        count: of all lanes; the number of ranks divides it.
        world: this rank among the others.
    """

    def __init__(self, count: int, world: World) -> None:
        own = count // world.size
        self.count, self._world = count, world
        self.shares = [(world.rank * own + number, count) for number in range(own)]
        self._before: list[Callable[[], object]] = []

    def together(self, batches: Sequence[Batch]) -> Batch:
        """A batch without fields, which has those of the lanes as `lanes`."""
        first = batches[0]
        requests = [batch.request for batch in batches]
        valid = None
        if any(batch.valid is not None for batch in batches):
            rows = [torch.ones(len(batch.positions), dtype=torch.bool) for batch in batches]
            valid = torch.cat(
                [
                    all_ if batch.valid is None else batch.valid
                    for batch, all_ in zip(batches, rows, strict=True)
                ]
            )
        request = replace(
            first.request,
            positions=np.concatenate([each.positions for each in requests]),
            indices=np.concatenate([each.indices for each in requests]),
            valid=sum(each.valid for each in requests),
            parts=None,
        )
        hashes = None
        if first.hashes is not None:
            hashes = [*chain.from_iterable(batch.hashes or () for batch in batches)]
        return first.replace(
            {},
            request=request,
            positions=np.concatenate([batch.positions for batch in batches]),
            indices=np.concatenate([batch.indices for batch in batches]),
            places=np.arange(sum(len(batch.positions) for batch in batches)),
            valid=valid,
            hashes=hashes,
            left_out=tuple(chain.from_iterable(batch.left_out for batch in batches)),
            timing=dict(first.timing),
            lanes=tuple(batches),
        )

    def begin_validation(self, share: tuple[int, int]) -> None:
        torch.manual_seed(hash64("validation of a lane", *share))

    def train_step(self, kind: type) -> Callable[..., Any]:
        """The maker of the train step that works on lanes as `kind` does on shares."""
        return partial(OwnLaneSteps if kind is OwnSteps else LaneStep, self)

    def __enter__(self) -> Lanes:
        if self._world.device == "cpu":
            self._before.append(partial(torch.set_num_threads, torch.get_num_threads()))
            torch.set_num_threads(1)
            return self
        cudnn: Any = torch.backends.cudnn
        self._before.append(partial(setattr, cudnn, "benchmark", cudnn.benchmark))
        chosen = torch.are_deterministic_algorithms_enabled()
        self._before.append(partial(torch.use_deterministic_algorithms, chosen))
        cudnn.benchmark = False
        os.environ.setdefault(_WORKSPACE, ":4096:8")
        torch.use_deterministic_algorithms(True)
        return self

    def __exit__(self, *_: object) -> None:
        while self._before:
            self._before.pop()()


def note_kind(fit: Fit) -> None:
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


def problems(config: Config) -> Iterator[Problem]:
    """Rules on `distributed.lanes`."""
    shared = config.distributed
    count = shared.lanes or 1
    off = f"distributed.lanes={count}"
    if shared.strategy == "fsdp":
        yield Problem(
            "distributed.strategy",
            (
                f"fsdp adds gradients up in an order that depends on the ranks, "
                f"and {off} needs one order; set distributed=ddp, or distributed.lanes=null"
            ),
        )
    if shared.sync_batchnorm:
        yield Problem(
            "distributed.sync_batchnorm",
            (
                f"true measures the batch of all ranks, and with {off} "
                "each lane is measured by itself; set one of them to false or null"
            ),
        )
    if isinstance(shared.nproc, int) and count % shared.nproc and shared.strategy != "none":
        yield Problem(
            "distributed.lanes",
            (
                f"{count} cannot be shared out evenly among distributed.nproc="
                f"{shared.nproc} ranks; {fitting(count)} can"
            ),
        )
    if not config.loader.in_order:
        yield Problem(
            "loader.in_order", f"false mixes the lanes of different batches, and {off}; set true"
        )
