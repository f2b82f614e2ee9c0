"""Batches to a CUDA device: through pinned buffers that are reused, on a stream of their own.

1. A batch that is not in pinned memory yet is copied into a buffer that is, one for each field.
2. The copy to the device is put on a stream of its own, so that it runs beside the computation.
3. The consumer's stream waits for that copy, not the program; the memory is marked as in use there.
4. From the second batch on, the next one's copy is begun before a batch is handed out.

The first batch is handed out alone: looking ahead there would make it wait for the second. Worker
processes have their batches pinned by torch's own thread, whose memory torch reuses; then nothing
is copied here on the CPU.

Cost: a copy in memory where nothing was pinned, about 0.1 ms a MiB; two batches on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

import torch
from torch import Tensor

from pipeline.loading.batch import Batch

Item = TypeVar("Item")
Begun = TypeVar("Begun")


class Buffers:
    """Memory for the tensors of one batch at a time, kept for the next.

    Args:
        pinned: page-locked, from which a device can read by itself.
    """

    def __init__(self, pinned: bool = True) -> None:
        self._pinned = pinned
        self._kept: list[Tensor] = []
        self._used = 0

    def clear(self) -> None:
        """Begin a new batch: what was handed out may be overwritten."""
        self._used = 0

    def hold(self, tensor: Tensor) -> Tensor:
        """A copy of a CPU tensor of the same strides, in memory of this object."""
        dense = tensor.is_contiguous() or (
            tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
        )
        tensor = tensor if dense else tensor.contiguous()
        memory = self._memory(tensor.numel() * tensor.element_size())
        held = memory.view(tensor.dtype).as_strided(tensor.shape, tensor.stride())
        return held.copy_(tensor)

    def _memory(self, size: int) -> Tensor:
        """`size` bytes that nothing else of this batch has."""
        place, self._used = self._used, self._used + 1
        if place == len(self._kept):
            self._kept.append(self._new(size))
        elif len(self._kept[place]) < size:
            self._kept[place] = self._new(size)
        return self._kept[place][:size]

    def _new(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.uint8, pin_memory=self._pinned)


def ahead(items: Iterable[Item], begin: Callable[[Item], Begun]) -> Iterator[Begun]:
    """`begin(item)` for each item; from the second on, one is begun before the last is given.

    An error of `items` or `begin` is raised after what came before it has been given.
    """
    begun = map(begin, items)
    yield from islice(begun, 1)
    waiting = list(islice(begun, 1))
    while waiting:
        try:
            following = list(islice(begun, 1))
        except Exception:
            yield waiting[0]
            raise
        yield waiting[0]
        waiting = following


class Transfer:
    """Moves batches to a CUDA device, one ahead.

    Args:
        device: e.g. "cuda:0".
        slots: sets of pinned buffers; as many batches may be on their way.
    """

    def __init__(self, device: str, slots: int = 3) -> None:
        self._device = torch.device(device)
        self._stream: torch.cuda.Stream | None = None  # CUDA must not be begun before workers fork
        self._slots = [Buffers() for _ in range(slots)]
        self._copied: list[torch.cuda.Event | None] = [None] * slots
        self._turn = 0

    def __call__(self, results: Iterable[Any]) -> Iterator[Any]:
        """`results` in their order, the batches among them on the device."""
        for result, copied in ahead(results, self._begin):
            if copied is not None:
                self._hand_over(result, copied)
            yield result

    def _begin(self, result: Any) -> tuple[Any, torch.cuda.Event | None]:
        if not isinstance(result, Batch):  # an error or the end, which stands in a batch's place
            return result, None
        turn, self._turn = self._turn, (self._turn + 1) % len(self._slots)
        last = self._copied[turn]
        if last is not None:
            last.synchronize()  # two batches ago; it is done unless the device is far behind
        self._slots[turn].clear()
        self._stream = self._stream or torch.cuda.Stream(self._device)
        with torch.cuda.stream(self._stream):
            result = result.map(lambda tensor: self._moved(tensor, self._slots[turn]))
            copied = torch.cuda.Event()
            copied.record(self._stream)
        self._copied[turn] = copied
        return result, copied

    def _moved(self, tensor: Tensor, buffers: Buffers) -> Tensor:
        if tensor.device.type != "cpu":
            return tensor
        pinned = tensor if tensor.is_pinned() else buffers.hold(tensor)
        return pinned.to(self._device, non_blocking=True)

    def _hand_over(self, batch: Batch, copied: torch.cuda.Event) -> None:
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(copied)

        def mark(tensor: Tensor) -> Tensor:
            if tensor.device.type == "cuda":
                tensor.record_stream(stream)
            return tensor

        batch.map(mark)
