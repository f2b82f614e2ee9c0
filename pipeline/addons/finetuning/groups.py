"""Weights with learning rates and decays of their own: `trainer.groups`.

    groups:
      layers: {names: [embeddings, encoder.layer.%, head], layer_decay: 0.8}
      plain: {kinds: [bias, norm], weight_decay: 0}

A group says which weights it is about, by `names` (patterns) and `kinds`, and what differs for
these: any argument of the optimizer, or `lr_scale` or `layer_decay`, which multiply its learning
rate. Each argument of a weight comes from the first group that is about it and sets that argument;
all that no group sets is the optimizer's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from penstock.addons.finetuning import fitting
from penstock.config.messages import nearest
from penstock.config.schema import Config
from penstock.config.targets import arguments, called
from penstock.errors import ConfigError, Problem
from penstock.terminal import say
from penstock.training.observer import Observer, Record

if TYPE_CHECKING:
    from penstock.tasks.fit import Fit
import difflib
import re
from collections.abc import Iterable
from functools import lru_cache

MOST = 200  # characters of a pattern
_SHOWN = 4


def listed(patterns: Sequence[str] | str) -> list[str]:
    """Patterns as a list; a single one stands for itself."""
    return [patterns] if isinstance(patterns, str) else list(patterns)


def numbers(pattern: str, name: str) -> tuple[int, ...] | None:
    """The numbers in the places of `%`, where a pattern names this or a module that it is in."""
    fitting = _compiled(pattern).match(name)
    return None if fitting is None else tuple(int(text) for text in fitting.groups() if text)


def matches(pattern: str, name: str) -> bool:
    """Whether a pattern names this, or a module that it is in."""
    return numbers(pattern, name) is not None


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    first, *others = (
        re.escape(piece).replace(r"\?", ".").replace("%", r"(\d++)")
        for piece in re.sub(r"\*+", "*", pattern).split("*")
    )
    end = r"(?:\..*)?\Z"  # with what is in it
    if not others:
        return re.compile(first + end, re.DOTALL)
    *inner, last = others
    between = "".join(f"(?>.*?{piece})" for piece in inner)
    ending = rf"(?:.*{last}\Z|.*?{last}\.)" if last else ""
    return re.compile(first + between + ending, re.DOTALL)


def check(key: str, patterns: Iterable[str]) -> None:
    """Raise ConfigError for a text that is no pattern."""
    for pattern in patterns:
        if not isinstance(pattern, str) or not 0 < len(pattern) <= MOST:
            reason = f"{str(pattern)[:50]!r} is no pattern of names: a text of 1 to {MOST} letters"
            raise ConfigError(Problem(key, reason))


def check_used(key: str, patterns: Iterable[str], names: Sequence[str], what: str) -> None:
    """Raise ConfigError where a pattern names nothing.

    Args:
        names: of all that there is.
        what: these are, for the message.
    """
    patterns = list(patterns)
    check(key, patterns)
    if idle := [each for each in patterns if not any(matches(each, name) for name in names)]:
        known = dict.fromkeys(
            name.rsplit(".", depth)[0] for name in names for depth in range(name.count(".") + 1)
        )
        near = difflib.get_close_matches(idle[0].strip("*."), known, _SHOWN, 0.3)
        near = near or list(names)[:_SHOWN]
        reason = f"{', '.join(map(repr, idle))} names no {what}; there is {', '.join(near)} ..."
        raise ConfigError(Problem(key, reason))


KINDS = ("bias", "norm", "embedding")

OF_THE_RATE = ("lr", "lr_scale", "layer_decay")

CHOICE = ("names", "kinds")


@dataclass
class Group:
    """A group as it is written.

    Attributes:
        key: of it in the configuration.
        weights: names of those that it is about, each with the layer that it is in, from 0 on.
        decided: of how many of them it sets something.
    """

    key: str
    settings: Mapping[str, Any]
    weights: dict[str, int] = field(default_factory=dict)
    layers: int = 0
    decided: int = 0


def arranged(
    config: Config, key: str, part: nn.Module, model: nn.Module, params: list[Any]
) -> list[Any]:
    """The weights of `part` that the optimizer at `key` trains, in groups where there are any.

    Args:
        model: that `part` is a part of, or the same.
        params: weights that learn in epoch 0.

    Raises:
        ConfigError: a group is about no weight, or all that it sets is set by others before it.
    """
    of_model = {id(weight): name for name, weight in model.named_parameters()}
    frozen = fitting.ends(config, model)
    later = {name for name, end in frozen.items() if end != fitting.FOREVER}
    weights = {
        name: weight
        for name, weight in part.named_parameters()
        if weight.requires_grad or of_model.get(id(weight)) in later
    }
    if frozen and not weights:
        named = f"{fitting.FREEZE}.names"
        reason = f"has nothing to learn, as {named} names all that it trains; name fewer"
        raise ConfigError(Problem(key, reason))
    node: Any = config.optimizer if key == "optimizer" else config.optimizer[key.rpartition(".")[2]]
    written = (config.trainer.groups or {}).items()
    if refused := list(_groups(dict(written), node, called(node))):
        raise ConfigError(refused)
    groups = [Group(f"trainer.groups.{name}", of) for name, of in written if of is not None]
    if not groups:
        return list(weights.values()) if later else params
    trained = {of_model.get(id(weight), name): weight for name, weight in weights.items()}
    for group in groups:
        _choose(group, model, trained)
    made: dict[tuple[Any, ...], dict[str, Any]] = {}
    for name, weight in trained.items():
        values, by = _settings(name, groups, float(node.get("lr", 0) or 0))
        known = tuple(sorted((setting, repr(value)) for setting, value in values.items()))
        made.setdefault(known, {"params": [], "name": by, **values})["params"].append(weight)
    for group in groups:
        if group.weights and not group.decided:
            reason = "sets nothing: groups before it are about the same weights; put it first"
            raise ConfigError(Problem(group.key, reason))
    # The record of an epoch has the learning rate of the first.
    return sorted(made.values(), key=lambda values: "lr" in values)


def _choose(group: Group, model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Find the weights of an optimizer that a group is about, and their layers.

    Args:
        weights: that the optimizer trains, by their names in the model.
    """
    names = listed(group.settings.get("names") or [])
    every = [name for name, weight in model.named_parameters() if weight.requires_grad]
    where = f"trained weight of {type(model).__name__}"
    check_used(f"{group.key}.names", names, list(dict.fromkeys([*weights, *every])), where)
    kinds = listed(group.settings.get("kinds") or [])
    of_kind = set(_of_kinds(model, kinds))
    places: dict[str, tuple[int, tuple[int, ...]]] = {}
    for name in weights:
        for order, pattern in enumerate(names):
            found = numbers(pattern, name)
            if found is not None and (not kinds or name in of_kind):
                places[name] = order, found
                break
        if not names and name in of_kind:
            places[name] = 0, ()
    if not places and weights.keys() >= set(every):  # no other optimizer has some
        reason = f"is about no {where}; it has none of {', '.join(kinds)}"
        raise ConfigError(Problem(group.key, reason))
    layers = {place: number for number, place in enumerate(sorted(set(places.values())))}
    group.weights = {name: layers[place] for name, place in places.items()}
    group.layers = len(layers)


