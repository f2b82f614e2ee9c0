"""The process group of a run; the only user of torch.distributed's collectives.

Numbers travel on the group of the device (NCCL or gloo). Objects and agreements travel
on a gloo group of their own, so that they never wait for a GPU.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from penstock import program
from penstock.distributed.world import World, attempt, is_launched, launcher
from penstock.errors import PREEMPTED, ConfigError, PenstockError, Problem
from penstock.torch_internals import tree_map_only

_ANSWERS = 3.0  # seconds for the answers of ranks that live
# What gloo, NCCL and the store say when a rank does not come, and when its process is gone.
_IN_VAIN = ("imed out", "timeout", "onnection", "roken pipe", "pair closure")

Value = TypeVar("Value")


class LateError(PenstockError):
    """This rank has waited too long for another one, which hangs or is gone."""

    exit_code = PREEMPTED


class Group:
    """All ranks of a run. Every rank has to make the same calls in the same order.

    Alone, nothing is sent.

    Args:
        world: this process among them.
        control: group for objects and agreements; None alone.
        store: where ranks note after a timeout that they live; None alone.
        timeout: seconds that ranks wait for each other.

    Attributes:
        alone: there is no other rank.
        is_first: this rank is the one that writes.
    """

    def __init__(
        self,
        world: World | None = None,
        control: dist.ProcessGroup | None = None,
        store: Any = None,
        timeout: float = 300.0,
    ) -> None:
        self.world, self.alone = world or World(), control is None
        self.is_first = self.world.rank == 0
        self._control, self._store, self._timeout = control, store, timeout

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all ranks, in place (any shape, on the world's device)."""
        if not self.alone:
            dist.all_reduce(values)
        return values

    def gather(self, value: Value) -> list[Value]:
        """The values of all ranks, in their order, on all of them; CPU objects."""
        if self.alone:
            return [value]
        values = [value] * self.world.size  # each is replaced
        dist.all_gather_object(values, value, group=self._control)
        return values

    def agree(self, *wishes: bool) -> tuple[bool, ...]:
        """Logical OR of each flag over all ranks. It blocks until the slowest rank calls it.

        Called when a batch is ready, it costs nothing: the step would wait for that rank anyway.
        """
        if self._control is None:
            return wishes
        wanted = torch.tensor(wishes, dtype=torch.int32)
        dist.all_reduce(wanted, op=dist.ReduceOp.MAX, group=self._control)
        return tuple(bool(value) for value in wanted.tolist())

    @contextmanager
    def merged(self, metrics: Iterable[Any]) -> Iterator[None]:
        """Let metrics hold what all ranks have counted; every rank has to enter it.

        Lists of predictions may be of any length, and empty on ranks without a sample.
        """

        def gathered(value: Tensor, group: object = None) -> list[Tensor]:
            every = [one.to(value.device) for one in self.gather(value.cpu())]
            return [one for one in every if one.numel()] or every[:1]

        with ExitStack() as merging:
            for metric in metrics:
                # By itself, as soon as it is computed, and back before its counts are looked at.
                metric._to_sync = metric._should_unsync = False
                state: Any = metric.metric_state
                if all(isinstance(value, list) for value in state.values()):
                    # Whole lists: torchmetrics has a call for each item, of which every rank has
                    # its own number, and so ranks wait for each other.
                    ranks = self.gather(tree_map_only(Tensor, Tensor.cpu, state))
                    every = {name: [one for rank in ranks for one in rank[name]] for name in state}
                    there = partial(Tensor.to, device=metric.device)
                    vars(metric).update(tree_map_only(Tensor, there, every))
                    merging.callback(vars(metric).update, state)
                    continue
                merging.enter_context(
                    metric.sync_context(gathered, distributed_available=lambda: not self.alone)
                )
            yield

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Raise LateError, which names the missing ranks, for torch's error about a timeout.

        Every living rank notes that it lives, and looks some seconds later which ranks have not.
        """
        try:
            yield
        except RuntimeError as error:  # of which torch's errors of groups and stores are
            if self._store is None or not any(words in str(error) for words in _IN_VAIN):
                raise
            ranks, lives = range(self.world.size), "lives-{}".format
            missing = [0]  # where it serves the store and does not answer

            def look(store: Any) -> None:
                with suppress(RuntimeError):
                    store.set(lives(self.world.rank), "1")
                    time.sleep(_ANSWERS)
                    missing[:] = [rank for rank in ranks if not store.check([lives(rank)])]

            # A store whose process is stopped answers neither yes nor no.
            looking = threading.Thread(target=look, args=(self._store,), daemon=True)
            looking.start()
            looking.join(2 * _ANSWERS)
            time.sleep(_ANSWERS * self.is_first)  # the store may end with this process
            late = LateError(
                f"ranks have waited in vain for {self._timeout:g} s (distributed.timeout). "
                "Gone or late: rank "
                f"{str(missing)[1:-1] or 'none, so they wait in different places'}. "
                "kill -USR2 PID prints where a process stands"
            )
            late.reported = self.world.rank != next(one for one in ranks if one not in missing)
            raise late from error


@contextmanager
def join(
    world: World, backend: str | None = None, timeout: float = 300.0, together: bool = False
) -> Iterator[Group]:
    """The group of `world`, for the time of the context.

    Args:
        backend: "nccl", "gloo" ...; None takes what suits the device.
        timeout: seconds that ranks wait for each other.
        together: under a launcher, make a group also of one rank.

    Raises:
        ConfigError: the launcher's variables describe no group, or a rank does not join it.
        LateError: a rank kept the others waiting for longer than `timeout`.
    """
    if world.size == 1 and not (together and is_launched()):
        yield Group(world)
        return
    limit, cuda = timedelta(seconds=timeout), world.device.startswith("cuda")
    if cuda:
        torch.cuda.set_device(world.device)
    try:
        os.environ.update(launcher())  # srun's description, too
        known, _, _ = next(rendezvous("env://", world.rank, world.size, timeout=limit))
        store = dist.PrefixStore(attempt(), known)  # type: ignore[attr-defined]
        dist.init_process_group(
            backend or ("nccl" if cuda else "gloo"),
            store=store,
            rank=world.rank,
            world_size=world.size,
            # NCCL's watchdog would end the process with a traceback of its own; agreements, on
            # gloo, time out before it and say who is missing.
            timeout=limit + timedelta(seconds=20 if cuda else 0),
        )
        control: Any = dist.new_group(backend="gloo", timeout=limit)
    except (ValueError, RuntimeError, KeyError, AssertionError) as error:
        unreachable = ConfigError(
            Problem(
                "distributed",
                f"rank {world.rank} of {world.size} cannot join the others: {error}. Start with "
                f"{program.text()}, srun, or torchrun on every machine",
            )
        )
        # One rank of each machine says so.
        unreachable.reported = world.rank != 1 and world.local_rank != 0
        raise unreachable from error
    group = Group(world, control, store, timeout)
    with group.explained():
        yield group
        group.agree(False)  # no rank ends while others talk to it
    dist.destroy_process_group()
