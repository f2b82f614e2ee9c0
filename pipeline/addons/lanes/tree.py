"""Sums over lanes in one order, on any ranks: a binary tree.

    8 lanes     ((0+1)+(2+3)) + ((4+5)+(6+7))
    6 lanes     ((0+1)+(2+3)) + (4+5)

A rank adds up the largest nodes of the tree that lie in its lanes. All nodes are then exchanged by
parts: a rank completes the tree for its part of the numbers, and hands the result to the others.
With a power of two of ranks each has one node, and the bytes are those of a ring's all-reduce; any
other division sends a few nodes for each rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from penstock.distributed.gathered import OtherRowsError
from penstock.distributed.group import Group

Node = tuple[int, int]  # the first lane and one past the last
Items = list[Tensor | None]  # of a node; None: no lane in it has that one


def split(node: Node) -> tuple[Node, Node]:
    """The two nodes below one of several lanes; the first has a power of two of them."""
    first, stop = node
    middle = first + (1 << ((stop - first - 1).bit_length() - 1))
    return (first, middle), (middle, stop)


def nodes_in(lanes: range, node: Node) -> Iterator[Node]:
    """The largest nodes at or below `node` that have no other lanes than those."""
    first, stop = node
    if lanes.start <= first and stop <= lanes.stop:
        yield node
    elif first < lanes.stop and lanes.start < stop:
        for below in split(node):
            yield from nodes_in(lanes, below)


def added(node: Node, known: Callable[[Node], Items | None]) -> Items:
    """The sum of a node, of what is known of those below it; asked for from left to right."""
    items = known(node)
    if items is not None:
        return items
    left, right = (added(below, known) for below in split(node))
    return [_plus(*pair) for pair in zip(left, right, strict=True)]


def _plus(left: Tensor | None, right: Tensor | None) -> Tensor | None:
    # A lane that lacks a number counts as 0, which is added as others would: -0 + 0 is 0.
    if left is None or right is None:
        only = right if left is None else left
        return None if only is None else only.add_(0)
    return left.add_(right)


class LaneSum:
    """Sums over all lanes of a global batch.

    Args:
        count: of lanes.
        group: the ranks, whose number divides it.
    """

    def __init__(self, count: int, group: Group) -> None:
        size = group.world.size
        self._all: Node = (0, count)
        self._group = group
        own = count // size
        self._nodes = [
            [*nodes_in(range(rank * own, (rank + 1) * own), self._all)] for rank in range(size)
        ]

    def __call__(
        self, of_lane: Callable[[int], Items], counts: Sequence[int]
    ) -> tuple[Items, list[int]]:
        """The sums, and how many lanes had each; all ranks make this call.

        Args:
            of_lane: a lane of this rank to what it adds, which is overwritten; in their order.
            counts: how many of this rank's lanes have each item; read when all were asked.

        Raises:
            OtherRowsError: on all ranks, if `of_lane` does on one of them.
        """
        own: dict[Node, Items] = {}
        try:
            for node in self._nodes[self._group.world.rank]:
                own[node] = added(node, lambda at: of_lane(at[0]) if at[1] - at[0] == 1 else None)
        except OtherRowsError:
            if self._group.alone:
                raise
            own.clear()
        if self._group.alone:
            return own[self._all], [*counts]
        ranks = self._group.gather(([*counts], _forms([*own.values()])) if own else None)
        known = [of_rank for of_rank in ranks if of_rank is not None]
        if len(known) < len(ranks):
            raise OtherRowsError
        totals = [sum(each) for each in zip(*(of for of, _ in known), strict=True)]
        by_type: dict[torch.dtype, dict[int, torch.Size]] = defaultdict(dict)
        for number, forms in enumerate(zip(*(of for _, of in known), strict=True)):
            for shape, dtype in filter(None, forms):
                by_type[dtype][number] = shape
        sums: Items = [None] * len(counts)
        for dtype, shapes in by_type.items():
            flat = torch.stack([self._flat(items, shapes, dtype) for items in own.values()])
            parts = self._sum(flat).split([shape.numel() for shape in shapes.values()])
            for (number, shape), part in zip(shapes.items(), parts, strict=True):
                sums[number] = part.view(shape)
        return sums, totals

    def _flat(self, items: Items, shapes: Mapping[int, torch.Size], dtype: torch.dtype) -> Tensor:
        """Some of the items in one piece; 0 where this node has none."""
        device = self._group.world.device
        pieces = []
        for number, shape in shapes.items():
            item = items[number]
            if item is None:
                item = torch.zeros(shape, dtype=dtype, device=device)
            pieces.append(item.reshape(-1))
        return torch.cat(pieces)

    def _sum(self, flat: Tensor) -> Tensor:
        """The sum over all lanes of numbers [n]; `flat` has this rank's nodes, [nodes, n]."""
        size = self._group.world.size
        length = flat.shape[1]
        part = -(-length // size)
        padded = torch.nn.functional.pad(flat, (0, part * size - length))
        sent = padded.view(len(flat), size, part).transpose(0, 1).reshape(-1, part)
        nodes = [node for of_rank in self._nodes for node in of_rank]
        rows = self._group.exchange(sent, [len(of_rank) for of_rank in self._nodes])
        known: Mapping[Node, Items] = {node: [row] for node, row in zip(nodes, rows, strict=True)}
        (result,) = added(self._all, known.get)
        assert result is not None
        return self._group.joined(result)[:length]


def _forms(nodes: Sequence[Items]) -> list[tuple[torch.Size, torch.dtype] | None]:
    """Shape and dtype of each item; None where no node has it."""
    by_item = (
        next((item for item in of if item is not None), None) for of in zip(*nodes, strict=True)
    )
    return [None if item is None else (item.shape, item.dtype) for item in by_item]