def _of_kinds(part: nn.Module, kinds: Sequence[str]) -> Iterator[str]:
    """Names of the weights of some kinds."""
    for path, module in part.named_modules():
        for name, _ in module.named_parameters(recurse=False):
            kind = "bias" if name.rpartition("_")[2] == "bias" else ""
            if isinstance(module, nn.Embedding):
                kind = "embedding"
            elif "norm" in type(module).__name__.lower():
                kind = "norm"
            if kind in kinds or (name == "bias" and "bias" in kinds):
                yield f"{path}.{name}" if path else name


def _settings(name: str, groups: Sequence[Group], lr: float) -> tuple[dict[str, Any], str]:
    """The arguments of a weight that groups set, and the names of those groups."""
    values: dict[str, Any] = {}
    by: list[str] = []
    for group in groups:
        if name not in group.weights:
            continue
        own = {of: value for of, value in group.settings.items() if of not in CHOICE}
        if rate := next((of for of in OF_THE_RATE if of in own), None):
            layers = group.layers - 1 - group.weights[name]
            factor = {"lr_scale": 1.0, "layer_decay": layers}.get(rate, 0)
            own["lr"] = lr * own.pop(rate) ** factor if rate != "lr" else own["lr"]
        fresh = own.keys() - values.keys()
        if fresh:
            values |= {of: own[of] for of in fresh}
            group.decided += 1
            layer = f".{group.weights[name]}" if "layer_decay" in group.settings else ""
            by.append(group.key.rpartition(".")[2] + layer)
    return values, "+".join(by) or "others"


