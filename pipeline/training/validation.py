"""Loss and metrics over a whole split, each sample once, however many ranks share it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from itertools import chain

import torch
from torch import Tensor, nn

from penstock.distributed.gathered import OtherRowsError, apart, together
from penstock.distributed.group import Group
from penstock.distributed.preemption import in_turns
from penstock.errors import DataError
from penstock.loading.loader import Loader
from penstock.training.objective_base import Objective
from penstock.training.observer import Observer
from penstock.training.train_step import Precision, autocast


@torch.no_grad()
def validate(
    model: nn.Module,
    objective: Objective,
    loader: Loader,
    precision: Precision = "fp32",
    group: Group | None = None,
    turn: Callable[[bool], None] | None = None,
    observers: Sequence[Observer] = (),
) -> dict[str, float]:
    """The mean "loss" and every metric of the objective over epoch 0 of `loader`.

    Each sample (or token, where the objective gives a loss a token) counts once, whatever the
    number of ranks. In lanes, an objective that calls `gathered` sees whole batches: every rank
    goes through the whole split then.

    Args:
        group: the ranks that measure a share each; all get the same numbers.
        turn: called before each batch and at the end; see `preemption.in_turns`.
        observers: hear of the progress, and of the unreadable samples of all ranks.
    """
    group = group or Group()
    parts = model, objective, loader, precision
    try:
        return _measured(*parts, group, turn, observers, loader.shares)
    except OtherRowsError:  # by all ranks, in the same batch
        return _measured(*parts, Group(), turn, observers, [(0, 1)])


def _measured(
    model: nn.Module,
    objective: Objective,
    loader: Loader,
    precision: Precision,
    group: Group,
    turn: Callable[[bool], None] | None,
    observers: Sequence[Observer],
    shares: Sequence[tuple[int, int]],
) -> dict[str, float]:
    """The same for those shares of each batch, on this rank, and those that others have."""
    was_training = model.training
    device = torch.device(loader.world.device)
    if group.alone:  # with others, the model is where and how it was spread
        model.to(device)
    model.eval()
    objective.to(device).reset()
    # Of losses, their number, samples; of each share.
    every = torch.zeros(len(shares), 3, dtype=torch.float64, device=device)
    named: list[dict[str, Tensor]] = [{} for _ in shares]
    left_out: list[object] = []
    steps, done = loader.plan.steps(0), 0
    steps = None if steps is None else steps * len(shares)
    _tell(observers, 0, steps)
    in_lanes = loader.lanes is not None and shares is loader.shares
    # Without turns, ranks meet at the end only, and so does an error of one of them.
    ends = group.all_or_none() if turn is None else nullcontext()
    try:
        with ends:
            for share, sums, of_share in zip(shares, every, named, strict=True):
                if done:
                    objective.begin_part()
                if loader.lanes is not None:
                    loader.lanes.begin_validation(share)
                with closing(loader.epoch(0, 0, share)) as batches:
                    for batch in in_turns(batches, turn):
                        # A lane measures its share by itself, whoever works on the others.
                        meets = apart(share[0]) if in_lanes else together(group, batch.request)
                        with autocast(device, precision), meets:
                            losses, outputs = objective.measure(model, batch)
                        objective.update(outputs, batch)
                        sums[2] += batch.request.valid
                        left_out += batch.left_out
                        if losses is not None:
                            sums[0] += losses.double().sum()
                            sums[1] += len(losses)
                            for name, part in objective.named.items():
                                of_share[name] = part.double() + of_share.get(name, 0.0)
                            for observer in observers:
                                observer.on_validation_batch(batch, losses)
                        done += 1
                        _tell(observers, done, steps)
    finally:
        model.train(was_training)
    parts = [{name: value.item() for name, value in each.items()} for each in named]
    if loader.lanes is None:
        total, count, samples = group.sum(every[0]).tolist()
    else:  # in the order of the lanes
        by_share = chain.from_iterable(group.gather(every.tolist()))
        total, count, samples = (sum(numbers) for numbers in zip(*by_share, strict=True))
    lost, by_rank = zip(*group.gather((left_out, parts)), strict=True)  # all ask alike
    named_of_ranks = [*chain.from_iterable(by_rank)]
    for observer in observers:
        observer.on_validated([*chain.from_iterable(lost)])
    if not (count if objective.validates_loss else samples):
        raise DataError(
            "validation has nothing to measure: the split has no sample that can be read"
        )
    measured = {"loss": total / count} if objective.validates_loss else {}
    for name in dict.fromkeys(chain.from_iterable(named_of_ranks)):
        measured[f"loss/{name}"] = sum(of.get(name, 0.0) for of in named_of_ranks) / count
    return {**measured, **objective.compute(group)}


def _tell(observers: Sequence[Observer], done: int, steps: int | None) -> None:
    for observer in observers:
        observer.on_validation(done, steps)
