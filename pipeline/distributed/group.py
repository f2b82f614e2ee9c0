"""The process group of a run; the only user of torch.distributed's collectives.

Numbers travel on the group of the device (NCCL or gloo). Objects and agreements travel
on a gloo group of their own, so that they never wait for a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from penstock import program
from penstock.distributed.world import World, is_launched
from penstock.errors import ConfigError, PenstockError, Problem

if TYPE_CHECKING:
    from penstock.distributed.presence import Presence

# The watchdog of NCCL ends the process with a traceback of its own; agreements, on gloo, find out
# first who is late.
_NCCL_LATER = timedelta(seconds=20)

Value = TypeVar("Value")


class Group:
    """All ranks of a run. Every rank has to make the same calls in the same order.

    Alone, nothing is sent.

    Args:
        world: this process among them.
        control: group for objects and agreements; None alone.
        presence: of the ranks; None alone.
        limit: how long ranks wait for each other.
    """

    def __init__(
        self,
        world: World | None = None,
        control: dist.ProcessGroup | None = None,
        presence: Presence | None = None,
        limit: timedelta | None = None,
    ) -> None:
        self.world = world or World()
        self._limit = limit
        self._control = control
        self._presence = presence

    @property
    def alone(self) -> bool:
        return self._control is None

    @property
    def is_first(self) -> bool:
        """Whether this rank is the one that writes."""
        return self.world.rank == 0

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

    @contextmanager
    def all_or_none(self) -> Iterator[None]:
        """Raise on every rank if any of them raises inside, where none waits for another.

        Raises:
            PenstockError: on the ranks that did not.
        """
        error: Exception | None = None
        try:
            yield
        except Exception as caught:
            error = caught
        reasons = self.gather(None if error is None else f"{type(error).__name__}: {error}"[:1000])
        if error is not None:
            raise error
        for rank, reason in enumerate(reasons):
            if reason is not None:
                raise PenstockError(f"rank {rank}: {reason}")

    def from_first(self, value: Value) -> Value:
        """Rank 0's value, on all ranks."""
        if self.alone:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self._control)
        return box[0]

    def copy_from_first(self, tensor: Tensor) -> None:
        """Overwrite `tensor` (on the world's device) with rank 0's."""
        if not self.alone:
            dist.broadcast(tensor, src=0)

    def meet(self) -> None:
        """Wait until all ranks are here."""
        if not self.alone:
            dist.barrier(group=self._control)

    def agree(self, *wishes: bool) -> tuple[bool, ...]:
        """For each wish, whether any rank has it.

        It waits for the slowest rank. Called when a batch is there, that is no loss, as the step
        that follows has to wait for all batches.
        """
        if self._control is None:
            return wishes
        said = torch.tensor(wishes, dtype=torch.int32)
        dist.all_reduce(said, op=dist.ReduceOp.MAX, group=self._control)
        return tuple(bool(value) for value in said.tolist())

    def hint(self, text: str) -> None:
        """How to resume the run, for the message about a rank that hangs."""
        if self._presence is not None:
            self._presence.hint = text

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Raise LateError for torch's error about a rank that was waited for in vain."""
        try:
            yield
        except Exception as error:
            late = None if self._presence is None else self._presence.explained(error)
            if late is None:
                raise
            raise late from None

    def ends_with_others(self) -> AbstractContextManager[None]:
        """For the time of the context, end this process if another rank is gone.

        All ranks have to be in it until no rank waits for another one any more.
        """
        return nullcontext() if self._presence is None else self._presence.ends_with_others()

    def tell(self, name: str) -> None:
        """Let the other ranks know that this one was asked to stop, by that signal."""
        if self._presence is not None:
            self._presence.tell(name)


@contextmanager
def join(
    world: World, backend: str | None = None, timeout: float = 300.0, together: bool = False
) -> Iterator[Group]:
    """The group of `world`, for the time of the context.

    Args:
        backend: "nccl", "gloo" ...; None takes what suits the device.
        timeout: seconds after which a rank that does not come is given up.
        together: under a launcher, make a group also of one rank.

    Raises:
        ConfigError: the launcher's description makes no group.
        LateError: a rank was waited for in vain.
    """
    if world.size == 1 and not (together and is_launched()):
        yield Group(world)
        return
    from penstock.distributed import meeting
    from penstock.distributed.presence import LateError, Presence

    limit = timedelta(seconds=timeout)
    cuda = world.device.startswith("cuda")
    if cuda:
        torch.cuda.set_device(world.device)
    with Presence(world, timeout) as presence:
        group = Group(world, presence=presence, limit=limit)
        try:
            with group.explained():
                store = meeting.store(world, limit)
                presence.meet(meeting.notes() or store)
                dist.init_process_group(
                    backend or ("nccl" if cuda else "gloo"),
                    store=store,
                    rank=world.rank,
                    world_size=world.size,
                    timeout=limit + _NCCL_LATER if cuda else limit,
                )
                control: Any = dist.new_group(backend="gloo", timeout=limit)
                group._control = control
        except (ValueError, RuntimeError, dist.DistError) as error:
            raise _unreachable(world, error) from error
        presence.joined()
        try:
            with group.explained():
                yield group
        except LateError:
            raise  # a group that lacks a rank may never be done with its end
        except BaseException:
            dist.destroy_process_group()
            raise
        dist.destroy_process_group()


def _unreachable(world: World, error: Exception) -> ConfigError:
    """The ranks' meeting place cannot be reached; one rank of each machine says so."""
    unreachable = ConfigError(
        Problem(
            "distributed",
            f"rank {world.rank} of {world.size} cannot join the others: "
            f"{error}. Start with {program.text()}, srun, or torchrun on every machine",
        )
    )
    unreachable.told = world.rank != 1 and world.local_rank != 0
    return unreachable
