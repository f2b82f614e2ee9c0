"""A node that names another `_target_` replaces the node before it, and is not merged into it.

    objective.loss={_target_: torch.nn.L1Loss}      none of the arguments of the loss before

hydra merges mappings key by key, in YAML files and for overrides, so the arguments of one callable
would be handed to another. The rule here: where a mapping has a `_target_`

- and the mapping that it is merged into has another one, it takes that one's place (and its place
  in the order, which counts for transforms);
- and the mapping that it is merged into has the same one, the two are merged. An argument that the
  YAML does not list needs no `+`, since preflight compares it with the signature;
- and an interpolation stands where it goes, it takes the place of the interpolation.

Mappings without a `_target_` are merged, except that an override `key={}` empties one. The section
`hydra:` is hydra's own and left alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf, open_dict

from penstock.config.hydra_internals import apply_override, is_mapping, raw_node, raw_value
from penstock.config.identity import leaves
from penstock.config.messages import show
from penstock.errors import Problem

_OVER_ALL = "experiment"  # the group that is laid over all others


def merge(config: DictConfig, addition: DictConfig) -> None:
    """Merge one composed file into what came before it."""
    make_way(config, addition, but="hydra")
    config.merge_with(addition)


def apply(override: Override, config: DictConfig) -> None:
    """Apply an override to a composed configuration: hydra's own way, with whole nodes."""
    value = override.value()
    where, _, name = str(override.key_or_group).rpartition(".")
    node = OmegaConf.select(config, where, throw_on_resolution_failure=False) if where else config
    is_hydras = str(override.key_or_group).split(".")[0] == "hydra"
    if isinstance(node, DictConfig) and name in node and not is_hydras:
        if override.is_delete() and value is None and raw_value(node, name) is None:
            with open_dict(node):  # hydra treats a key that is null as absent
                del node[name]
            return
        if isinstance(value, dict) and not override.is_delete() and override.package is None:
            if not value and is_mapping(raw_node(node, name)):
                with open_dict(node):  # for hydra a merge with nothing, which nobody would type
                    node[name] = {}
                return
            make_way(node, OmegaConf.create({name: value}))
    apply_override(override, config)


def overruled(config: DictConfig, files: Sequence[tuple[str, bool, object]]) -> Iterator[Problem]:
    """The keys of options that have no effect, since an option of a later group sets them too.

    An option may set keys of other groups (`# @package _global_`), and a dataset brings arguments
    of the parts that it chooses. Of our own options, the latter replace what is there by default.

    Args:
        files: in the order in which they were merged; see `HookedLoader.merged`.
    """
    groups = [path.rpartition("/")[0] for path, *_ in files]
    known = [
        {} if group.partition("/")[0] in ("", "hydra") else dict(leaves(file))
        for group, (*_, file) in zip(groups, files, strict=True)
    ]
    whole: dict[str, Any] | None = None
    for number, (path, theirs, _) in enumerate(files):
        group = groups[number]
        for key, value in known[number].items():
            own = key.partition(".")[0] == group
            if group == _OVER_ALL or (own and not theirs) or value == {}:
                continue
            whole = whole or dict(leaves(OmegaConf.to_container(config, resolve=False)))
            if key in whole and whole[key] == value:
                continue
            later = [
                files[other][0]
                for other in range(number + 1, len(files))
                if groups[other] != group and any(_touches(key, one) for one in known[other])
            ]
            if later and not later[-1].startswith(f"{_OVER_ALL}/"):
                reason = (
                    f"{path}.yaml sets it to {show(value)}, and {later[-1]}.yaml, which comes "
                    "later, to something else. Leave it out of one of the two; or put it into an "
                    "experiment, which is laid over all options, or on the command line"
                )
                yield Problem(key, reason)


def _touches(key: str, other: str) -> bool:
    """Whether one of two keys is the other, or lies below it."""
    return f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.")


def make_way(config: DictConfig, addition: DictConfig, but: str | None = None) -> None:
    """Put the whole nodes of `addition` into `config`; merging the two then changes no others."""
    for name in addition:
        new, old = raw_node(addition, name), raw_node(config, name)
        if name == but or not is_mapping(new) or old is None:
            continue
        target = _target(new)
        other = target is not None and (not is_mapping(old) or _target(old) not in (target, "???"))
        if other:
            config[name] = new
        elif is_mapping(old):
            if target is not None:
                with open_dict(old):
                    for key in new:
                        if key not in old:
                            old[key] = raw_node(new, key)
            make_way(old, new)


def _target(node: Any) -> str | None:
    """The `_target_` of a mapping as it is written; None without one."""
    target = raw_value(node, "_target_")
    return None if target is None else str(target)
