"""How a trained model learns something else, beside the weights that it begins with (weights.py).

trainer.freeze     weights that do not learn, for a run or until an epoch
trainer.groups     weights with a learning rate, a decay ... of their own
trainer.recompute  modules whose activations are computed again in the backward pass

Frozen weights get no gradient, so no optimizer touches them: no weight decay, and no state before
they learn. The epoch says which weights learn in it, so a resumed run needs nothing else to know
them. Batch norms whose weights are frozen stay in evaluation mode; their statistics do not move.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint

from penstock.config import targets
from penstock.config.messages import nearest
from penstock.config.schema import Config
from penstock.errors import ConfigError, PenstockError, Problem
from penstock.files.limits import Index
from penstock.terminal import say
from penstock.training.observer import Observer, Record
from penstock.training.weights import (
    START,
    check_used,
    listed,
    named_by,
    numbers,
    started,
)

if TYPE_CHECKING:
    from penstock.tasks.fit import Fit

_FREEZE, _RECOMPUTE = "trainer.freeze", "trainer.recompute"
FOREVER = -1  # the epoch in which weights begin to learn that never do
_CHOICE = ("names", "kinds")  # what a group says of its weights
_KINDS = ("bias", "norm", "embedding")
_RATES = ("lr", "lr_scale", "layer_decay")


def prepare(config: Config, model: nn.Module, begins: bool) -> None:
    """Prepare a new model for its training, in place.

    Args:
        begins: whether its weights are those that a run begins with.
    """
    trainer = config.trainer
    if trainer.recompute and trainer.compile:
        reason = "is not for trainer.compile=true; set that to false"
        raise ConfigError(Problem(_RECOMPUTE, reason))
    if begins and any(trainer.warm_start.values()):
        targets.options(config, START, model)
    if any(trainer.freeze.values()):
        begin_epoch(config, model, 0)
    if config.distributed.strategy == "fsdp" and {*ends(config, model).values()} - {FOREVER}:
        reason = (
            "is not for distributed=fsdp, which shards weights by what learns; set it to null, or "
            "distributed=ddp"
        )
        raise ConfigError(Problem(f"{_FREEZE}.until", reason))
    if names := listed(trainer.recompute):
        _recompute(model, names)


# Frozen weights


def ends(config: Config, model: nn.Module) -> Mapping[str, int]:
    """The epoch in which each frozen weight of a model begins to learn, by name; or FOREVER."""
    asked = any(config.trainer.freeze.values())
    return targets.options(config, _FREEZE, model) if asked else {}


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
    names = listed(names)
    each = until if isinstance(until, list) else [until] * len(names)
    if not names:
        raise ConfigError(
            Problem(f"{_FREEZE}.until", f"has no names; set {_FREEZE}.names, patterns of weights")
        )
    if len(each) != len(names):
        reason = f"has {len(each)} epochs for {len(names)} names; give one for each, or one"
        raise ConfigError(Problem(f"{_FREEZE}.until", reason))
    weights = dict(model.named_parameters())
    check_used(f"{_FREEZE}.names", names, list(weights), f"weight of {type(model).__name__}")
    by_name: dict[str, int] = {}
    for pattern, end in zip(names, each, strict=True):
        for name in weights:
            if named_by([pattern], name):
                by_name.setdefault(name, FOREVER if end is None else end)
    if all(by_name.get(name) or not weights[name].requires_grad for name in weights):
        reason = "leaves no weight that learns in epoch 0; name fewer"
        raise ConfigError(Problem(f"{_FREEZE}.names", reason))
    return {name: end for name, end in by_name.items() if end}


def begin_epoch(config: Config, model: nn.Module, epoch: int) -> bool:
    """Let the weights of a model learn that learn in an epoch, and no others.

    Returns: whether others do than before.
    """
    changed, frozen = False, set[int]()
    weights = dict(model.named_parameters())
    for name, end in ends(config, model).items():
        learns = end != FOREVER and epoch >= end
        changed |= weights[name].requires_grad != learns
        weights[name].requires_grad = learns
        if not learns:
            frozen.add(id(weights[name]))
    # Batch norms stay in evaluation whose weights are frozen; those without any, if a pattern names
    # them and the module around them is frozen. Everybody calls `train` of the whole model, so that
    # of the norm itself is replaced.
    patterns = listed(config.trainer.freeze.get("names"))
    for path, module in model.named_modules():
        if not isinstance(module, _NormBase) or not module.track_running_stats:
            continue
        has_own = any(True for _ in module.parameters())
        part = module if has_own else model.get_submodule(path.rpartition(".")[0])
        of_part = {id(weight) for weight in part.parameters()}
        if of_part and of_part <= frozen and (has_own or named_by(patterns, path)):
            module.train = MethodType(_stay, module)  # type: ignore[method-assign]
            module.eval()
        else:
            vars(module).pop("train", None)
    return changed


def _stay(self: nn.Module, mode: bool = True) -> nn.Module:
    return nn.Module.train(self, False)


# Activations that are computed again


def _recompute(model: nn.Module, names: list[str]) -> None:
    """Let the outermost modules of a model that the patterns name be computed again.

    Raises:
        ConfigError: a pattern names no module, or a list of modules, which computes nothing.
    """
    modules = {name: module for name, module in model.named_modules() if name}
    check_used(_RECOMPUTE, names, list(modules), f"module of {type(model).__name__}")
    outermost = ""
    for name, module in modules.items():
        inside = outermost and name.startswith(f"{outermost}.")
        if inside or not named_by(names, name):
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
    return checkpoint(
        forward,
        *arguments,
        use_reentrant=False,
        context_fn=lambda: (nullcontext(), _again(self)),
        **options,
    )


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


# Groups of weights
#
#     groups:
#       layers: {names: [embeddings, encoder.layer.%, head], layer_decay: 0.8}
#       plain: {kinds: [bias, norm], weight_decay: 0}
#
# A group says which weights it is about, and what differs for these. Each argument of a weight
# comes from the first group that is about it and sets that argument; all that no group sets is the
# optimizer's own.


@dataclass
class _Group:
    """A group as it is written.

    Attributes:
        layers: the layer of each weight that it is about, from 0 on, by name.
        is_used: whether it sets something of a weight.
    """

    key: str
    settings: Mapping[str, Any]
    layers: Mapping[str, int]
    is_used: bool = False

    def values(self, name: str, lr: float) -> dict[str, Any]:
        """The arguments that it sets of a weight; `lr` is the optimizer's."""
        values = {of: value for of, value in self.settings.items() if of not in _CHOICE}
        if "lr_scale" in values:
            values["lr"] = lr * values.pop("lr_scale")
        if "layer_decay" in values:
            above = max(self.layers.values()) - self.layers[name]
            values["lr"] = lr * values.pop("layer_decay") ** above
        return values


