"""Configuration to data: dataset, transforms, plan, fetch and loader of each split.

The build supplies arguments that a callable takes by name and a configuration leaves out: `split`,
`limits`, the training split's statistics, and the dataset's facts (`num_classes` ...). Code that
was written for torch works unchanged: a generator function is a stream, `(x, y)` gets names, and a
`collate_fn` is called as torch calls it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from importlib import import_module
from typing import Any

from penstock.config.identity import identity, leaves
from penstock.config.schema import Config
from penstock.config.targets import FACTS, SAME_FACTS, arguments, called, make, options, resolve
from penstock.distributed.world import World, from_environment
from penstock.errors import ConfigError, Problem
from penstock.files.limits import DEFAULT
from penstock.loading.bad_samples import Budget
from penstock.loading.collate import List, Single
from penstock.loading.facts import Fields, OwnCollate, SomeRows, classes_of, facts_of, table_for
from penstock.loading.fetch import Compose, Fetch
from penstock.loading.loader import Loader
from penstock.loading.workers.executors import LoaderOptions, check, options_of
from penstock.order.address import Skipped
from penstock.order.plan import (
    Plan,
    StreamOrder,
    StreamPlan,
    Yielded,
    is_stream,
    length_of,
    not_empty,
)
from penstock.order.samplers import BatchStrategy, Order, Sequential
from penstock.runs import quarantine
from penstock.runs.folder import UNPROVEN
from penstock.runs.identity import fingerprint_of, marks_of, tells_all
from penstock.terminal import say
from penstock.transforms.batch import BatchCompose
from penstock.transforms.image import fill_masks


class DataParts:
    """The data of a run: its splits, and what they share. Each part is built on first use.

    Args:
        config: checked by preflight.
        world: this process among the others; from the environment when None.

    Attributes:
        recorded: names of the classes of the run that the weights are of, by number, which all
            splits then have; empty where none is known.
    """

    def __init__(self, config: Config, world: World | None = None) -> None:
        self.config, self.recorded = config, list[str]()
        check(config.loader)  # before data is read
        self.world = world or from_environment(config.trainer.device)
        self.train, self.val, self.test = (Split(self, name) for name in ("train", "val", "test"))

    @property
    def splits(self) -> tuple[Split, ...]:
        """The splits that a training reads, which never has the test split among them."""
        return (self.train, self.val) if self.config.data.validates else (self.train,)

    @cached_property
    def fields(self) -> Fields:
        """Names for samples that are no dicts: `data.fields`, or what the objective asks for.

        Without names, positions are the objective's inputs and then its target.
        """
        objective = self.config.objective
        inputs = [str(name) for name in objective.get("inputs") or ("input",)]
        padding = {f"{name}_lengths" for name in inputs}  # fields that a collate function adds
        usual = dict.fromkeys([*inputs, str(objective.get("target", "target"))])
        return Fields(self.config.data.fields, [name for name in usual if name not in padding])

    @cached_property
    def facts(self) -> dict[str, int]:
        """Facts of the training split for models and metrics: num_classes, num_outputs ..."""
        facts, own = facts_of(self.train.dataset, self.fields), dict(self.config.data.facts or {})
        for known in (facts, own):
            if "num_classes" in known:  # a classifier has as many outputs as there are classes
                known.setdefault("num_outputs", known["num_classes"])
        return facts | own

    def make_with_facts(self, key: str, node: Mapping[str, Any], nested: bool) -> Any:
        """Build a node, supplying the facts; see `targets.make`.

        Raises:
            ConfigError: also where it needs a fact that the dataset does not tell.
        """
        facts, dataset = self.facts, self.train.dataset
        classes = classes_of(dataset)
        supply = {
            **facts,
            **{name: facts[fact] for name, fact in SAME_FACTS.items() if fact in facts},
            **({"classes": classes} if classes else {}),
            **{name: of for name, of in self.config.objective.items() if name == "ignored"},
        }
        try:
            return make(node, key, supply, nested)
        except ConfigError as error:
            # Python and torchmetrics quote the argument that they lack.
            quoted = re.findall(r"['`](\w+)['`]", str(error))
            lacks = [name for name in FACTS if name in quoted and name not in supply]
            few = f"; {type(dataset).__name__} has one class" * (facts.get("num_classes") == 1)
            if not lacks:
                *others, last = error.problems
                raise ConfigError([*others, Problem(last.key, last.message + few)]) from error
            raise ConfigError(
                Problem(
                    error.problems[0].key,
                    f"needs {lacks[0]}, which {type(dataset).__name__} does not tell (its facts: "
                    f"{', '.join(facts) or 'none'}); set it: "
                    f"+data.facts.{SAME_FACTS.get(lacks[0], lacks[0])}=...",
                )
            ) from error

    def with_statistics(self, node: Mapping[str, Any]) -> Mapping[str, Any]:
        """A step with the training split's statistics or vocabulary instead of "dataset"."""
        # It is made of the training split, so that the build knows what a step by itself cannot.
        if node.get("vocabulary") == "dataset":
            from penstock.addons.tokens import byte_pairs

            dataset, key = self.train.dataset, self.train.cache_key(self.train.dataset)
            return byte_pairs.with_vocabulary(node, dataset, key, self.config.cache_dir)
        if node.get("statistics") == "dataset":
            return {**node, "statistics": self._statistics}
        return node

    @cached_property
    def _statistics(self) -> dict[str, list[float]]:
        from penstock.transforms.statistics import statistics_of

        dataset, key = self.train.dataset, self.train.cache_key(self.train.dataset)
        return statistics_of(dataset, self.config.cache_dir, key, self.fields)

    @property
    def on_device(self) -> bool:
        """Whether batches are transformed on the device, after they have been delivered."""
        chosen = self.config.transform.batch_on
        return chosen == "device" or (chosen == "auto" and self.world.device != "cpu")


