"""Configuration to data: dataset, transforms, plan, fetch and loader of each split.

What a configuration leaves out and a callable takes by name is supplied here: `split`, `limits`,
the training split's statistics, and the dataset's facts (`num_classes` ...).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from penstock import installed
from penstock.addons.filters.build_costs import costs_of, sample_costs
from penstock.addons.filters.kept import RowChoice, chosen
from penstock.addons.mixtures.build import recorded_mixture
from penstock.addons.packs.options import PackSection
from penstock.addons.packs.packing import backend_for, pack
from penstock.addons.packs.recipe import Recipe, fits
from penstock.addons.tokens.vocabulary import is_learned, with_vocabulary
from penstock.addons.tuning import tuned
from penstock.build.samples import collate_of, dataset_of, fields_of, lengths_told, sampler_of
from penstock.config import allow_list, changes, loader_options
from penstock.config.data_rules import mode_of
from penstock.config.instantiate import make
from penstock.config.nodes import (
    FACTS,
    SAME_FACTS,
    choosing,
    is_of_a_split,
    of_the_build,
    validates,
)
from penstock.config.schema import Config, LoaderSection
from penstock.distributed.world import World, from_environment
from penstock.errors import ConfigError, Problem
from penstock.loading import postscript
from penstock.loading.bad_samples import BadSamples
from penstock.loading.budget import Budget, epoch_length
from penstock.loading.dataset_facts import classes_of, facts_of
from penstock.loading.fetch import Fetch
from penstock.loading.known_by import CONTENT, FINGERPRINT, KNOWN_BY, in_fingerprint
from penstock.loading.loader import Loader
from penstock.loading.named_fields import Fields
from penstock.loading.sampled_rows import SampleRequest
from penstock.loading.stream_fetch import StreamFetch
from penstock.loading.workers.options import LoaderOptions
from penstock.loading.wrapped import unfiltered, unfiltered_fingerprint
from penstock.order.plan import Plan, not_empty
from penstock.order.samplers import Sequential
from penstock.order.streams import StreamOrder, StreamPlan, is_stream, length_of
from penstock.protocols import Exchange
from penstock.runs import quarantine
from penstock.runs.identity.dataset import code_and_arguments, tells_all
from penstock.runs.identity.fingerprints import fingerprint_of, other_than_own, recorded
from penstock.transforms.batch import BatchCompose
from penstock.transforms.device_decoding import files_first
from penstock.transforms.image import Compose, Normalize
from penstock.transforms.image_decoding import decode_step, fused
from penstock.transforms.statistics import statistics_of

if TYPE_CHECKING:
    from pathlib import Path

_NOT_NATIVE = (
    "native crops squares from image files, which needs pack.size, pack.square=true, "
    "pack.format=pixels, the native decoder (libjpeg-dev and a C compiler when Penstock is "
    "installed), and a dataset that takes `lazy` and has no points or boxes; set it to auto or "
    "reader"
)
_PACKED = "penstock.addons.packs.packed.Packed"  # reads what penstock.addons.packs.packing writes


class DataParts:
    """The data of a run: its splits, and what they share. Each part is built on first use.

    Args:
        config: checked by preflight.
        world: this process among the others; from the environment when None.
    """

    def __init__(self, config: Config, world: World | None = None) -> None:
        self.config = config
        self.world = world or from_environment(config.trainer.device)
        self.train, self.val = Split(self, "train"), Split(self, "val")

    def split(self, name: str) -> Split:
        """The split of that name, "train" or "val"."""
        return self.train if name == "train" else self.val

    @property
    def validates(self) -> bool:
        """Whether there is a validation split; not if `dataset.val` is null."""
        return validates(self.config.dataset)

    @property
    def splits(self) -> tuple[Split, ...]:
        """The splits that there are."""
        return (self.train, self.val) if self.validates else (self.train,)

    @cached_property
    def fields(self) -> Fields:
        """Names for samples that are not dicts."""
        return fields_of(self.config)

    @cached_property
    def facts(self) -> dict[str, int]:
        """Facts of the training split for models and metrics: num_classes, num_outputs ..."""
        told = of_the_build(self.config.dataset, "facts") or {}
        found = facts_of(self.train.dataset, self.fields)
        if "num_classes" in told and found.get("num_outputs") == found.get("num_classes"):
            found.pop("num_outputs", None)  # it was the number of classes, which is another one
        facts = found | told
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
        }

        def explained(problem: Problem) -> Problem:
            for name in FACTS:
                if repr(name) in problem.message and name not in facts:
                    reason = (
                        f"needs {name}, which {type(dataset).__name__} does not tell (its facts: "
                        f"{', '.join(facts) or 'none'}); set it: "
                        f"+dataset.facts.{SAME_FACTS.get(name, name)}=..."
                    )
                    return Problem(problem.key, reason)
            return problem

        try:
            return make(node, key, supply, nested)
        except ConfigError as error:
            raise ConfigError([explained(one) for one in error.problems]) from error

    def with_statistics(self, node: Any) -> Any:
        """A step with the training split's statistics, or its vocabulary, in place of "dataset"."""
        if is_learned(node):
            data = self.train.dataset
            return with_vocabulary(node, data, self.train.cache_key(data), self.config.cache_dir)
        if not isinstance(node, Mapping) or node.get("statistics") != "dataset":
            return node
        found = allow_list.resolve(node["_target_"], "transform")
        normalizes = isinstance(found, type) and issubclass(found, Normalize)
        return {**node, "statistics": self._statistics} if normalizes else node

    @cached_property
    def _statistics(self) -> dict[str, list[float]]:
        dataset, config = self.train.dataset, self.config
        own, options = self.train.cache_key(dataset), None
        if config.loader.backend in installed.backends():
            options = self.train.loader_options(config.loader.backend)
        return statistics_of(dataset, config.cache_dir, own, self.fields, options)

    @cached_property
    def loader_section(self) -> LoaderSection:
        """The section `loader` with `num_workers: tuned` settled."""
        if self.config.loader.num_workers != "tuned":
            return self.config.loader
        return tuned.apply(self.config, self.train.fingerprint)

    @property
    def on_device(self) -> bool:
        """Whether batches are transformed on the device, after they have been delivered."""
        place = self.config.transform.batch_on
        return place == "device" or (place == "auto" and self.world.device != "cpu")


