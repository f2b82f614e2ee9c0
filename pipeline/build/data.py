"""Configuration to data: dataset, transforms, plan, fetch and loader of each split.

This module supplies arguments that a callable takes by name and a configuration leaves out:
`split`, `limits`, the training split's statistics, and the dataset's facts (`num_classes` ...).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from penstock.build.data_identity import DataIdentity
from penstock.build.samples import collate_of, dataset_of, fields_of
from penstock.build.sampling import packs_rows, plan_of
from penstock.config import targets
from penstock.config.schema import Config
from penstock.config.targets import FACTS, SAME_FACTS, make
from penstock.distributed.world import World, from_environment
from penstock.errors import ConfigError, Problem
from penstock.loading.bad_samples import BadSamples, Budget, epoch_length
from penstock.loading.collate import List
from penstock.loading.compose import Views
from penstock.loading.dataset_facts import classes_of, facts_of
from penstock.loading.fetch import Fetch, refuse_postscript
from penstock.loading.loader import Loader
from penstock.loading.named_fields import Fields
from penstock.loading.workers.options import LoaderOptions, check, options_of
from penstock.loading.wrapped import unfiltered
from penstock.order.plan import Plan
from penstock.order.streams import StreamPlan, length_of
from penstock.runs import quarantine
from penstock.transforms.batch import BatchCompose
from penstock.transforms.image import Compose, Normalize, fill_masks

if TYPE_CHECKING:
    from penstock.addons.lanes.lanes import Lanes

_log = logging.getLogger(__name__)
_WITHOUT = {
    "val": ", or train without validation: data.validate=false",
    "test": "; +dataset.test_fraction=0.1 keeps some in training",
}


class DataParts:
    """The data of a run: its splits, and what they share. Each part is built on first use.

    Args:
        config: checked by preflight.
        world: this process among the others; from the environment when None.

    Attributes:
        recorded: names of the classes of the run that the weights are of, in the order of their
            numbers; empty where none is known. All splits then have these numbers.
    """

    def __init__(self, config: Config, world: World | None = None) -> None:
        self.config, self.recorded = config, list[str]()
        check(config.loader)  # before data is read
        self.world = world or from_environment(config.trainer.device)
        self._splits = {name: Split(self, name) for name in ("train", "val", "test")}
        self.train, self.val = self._splits["train"], self._splits["val"]

    def split(self, name: str) -> Split:
        """The split of that name, "train" or "test"; else that of validation."""
        return self._splits.get(name, self.val)

    @property
    def validates(self) -> bool:
        """Whether there is a validation split: `data.validate`."""
        return self.config.data.validate

    @property
    def splits(self) -> tuple[Split, ...]:
        """The splits that a training reads, which never has the test split among them."""
        return (self.train, self.val) if self.validates else (self.train,)

    def files(self) -> Any:
        """Access to files at addresses."""
        return targets.options(self.config, "files")

    @cached_property
    def fields(self) -> Fields:
        """Names for samples that are not dicts."""
        return fields_of(self.config)

    @cached_property
    def facts(self) -> dict[str, int]:
        """Facts of the training split for models and metrics: num_classes, num_outputs ..."""
        configured = self.config.data.facts or {}
        facts = facts_of(self.train.dataset, self.fields)
        if "num_classes" in configured and facts.get("num_outputs") == facts.get("num_classes"):
            facts.pop("num_outputs", None)  # it was the number of classes, which is another one
        facts |= configured
        # A classifier has as many outputs as there are classes.
        return {"num_outputs": facts["num_classes"], **facts} if "num_classes" in facts else facts

    def make_with_facts(self, key: str, node: Mapping[str, Any], nested: bool) -> Any:
        """Build a node, supplying the facts; see `instantiate.make`.

        Raises:
            ConfigError: also where it needs a fact that the dataset does not tell.
        """
        facts, dataset = self.facts, self.train.dataset
        classes = classes_of(dataset)
        supply = {
            **facts,
            **{name: facts[fact] for name, fact in SAME_FACTS.items() if fact in facts},
            **({"classes": classes} if classes else {}),
            **{key: of for key, of in self.config.objective.items() if key == "ignored"},
        }

        def explained(problem: Problem) -> Problem:
            for name in FACTS:
                said = repr(name) in problem.message or f"`{name}`" in problem.message
                if said and name not in facts:
                    reason = (
                        f"needs {name}, which {type(dataset).__name__} does not tell (its facts: "
                        f"{', '.join(facts) or 'none'}); set it: "
                        f"+data.facts.{SAME_FACTS.get(name, name)}=..."
                    )
                    return Problem(problem.key, reason)
            return problem

        try:
            return make(node, key, supply, nested)
        except ConfigError as error:
            raise ConfigError([explained(problem) for problem in error.problems]) from error

    def with_statistics(self, node: Any, key: str = "transform.train") -> Any:
        """A step with the training split's statistics instead of "dataset", or what an add-on
        has of it (a vocabulary).
        """
        if not isinstance(node, Mapping):
            return node
        if node.get("vocabulary") == "dataset":
            from penstock.addons.tokens import byte_pairs

            node = byte_pairs.of_split(self.train, node)
        if node.get("statistics") != "dataset":
            return node
        step = targets.resolve(node["_target_"], "transform")
        normalizes = isinstance(step, type) and issubclass(step, Normalize)
        return {**node, "statistics": self._statistics} if normalizes else node

    @cached_property
    def _statistics(self) -> dict[str, list[float]]:
        from penstock.transforms.statistics import statistics_of

        dataset, config = self.train.dataset, self.config
        own = self.train.identity.cache_key(dataset)
        return statistics_of(dataset, config.cache_dir, own, self.fields)

    @property
    def on_device(self) -> bool:
        """Whether batches are transformed on the device, after they have been delivered."""
        where = self.config.transform.batch_on
        return where == "device" or (where == "auto" and self.world.device != "cpu")


class Split:
    """The data of one split: "train", "val" or "test".

    Validation and tests read every sample once, in order, with the same transforms.

    Attributes:
        steps: the split whose transforms it has, "train" or "val".
        identity: what tells its data apart.
    """

    def __init__(self, data: DataParts, name: str) -> None:
        self.data = data
        self.config = data.config
        self.name = name
        self.is_train = name == "train"
        self.steps = "train" if self.is_train else "val"
        self.identity = DataIdentity(self)
        self._left_out: dict[str, int] = {}

    @cached_property
    def dataset(self) -> Any:
        """The rows or records that a run reads."""
        refuse_postscript()
        divides = self.config.data.divides
        if divides:
            from penstock.addons.splits import division

            dataset = division.opened(self)
        elif self.config.data.packed is not None:
            from penstock.addons.packs import recipe

            dataset = recipe.opened(self)
        else:
            dataset = self.read(lazy=self.decodes)
        length_of(dataset)  # refuses what is no number of rows
        both = (dataset, vars(self.data.train).get("dataset"))
        if any(hasattr(one, name) for one in both for name in ("classes", "datasets")):
            from penstock.addons.splits.classes import with_the_runs_classes

            dataset = with_the_runs_classes(self, dataset)
        data = self.config.data
        if not data.filter is data.val_filter is data.unique is data.without is None:
            from penstock.addons.filters.kept import chosen_rows

            dataset, self._left_out = chosen_rows(self, dataset)
        return division.divided(self, dataset) if divides else dataset

    @property
    def left_out(self) -> dict[str, int]:
        """How many rows of the dataset filters have left out, by why."""
        _ = self.dataset
        return self._left_out

    def read(self, lazy: bool, **arguments: Any) -> Any:
        """The configured dataset with all its rows, built anew.

        Args:
            lazy: it leaves pictures undecoded, if it can.
            arguments: in place of the configured ones.
        """
        key, node = self.node
        return dataset_of({**node, **arguments}, key, self.supply(lazy))

    @property
    def node(self) -> tuple[str, Any]:
        """Key and node of the dataset.

        Raises:
            ConfigError: the configuration has none for this split.
        """
        if self.name == "val" and not self.data.validates:
            raise ConfigError(
                Problem("data.validate", "is false, so there are no rows to validate")
            )
        own = getattr(self.config.data, f"{self.name}_dataset", None)
        return (f"data.{self.name}_dataset", own) if own else ("dataset", self.config.dataset)

    def supply(self, lazy: bool) -> dict[str, Any]:
        """Arguments for datasets that take them; `train` is what torchvision's call the split."""
        return {
            "split": self.name,
            "train": self.is_train,
            "lazy": lazy,
            "limits": self.config.limits,
            "files": partial(self.data.files),
        }

    def empty(self, rows: int | None) -> ConfigError:
        """The error of a dataset without an epoch."""
        kind = type(unfiltered(self.dataset)).__name__
        reason = f"{kind} has rows by index, and no length: give it `__len__`"
        if rows is not None:
            reason = (
                f"{kind} has no rows for the {self.name} split, and an epoch needs one; change "
                "what it reads, or how it is divided" + _WITHOUT.get(self.name, "")
            )
        return ConfigError(Problem(self.node[0], reason))

    def _steps(self, section: str) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
        """Name, full key and node of each step of a section of transforms."""
        for name, node in getattr(self.config.transform, section).items():
            if node is not None:
                yield name, f"transform.{section}.{name}", node

    @cached_property
    def decodes(self) -> bool:
        """Whether a step decodes; known without building any."""
        steps = [*self._steps(self.steps), *self._steps(f"{self.steps}_batch")]
        return any(
            getattr(targets.resolve(node["_target_"], key), "decodes", False)
            for _, key, node in steps
        )

    @cached_property
    def transform(self) -> Compose:
        """The transforms of samples."""
        steps = {
            name: make(self.data.with_statistics(node, key), key)
            for name, key, node in self._steps(self.steps)
        }
        if (ignored := self.config.objective.get("ignored")) is not None:
            for step in steps.values():
                fill_masks(step, ignored)
        views = self.config.transform.views
        return Compose({"views": Views(steps, views)} if views > 1 else steps)

    @cached_property
    def batch_transform(self) -> BatchCompose:
        """The transforms of batches."""
        made = {
            name: self.data.make_with_facts(key, self.data.with_statistics(node, key), nested=True)
            for name, key, node in self._steps(f"{self.steps}_batch")
        }
        config, why = self.config, ""
        if made and config.batch.size is None:
            why = "batch.size=null passes samples through one by one; set batch.size"
        elif made and targets.resolve(config.collate["_target_"], "collate._target_") is List:
            why = "collate=list stacks nothing; set collate=stack"
        elif made and self.packs:
            why = "the sampler packs rows into blocks; transform samples instead (transform.train)"
        if why:
            reason = f"works on batches of stacked samples, but {why}"
            raise ConfigError(Problem(f"transform.{self.steps}_batch", reason))
        return BatchCompose(made, config.seed)

    @cached_property
    def plan(self) -> Plan | StreamPlan:
        """Which samples belong to which address."""
        return plan_of(self)

    @property
    def packs(self) -> bool:
        """Whether the sampler puts rows together into blocks."""
        return packs_rows(self.config)

    @property
    def batch_size(self) -> int:
        """Rows of a global batch."""
        batch = self.config.batch
        if batch.size is None:  # one by one
            return 1
        return batch.size if self.is_train else batch.val_size or batch.size

    def fetch(self, hashed: bool = False, whole: bool = True) -> Fetch:
        """Request to batch.

        Args:
            hashed: also hash every sample, as `task=digest` prints it.
            whole: include the batch transforms that run on the device.
        """
        transform, plan, batch_steps = self.transform, self.plan, self.batch_transform
        of_batch = batch_steps if whole or not self.data.on_device else None
        if batch_steps:
            from penstock.transforms.image_decoding import fused

            if of_batch:
                transform, of_batch = fused(transform, of_batch)
        fields = self.data.fields
        common = (
            self.dataset,
            transform,
            collate_of(self.config, fields),
            self.config.seed,
            hashed,
            of_batch or None,
            self._bad_samples(),
            fields,
        )
        if not isinstance(plan, StreamPlan):
            return Fetch(*common)
        from penstock.loading.stream_fetch import StreamFetch

        return StreamFetch(
            *common,
            order=plan.sampler,
            batch_size=plan.batch_size,
            tail=plan.tail,
            together=batch_steps.together,
        )

    def _bad_samples(self) -> BadSamples:
        section, path = self.config.bad_samples, self.config.bad_samples.quarantine
        fingerprint = self.fingerprint["dataset"] if path else ""
        return quarantine.policy(
            section.on_error,
            path,
            self.name,
            self.plan,
            self.dataset,
            fingerprint,
            self.config.seed,
        )

    def loader(self, hashed: bool = False, lanes: Lanes | None = None) -> Loader:
        """Batches of the split; to be closed.

        Args:
            hashed: as for `fetch`.
            lanes: the parts of a global batch that this rank works on; None: its one share.
        """
        fetch = self.fetch(hashed, whole=False)
        return Loader(
            self.plan,
            fetch,
            self.loader_options(gathers=fetch.gathers),
            self.data.world,
            # By names or by content, a dataset may have none, which shows before anything is read.
            self.fingerprint if self.identity.mode != "sizes" else lambda: self.fingerprint,
            batch_transform=(self.batch_transform or None) if self.data.on_device else None,
            budget=self.budget,
            lanes=lanes,
        )

    def loader_options(self, backend: str | None = None, gathers: bool = False) -> LoaderOptions:
        """The section `loader`, resolved for this split.

        Args:
            backend: of a packing loader; None: as configured.
            gathers: whether the dataset makes whole batches, and nothing follows: to send one from
                another process costs more than that.
        """
        section, threads, step = self.config.loader, gathers, ""
        if backend is None and self.decodes:
            from penstock.transforms.image_decoding import decode_step, describe, thread_safe

            threads, decode = thread_safe(self.transform), decode_step(self.transform)
            step = "" if decode is None else f", {describe(decode)}"
        name = section.worker_init_fn
        function = targets.resolve(name, "loader.worker_init_fn") if name else None
        own = targets.options(self.config, "loader.ray") if section.backend == "ray" else None
        options = options_of(section, threads, function, own)
        if self.is_train and section.backend == "auto" and options.num_workers:
            kind = "threads" if options.backend == "thread" else "processes"
            _log.info("loader: %d %s%s", options.num_workers, kind, step)
        return options if backend is None else replace(options, backend=backend)

    @property
    def budget(self) -> Budget:
        """How much of the split may be left out."""
        length = epoch_length(self.plan, self.dataset)
        return Budget(self.config.bad_samples.budget, self.name, length)

    @property
    def fingerprint(self) -> dict[str, str]:
        """Everything that the batches of the split depend on, by key."""
        return self.identity.entries


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