class Split:
    """The data of one split: "train", "val" or "test".

    Validation and tests read every sample once, in order, with the same transforms.

    Attributes:
        steps: the split whose transforms it has, "train" or "val".
        fingerprint: everything that its batches depend on, by key.
    """

    def __init__(self, data: DataParts, name: str) -> None:
        self.data, self.config = data, data.config
        self.name: Any = name
        self.is_train = name == "train"
        self.steps = "train" if self.is_train else "val"
        division = "penstock.addons.splits.division"  # for runs that say how rows are divided
        self._division: Any = import_module(division) if data.config.data.divides else None

    @cached_property
    def dataset(self) -> Any:
        """The rows or records that a run reads."""
        data, division = self.config.data, self._division
        if divides := division and division.in_build(self.config):
            dataset = division.opened(self)
        elif data.packed is not None:
            from penstock.addons.packs import packing

            dataset = packing.opened(self)
        else:
            dataset = self.read(lazy=self.decodes)
        # Before filters: they may leave a class without rows, and its number stays.
        if hasattr(dataset, "classes") or hasattr(dataset, "datasets"):
            from penstock.addons.splits.division import check_classes

            check_classes(self, dataset)
        if not data.filter is data.val_filter is data.unique is data.without is None:
            from penstock.addons.filters.rows import rows_of_split

            dataset = rows_of_split(self, dataset)
        return division.divided(self, dataset) if divides else dataset

    @property
    def left_out(self) -> dict[str, int]:
        """How many rows of the dataset filters have left out, by why."""
        return self.dataset.reasons if isinstance(self.dataset, SomeRows) else {}

    def read(self, lazy: bool, own: tuple[str, Any] | None = None, **replaced: Any) -> Any:
        """The configured dataset with all its rows, built anew.

        Args:
            lazy: it leaves pictures undecoded, if it can.
            own, replaced: another key and node, and arguments in place of the configured ones.
        """
        key, node = own or self.node
        supply = {
            **({"shares": self._division.shares_of(self)} if self._division else {}),
            "split": self.name,
            "train": self.is_train,  # as torchvision's datasets call the split
            "lazy": lazy,
            "limits": self.config.limits,
            "files": partial(options, self.config, "files"),
            "class_names": (
                # Reading the training split's classes lists its folder; other datasets never do it.
                "class_names" in arguments(called(node))
                and (
                    self.data.recorded
                    or (not self.is_train and classes_of(self.data.train.dataset))
                )
            )
            or None,
        }
        build = partial(make, key=key, supply=supply, nested=True)
        dataset = build({**node, **replaced})
        # An iterator can be read once, and every epoch and worker reads it again.
        if isinstance(dataset, Iterator) and not hasattr(dataset, "__getitem__"):
            return Yielded(build({**node, **replaced, "_partial_": True}))
        return dataset

    @property
    def node(self) -> tuple[str, Any]:
        """Key and node of the dataset: one of the split's own, or that of all splits."""
        own = getattr(self.config.data, f"{self.name}_dataset", None)
        return (f"data.{self.name}_dataset", own) if own else ("dataset", self.config.dataset)

    def _steps(self, section: str) -> dict[str, Mapping[str, Any]]:
        """The nodes of a section of transforms, by name."""
        steps = getattr(self.config.transform, section)
        return {name: node for name, node in steps.items() if node is not None}

    @cached_property
    def decodes(self) -> bool:
        """Whether a step decodes; known without building any."""
        steps = [*self._steps(self.steps).values(), *self._steps(f"{self.steps}_batch").values()]
        return any(getattr(called(node), "decodes", False) for node in steps)

    @cached_property
    def transform(self) -> Compose:
        """The transforms of samples."""
        steps = {
            name: make(self.data.with_statistics(node), f"transform.{self.steps}.{name}")
            for name, node in self._steps(self.steps).items()
        }
        # What a turn or a crop brings in from outside of a mask must not count in the loss.
        if (ignored := self.config.objective.get("ignored")) is not None:
            for step in steps.values():
                fill_masks(step, ignored)
        count, views = self.config.transform.views, "penstock.addons.pairs"
        return Compose({"views": import_module(views).Views(steps)} if count > 1 else steps)

    @cached_property
    def batch_transform(self) -> BatchCompose:
        """The transforms of batches."""
        section, stacks = f"{self.steps}_batch", self.config.batch.size is not None
        steps = {
            name: self.data.make_with_facts(
                f"transform.{section}.{name}", self.data.with_statistics(node), nested=True
            )
            for name, node in self._steps(section).items()
        }
        if steps and (self.packs or not stacks or called(self.config.collate) is List):
            raise ConfigError(
                Problem(
                    f"transform.{section}",
                    "works on batches of stacked samples; set collate=stack, set batch.size, or "
                    "transform samples instead (transform.train), as where a sampler packs rows",
                )
            )
        return BatchCompose(steps, self.config.seed)

    @cached_property
    def plan(self) -> Plan | StreamPlan:
        """Which samples belong to which address. Validation reads every row in order.

        Raises:
            ConfigError: an epoch has no batch, or nothing tells what rows cost.
        """
        config, trainer, dataset = self.config, self.config.trainer, self.dataset
        # Dropped rows would make a measurement depend on the batch size.
        tail = config.batch.tail if self.is_train else "keep"
        limits: dict[str, Any] = {
            "together": self.batch_transform.together,
            "most": trainer.overfit_batches or trainer.limit_batches.get(self.name),
            "again": self.is_train and trainer.overfit_batches is not None,
            "skipped": Skipped.of(trainer.skip if self.is_train else None),
        }
        rows, costs = length_of(dataset), None
        if self.is_train and config.batch.balance is not None:
            from penstock.addons.filters.expressions import costs_of

            costs = costs_of(self)
        if is_stream(dataset):  # the sampler can only shuffle a buffer of it
            stream = StreamOrder(config.seed)
            if self.is_train and called(config.sampler) is StreamOrder:
                stream = make(config.sampler, "sampler", {"seed": config.seed})
            return StreamPlan(stream, self.batch_size, tail, length=rows, **limits)
        if not rows:
            raise ConfigError(
                Problem(
                    self.node[0],
                    f"{type(dataset).__name__} has no rows for the {self.name} split, or no __len__"
                    f"; set data.split.{'val' if self.is_train else self.name}=0.1, or read others"
                    f"{', or set data.validate=false' * (self.name == 'val')}",
                )
            )
        sampler: Order | BatchStrategy = Sequential(rows)
        if self.is_train or self.packs:
            sampler = self._sampler(tail, None if self.is_train else Sequential(rows))
        plan = Plan(sampler, self.batch_size, tail, costs=costs, **limits)
        return not_empty(plan, rows, config.sampler["_target_"].rpartition(".")[2])

    def _sampler(self, tail: str, order: Order | None) -> Order | BatchStrategy:
        """The configured sampler.

        Args:
            order: in which it reads every row once, where it packs rows; None: it is of the
                training split.
        """
        dataset, tokens = self.dataset, "penstock.addons.tokens.lengths"
        read = _columns_read(self.config.sampler), dataset, self.data.fields
        supply: dict[str, Any] = {
            "length": len(dataset),
            "seed": self.config.seed,
            # No lambda: it may go to worker processes, which look there for a bad row's substitute.
            "metadata": partial(table_for, *read)
            if self._tokenizer is None
            else partial(import_module(tokens).table_in_tokens, *read, self.transform.steps),
            "batch_size": self.batch_size,
            "tail": tail,
            "order": order,
            "dataset": dataset,
            "data_source": dataset,
            "long_tail": self._tokenizer is not None,
        }
        node: Mapping[str, Any] = self.config.sampler | ({} if order is None else {"order": None})
        if getattr(dataset, "mixing", None) is not None:
            from penstock.addons.mixtures.mixture import supplied_order

            supply["order"] = order or supplied_order(self, node, supply)
        made, takes = _sampler(node, "sampler", supply), arguments(called(node))
        if order is None and isinstance(made, BatchStrategy):
            forms = f"{type(made).__name__} forms its batches itself"
            if "batch_size" not in takes:
                say(f"batch.size: {self.batch_size} is for validation only; {forms}")
            if tail == "pad" or (tail == "drop" and "tail" not in takes):
                raise ConfigError(
                    Problem("batch.tail", f"is {tail}, but {forms}; set batch.tail=keep")
                )
        return made

    @property
    def _tokenizer(self) -> Any:
        """The step whose tokens are the lengths that the sampler chooses by; None without one."""
        # A text's length in characters says little about its number of tokens, which is its cost.
        counts = "length" in _columns_read(self.config.sampler)
        return next(
            (s for s in self.transform.steps.values() if hasattr(s, "counting") and counts), None
        )

    @property
    def packs(self) -> bool:
        """Whether the sampler puts rows together into blocks."""
        return bool(getattr(called(self.config.sampler), "packs", False))

    @property
    def batch_size(self) -> int:
        """Rows of a global batch; 1 where samples pass one by one."""
        size, val_size = self.config.batch.size, self.config.batch.val_size
        return (size if self.is_train else size and (val_size or size)) or 1

    def collate(self) -> Any:
        """The function that makes a batch of samples.

        A foreign collate function is called as torch calls a `collate_fn`: with samples as the
        dataset gives them, and without automatic batching (`batch.size=null`) with the sample.
        """
        config, node, target = self.config, self.config.collate, called(self.config.collate)
        if self.packs and not getattr(target, "packs", False):
            reason = "knows no blocks, which the sampler packs rows into; set collate=packed"
            raise ConfigError(Problem("collate", f"{target.__name__} {reason}"))
        lacks = any(
            one.default is one.empty and one.kind is not one.VAR_KEYWORD and one.name not in node
            for one in arguments(target).values()
        )
        # A function that lacks an argument is what collates; others make what does.
        is_partial = lacks and not isinstance(target, type) and not node.get("_args_")
        made = make({**node, "_partial_": True} if is_partial else node, "collate")
        if isinstance(made, Single) and config.batch.size is not None:
            raise ConfigError(
                Problem("collate", "Single takes one sample, and batch.size more; set it to null")
            )
        # Ours take named fields and know padding; a person's get what their dataset gave.
        if target.__module__.startswith("penstock."):
            return made
        fields = self.data.fields
        names = Fields(config.data.batch_fields, fields.names or fields.usual)
        return OwnCollate(made, names, one=config.batch.size is None)

    def fetch(self, hashed: bool = False, whole: bool = True) -> Fetch:
        """Request to batch.

        Args:
            hashed: also hash every sample, as `task=digest` prints it.
            whole: include the batch transforms that run on the device.
        """
        config, transform, plan = self.config, self.transform, self.plan
        of_batch = self.batch_transform if whole or not self.data.on_device else None
        if of_batch:
            from penstock.transforms.image_decoding import fused

            # One pass over the pixels and not two: decoding can normalise and flip while it writes.
            transform, of_batch = fused(transform, of_batch)
        bad = quarantine.policy(
            config.bad_samples.on_error,
            config.bad_samples.quarantine,
            self.name,
            plan,
            self.dataset,
            self.fingerprint["dataset"] if config.bad_samples.quarantine else "",
            config.seed,
        )
        kind: Callable[..., Fetch] = Fetch
        if isinstance(plan, StreamPlan):
            from penstock.loading.stream import StreamFetch

            kind = partial(StreamFetch, plan=plan)
        return kind(
            self.dataset,
            transform,
            self.collate(),
            config.seed,
            hashed,
            of_batch or None,
            bad,
            self.data.fields,
        )

    def loader(self, hashed: bool = False) -> Loader:
        """Batches of the split; to be closed. `hashed` is as for `fetch`."""
        fetch = self.fetch(hashed, whole=False)
        return Loader(
            self.plan,
            fetch,
            self.loader_options(fetch.gathers),
            self.data.world,
            lambda: self.fingerprint,
            batch_transform=(self.batch_transform or None) if self.data.on_device else None,
            budget=self.budget,
        )

    def loader_options(self, gathers: bool = False, packing: bool = False) -> LoaderOptions:
        """The section `loader`, resolved for this split.

        Args:
            gathers: whether the dataset makes whole batches, and nothing follows: to send one from
                another process costs more than that.
            packing: samples are packed, and not transformed.
        """
        section, name, threads = self.config.loader, self.config.loader.worker_init_fn, gathers
        if self.decodes and not packing:
            from penstock.transforms.image_decoding import thread_safe

            threads = thread_safe(self.transform)
        return options_of(
            section,
            threads,
            resolve(name, "loader.worker_init_fn") if name else None,
            options(self.config, "loader.ray") if section.backend == "ray" else None,
        )

    @property
    def budget(self) -> Budget:
        """How much of the split may be left out."""
        sampler, rows = self.plan.sampler, length_of(self.dataset)
        length = sampler.size if isinstance(sampler, Order) else lambda epoch: rows
        return Budget(self.config.bad_samples.budget, self.name, length)

    @cached_property
    def fingerprint(self) -> dict[str, str]:
        """Everything that the batches of the split depend on, by key."""
        config, dataset = self.config, self.dataset
        parts = identity(config, self.steps)
        parts["dataset"] = self.fingerprint_of(dataset)
        if config.data.fingerprint != "sizes":
            parts["data.fingerprint"] = config.data.fingerprint
        marks = self._marks(dataset)
        parts |= {f"dataset.identity.{name}": value for name, value in marks.items()}
        if not self.is_train:
            parts["batch.val_size"] = str(self.batch_size)
        if self.is_train or self.packs:
            parts |= {key: str(value) for key, value in leaves(config.sampler, "sampler")}
            if getattr(dataset, "mixing", None) is not None:
                from penstock.addons.mixtures import mixture

                parts |= mixture.recorded(self)
            if self._tokenizer is not None:
                parts["lengths"] = self._tokenizer.counting
        if self.decodes:
            from penstock.transforms.image_decoding import decode_step

            # Pixels differ by rounding from one decoder to another.
            step = decode_step(self.transform)
            device = self.data.world.device if self.data.on_device else "cpu"
            parts["decoder"] = f"torchvision on {device}" if step is None else step.decoder
        return parts

    def fingerprint_of(self, dataset: Any) -> str:
        """The fingerprint of a dataset, by `data.fingerprint`: by names, sizes or content."""
        config, levels = self.config, self.config.limits.levels
        own = fingerprint_of(dataset, config.data.fingerprint)
        # All that is kept of the samples, statistics and packs, is of pixels scaled by them.
        return own if levels == DEFAULT.levels else _hash(f"{own}\nlevels={levels}")

    def cache_key(self, dataset: object) -> str:
        """The name of what is kept of a dataset of this split; "" where nothing may be kept, since
        nothing tells when it changes.
        """
        own, marks = self.fingerprint_of(dataset), self._marks(dataset)
        lines = "".join(f"{name}={value}\n" for name, value in sorted(marks.items()))
        return "" if not self._tells(dataset) else _hash(f"{own}\n{lines}") if lines else own

    @property
    def known_by(self) -> dict[str, str]:
        """A manifest's marks of the dataset and its content; none for Penstock's datasets."""
        return self._marks(self.dataset) | ({} if self._tells(self.dataset) else UNPROVEN)

    def _tells(self, dataset: object) -> bool:
        """Whether a dataset tells what it is, so that nothing need be looked at."""
        return self.config.data.fingerprint != "sizes" or tells_all(dataset)

    def _marks(self, dataset: Any) -> dict[str, str]:
        """A dataset's marks beside its fingerprint; none for Penstock's own datasets."""
        if self.config.data.packed not in (None, "auto"):
            return {}  # the pack is the dataset, and has a fingerprint
        return marks_of(self.node[1], dataset, self._tells(dataset), self.data.fields)


