"""How a trained model learns something else.

trainer.warm_start  weights of a run or a file that a run begins with
trainer.freeze      weights that do not learn, for a run or until an epoch
trainer.groups      weights with a learning rate, a decay ... of their own

Each names weights by patterns. Frozen weights get no gradient, so no optimizer touches them: no
weight decay, and no state before they learn. The epoch says which weights learn in it, so a resumed
run needs nothing else to know them. Only tensors are read of a file.
"""

from __future__ import annotations

import pickle
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from penstock.config import targets
from penstock.config.messages import nearest
from penstock.config.schema import Config
from penstock.errors import ConfigError, Problem
from penstock.files.limits import Index
from penstock.runs import checkpoint
from penstock.terminal import one_line, say
from penstock.training.adapter import in_shape, require

if TYPE_CHECKING:
    from penstock.tasks.fit import Fit

_START, _FREEZE = "trainer.warm_start", "trainer.freeze"
FOREVER = float("inf")  # the epoch in which weights begin to learn that never do
_SHOWN = 6  # names in a message
_NESTED = ("state_dict", "model_state_dict", "model", "module")  # where files have the tensors
_OF_GROUPS = ("names", "kinds", "lr_scale")  # what no optimizer takes
_KINDS = ("bias", "norm", "embedding")


def prepare(config: Config, model: nn.Module, begins: bool) -> None:
    """Prepare a new model for its training, in place.

    Args:
        begins: whether its weights are those that a run begins with.

    Raises:
        ConfigError: weights do not fit, or a pattern names nothing.
    """
    if begins and any(config.trainer.warm_start.values()):
        targets.options(config, _START, model)
    begin_epoch(config, model, 0)
    ends = targets.options(config, _FREEZE, model).values()
    require(
        config.distributed.strategy != "fsdp" or not {*ends} - {FOREVER},
        f"{_FREEZE}.until",
        "is not for distributed=fsdp, which shards weights by what learns; set it to null, or "
        "distributed=ddp",
    )


# Patterns. One names a weight, or a module with all that is in it: `*` is any text, and `?` a
# character.


def _listed(patterns: Sequence[str] | str | None) -> list[str]:
    # Whatever else stands there names nothing, and is refused by that.
    return [
        str(each)
        for each in (patterns if isinstance(patterns, list | tuple) else [patterns])
        if each is not None
    ]


def named_by(patterns: Sequence[str], name: str) -> bool:
    """Whether a pattern names this, or a module that it is in."""
    return any(fnmatchcase(name, end) for each in patterns for end in (each, f"{each}.*"))


def _check_used(key: str, patterns: Sequence[str], names: Collection[str], what: str) -> None:
    """Raise ConfigError where a pattern names none of `names`, each of which is a `what`."""
    for pattern in patterns:
        if not any(named_by([pattern], name) for name in names):
            parts = {name.rsplit(".", up)[0] for name in names for up in range(name.count(".") + 1)}
            near = nearest(pattern, sorted(parts))
            raise ConfigError(
                Problem(key, f"{pattern!r} names no {what}{near}; there is {_few(names)}")
            )


def _few(names: Collection[str]) -> str:
    shown = [one_line(name)[:120] for name in [*names][:_SHOWN]]
    return ", ".join([*shown, f"{len(names)} in all"] if len(names) > _SHOWN else shown)


# Weights of a run or a file


@torch.no_grad()
def start(
    model: nn.Module,
    /,
    path: str,
    strict: bool = True,
    without: Sequence[str] | str = (),
    rename: dict[str, str] | None = None,
) -> None:
    """Give a model the weights of a file, in its own dtypes; the section `trainer.warm_start`.

    Args:
        path: a run's folder, a checkpoint, or a file.
        strict: whether all of them must fit.
        without: patterns of names that keep their new weights.
        rename: beginnings of names in the file, and those in the model.

    Raises:
        ConfigError: some do not fit, and `strict` is true; or none do.
    """
    own, without = model.state_dict(), _listed(without)
    _check_used(f"{_START}.without", without, own, f"tensor of {type(model).__name__}")
    tensors = read(Path(path).expanduser())
    for before, after in (rename or {}).items():
        for name in [name for name in tensors if name.startswith(before)]:
            tensors[after + name.removeprefix(before)] = tensors.pop(name)
    # A head of the file's may be left out, too, that the model has not.
    tensors = {name: value for name, value in tensors.items() if not named_by(without, name)}
    fits = {
        name: value
        for name, value in tensors.items()
        if name in own and value.shape == own[name].shape
        if value.is_floating_point() == own[name].is_floating_point()
    }
    left = [name for name in own if named_by(without, name)]
    odd = {
        "missing": [name for name in own if name not in tensors and name not in left],
        "unexpected": [name for name in tensors if name not in own],
        "of another shape": [
            f"{name} {in_shape(value)} in the file, {in_shape(own[name])} in the model"
            for name, value in tensors.items()
            if name in own and name not in fits
        ],
    }
    parts = [f"{what}: {_few(names)}" for what, names in {"left out": left, **odd}.items() if names]
    words = "; ".join([f"{len(fits)} of {len(own)} tensors", *parts])
    require(
        fits and not (strict and any(odd.values())),
        f"{_START}.path",
        f"{path!r} does not fit {type(model).__name__}: {words}. Is it another model? rename maps "
        "names, without=[NAMES] keeps new weights, strict=false takes what fits",
    )
    for name, value in fits.items():
        own[name].copy_(value)
    # It is said when the run's folder is open: by one rank, and in the manifest.
    vars(model)["warm_start"] = f"{words} from {path}"


