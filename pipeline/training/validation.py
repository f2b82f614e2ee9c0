"""Loss and metrics over a whole split, each sample once, however many ranks share it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import chain, islice

import torch
from torch import Tensor, nn

from penstock.distributed.group import Group
from penstock.distributed.parallel import together
from penstock.distributed.stop import Stop
from penstock.errors import DataError
from penstock.loading.batch import Batch
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
    turn: Callable[[bool], None] = lambda broken_off: None,
    observers: Sequence[Observer] = (),
) -> dict[str, float]:
    """The mean "loss" and every metric of the objective over epoch 0 of `loader`.

    Each sample (or token, where the objective gives a loss a token) counts once, whatever the
    number of ranks.

    Args:
        group: the ranks that measure a share each; all get the same numbers.
        turn: called before each batch and at the end; see `in_turns`.
        observers: hear of the progress, and of the unreadable samples of all ranks.
    """
    group = group or Group()
    was_training = model.training
    device = torch.device(loader.world.device)
    if group.alone:  # with others, the model is where and how it was spread
        model.to(device)
    model.eval()
    objective.to(device).reset()
    sums = torch.zeros(3, dtype=torch.float64, device=device)  # of losses, their number, samples
    named: dict[str, Tensor] = {}
    left_out: list[object] = []
    steps, done = loader.plan.steps(0), 0
    _tell(observers, 0, steps)
    try:
        with closing(loader.epoch(0)) as batches:
            for batch in in_turns(batches, turn):
                with autocast(device, precision), together(group, batch.request):
                    losses, outputs = objective.measure(model, batch)
                objective.update(outputs, batch)
                sums[2] += batch.request.valid
                left_out += batch.left_out
                if losses is not None:
                    sums[0] += losses.double().sum()
                    sums[1] += len(losses)
                    for name, part in objective.named.items():
                        named[name] = part.double() + named.get(name, 0.0)
                    for observer in observers:
                        observer.on_validation_batch(batch, losses)
                done += 1
                _tell(observers, done, steps)
    finally:
        model.train(was_training)
    parts = {name: value.item() for name, value in named.items()}
    total, count, samples = group.sum(sums).tolist()
    # All ranks make this call alike.
    lost, named_of_ranks = zip(*group.gather((left_out, parts)), strict=True)
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


def in_turns(batches: Iterator[Batch], turn: Callable[[bool], None]) -> Iterator[Batch]:
    """`batches`, with `turn(interrupted)` called before each of them and at their end.

    It is called with True where the wait for the next one was interrupted, and may raise.
    """
    while True:
        try:
            batch = list(islice(batches, 1))
        except Stop:
            turn(True)
            raise
        turn(False)
        if not batch:
            return
        yield batch.pop()
