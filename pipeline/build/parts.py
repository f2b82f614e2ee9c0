"""Configuration to parts.

What a configuration leaves out and a callable asks for by name is supplied here: `split`, the
dataset's `length`, `metadata` and facts (`num_classes` ...), `seed`, `params`, `total_steps`.
`Parts` makes each part once, when it is first asked for; `pipeline.config.instantiate` makes it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch

from pipeline.build.samples import collate_of, dataset_of, fields_of, lengths_told, sampler_of
from pipeline.config import allow_list, loader_options
from pipeline.config.data_rules import mode_of
from pipeline.config.instantiate import make
from pipeline.config.loader_options import Backend
from pipeline.config.nodes import FACTS, SAME_FACTS, SCHEDULE_KEYS, datasets, of_the_build
from pipeline.config.schema import Config, LoaderSection
from pipeline.distributed import world
from pipeline.distributed.world import World
from pipeline.errors import ConfigError, Problem
from pipeline.loading.bad_samples import BadSamples
from pipeline.loading.budget import Budget, epoch_length
from pipeline.loading.dataset_facts import classes_of, facts_of
from pipeline.loading.fetch import Fetch
from pipeline.loading.loader import Loader
from pipeline.loading.named_fields import Fields
from pipeline.loading.stream_fetch import StreamFetch
from pipeline.loading.workers.backends import LoaderOptions
from pipeline.order.plan import Plan, not_empty
from pipeline.order.randomness import hash64, scope, seed_global
from pipeline.order.samplers import BatchStrategy, Order, Sequential, Tail
from pipeline.order.streams import StreamOrder, StreamPlan, is_stream, length_of
from pipeline.packing.packing import backend_for, pack
from pipeline.packing.recipe import Recipe, fits
from pipeline.runs import quarantine
from pipeline.runs.identity.fingerprints import fingerprint_of, other_than_own, recorded
from pipeline.training.schedules import warmup_steps, with_warmup
from pipeline.transforms.batch import BatchCompose
from pipeline.transforms.image import Compose, Normalize
from pipeline.transforms.image_decoding import decode_step, fused
from pipeline.transforms.statistics import statistics_of

if TYPE_CHECKING:
    from pathlib import Path

    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

_NO_SQUARES = (
    "'native' makes squares out of image files, which needs pack.size, pack.square=true, "
    "pack.format=pixels, the native decoder (libjpeg-dev and a C compiler when Penstock is "
    "installed), and a dataset that takes `lazy` and has no points or boxes; set it to auto or "
    "reader"
)
PACKED = "pipeline.datasets.packed.Packed"  # reads what pipeline.packing.packing makes


class Parts:
    """The parts of a run, each made once and when it is first asked for.

    Args:
        config: checked by preflight.
        world: this process among the others; from the environment when None.
    """

    def __init__(self, config: Config, world: World | None = None) -> None:
        self.config = config
        self._world = world
        self._datasets: dict[str, Any] = {}
        self._data: dict[tuple[str, str], str] = {}
        self._transforms: dict[str, Compose] = {}
        self._batch_transforms: dict[str, BatchCompose] = {}
        self._plans: dict[str, Plan | StreamPlan] = {}

    @cached_property
    def world(self) -> World:
        return self._world or world.from_environment(self.config.trainer.device)

    def dataset(self, split: str) -> Any:
        """The dataset of a split, "train" or "val"."""
        if split not in self._datasets:
            nodes = dict(datasets(self.config.dataset))
            key = "dataset" if "dataset" in nodes else f"dataset.{split}"
            if key not in nodes:
                raise ConfigError(Problem(key, "is missing, and this task reads that split"))
            supply = self._supply(split, self._decodes(split))
            where = self.config.dataset.get("packed")
            if where is None:
                self._datasets[split] = dataset_of(nodes[key], key, supply)
            else:
                where = self.pack(split) if where == "auto" else where
                node = {"_target_": PACKED, "folder": str(where)}
                self._datasets[split] = make(node, "dataset.packed", supply)
        return self._datasets[split]

    def pack(self, split: str) -> Path:
        """The folder of a split's pack, which is made if it is not there."""
        given = self.config.pack
        recipe = Recipe(given.size, given.square, given.format)
        squares = None if given.decoder == "reader" else recipe.natively()
        dataset = self._unpacked(split, lazy=given.format == "encoded" or squares is not None)
        if squares is not None and fits(dataset):
            recipe = squares
        elif given.decoder == "native":
            raise ConfigError(Problem("pack.decoder", _NO_SQUARES))
        elif squares is not None and getattr(dataset, "lazy", False):
            dataset = self._unpacked(split, lazy=False)
        # "auto" would look at the transform, which may need this very dataset's statistics.
        backend, suited = self.config.loader.backend, backend_for(dataset, recipe)
        if suited == "thread" or backend == "auto":
            backend = suited
        return pack(
            dataset, split, recipe, self.config.cache_dir, given.out,
            self._options(split, backend), self.config.trainer.progress,
            other_than_own(dataset, self.config), self.fields,
        )  # fmt: skip

    def _unpacked(self, split: str, lazy: bool) -> Any:
        nodes = dict(datasets(self.config.dataset))
        key = "dataset" if "dataset" in nodes else f"dataset.{split}"
        return dataset_of(nodes[key], key, self._supply(split, lazy))

    def _supply(self, split: str, lazy: bool) -> dict[str, Any]:
        train = split == "train"  # as torchvision's datasets call it
        return {"split": split, "train": train, "lazy": lazy, "limits": self.config.limits}

    def _decodes(self, split: str) -> bool:
        """Whether a step of a split's transform decodes; known without building any."""
        given = self.config.transform
        return any(
            getattr(
                allow_list.resolve(node["_target_"], f"transform.{part}.{name}"), "decodes", False
            )
            for part in (split, f"{split}_batch")
            for name, node in getattr(given, part).items()
            if node
        )

    @cached_property
    def fields(self) -> Fields:
        """Names for samples that are no dicts."""
        return fields_of(self.config)

    @cached_property
    def facts(self) -> dict[str, int]:
        """What the training split tells models and metrics: num_classes, num_outputs ..."""
        told = of_the_build(self.config.dataset, "facts") or {}
        return facts_of(self.dataset("train"), self.fields) | told

    def transform(self, split: str) -> Compose:
        """The steps of a split, composed."""
        if split not in self._transforms:
            steps = getattr(self.config.transform, split)
            made = {
                name: make(self._with_statistics(node), f"transform.{split}.{name}")
                for name, node in steps.items()
                if node is not None
            }
            self._transforms[split] = Compose(made)
        return self._transforms[split]

    def batch_transform(self, split: str) -> BatchCompose:
        """The steps of a split for whole batches, composed."""
        if split not in self._batch_transforms:
            key = f"transform.{split}_batch"
            made = {
                name: self._with_facts(f"{key}.{name}", self._with_statistics(node), nested=True)
                for name, node in getattr(self.config.transform, f"{split}_batch").items()
                if node is not None
            }
            self._batch_transforms[split] = BatchCompose(made, self.config.seed)
        return self._batch_transforms[split]

    def _with_statistics(self, node: Any) -> Any:
        """A step with the training split's statistics in the place of the word "dataset"."""
        if not isinstance(node, Mapping) or node.get("statistics") != "dataset":
            return node
        found = allow_list.resolve(node["_target_"], "transform")
        if not (isinstance(found, type) and issubclass(found, Normalize)):
            return node
        return {**node, "statistics": self._statistics}

    @cached_property
    def _statistics(self) -> dict[str, list[float]]:
        dataset, config = self.dataset("train"), self.config
        own = other_than_own(dataset, config)
        return statistics_of(dataset, config.cache_dir, own, self.fields)

    def plan(self, split: str) -> Plan | StreamPlan:
        """The addresses of a split. Validation goes through everything in order."""
        if split not in self._plans:
            dataset, size, tail = self.dataset(split), self._batch_size(split), self._tail(split)
            train, short = split == "train", self.config.trainer.short(split)
            if is_stream(dataset):
                order, length = self._stream_order(split), length_of(dataset)
                self._plans[split] = StreamPlan(order, size, tail, length, *short)
            else:
                sampler = self._sampler() if train else Sequential(len(dataset))
                together = self.batch_transform(split).together
                self._plans[split] = not_empty(Plan(sampler, size, tail, together, *short))
        return self._plans[split]

    def _batch_size(self, split: str) -> int:
        batch = self.config.batch
        if batch.size is None:  # one by one
            return 1
        return batch.size if split == "train" else batch.val_size or batch.size

    def _tail(self, split: str) -> Tail:
        return self.config.batch.tail if split == "train" else "keep"

    def _stream_order(self, split: str) -> StreamOrder:
        node = self.config.sampler
        if (
            split == "train"
            and allow_list.resolve(node["_target_"], "sampler._target_") is StreamOrder
        ):
            made: StreamOrder = make(node, "sampler", {"seed": self.config.seed})
            return made
        return StreamOrder(self.config.seed)

    def _sampler(self) -> Order | BatchStrategy:
        dataset, size = self.dataset("train"), self._batch_size("train")
        steps = self.transform("train").steps
        return sampler_of(self.config, dataset, size, self.fields, steps)

    def collate(self) -> Any:
        """The function that makes a batch of samples."""
        return collate_of(self.config, self.fields)

    def fetch(self, split: str, hashed: bool = False, whole: bool = True) -> Fetch:
        """Request to batch.

        Args:
            hashed: also hash every sample, as `task=digest` prints it.
            whole: up to the end; else without what is done to batches on the device.
        """
        dataset, transform = self.dataset(split), self.transform(split)
        of_batch = self.batch_transform(split) if whole or not self._late else None
        if of_batch:
            transform, of_batch = fused(transform, of_batch)
        common = dataset, transform, self.collate(), self.config.seed, hashed, of_batch or None
        plan, bad = self.plan(split), self._bad_samples(split)
        if not isinstance(plan, StreamPlan):
            return Fetch(*common, bad, self.fields)
        return StreamFetch(
            *common, bad, self.fields, order=plan.sampler, batch_size=plan.batch_size,
            tail=plan.tail, together=self.batch_transform(split).together,
        )  # fmt: skip

    def _bad_samples(self, split: str) -> BadSamples:
        given, path = self.config.bad_samples, self.config.bad_samples.quarantine
        fingerprint = self.fingerprint(split)["dataset"] if path else ""
        return quarantine.policy(given.on_error, path, split, self.plan(split),
                                 self.dataset(split), fingerprint, self.config.seed)  # fmt: skip

    @property
    def _late(self) -> bool:
        """Whether batches are transformed where they have been delivered."""
        place = self.config.transform.batch_on
        return place == "device" or (place == "auto" and self.world.device != "cpu")

    def loader(self, split: str, hashed: bool = False) -> Loader:
        """Batches of a split; to be closed."""
        return Loader(
            self.plan(split), self.fetch(split, hashed, whole=False), self._options(split),
            self.world,
            self.fingerprint(split),
            batch_transform=(self.batch_transform(split) or None) if self._late else None,
            budget=self.budget(split),
        )  # fmt: skip

    def budget(self, split: str) -> Budget:
        """How much of a split may be left out."""
        length = epoch_length(self.plan(split), self.dataset(split))
        return Budget(self.config.bad_samples.budget, split, length)

    def data(self, split: str, mode: str) -> str:
        """The fingerprint of a split's dataset, by names, sizes or content."""
        if (split, mode) not in self._data:
            found = fingerprint_of(self.dataset(split), mode, self.config.cache_dir)
            self._data[split, mode] = found
        return self._data[split, mode]

    def fingerprint(self, split: str) -> dict[str, str]:
        """What the addresses of a split depend on, by key."""
        config, mode = self.config, mode_of(self.config)
        parts = {"seed": config.seed, "dataset": self.data(split, mode), **recorded(mode)}
        if split == "train":
            parts |= {"sampler": config.sampler, "batch.size": config.batch.size,
                      "batch.tail": config.batch.tail}  # fmt: skip
            parts |= lengths_told(config, self.transform("train").steps)
        else:
            parts["batch.val_size"] = self._batch_size(split)
        step = decode_step(self.transform(split))
        if step is not None:  # pixels differ by rounding from one decoder to another
            parts["decoder"] = step.decoder
        elif self._decodes(split):  # whole batches do
            parts["decoder"] = f"torchvision on {self.world.device if self._late else 'cpu'}"
        return {key: str(value) for key, value in parts.items()}

    def _options(self, split: str, backend: Backend | None = None) -> LoaderOptions:
        given = self._loader if backend is None else self.config.loader
        climbs = backend is None and isinstance(self.plan(split), Plan)
        return loader_options.make(
            given, partial(self.transform, split), self._decodes(split), backend=backend,
            climbs=climbs,
            ranks=self.world.local_size, says=split == "train",
        )  # fmt: skip

    @cached_property
    def _loader(self) -> LoaderSection:
        if self.config.loader.num_workers != "tuned":
            return self.config.loader
        return loader_options.with_tuned(self.config, self.fingerprint("train"))

    def model(self) -> torch.nn.Module:
        """A new model on the CPU; its weights follow from the seed."""
        with scope():
            seed_global(hash64(self.config.seed, "weights"))
            made: torch.nn.Module = self._with_facts("model", self.config.model, nested=False)
        return made

    def objective(self) -> Any:
        """The objective with its metrics."""
        return self._with_facts("objective", self.config.objective, nested=True)

    def _with_facts(self, key: str, node: Mapping[str, Any], nested: bool) -> Any:
        facts = self.facts
        named = {name: facts[fact] for name, fact in SAME_FACTS.items() if fact in facts}
        classes = classes_of(self.dataset("train"))
        supply = {**facts, **named, **({"classes": classes} if classes else {})}
        try:
            return make(node, key, supply, nested)
        except ConfigError as error:
            raise ConfigError([self._about_facts(one) for one in error.problems]) from error

    def _about_facts(self, problem: Problem) -> Problem:
        for name in FACTS:
            if repr(name) in problem.message and name not in self.facts:
                known = ", ".join(self.facts) or "none"
                reason = (
                    f"needs {name}, which {type(self.dataset('train')).__name__} does not tell "
                    f"(its facts: {known}); set it: +dataset.facts.{SAME_FACTS.get(name, name)}=..."
                )
                return Problem(problem.key, reason)
        return problem

    def optimizer(self, model: torch.nn.Module) -> Optimizer:
        """The optimizer of the model's weights."""
        params = [weight for weight in model.parameters() if weight.requires_grad]
        made: Optimizer = make(self.config.optimizer, "optimizer", {"params": params})
        return made

    def scheduler(self, optimizer: Optimizer, total_steps: int) -> LRScheduler | None:
        """The schedule with its warm-up, or None.

        Args:
            total_steps: how often it will be stepped: optimizer steps of the whole run, or its
                epochs where `scheduler.interval` is epoch.
        """
        node = self.config.scheduler
        if node is None:
            return None
        warm = warmup_steps(node.get("warmup", 0), total_steps)
        rest = total_steps - warm
        plain = {name: value for name, value in node.items() if name not in SCHEDULE_KEYS}

        def main(optimizer: Optimizer) -> Any:
            supply = {"optimizer": optimizer, "total_steps": rest, "T_max": rest}
            return make(plain, "scheduler", supply | {"total_iters": rest}, nested=False)

        return with_warmup(optimizer, warm, main)

    def tracker(self, folder: str | os.PathLike[str]) -> Any:
        """The tracker that writes into `folder`."""
        return make(self.config.tracker, "tracker", {"folder": folder})


def build_train_loader(config: Config, world: World | None = None) -> Loader:
    """Batches of the training split, one epoch each time it is iterated.

    Args:
        config: from `pipeline.compose("sampler=weighted", ...)`.
        world: this process among the others; from the environment when None.
    """
    return Parts(config, world).loader("train")


def build_val_loader(config: Config, world: World | None = None) -> Loader:
    """Batches of the validation split: every sample once, in order."""
    return Parts(config, world).loader("val")
