"""Configuration to dataset, names of fields and collate function.

Code that was written for torch works unchanged: a generator function is a stream, `(x, y)` gets
names, and a `collate_fn` is called as torch calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from inspect import isgeneratorfunction
from typing import Any

from torch.utils.data import IterableDataset

from penstock.config import targets
from penstock.config.schema import Config
from penstock.config.targets import make
from penstock.errors import ConfigError, Problem
from penstock.loading.collate import Single
from penstock.loading.named_fields import Fields, OwnCollate


class Yielded(IterableDataset[Any]):
    """The samples that a generator function yields; each epoch calls it again."""

    def __init__(self, function: Callable[[], Iterator[object]]) -> None:
        self.function = function

    def __iter__(self) -> Iterator[object]:
        return self.function()


def dataset_of(node: Mapping[str, Any], key: str, supply: Mapping[str, Any]) -> Any:
    """The dataset of a node.

    Args:
        supply: arguments that are handed on to it where it takes them.

    Raises:
        ConfigError: it makes a generator, of which there is only one pass.
    """
    target = node.get("_target_")
    if target is not None and isgeneratorfunction(targets.resolve(target, f"{key}._target_")):
        return Yielded(make({**node, "_partial_": True}, key, supply, nested=True))
    made = make(node, key, supply, nested=True)
    read_once = hasattr(made, "__next__") and not hasattr(made, "__getitem__")
    if read_once and not isinstance(made, IterableDataset):
        raise ConfigError(
            Problem(
                key,
                f"{target} gives a {type(made).__name__}, which can be read once, and "
                "every epoch and worker reads it again. Name the generator function itself, or "
                "a class with __iter__",
            )
        )
    return made


def fields_of(config: Config) -> Fields:
    """Names for samples that are no dicts: `data.fields`, or what the objective asks for.

    Without names, positions are the objective's inputs and then its target.
    """
    inputs = [str(name) for name in config.objective.get("inputs") or ("input",)]
    padding = {f"{name}_lengths" for name in inputs}  # fields that a collate function adds
    target = str(config.objective.get("target", "target"))
    usual = list(dict.fromkeys([*(name for name in inputs if name not in padding), target]))
    return Fields(config.data.fields, usual)


def collate_of(config: Config, fields: Fields) -> Any:
    """The function that makes a batch of samples.

    A foreign collate function is called as torch calls a `collate_fn`: with samples as the dataset
    gives them, and without automatic batching (`batch.size=null`) with the sample itself.
    """
    node = config.collate
    target = targets.resolve(node["_target_"], "collate._target_")
    if not isinstance(target, type):  # a function that lacks an argument is what collates
        needs = {
            one.name
            for one in targets.arguments(target).values()
            if one.default is one.empty and one.kind is not one.VAR_KEYWORD
        }
        node = {**node, "_partial_": True} if needs - {*node} and not node.get("_args_") else node
    made = make(node, "collate")
    if isinstance(made, Single) and config.batch.size is not None:
        reason = (
            f"Single takes one sample, and batch.size is {config.batch.size}; set batch.size=null"
        )
        raise ConfigError(Problem("collate", f"{reason}, or collate=stack"))
    if (getattr(target, "__module__", None) or "").startswith("penstock."):
        return made
    names = config.data.batch_fields or fields.given
    return OwnCollate(made, Fields(names, fields.usual), one=config.batch.size is None)
