"""Prepares a new model before a fit makes its optimizer.

`trainer.warm_start`: the weights that it begins with.

`trainer.freeze`: weights that do not learn, for a run or until an epoch. They get no gradient, so
no optimizer touches them: no weight decay, and no state before they learn. An epoch says which
weights learn in it, so a resumed run needs nothing else to know them. Batch norms whose weights are
frozen stay in evaluation mode; their running statistics do not move.

`trainer.recompute`: modules whose activations are computed again in the backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint

from penstock.addons.finetuning import groups, weights
from penstock.config import targets
from penstock.config.schema import Config
from penstock.errors import ConfigError, PenstockError, Problem
from penstock.files.limits import Index
from penstock.terminal import say

_START = "trainer.warm_start"

started: WeakKeyDictionary[nn.Module, dict[str, Any]] = WeakKeyDictionary()


def prepared(config: Config, model: nn.Module, begins: bool) -> None:
    """Prepare a new model for its training, in place.

    Args:
        begins: whether its weights are those that a run begins with.
    """
    trainer = config.trainer
    if trainer.recompute and trainer.compile:
        reason = "is not for trainer.compile=true; set that to false"
        raise ConfigError(Problem(_RECOMPUTE, reason))
    if begins and any(trainer.warm_start.values()):
        targets.options(config, _START, model)
    if any(trainer.freeze.values()):
        begin_epoch(config, model, 0)
    if config.distributed.strategy == "fsdp" and {*ends(config, model).values()} - {FOREVER}:
        reason = (
            "is not for distributed=fsdp, which shards weights by what learns; set it to null, or "
            "distributed=ddp"
        )
        raise ConfigError(Problem(f"{FREEZE}.until", reason))
    if names := groups.listed(trainer.recompute):
        recompute(model, names)


def start(
    model: nn.Module,
    /,
    path: str,
    strict: bool = True,
    without: Sequence[str] | str = (),
    rename: dict[str, str] | None = None,
) -> None:
    """Give a model the weights of a file, and say what matched; the section `trainer.warm_start`.

    Args:
        path: a run's folder, a checkpoint, or a file.
        strict: whether all of them must fit.
        without: patterns of names that keep their new weights.
        rename: beginnings of names in the file, and those in the model.

    Raises:
        ConfigError: some do not fit, and `strict` is true; or none do.
    """
    file = Path(path).expanduser()
    matched = weights.match(model, weights.read(file), groups.listed(without), rename)
    if not matched.tensors or (strict and matched.odd):
        name = type(model).__name__
        ways = (
            f"{_START}.without=[NAMES] keeps the new weights of some; {_START}.strict=false takes "
            "what fits"
            if matched.tensors
            else f"is it another model? {_START}.rename may help"
        )
        reason = f"{path!r} does not fit {name}: {matched}. {ways}"
        raise ConfigError(Problem(f"{_START}.path", reason))
    weights.load(model, matched)
    started[model] = {
        "path": str(file.absolute()),
        "matched": len(matched.tensors),
        "total": matched.total,
        "left": matched.left,
        "missing": matched.missing,
        "other": matched.other,
        "unexpected": matched.unexpected,
    }
    if not dist.is_initialized() or dist.get_rank() == 0:
        say(f"{'start':<9} {matched} from {path}")


FREEZE = "trainer.freeze"

FOREVER = -1


def ends(config: Config, model: nn.Module) -> Mapping[str, int]:
    """The epoch in which each frozen weight of a model begins to learn, by name; or FOREVER."""
    asked = any(config.trainer.freeze.values())
    return targets.options(config, FREEZE, model) if asked else {}


def ends_of(
    model: nn.Module,
    /,
    names: Sequence[str] | str = (),
    until: Index | list[Index | None] | None = None,
) -> Mapping[str, int]:
    """As `ends`, of the section `trainer.freeze`; the first pattern that names a weight says so.

    Args:
        names: patterns of weights that do not learn.
        until: the epoch in which they begin to, or one for each pattern.

    Raises:
        ConfigError: a pattern names no weight, or nothing is left to learn.
    """
    names = groups.listed(names)
    each = until if isinstance(until, list) else [until] * len(names)
    if not names:
        raise ConfigError(
            Problem(f"{FREEZE}.until", f"has no names; set {FREEZE}.names, patterns of weights")
        )
    if len(each) != len(names):
        reason = f"has {len(each)} epochs for {len(names)} names; give one for each, or one"
        raise ConfigError(Problem(f"{FREEZE}.until", reason))
    weights = dict(model.named_parameters())
    groups.check_used(f"{FREEZE}.names", names, list(weights), f"weight of {type(model).__name__}")
    by_name: dict[str, int] = {}
    for weight in weights:
        for pattern, end in zip(names, each, strict=True):
            if groups.matches(pattern, weight):
                by_name[weight] = FOREVER if end is None else end
                break
    if all(by_name.get(name) or not weights[name].requires_grad for name in weights):
        reason = "leaves no weight that learns in epoch 0; name fewer"
        raise ConfigError(Problem(f"{FREEZE}.names", reason))
    return {name: end for name, end in by_name.items() if end}


def begin_epoch(config: Config, model: nn.Module, epoch: int) -> bool:
    """Let the weights of a model learn that learn in an epoch, and no others.

    Returns: whether others do than before.
    """
    changed, frozen = False, set[str]()
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
    names = groups.listed(config.trainer.freeze.get("names") or ())
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
    return bool(known) and known <= frozen and any(groups.matches(name, path) for name in names)


def _stay(self: nn.Module, mode: bool = True) -> nn.Module:
    return nn.Module.train(self, False)


_RECOMPUTE = "trainer.recompute"


def recompute(model: nn.Module, names: list[str]) -> None:
    """Let the outermost modules of a model that the patterns name be computed again.

    Raises:
        ConfigError: a pattern names no module, or a list of modules, which computes nothing.
    """
    modules = {name: module for name, module in model.named_modules() if name}
    groups.check_used(_RECOMPUTE, names, list(modules), f"module of {type(model).__name__}")
    outermost = ""
    for name, module in modules.items():
        if outermost and name.startswith(f"{outermost}."):
            continue
        if not any(groups.matches(pattern, name) for pattern in names):
            continue
        if type(module).forward is nn.Module.forward:
            reason = f"{name} is a {type(module).__name__}, which is not called; name {name}.%"
            raise ConfigError(Problem(_RECOMPUTE, reason))
        module.forward = MethodType(_forward, module)
        outermost = name


def _forward(self: nn.Module, *arguments: Any, **options: Any) -> Any:
    """The forward pass of a module's class, without its activations."""
    forward = partial(type(self).forward, self)
    if not torch.is_grad_enabled():
        return forward(*arguments, **options)
    contexts = partial(_contexts, self)
    return checkpoint(forward, *arguments, use_reentrant=False, context_fn=contexts, **options)


def _contexts(module: nn.Module) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    return nullcontext(), _again(module)


@contextmanager
def _again(module: nn.Module) -> Iterator[None]:
    """Batch norms measure the batch and do not count it.

    Raises:
        PenstockError: another buffer has changed, which it then has twice.
    """
    norms = [
        each
        for each in module.modules()
        if isinstance(each, _NormBase) and each.training and each.track_running_stats
    ]
    counted = {id(buffer) for norm in norms for buffer in norm.buffers()}
    others = {n: b for n, b in module.named_buffers() if id(b) not in counted}
    before = {name: buffer._version for name, buffer in others.items()}
    kept = [(norm, norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum, norm.num_batches_tracked = 0.0, None
    try:
        yield
    finally:
        for norm, momentum, count in kept:
            norm.momentum, norm.num_batches_tracked = momentum, count
        # Here, as torch leaves by an exception when it has all that it needs.
        if changed := [name for name, buffer in others.items() if buffer._version != before[name]]:
            raise PenstockError(
                f"{_RECOMPUTE}: {type(module).__name__} changes {changed[0]} when it is called, "
                "which it would do twice; leave that module out"
            )