def arranged(config: Config, key: str, part: nn.Module, model: nn.Module) -> list[Any]:
    """The weights of `part` that the optimizer at `key` trains, in groups where there are any.

    Args:
        model: that `part` is a part of, or the same.

    Raises:
        ConfigError: a group is about no weight, or all that it sets is set by others before it.
    """
    of_model = {id(weight): name for name, weight in model.named_parameters()}
    frozen = ends(config, model)
    trained = {}
    for own_name, weight in part.named_parameters():
        name = of_model.get(id(weight), own_name)
        if weight.requires_grad or frozen.get(name, FOREVER) != FOREVER:
            trained[name] = weight
    if frozen and not trained:
        reason = f"has nothing to learn, as {_FREEZE}.names names all that it trains; name fewer"
        raise ConfigError(Problem(key, reason))
    node: Any = config.optimizer if key == "optimizer" else config.optimizer[key.rpartition(".")[2]]
    written = {name: of for name, of in (config.trainer.groups or {}).items() if of is not None}
    taken = targets.arguments(targets.called(node))
    problems = [each for name, of in written.items() for each in _wrong(name, of, node, taken)]
    if problems:
        raise ConfigError(problems)
    if not written:
        return list(trained.values())
    groups = [_group(f"trainer.groups.{name}", of, model, trained) for name, of in written.items()]
    made: dict[tuple[Any, ...], dict[str, Any]] = {}
    for name, weight in trained.items():
        values: dict[str, Any] = {}
        by = []
        for group in groups:
            own = group.values(name, float(node.get("lr", 0) or 0)) if name in group.layers else {}
            if own.keys() - values.keys():
                values = {**own, **values}
                group.is_used = True
                layer = f".{group.layers[name]}" if "layer_decay" in group.settings else ""
                by.append(group.key.rpartition(".")[2] + layer)
        alike = tuple(sorted((setting, repr(value)) for setting, value in values.items()))
        first = {"params": [], "name": "+".join(by) or "others", **values}
        made.setdefault(alike, first)["params"].append(weight)
    for group in groups:
        if group.layers and not group.is_used:
            reason = "sets nothing: groups before it are about the same weights; put it first"
            raise ConfigError(Problem(group.key, reason))
    # The record of an epoch has the learning rate of the first.
    return sorted(made.values(), key=lambda values: "lr" in values)


