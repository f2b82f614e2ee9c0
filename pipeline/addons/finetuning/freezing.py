"""Weights that do not learn, for a run or until an epoch: `trainer.freeze`.

They get no gradient, so no optimizer touches them: no weight decay, and no state before they learn.
An epoch says which weights learn in it, so a resumed run needs nothing else to know them. Batch
norms whose weights are frozen stay in evaluation mode; their running statistics do not move.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MethodType

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from penstock.addons.finetuning import patterns
from penstock.config.schema import Config
from penstock.errors import ConfigError, Problem

KEY = "trainer.freeze.names"
FOREVER = -1


def ends(config: Config, model: nn.Module) -> Mapping[str, int]:
    """The epoch in which each frozen weight of a model begins to learn, by name; or FOREVER.

    The first pattern that names a weight says so.

    Raises:
        ConfigError: a pattern names no weight, or nothing is left to learn.
    """
    section = config.trainer.freeze
    if not section.names:
        return {}
    names = patterns.listed(section.names)
    until = section.until if isinstance(section.until, list) else [section.until] * len(names)
    weights = dict(model.named_parameters())
    patterns.check_used(KEY, names, list(weights), f"weight of {type(model).__name__}")
    by_name: dict[str, int] = {}
    for weight in weights:
        for pattern, end in zip(names, until, strict=True):
            if patterns.matches(pattern, weight):
                by_name[weight] = FOREVER if end is None else end
                break
    if all(by_name.get(name) or not weights[name].requires_grad for name in weights):
        reason = "leaves no weight that learns in epoch 0; name fewer"
        raise ConfigError(Problem(KEY, reason))
    return {name: end for name, end in by_name.items() if end}


def begin_epoch(config: Config, model: nn.Module, epoch: int) -> bool:
    """Let the weights of a model learn that learn in an epoch, and no others.

    Returns: whether others do than before.
    """
    changed, frozen = False, set[str]()
    if not config.trainer.freeze.names:
        return changed
    weights = dict(model.named_parameters())
    for name, end in ends(config, model).items():
        learns = end != FOREVER and epoch >= end
        changed |= weights[name].requires_grad != learns
        weights[name].requires_grad = learns
        if not learns:
            frozen.add(name)
    _hold_norms(config, model, frozen)
    return changed


def _hold_norms(config: Config, model: nn.Module, frozen: set[str]) -> None:
    """Keep batch norms in evaluation whose weights are frozen; those without any, in frozen parts.

    `train` is replaced on the module itself, as everybody calls that of the whole model.
    """
    names = patterns.listed(config.trainer.freeze.names)
    for path, module in model.named_modules():
        if not isinstance(module, _NormBase) or not module.track_running_stats:
            continue
        own = {f"{path}.{name}" for name, _ in module.named_parameters(recurse=False)}
        held = own <= frozen if own else _is_inside(path, names, model, frozen)
        if held:
            module.train = MethodType(_stay, module)  # type: ignore[method-assign]
            module.eval()
        else:
            vars(module).pop("train", None)


def _is_inside(path: str, names: list[str], model: nn.Module, frozen: set[str]) -> bool:
    """Whether a module without weights lies in a frozen part."""
    above = model.get_submodule(path.rpartition(".")[0])
    beside = {id(weight) for weight in above.parameters()}
    known = {name for name, weight in model.named_parameters() if id(weight) in beside}
    return bool(known) and known <= frozen and any(patterns.matches(name, path) for name in names)


def _stay(self: nn.Module, mode: bool = True) -> nn.Module:
    return nn.Module.train(self, False)
