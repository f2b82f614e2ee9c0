"""Prepares a new model before a fit makes its optimizer, and reports on that."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch import nn

from penstock.addons.finetuning import freezing, patterns, weights
from penstock.addons.finetuning.groups import described, named
from penstock.addons.finetuning.recomputing import recompute
from penstock.config.schema import Config
from penstock.errors import ConfigError, Problem
from penstock.tasks.fit import Fit
from penstock.terminal import say
from penstock.training.observer import Observer, Record

KEY = "trainer.warm_start"

_started: WeakKeyDictionary[nn.Module, dict[str, Any]] = WeakKeyDictionary()


def prepared(config: Config, model: nn.Module, begins: bool) -> None:
    """Prepare a new model for its training, in place.

    Args:
        begins: whether its weights are those that a run begins with.
    """
    if begins and config.trainer.warm_start.path is not None:
        start(config, model)
    freezing.begin_epoch(config, model, 0)
    if names := patterns.listed(config.trainer.recompute):
        recompute(model, names)


def start(config: Config, model: nn.Module) -> None:
    """Give a model the weights of `trainer.warm_start`, and say what matched.

    Raises:
        ConfigError: some do not fit, and `strict` is true; or none do.
    """
    section = config.trainer.warm_start
    assert section.path is not None
    path = Path(section.path).expanduser()
    without = patterns.listed(section.without)
    matched = weights.match(model, weights.read(path), without, section.rename)
    if not matched.tensors or (section.strict and matched.odd):
        name = type(model).__name__
        ways = f"{KEY}.without=[NAMES] keeps the new weights of some; {KEY}.strict=false takes what"
        ways = f"{ways} fits" if matched.tensors else f"is it another model? {KEY}.rename may help"
        reason = f"{section.path!r} does not fit {name}: {matched}. {ways}"
        raise ConfigError(Problem(f"{KEY}.path", reason))
    weights.load(model, matched)
    _started[model] = {
        "path": str(path.absolute()),
        "matched": len(matched.tensors),
        "total": matched.total,
        "left": matched.left,
        "missing": matched.missing,
        "other": matched.other,
        "unexpected": matched.unexpected,
    }
    if not dist.is_initialized() or dist.get_rank() == 0:
        say(f"{'start':<9} {matched} from {section.path}")


def watching(fit: Fit) -> list[Observer]:
    """Says on the first rank which weights learn how; its observer notes their rates."""
    section = fit.config.trainer.freeze
    model = fit.model
    if model in _started:
        fit.folder.manifest["warm_start"] = _started[model]
    if section.names:
        frozen = sum(weight.numel() for weight in model.parameters() if not weight.requires_grad)
        ends = {end for end in freezing.ends(fit.config, model).values() if end != freezing.FOREVER}
        until = f"; some learn from epoch {', '.join(map(str, sorted(ends)))} on" if ends else ""
        say(f"{'frozen':<9} {frozen:,} parameters in epoch 0{until}")
    groups = (
        described(fit.optimizer) if any("name" in g for g in fit.optimizer.param_groups) else []
    )
    for number, group in enumerate(groups):
        decay = group["weight_decay"]
        decays = "" if decay is None else f", weight decay {decay:g}"
        say(
            f"{'' if number else 'groups':<9} {group['name']}: {group['weights']} weights, "
            f"{group['parameters']:,} parameters, lr {group['lr']:.3g}{decays}"
        )
    if groups:
        fit.folder.manifest["groups"] = groups
    return [Rates(fit)] if groups else []


class Rates(Observer):
    """Adds the learning rate of each group to the record of an epoch, as `lr/NAME`."""

    def __init__(self, fit: Fit) -> None:
        self._fit = fit

    def on_record(self, record: Record) -> None:
        for name, group in named(self._fit.optimizer):
            record.setdefault(f"lr/{name}", float(group["lr"]))