def _wrong(
    name: str, group: Mapping[str, Any], node: Mapping[str, Any], taken: Iterable[str]
) -> Iterator[Problem]:
    """What is wrong with a group as it is written; `taken` are the optimizer's arguments."""
    key = f"trainer.groups.{name}"
    known = [*_CHOICE, *_RATES, *(argument for argument in taken if argument != "params")]
    if "params" not in taken:
        yield Problem(key, "the optimizer takes no weights in groups; choose another one")
    for unknown in group.keys() - set(known):
        yield Problem(f"{key}.{unknown}", f"is nothing that a group sets{nearest(unknown, known)}")
    if not any(group.get(choice) for choice in _CHOICE):
        reason = f"says no weights; give names (patterns) or kinds ({', '.join(_KINDS)})"
        yield Problem(key, reason)
    for kind in listed(group.get("kinds")):
        if kind not in _KINDS:
            yield Problem(f"{key}.kinds", f"{kind!r}; allowed: {', '.join(_KINDS)}")
    rates = [rate for rate in _RATES if rate in group]
    if len(rates) > 1:
        yield Problem(key, f"{' and '.join(rates)} both say the learning rate; leave one")
    if group.keys() <= set(_CHOICE):
        yield Problem(key, "sets nothing; give lr, lr_scale, layer_decay, weight_decay ...")
    for setting in (*rates, "weight_decay"):
        value = group.get(setting, 0)
        if type(value) not in (int, float) or not 0 <= value < float("inf"):
            yield Problem(f"{key}.{setting}", f"{value!r}; allowed: numbers from 0 on")
    if rates and rates != ["lr"] and not isinstance(node.get("lr"), (int, float)):
        yield Problem(f"{key}.{rates[0]}", "multiplies the optimizer's lr, which is not set")


def _group(
    key: str, settings: Mapping[str, Any], model: nn.Module, trained: Mapping[str, Tensor]
) -> _Group:
    """A group, with the weights of one optimizer that it is about.

    Args:
        trained: the weights that the optimizer trains, by their names in the model.
    """
    names, kinds = listed(settings.get("names")), listed(settings.get("kinds"))
    every = [name for name, weight in model.named_parameters() if weight.requires_grad]
    what = f"trained weight of {type(model).__name__}"
    check_used(f"{key}.names", names, list(dict.fromkeys([*trained, *every])), what)
    known = _kinds(model)
    layers: dict[str, tuple[int, tuple[int, ...]]] = {}  # by pattern and by the numbers in it
    for name in trained:
        for order, pattern in enumerate(names or ["*"]):
            found = numbers(pattern, name)
            if found is not None and (not kinds or known.get(name, set()) & {*kinds}):
                layers[name] = order, found
                break
    if not layers and trained.keys() >= set(every):  # no other optimizer has some
        raise ConfigError(Problem(key, f"is about no {what}; it has none of {', '.join(kinds)}"))
    ranks = {layer: number for number, layer in enumerate(sorted(set(layers.values())))}
    return _Group(key, settings, {name: ranks[layer] for name, layer in layers.items()})


def _kinds(model: nn.Module) -> dict[str, set[str]]:
    """The kinds of each weight of a model, by name."""
    found = {}
    for path, module in model.named_modules():
        for name, _ in module.named_parameters(recurse=False):
            is_kind = {
                "bias": name.rpartition("_")[2] == "bias",
                "norm": "norm" in type(module).__name__.lower(),
                "embedding": isinstance(module, nn.Embedding),
            }
            found[f"{path}.{name}".lstrip(".")] = {kind for kind in _KINDS if is_kind[kind]}
    return found


def _named_groups(optimizer: Any) -> list[tuple[str, dict[str, Any]]]:
    """Each group of an optimizer, or of several, and its name."""
    parts = getattr(optimizer, "by_name", {"": optimizer})
    return [
        (".".join(filter(None, (part, str(group.get("name", ""))))), group)
        for part, each in parts.items()
        for group in each.param_groups
    ]


# What a run says of all that


def watching(fit: Fit) -> list[Observer]:
    """Say on the first rank which weights learn how; the observer notes their rates."""
    model, manifest = fit.model, fit.folder.manifest
    if model in started:
        manifest["warm_start"] = started[model]
    if until := ends(fit.config, model):
        frozen = sum(weight.numel() for weight in model.parameters() if not weight.requires_grad)
        later = sorted({*until.values()} - {FOREVER})
        then = f"; some learn from epoch {', '.join(map(str, later))} on" if later else ""
        say(f"{'frozen':<9} {frozen:,} parameters in epoch 0{then}")
    if not any("name" in group for group in fit.optimizer.param_groups):
        return []
    manifest["groups"] = []
    for name, group in _named_groups(fit.optimizer):
        count = sum(weight.numel() for weight in group["params"])
        rate = float(group.get("max_lr", group.get("initial_lr", group["lr"])))
        decay = group.get("weight_decay")
        say(
            f"{'' if manifest['groups'] else 'groups':<9} {name}: {len(group['params'])} weights, "
            f"{count:,} parameters, lr {rate:.3g}"
            + ("" if decay is None else f", weight decay {decay:g}")
        )
        facts = {"name": name, "weights": len(group["params"]), "parameters": count}
        manifest["groups"].append({**facts, "lr": rate, "weight_decay": decay})
    return [_Rates(fit)]


class _Rates(Observer):
    """Adds the learning rate of each group to the record of an epoch, as `lr/NAME`."""

    def __init__(self, fit: Fit) -> None:
        self._fit = fit

    def on_record(self, record: Record) -> None:
        for name, group in _named_groups(self._fit.optimizer):
            record.setdefault(f"lr/{name}", float(group["lr"]))