def named(optimizer: Any) -> list[tuple[str, dict[str, Any]]]:
    """Each group of an optimizer, or of several, and its name."""
    parts = getattr(optimizer, "by_name", {"": optimizer})
    return [
        (".".join(filter(None, (part, str(group.get("name", ""))))), group)
        for part, each in parts.items()
        for group in each.param_groups
    ]


def described(optimizer: Any) -> list[dict[str, Any]]:
    """The facts of each group of an optimizer: name, weights, numbers, lr, weight decay."""
    return [
        {
            "name": name,
            "weights": len(group["params"]),
            "parameters": sum(weight.numel() for weight in group["params"]),
            "lr": float(group.get("max_lr", group.get("initial_lr", group["lr"]))),
            "weight_decay": group.get("weight_decay"),
        }
        for name, group in named(optimizer)
    ]


def watching(fit: Fit) -> list[Observer]:
    """Says on the first rank which weights learn how; its observer notes their rates."""
    model = fit.model
    if model in fitting.started:
        fit.folder.manifest["warm_start"] = fitting.started[model]
    if ends := fitting.ends(fit.config, model):
        frozen = sum(weight.numel() for weight in model.parameters() if not weight.requires_grad)
        later = sorted({*ends.values()} - {fitting.FOREVER})
        until = f"; some learn from epoch {', '.join(map(str, later))} on" if later else ""
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


def _groups(
    groups: Mapping[str, Any], node: Mapping[str, Any], optimizer: Callable[..., Any]
) -> Iterator[Problem]:
    taken = arguments(optimizer)
    if "params" not in taken:
        yield Problem(
            "trainer.groups",
            (f"{optimizer.__name__} takes no weights in groups; choose another optimizer"),
        )
        return
    for name, group in groups.items():
        if isinstance(group, Mapping):
            own = [argument for argument in taken if argument != "params"]
            yield from _group(f"trainer.groups.{name}", group, node, own)


def _group(key: str, group: Any, node: Mapping[str, Any], taken: list[str]) -> Iterator[Problem]:
    known = [*CHOICE, *OF_THE_RATE, *taken]
    for name in group:
        if name not in known:
            yield Problem(
                f"{key}.{name}", f"is nothing that a group sets{nearest(str(name), known)}"
            )
    if not any(group.get(name) for name in CHOICE):
        yield Problem(
            f"{key}", f"says no weights; give names (patterns) or kinds ({', '.join(KINDS)})"
        )
    for name, words in ((name, group.get(name) or []) for name in CHOICE):
        try:
            check(f"{key}.{name}", listed(words))
        except (ConfigError, TypeError) as error:
            reason = error.problems[0].message if isinstance(error, ConfigError) else "no list"
            yield Problem(f"{key}.{name}", f"{reason}")
            continue
        for word in listed(words) if name == "kinds" else ():
            if word not in KINDS:
                yield Problem(f"{key}.kinds", f"{word!r}; allowed: {', '.join(KINDS)}")
    rates = [name for name in OF_THE_RATE if name in group]
    if len(rates) > 1:
        yield Problem(f"{key}", f"{' and '.join(rates)} both say the learning rate; leave one")
    if set(group) <= set(CHOICE):
        yield Problem(f"{key}", "sets nothing; give lr, lr_scale, layer_decay, weight_decay ...")
    for name in (*rates, "weight_decay"):
        value = group.get(name, 0)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not 0 <= value < float("inf"):
            yield Problem(f"{key}.{name}", f"{value!r}; allowed: numbers from 0 on")
    if {"lr_scale", "layer_decay"} & set(rates) and not isinstance(node.get("lr"), (int, float)):
        yield Problem(f"{key}.{rates[0]}", "multiplies the optimizer's lr, which is not set")
