"""One numbering of classes for all splits of a run: that of the training split, by name.

A dataset takes part by its attribute `classes`, the names in the order of their numbers. Where a
split, a source of a mixture, or another root has its own numbers for the same names, its labels
are numbered anew as samples are read; a name that training does not have is refused. Datasets
that agree are handed on as they are, so nothing is paid for it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import ChainDataset, ConcatDataset

from penstock.errors import ConfigError, DataError, Problem
from penstock.loading.facts import classes_of, facts_of, table_of, unfiltered
from penstock.loading.fields import Fields, restorer
from penstock.order.keys import IntArray
from penstock.order.plan import is_stream
from penstock.terminal import say

if TYPE_CHECKING:
    from penstock.build.data import Split

_FIELDS = Fields(None, ("input", "label"))
_NAMED = 10  # classes in a message
_LABELS = ("targets", "labels", "_labels")  # torchvision's, a number a row


def with_the_runs_classes(split: Split, dataset: Any) -> Any:
    """The dataset of a split, numbered as the run's classes are.

    Raises:
        ConfigError: it has a class that training does not have.
    """
    if isinstance(whole := unfiltered(dataset), (ConcatDataset, ChainDataset)):
        parts = {f"part {number}": part for number, part in enumerate(whole.datasets)}
        whole.datasets = list(united(parts, split.node[0], split.data.fields).values())
    own, data = classes_of(dataset), split.data
    if split.is_train and not data.recorded:
        _say_alike(own)
        return dataset
    if own:
        names = data.recorded or classes_of(data.train.dataset)
    else:  # no reason to open the training data
        names = classes_of(vars(data.train).get("dataset"))
    if bool(own) != bool(names) and "num_classes" in facts_of(dataset, data.fields):
        lacking, named = (split.name, "train") if names else ("train", split.name)
        say(
            f"{split.node[0]}: class numbers of the {lacking} split have no names, and those of "
            f"the {named} split have; they are taken to be the same numbers"
        )
    if not own or not names:
        return dataset
    target = str(split.config.objective.get("target", "label"))
    what = f"the {split.name} split"
    return _renumbered(dataset, names, split.node[0], what, data.fields, target)


def united(sources: Mapping[str, Any], key: str, fields: Fields = _FIELDS) -> dict[str, Any]:
    """Datasets that are read as one, with one numbering: names in order of their appearance."""
    named = {name: classes_of(source) for name, source in sources.items()}
    names = list(dict.fromkeys(name for own in named.values() for name in own))
    nameless = [name for name, own in named.items() if not own]
    if names and nameless:
        say(
            f"{key}: {', '.join(nameless[:_NAMED])} has no `classes`, and others have; its class "
            "numbers are taken to be theirs"
        )
    return {
        name: _renumbered(source, names, key, name, fields, "label")
        for name, source in sources.items()
    }


def _renumbered(
    dataset: Any, names: Sequence[str], key: str, what: str, fields: Fields, target: str
) -> Any:
    """A dataset with the numbers that `names` have; itself where it has these.

    Args:
        key, what: of the dataset, for messages.
        fields: names for samples that are no dicts.
        target: the field of labels; `label` where samples have none of that name.

    Raises:
        ConfigError: it has a class that is not in `names`, or one of them twice.
    """
    own = classes_of(dataset)
    if not own or own == list(names):
        return dataset
    for few in (own, names):
        if len(set(few)) < len(few):
            twice = next(name for name in few if list(few).count(name) > 1)
            reason = f"{what} has other classes than training, and {twice!r} twice among its names"
            raise ConfigError(Problem(key, f"{reason}; give every class one name"))
    unknown = [name for name in own if name not in names]
    if unknown:
        shown = ", ".join(map(repr, unknown[:_NAMED]))
        more = f" and {len(unknown) - _NAMED} more" if len(unknown) > _NAMED else ""
        known = ", ".join(names[:_NAMED]) + (" ..." if len(names) > _NAMED else "")
        alike = [(name, like) for name in unknown for like in names if _plain(name) == _plain(like)]
        hint = "".join(f"; {name!r} is spelled {like!r} there" for name, like in alike[:1])
        reason = f"{what} has {shown}{more}, and training has the classes {known}{hint}"
        raise ConfigError(Problem(key, f"{reason}. Rename it, or leave its rows out"))
    numbers = np.array([list(names).index(name) for name in own], np.int64)
    kind = RenumberedStream if is_stream(dataset) else Renumbered
    return kind(dataset, list(names), numbers, fields, target)


def _plain(name: str) -> str:
    return unicodedata.normalize("NFKC", name).casefold().strip()


def _say_alike(names: Sequence[str]) -> None:
    """Say which names differ by case, blanks or Unicode form alone: they count as they are."""
    by_form: dict[str, list[str]] = {}
    for name in names:
        by_form.setdefault(_plain(name), []).append(name)
    pairs = [" and ".join(map(ascii, few)) for few in by_form.values() if len(set(few)) > 1]
    if pairs:
        say(
            f"{len(pairs)} classes are written in several ways, and count as several: "
            + "; ".join(pairs[:_NAMED])
        )


class _Renumbered:
    """A dataset whose labels get other numbers.

    Attributes:
        dataset: with its own numbers.
        classes: names by the new numbers.
    """

    def __init__(
        self, dataset: Any, classes: list[str], numbers: IntArray, fields: Fields, target: str
    ) -> None:
        self.dataset, self.classes = dataset, classes
        self._numbers, self._fields, self._target = numbers, fields, target

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        if name == "dataset" or (name.startswith("__") and name != "__getitems__"):
            raise AttributeError(name)  # copy and pickle look before there is one
        member = getattr(self.dataset, name)
        if name == "__getitems__":
            return lambda rows: [self._sample(sample) for sample in member(rows)]
        if name in _LABELS and np.ndim(member) == 1:
            return self._value(np.asarray(member))
        if name == "facts":
            own, count = len(self._numbers), len(self.classes)
            counts = {k: count for k in ("num_classes", "num_outputs") if member.get(k) == own}
            return {**member, **counts}
        return member

    @property
    def metadata(self) -> Any:
        """The table, with the new numbers; None without one."""
        table = table_of(self.dataset, self._fields)
        if table is None or "label" not in table:
            return table
        changed = {"label": self._value(table["label"].to_numpy())}
        if "class" in table and hasattr(table["class"], "cat"):
            changed["class"] = table["class"].cat.set_categories(self.classes)
        return table.assign(**changed)

    def _sample(self, sample: Any) -> Any:
        fields = self._fields.named(sample)
        usual = (self._target, "label", "labels")
        name = next((name for name in usual if name in fields), list(fields)[-1])  # as in (x, y)
        if isinstance(sample, Mapping) and name not in usual:
            raise DataError(
                f"{type(self.dataset).__name__} has other classes than training, and none of the "
                f"fields {', '.join(dict.fromkeys(usual))} to number anew (objective.target)"
            )
        restore = restorer(sample)
        made = {**fields, name: self._value(fields[name])}
        return made if restore is None else restore(made)

    def _value(self, value: Any) -> Any:
        """Class numbers, or a share of each class in the last dimension; others stay."""
        old, count = np.asarray(value), len(self._numbers)
        if old.dtype.kind in "iu":
            known = (old >= 0) & (old < count)  # not the number that is ignored
            made = np.where(known, self._numbers[np.where(known, old, 0)], old).astype(old.dtype)
        elif old.dtype.kind in "bf" and old.ndim and old.shape[-1] == count:
            made = np.zeros((*old.shape[:-1], len(self.classes)), old.dtype)
            made[..., self._numbers] = old
        else:
            return value
        if isinstance(value, torch.Tensor):
            return torch.from_numpy(np.array(made))
        return int(made) if isinstance(value, int) else made


class Renumbered(_Renumbered):
    """The same of rows by index."""

    def __getitem__(self, index: int) -> Any:
        return self._sample(self.dataset[index])


class RenumberedStream(_Renumbered):
    """The same of records forwards, as they are decoded."""

    def __iter__(self) -> Iterator[Any]:
        return iter(copy(self.dataset))  # which may be its own iterator

    def decode(self, record: Any) -> Any:
        decode = getattr(self.dataset, "decode", None)
        return self._sample(record if decode is None else decode(record))