class Split:
    """The data of one split, "train" or "val". Validation reads every sample once, in order."""

    def __init__(self, data: DataParts, name: str) -> None:
        self.data = data
        self.config = data.config
        self.name = name
        self._is_train = name == "train"
        self._fingerprints: dict[str, str] = {}  # by mode

    @cached_property
    def dataset(self) -> Any:
        return self._chosen[0]

    @property
    def unfiltered_fingerprint(self) -> str:
        """The fingerprint of the dataset with all its rows, as quarantine files have it."""
        return unfiltered_fingerprint(self.dataset, self.data_fingerprint(mode_of(self.config)))

    @property
    def left_out(self) -> dict[str, int]:
        """How many rows the dataset's filters left out, by filter."""
        return self._chosen[1]

    @cached_property
    def _chosen(self) -> tuple[Any, dict[str, int]]:
        config = self.config
        whole = self._whole()
        length_of(whole)  # refuses what is no number of rows
        given = {"dataset": chosen(config.dataset)}
        if "_target_" not in config.dataset or is_of_a_split(config.dataset, self.name):
            given[f"dataset.{self.name}"] = chosen(config.dataset.get(self.name) or {})
        told = partial(fingerprint_of, mode=mode_of(config), cache_dir=config.cache_dir)
        return RowChoice(given, self.name, self.data.fields, told).of(whole)

    def _whole(self) -> Any:
        """The dataset with all its rows, packed or not."""
        postscript.refuse()
        where = self.config.dataset.get("packed")
        if where is None:
            return self._unpacked(lazy=self._decodes)
        self._node()  # a split that the configuration lacks has no pack either
        folder = self.pack() if where == "auto" else where
        kept = f"{self.config.cache_dir}/text"
        node = {"_target_": _PACKED, "folder": str(folder), "cache_dir": kept}
        return make(node, "dataset.packed", self._supply(lazy=self._decodes))

    def pack(self) -> Path:
        """The folder of the split's pack, which is made if it does not exist."""
        given = PackSection.of(self.config)
        recipe = Recipe(given.size, given.square, given.format)
        squares = None if given.decoder == "reader" else recipe.natively()
        dataset = self._unpacked(lazy=given.format == "encoded" or squares is not None)
        if squares is not None and fits(dataset):
            recipe = squares
        elif given.decoder == "native":
            raise ConfigError(Problem("pack.decoder", _NOT_NATIVE))
        elif squares is not None and getattr(dataset, "lazy", False):
            dataset = self._unpacked(lazy=False)
        # "auto" would look at the transform, which may need this very dataset's statistics.
        backend, suited = self.config.loader.backend, backend_for(dataset, recipe)
        if backend not in installed.backends() and (suited == "thread" or backend == "auto"):
            backend = suited
        return pack(
            dataset,
            self.name,
            recipe,
            self.config.cache_dir,
            given.out,
            self.loader_options(backend),
            other_than_own(dataset, self.config),
            self.data.fields,
            self._batch_bytes,
            self.cache_key(dataset),
        )

    def _unpacked(self, lazy: bool) -> Any:
        key, node = self._node()
        return dataset_of(node, key, self._supply(lazy))

    def _node(self) -> tuple[str, Any]:
        if self.name == "val" and not self.data.validates:
            raise ConfigError(Problem("dataset.val", "is null, so there are no rows to validate"))
        nodes = dict(choosing(self.config.dataset))
        key = "dataset" if "dataset" in nodes else f"dataset.{self.name}"
        if key not in nodes:
            null = "; null trains without validation" if self.name == "val" else ""
            reason = f"is missing, and this task reads that split{null}"
            raise ConfigError(Problem(key, reason))
        return key, nodes[key]

    def _supply(self, lazy: bool) -> dict[str, Any]:
        # `train` is what torchvision's datasets call it.
        return {
            "split": self.name,
            "train": self._is_train,
            "lazy": lazy,
            "limits": self.config.limits,
        }

    def _steps(self, section: str) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
        """Name, full key and node of each step of a section of transforms."""
        for name, node in getattr(self.config.transform, section).items():
            if node is not None:
                yield name, f"transform.{section}.{name}", node

    @cached_property
    def _decodes(self) -> bool:
        """Whether a step decodes; known without building any."""
        steps = [*self._steps(self.name), *self._steps(f"{self.name}_batch")]
        return any(
            getattr(allow_list.resolve(node["_target_"], key), "decodes", False)
            for _, key, node in steps
        )

    @cached_property
    def transform(self) -> Compose:
        """The transforms of samples."""
        return Compose(
            {
                name: make(self.data.with_statistics(node), key)
                for name, key, node in self._steps(self.name)
            }
        )

    @cached_property
    def batch_transform(self) -> BatchCompose:
        """The transforms of batches."""
        made = {
            name: self.data.make_with_facts(key, self.data.with_statistics(node), nested=True)
            for name, key, node in self._steps(f"{self.name}_batch")
        }
        return BatchCompose(made, self.config.seed)

    @cached_property
    def plan(self) -> Plan | StreamPlan:
        """Which samples belong to which address."""
        config, dataset = self.config, self.dataset
        tail = config.batch.tail if self._is_train else "keep"
        short = config.trainer.short(self.name)
        if is_stream(dataset):
            order = StreamOrder(config.seed)
            target = config.sampler["_target_"]
            if self._is_train and allow_list.resolve(target, "sampler._target_") is StreamOrder:
                order = make(config.sampler, "sampler", {"seed": config.seed})
            return StreamPlan(order, self._batch_size, tail, length_of(dataset), *short)
        rows = length_of(dataset)
        if not rows:
            raise ConfigError(Problem(self._node()[0], self._empty(rows)))
        sampler: Any = Sequential(len(dataset))
        steps, costs = self.transform.steps, None
        if self._is_train:
            costs = costs_of(config, dataset, self.data.fields, steps, self._packs)
        if self._is_train or self._packs:
            given = (config, dataset, self._batch_size, self.data.fields, steps)
            sampler = sampler_of(*given, order=None if self._is_train else sampler)
        together = self.batch_transform.together
        plan = Plan(sampler, self._batch_size, tail, together, *short, costs=costs)
        return not_empty(plan, rows, config.sampler["_target_"].rpartition(".")[2])

    def _empty(self, rows: int | None) -> str:
        """Why there is no epoch."""
        kind = type(unfiltered(self.dataset)).__name__
        if rows is None:
            return f"{kind} has rows by index, and no length: give it `__len__`"
        return (
            f"{kind} has no rows for the {self.name} split, and an epoch needs one; change what it "
            "reads, or how it is divided"
            + ("" if self._is_train else ", or train without validation: +dataset.val=null")
        )

    @property
    def _packs(self) -> bool:
        """Whether rows are put together into blocks."""
        found = allow_list.resolve(self.config.sampler["_target_"], "sampler._target_")
        return bool(getattr(found, "packs", False))

    @property
    def _batch_size(self) -> int:
        batch = self.config.batch
        if batch.size is None:  # one by one
            return 1
        return batch.size if self._is_train else batch.val_size or batch.size

    def fetch(self, hashed: bool = False, whole: bool = True) -> Fetch:
        """Request to batch.

        Args:
            hashed: also hash every sample, as `task=digest` prints it.
            whole: include the batch transforms that run on the device.
        """
        transform, plan, batch_steps = self.transform, self.plan, self.batch_transform
        of_batch = batch_steps if whole or not self.data.on_device else None
        if self.data.world.device == "cpu" or whole:
            transform = files_first(transform, batch_steps)
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
            self._batch_bytes,
        )
        if not isinstance(plan, StreamPlan):
            return Fetch(*common)
        return StreamFetch(
            *common,
            order=plan.sampler,
            batch_size=plan.batch_size,
            tail=plan.tail,
            together=batch_steps.together,
        )

    @property
    def _batch_bytes(self) -> int:
        """Bytes that one batch may take: of half the memory a part, if they are not configured."""
        given = self.config.limits.batch_bytes
        return given or loader_options.batch_bytes(
            self.data.loader_section, self.data.world.local_size
        )

    def _bad_samples(self) -> BadSamples:
        given, path = self.config.bad_samples, self.config.bad_samples.quarantine
        fingerprint = self.fingerprint["dataset"] if path else ""
        return quarantine.policy(
            given.on_error, path, self.name, self.plan, self.dataset, fingerprint, self.config.seed
        )

    def loader(self, hashed: bool = False, sampled: bool = False) -> Loader:
        """Batches of the split; to be closed.

        Args:
            hashed: as of `fetch`.
            sampled: look at some rows of a dataset that has no fingerprint.
        """
        sample = SampleRequest.of(length_of(self.dataset) if isinstance(self.plan, Plan) else None)
        return Loader(
            self.plan,
            self.fetch(hashed, whole=False),
            self.loader_options(),
            self.data.world,
            self.fingerprint,
            batch_transform=(self.batch_transform or None) if self.data.on_device else None,
            budget=self.budget,
            exchange=self.exchange(hashed),
            costs=sample_costs(self.config, self.dataset, self.data.fields),
            sample=sample if sampled and not self.is_told else None,
        )

    def exchange(
        self, hashed: bool = False, use: str = "", world: World | None = None
    ) -> Exchange | None:
        """Who may have made batches of the split, or want them; see `AddOn.exchange`."""
        for addon in installed.addons().values():
            if addon.exchange:
                made = installed.load(addon.exchange)(self, hashed=hashed, use=use, world=world)
                if made is not None:
                    return made
        return None

    def loader_options(self, backend: str | None = None) -> LoaderOptions:
        """The section `loader`, resolved for this split.

        Args:
            backend: of a packing loader, which is neither tuned nor grows; None: as configured.
        """
        ranks = self.data.world.local_size
        if backend is not None:
            return loader_options.resolve(self.config.loader, backend, False, ranks)
        given, grows = self.data.loader_section, isinstance(self.plan, Plan)
        backend = loader_options.backend(given, self.transform, self._decodes, log=self._is_train)
        return loader_options.resolve(given, backend, grows, ranks)

    @property
    def budget(self) -> Budget:
        """How much of the split may be left out."""
        length = epoch_length(self.plan, self.dataset)
        return Budget(self.config.bad_samples.budget, self.name, length)

    def data_fingerprint(self, mode: str) -> str:
        """The fingerprint of the dataset, by names, sizes or content."""
        if mode not in self._fingerprints:
            found = fingerprint_of(self.dataset, mode, self.config.cache_dir)
            self._fingerprints[mode] = found
        return self._fingerprints[mode]

    @cached_property
    def is_told(self) -> bool:
        """Whether the dataset tells what it is, so that nothing need be looked at."""
        return self._tells(self.dataset)

    def _tells(self, dataset: Any) -> bool:
        return mode_of(self.config) != "sizes" or tells_all(dataset)

    @cached_property
    def identity(self) -> dict[str, str]:
        """What the dataset is known by beside its fingerprint; nothing of one of ours."""
        return self._known_by(self.dataset)

    def _known_by(self, dataset: Any) -> dict[str, str]:
        node = self.config.compared()["dataset"]
        if node.get("packed") not in (None, "auto"):
            return {}  # the pack is the dataset, and has a fingerprint
        built_of = dict(choosing(node))[self._node()[0]]
        found = code_and_arguments(built_of, dataset, self._tells(dataset))
        names = of_the_build(self.config.dataset, "fields")
        if found and names is not None:
            found["fields"] = ", ".join(map(str, names))
        return found

    @property
    def known_by(self) -> dict[str, str]:
        """The same for a manifest, with what stands for the content; nothing of one of ours."""
        by = FINGERPRINT if self.is_told else CONTENT
        return {KNOWN_BY: by, **self.identity} if self.identity or by == CONTENT else {}

    def cache_key(self, dataset: Any) -> str:
        """The name of what is kept of a dataset of this split; "" where nothing may be kept, since
        nothing tells when it changes.
        """
        if not self._tells(dataset):
            return ""
        config = self.config
        own, known_by = fingerprint_of(dataset, mode_of(config), config.cache_dir), ""
        for name, value in sorted(self._known_by(dataset).items()):
            known_by += f"{name}={value}\n"
        digest = hashlib.blake2b(f"{own}\n{known_by}".encode(), digest_size=16).hexdigest()
        return digest if known_by else own

    @cached_property
    def fingerprint(self) -> dict[str, str]:
        """Everything that the batches of the split depend on, by key."""
        config, mode = self.config, mode_of(self.config)
        parts = changes.recorded(config, self.name)
        parts |= {"dataset": self.data_fingerprint(mode), **recorded(mode)}
        parts |= in_fingerprint(self.identity)
        if not self._is_train:
            parts["batch.val_size"] = str(self._batch_size)
        if self._is_train or self._packs:
            parts |= {key: str(value) for key, value in changes.leaves(config.sampler, "sampler")}
            told = partial(fingerprint_of, mode=mode, cache_dir=config.cache_dir)
            parts |= recorded_mixture(self.dataset, told)
            parts |= lengths_told(config, self.transform.steps)
        step = decode_step(self.transform)
        if step is not None:  # pixels differ by rounding from one decoder to another
            parts["decoder"] = step.decoder
        elif self._decodes:  # whole batches do
            device = self.data.world.device if self.data.on_device else "cpu"
            parts["decoder"] = f"torchvision on {device}"
        return parts


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
