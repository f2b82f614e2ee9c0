"""All ranks of a world in one process, without a process group: each runs up to a collective."""

from functools import partial

import torch

from penstock.addons.lanes.turns import Turns
from penstock.distributed.group import Group
from penstock.distributed.world import World


class Ranks:
    """A world of that size."""

    def __init__(self, size):
        self.size = size

    def run(self, work):
        """What `work(group)` gives on each rank."""
        turns = Turns(
            torch.get_rng_state, lambda state: state is None or torch.set_rng_state(state)
        )
        groups = [OfRanks(turns, rank, self.size) for rank in range(self.size)]
        return [result for result, _ in turns.run([partial(work, group) for group in groups])]


class OfRanks(Group):
    """One of them."""

    alone = False

    def __init__(self, turns, rank, size):
        super().__init__(World(rank=rank, size=size))
        self.turns = turns

    def gather(self, value):
        return self.turns.meet(value, lambda values: [[*values] for _ in values])

    def exchange(self, rows, counts):
        def exchanged(values):
            cut = [rows.split([n] * len(counts)) for rows, n in zip(values, counts, strict=True)]
            return [torch.cat(parts) for parts in zip(*cut, strict=True)]

        return self.turns.meet(rows, exchanged)

    def joined(self, part):
        return self.turns.meet(part, lambda parts: [torch.cat(parts) for _ in parts])