def read(path: Path) -> dict[str, Tensor]:
    """The tensors of a run's best weights, or of a file, by name; on the CPU.

    Only tensors are read: of a run's folder its best checkpoint; NAME.safetensors; NAME.pt, .pth,
    .bin or .ckpt as torch.save writes a state_dict.

    Raises:
        ConfigError: nothing is there, or it is no file of weights.
    """
    try:
        if path.is_file() and path.suffix in (".pt", ".pth", ".bin", ".ckpt"):
            # A pickle can run any code; this reader makes tensors and containers only.
            content = torch.load(path, map_location="cpu", weights_only=True)
        else:
            best = checkpoint.find(path)
            with safe_open(best, framework="pt") as file:
                is_checkpoint = "state" in (file.metadata() or {})
            state = checkpoint.load(best) if is_checkpoint else {"model": load_file(best)}
            content = state.get("averaged") or state["model"]
        for name in _NESTED:
            content = content[name] if isinstance(content.get(name), Mapping) else content
        return {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    except Exception as error:  # torch and safetensors raise any of them
        reason = (
            "holds more than tensors, and reading that could run any code; save its "
            "model.state_dict() alone, at best with safetensors.torch.save_file"
            if isinstance(error, pickle.UnpicklingError)
            else f"is no whole file of tensors ({one_line(error)[:200]})"
        )
        raise ConfigError(Problem(f"{_START}.path", f"{str(path)!r} {reason}")) from error


# Frozen weights


def ends_of(
    model: nn.Module,
    /,
    names: Sequence[str] | str = (),
    until: Index | None = None,
) -> Mapping[str, float]:
    """The epoch in which each frozen weight of a model begins to learn, by name; or FOREVER.

    The section `trainer.freeze`.

    Args:
        names: patterns of weights that do not learn.
        until: the epoch in which they begin to.

    Raises:
        ConfigError: a pattern names no weight, or nothing is left to learn.
    """
    names, weights = _listed(names), dict(model.named_parameters())
    require(names or until is None, f"{_FREEZE}.until", f"{until} needs names that do not learn")
    _check_used(f"{_FREEZE}.names", names, weights, f"weight of {type(model).__name__}")
    end = FOREVER if until is None else until
    frozen = {name: end for name in weights if end and named_by(names, name)}
    require(
        not names or any(w.requires_grad for name, w in weights.items() if name not in frozen),
        f"{_FREEZE}.names",
        "leaves no weight that learns in epoch 0; name fewer",
    )
    return frozen


def begin_epoch(config: Config, model: nn.Module, epoch: int) -> bool:
    """Let the weights of a model learn that learn in an epoch, and no others.

    Returns: whether others do than before.
    """
    # By the epoch alone, so that a resumed run needs no state of what has thawed.
    changed, weights = False, dict(model.named_parameters())
    frozen = targets.options(config, _FREEZE, model)
    for name, end in frozen.items():
        changed |= weights[name].requires_grad != (epoch >= end)
        weights[name].requires_grad = epoch >= end
    for path, module in model.named_modules():
        own = [frozen.get(f"{path}.{name}", 0) for name, _ in module.named_parameters()]
        if own and getattr(module, "track_running_stats", False):
            vars(module).pop("train", None)
            # A batch norm whose weights are frozen keeps its statistics, too. Everybody calls
            # `train` of the whole model, so that of the norm itself is replaced.
            if epoch < min(own):
                module.eval().train = lambda mode=True, norm=module: norm
    return changed


# Groups of weights
#
#     groups:
#       body: {names: [embeddings, encoder.layer.?], lr_scale: 0.1}
#       plain: {kinds: [bias, norm], weight_decay: 0}
#
# A group says which weights it is about, and what differs for these. Each argument of a weight
# comes from the first group that is about it and sets that argument; all that no group sets is the
# optimizer's own.


def arranged(config: Config, key: str, part: nn.Module, model: nn.Module) -> list[Any]:
    """The weights of `part` that the optimizer at `key` trains, in groups where there are any.

    Args:
        model: that `part` is a part of, or the same.

    Raises:
        ConfigError: a group is about no weight, or the optimizer refuses what it sets.
    """
    names = {id(weight): name for name, weight in model.named_parameters()}
    later = {name for name, end in targets.options(config, _FREEZE, model).items() if end < FOREVER}
    trained = {
        names[id(weight)]: weight
        for weight in part.parameters()
        if weight.requires_grad or names[id(weight)] in later
    }
    written = {name: of for name, of in (config.trainer.groups or {}).items() if of is not None}
    if not written or not trained:
        return list(trained.values())
    node: Any = config.optimizer if key == "optimizer" else config.optimizer[key.rpartition(".")[2]]
    supply = {"params": list(trained.values()), "model": part, "total_steps": 0}
    rate = targets.make(node, key, supply).defaults.get("lr", 0.0)
    groups = [_group(name, of, rate, model, trained) for name, of in written.items()]
    made: dict[str, dict[str, Any]] = {}
    for name, weight in trained.items():
        about = [group[name] for group in groups if name in group]
        values = {of: value for _, own in reversed(about) for of, value in own.items()}
        label = f"{key}.{'+'.join(label for label, _ in about) or 'others'}"
        first = {"params": [], "name": label.removeprefix("optimizer."), **values}
        made.setdefault(repr(sorted(values.items())), first)["params"].append(weight)
    # torch checks the arguments of an optimizer, and not those of its groups.
    for group in made.values():
        own = {of: value for of, value in group.items() if of not in ("params", "name")}
        targets.make({**node, **own}, f"trainer.groups.{group['name']}", supply)
    # The record of an epoch has the learning rate of the first.
    return sorted(made.values(), key=lambda group: "lr" in group)


def _group(
    group: str,
    settings: Mapping[str, Any],
    rate: float,
    model: nn.Module,
    trained: Mapping[str, Tensor],
) -> dict[str, tuple[str, dict[str, Any]]]:
    """What a group is called and sets, by the weights that it is about.

    Args:
        rate: the optimizer's learning rate.
        trained: the weights that one optimizer trains, by their names in the model.
    """
    key = f"trainer.groups.{group}"
    names, kinds = (_listed(settings.get(of)) for of in ("names", "kinds"))
    # Those of other optimizers, too, which may be the ones that it is about.
    known = [
        name for name, each in model.named_parameters() if name in trained or each.requires_grad
    ]
    _check_used(f"{key}.names", names, known, f"trained weight of {type(model).__name__}")
    scale = settings.get("lr_scale", 1.0)
    require(
        {*kinds} <= {*_KINDS} and (names or kinds) and isinstance(scale, int | float),
        key,
        f"needs names (patterns) or kinds ({', '.join(_KINDS)}), and numbers",
    )
    own = {of: value for of, value in settings.items() if of not in _OF_GROUPS}
    if "lr_scale" in settings:
        own["lr"] = own.get("lr", rate) * scale
    about = {}
    for name in trained:
        module = model.get_submodule(name.rpartition(".")[0])
        is_norm = "norm" in type(module).__name__.lower()
        of_kinds = name.endswith("bias"), is_norm, isinstance(module, nn.Embedding)
        fits = not kinds or {*kinds} & {*compress(_KINDS, of_kinds)}
        if fits and named_by(names or ["*"], name):
            about[name] = (group, own)
    return about


def watching(fit: Fit) -> None:
    """Say on the first rank which weights learn how."""
    if start := vars(fit.model).get("warm_start"):
        fit.folder.manifest["warm_start"] = start
        say(f"{'start':<9} {start}")
    if targets.options(fit.config, _FREEZE, fit.model):
        frozen = sum(each.numel() for each in fit.model.parameters() if not each.requires_grad)
        say(f"{'frozen':<9} {frozen:,} parameters in epoch 0")
    for group in [group for group in fit.optimizer.param_groups if "name" in group]:
        say(
            f"{'group':<9} {group['name']}: {len(group['params'])} weights, "
            f"{sum(weight.numel() for weight in group['params']):,} parameters, "
            f"lr {group.get('max_lr', group.get('initial_lr', group['lr'])):.3g}, "
            f"weight decay {group.get('weight_decay', 0):g}"
        )
