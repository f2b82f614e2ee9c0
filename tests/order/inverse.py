"""Where a row stands, by the inverse of its sampler."""

from typing import NamedTuple


class Place(NamedTuple):
    """The batch of a row, its position, and the rank that works on it."""

    step: int
    position: int
    rank: int


def addresses_of(plan, epoch, row, world=1):
    """Where `row` stands in `epoch`, in the order of training; a row in parts once for each."""
    steps, places = plan.steps(epoch), []
    for step in plan.steps_of(epoch, row):
        for rank in range(world if step < steps else 0):
            share = plan.request(epoch, step, rank, world)
            positions = share.positions[: share.valid][share.indices[: share.valid] == row]
            places += [Place(step, position, rank) for position in positions.tolist()]
    return places
