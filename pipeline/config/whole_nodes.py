"""A node that names another `_target_` replaces the node before it, and is not merged into it.

    objective.loss={_target_: torch.nn.L1Loss}      none of the arguments of the loss before

hydra merges mappings key by key, in YAML files and for overrides, so the arguments of one callable
would be handed to another. The rule here: where a mapping has a `_target_`

- and the mapping that it is merged into has another one, it takes that one's place (and its place
  in the order, which counts for transforms);
- and the mapping that it is merged into has the same one, the two are merged. An argument that the
  YAML does not list needs no `+`, since preflight compares it with the signature;
- and an interpolation stands where it goes, it takes the place of the interpolation.

Mappings without a `_target_` are merged, except that `dataset: {train: NODE, val: NODE}` replaces
one node for both splits. The section `hydra:` is hydra's own and left alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf, open_dict

_hydras_own = ConfigLoaderImpl._apply_overrides_to_config


def merge(config: DictConfig, addition: DictConfig) -> None:
    """Merge one composed file into what came before it."""
    make_way(config, addition)
    config.merge_with(addition)


def apply(overrides: Sequence[Override], config: DictConfig) -> None:
    """Apply overrides to a composed configuration: hydra's own way, with whole nodes."""
    for one in overrides:
        value = one.value()
        where, _, name = str(one.key_or_group).rpartition(".")
        node = OmegaConf.select(config, where, throw_on_resolution_failure=False)
        node = node if where else config
        known = isinstance(node, DictConfig) and name in node and not _is_hydras(one)
        if known and one.is_delete() and value is None and _raw(node, name)._is_none():
            with open_dict(node):  # hydra takes a key that is null for none at all
                del node[name]
            continue
        if known and isinstance(value, dict) and not one.is_delete() and one.package is None:
            make_way(node, OmegaConf.create({name: value}))
        _hydras_own([one], config)


@contextmanager
def in_hydra() -> Iterator[None]:
    """Let hydra's config loader apply overrides as `apply` does."""
    name = "_apply_overrides_to_config"  # which it calls by its own name, not by a subclass's
    setattr(ConfigLoaderImpl, name, staticmethod(apply))
    try:
        yield
    finally:
        setattr(ConfigLoaderImpl, name, staticmethod(_hydras_own))


def make_way(config: DictConfig, addition: DictConfig) -> None:
    """Put the whole nodes of `addition` into `config`; merging the two then changes no others."""
    top = config._get_parent() is None
    for name in addition:
        if top and name == "hydra":
            continue
        new, old = _raw(addition, name), _raw(config, name)
        if not _is_mapping(new) or old is None:
            continue
        target = _target(new)
        another = target is not None and (
            not _is_mapping(old) or _target(old) not in (target, "???")
        )
        if another or (_is_splits(new) and _is_mapping(old) and _target(old) is not None):
            config[name] = new
        elif isinstance(old, DictConfig) and _is_mapping(old):
            if target is not None:
                _add_missing(old, new)
            make_way(old, new)


def _add_missing(old: DictConfig, new: DictConfig) -> None:
    with open_dict(old):
        for name in new:
            if name not in old:
                old[name] = _raw(new, name)


def _raw(config: DictConfig, name: Any) -> Any:
    """What stands under a name, with no interpolation followed; None if there is nothing."""
    return config._get_node(name, validate_access=False)


def _is_splits(node: DictConfig) -> bool:
    """Whether a mapping is a node for each split."""
    return bool(node) and all(
        name in ("train", "val") and _is_mapping(_raw(node, name)) and _target(_raw(node, name))
        for name in node
    )


def _is_mapping(node: Any) -> bool:
    """Whether a raw node is a mapping, and no interpolation, null or `???`."""
    return isinstance(node, DictConfig) and not node._is_interpolation() and bool(
        not node._is_none() and not node._is_missing()
    )  # fmt: skip


def _target(node: Any) -> str | None:
    """The `_target_` of a mapping as it is written; None without one."""
    found = _raw(node, "_target_")
    return None if found is None else str(found._value())


def _is_hydras(override: Override) -> bool:
    return str(override.key_or_group).partition(".")[0] == "hydra"