def _sampler(node: Mapping[str, Any], key: str, supply: Mapping[str, Any]) -> Any:
    """The sampler of a node, whose `order` may be another one."""
    order = node.get("order")
    if order is not None:
        if isinstance(order, Mapping):
            order = _sampler(order, f"{key}.order", supply)
        if not isinstance(order, Order):
            raise ConfigError(
                Problem(
                    f"{key}.order",
                    f"{type(order).__name__} is no order, which gives rows one by one (random, "
                    "weighted, subset, curriculum, repeated), and neither forms batches of its "
                    "own nor reads a stream; expected the node of one, or null",
                )
            )
        supply = {**supply, "order": order}
    own = {name: value for name, value in node.items() if name != "order"}
    build = partial(make, own, key, supply, True)
    sampler = build()
    if isinstance(sampler, (Order, BatchStrategy, StreamOrder)):
        return sampler  # a stream's is no order of another sampler
    from penstock.order.torch_samplers import adapt

    return adapt(build, supply["seed"], supply["length"])


def _columns_read(node: Mapping[str, Any]) -> set[str]:
    """The names of the columns by which a sampler, and an order in it, choose rows."""
    sampler, inner = called(node), node.get("order")
    values = {name: one.default for name, one in arguments(sampler).items()} | {**node}
    names = getattr(sampler, "column_arguments", ())
    deeper = _columns_read(inner) if isinstance(inner, Mapping) else set()
    # What is no name is the column itself: a list of weights.
    return {values[name] for name in names if isinstance(values.get(name), str)} | deeper


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def build_train_loader(config: Config, world: World | None = None) -> Loader:
    """Batches of the training split, one epoch each time it is iterated.

    Args:
        config: from `penstock.compose("sampler=weighted", ...)`.
        world: this process among the others; from the environment when None.
    """
    return DataParts(config, world).train.loader()


def build_val_loader(config: Config, world: World | None = None) -> Loader:
    """Batches of the validation split: every sample once, in order."""
    return DataParts(config, world).val.loader()
