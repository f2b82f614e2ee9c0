"""Configuration to parts: the one place where a `_target_` is called.

Every name goes through `pipeline.trust` and then through hydra's `instantiate`, which has a gate of
its own; the very object that was checked is what gets called. Arguments are built inside out from
plain values, and never read again as YAML or as interpolations, in which an unchecked `_target_`
could hide. A `_partial_` is a plain functools.partial: hydra's own costs 130 us a call.

What a configuration leaves out and a callable asks for by name is supplied here: `split`, the
dataset's `length`, `metadata` and facts (`num_classes` ...), `seed`, `params`, `total_steps`.
`Parts` makes each part once, when it is first asked for.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any

import torch
from hydra.utils import instantiate

from pipeline import trust, world
from pipeline.backends import LoaderOptions
from pipeline.collate import Single
from pipeline.config import Config
from pipeline.errors import ConfigError, PenstockError, Problem
from pipeline.fetch import Fetch
from pipeline.loader import Loader
from pipeline.nodes import FACTS, SAME_FACTS, SCHEDULE_KEYS, datasets
from pipeline.plan import Plan
from pipeline.randomness import hash64, scope, seed_global
from pipeline.samplers import BatchStrategy, Order, Sequential, Tail
from pipeline.schedules import warmup_steps, with_warmup
from pipeline.signatures import SPECIAL, arguments
from pipeline.statistics import statistics_of
from pipeline.stream_fetch import StreamFetch
from pipeline.streams import StreamOrder, StreamPlan, is_stream, length_of
from pipeline.transforms import Compose, Normalize
from pipeline.world import World

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

Supply = Mapping[str, Any]

_DTYPES = {
    f"torch.{name}": getattr(torch, name)
    for name in ("uint8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")
}
_OURS = ("torch.", "torchvision.", "torchmetrics.", "pipeline.", "datasets.")


def make(node: Any, key: str, supply: Supply | None = None, nested: bool = False) -> Any:
    """Build a tree of plain values: mappings with a `_target_` become what it makes.

    Args:
        node: plain values; text such as "torch.float32" becomes the dtype.
        key: full key of the node, for messages.
        supply: arguments for the callable at the root, by name, where it takes them and the node
            doesn't set them. A value that is a `Lazy` is computed when it is taken.
        nested: supply them to the nodes inside as well.

    Raises:
        ConfigError: a name may not be called, or a part refuses its arguments.
    """
    inner = supply if nested else None
    if isinstance(node, Mapping):
        values = {
            name: make(value, f"{key}.{name}", inner, nested)
            for name, value in node.items()
            if name not in SPECIAL
        }
        if "_target_" not in node:
            return values
        places = node.get("_args_", [])
        positional = [make(v, f"{key}._args_[{i}]", inner, nested) for i, v in enumerate(places)]
        function = _function(node["_target_"], f"{key}._target_")
        values = _supplied(function, values, len(positional), supply or {}) | values
        if node.get("_partial_", False):
            return partial(function, *positional, **values)
        return _call(function, positional, values, key)
    if isinstance(node, (list, tuple)):
        return [make(value, f"{key}[{i}]", inner, nested) for i, value in enumerate(node)]
    return _DTYPES.get(node, node) if isinstance(node, str) else node


class Lazy:
    """A supplied argument that is computed only if something takes it."""

    def __init__(self, compute: Any) -> None:
        self.compute = compute


def _supplied(
    function: Any, values: Mapping[str, Any], positional: int, supply: Supply
) -> dict[str, Any]:
    known = arguments(function)
    taken = set(known.positional[:positional]) | set(values)
    chosen = {name: supply[name] for name in supply if name in known.names and name not in taken}
    return {
        name: value.compute() if isinstance(value, Lazy) else value
        for name, value in chosen.items()
    }


@lru_cache(maxsize=512)
def _passed_by_hydra(name: str) -> Any:
    """What hydra finds under a name and would call, past the checks of its own."""
    return instantiate({"_target_": name, "_partial_": True}, _convert_="all").func


def _function(name: str, key: str) -> Any:
    function = trust.resolve(name, key)
    try:
        found = _passed_by_hydra(name)
    except Exception as error:
        raise ConfigError(Problem(key, f"hydra refuses {name}: {error}")) from error
    if found is not function and found != function:  # bound methods are made anew, but equal
        raise ConfigError(Problem(key, f"{name} changed between its check and its call"))
    return function


def _call(function: Any, positional: list[Any], values: dict[str, Any], key: str) -> Any:
    try:
        return function(*positional, **values)
    except ConfigError as error:
        raise ConfigError([_inside(problem, key) for problem in error.problems]) from error
    except PenstockError:
        raise
    except (TypeError, ValueError) as error:
        if not (getattr(function, "__module__", None) or "").startswith(_OURS):
            error.add_note(f"while building {key} ({function.__module__}.{function.__qualname__})")
            raise  # a person's own code: its traceback says more
        raise ConfigError(
            Problem(key, f"{function.__name__} refuses its arguments: {error}")
        ) from error


def _inside(problem: Problem, key: str) -> Problem:
    """A part's own complaint with the key of where it stands in this configuration."""
    inside = problem.key == key or problem.key.startswith(key + ".")
    if inside or not problem.key:
        return Problem(problem.key or key, problem.message)
    first, _, rest = problem.key.partition(".")
    name = rest if first == key.partition(".")[0] and rest else problem.key
    return Problem(f"{key}.{name}", problem.message)


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
        self._transforms: dict[str, Compose] = {}
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
            self._datasets[split] = make(nodes[key], key, {"split": split}, nested=True)
        return self._datasets[split]

    @cached_property
    def facts(self) -> dict[str, int]:
        """What the training split tells models and metrics: num_classes, num_outputs ..."""
        return dict(getattr(self.dataset("train"), "facts", {}))

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

    def _with_statistics(self, node: Any) -> Any:
        """A step with the training split's statistics in the place of the word "dataset"."""
        if not isinstance(node, Mapping) or node.get("statistics") != "dataset":
            return node
        if trust.resolve(node["_target_"], "transform") is not Normalize:
            return node
        return {**node, "statistics": self._statistics}

    @cached_property
    def _statistics(self) -> dict[str, list[float]]:
        return statistics_of(self.dataset("train"), self.config.cache_dir)

    def plan(self, split: str) -> Plan | StreamPlan:
        """The addresses of a split. Validation goes through everything in order."""
        if split not in self._plans:
            dataset, size, tail = self.dataset(split), self._batch_size(split), self._tail(split)
            if is_stream(dataset):
                order, length = self._stream_order(split), length_of(dataset)
                self._plans[split] = StreamPlan(order, size, tail, length)
            else:
                train = split == "train"
                sampler = self._sampler() if train else Sequential(len(dataset))
                self._plans[split] = Plan(sampler, size, tail)
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
        if split == "train" and trust.resolve(node["_target_"], "sampler._target_") is StreamOrder:
            made: StreamOrder = make(node, "sampler", {"seed": self.config.seed})
            return made
        return StreamOrder(self.config.seed)

    def _sampler(self) -> Order | BatchStrategy:
        config, dataset = self.config, self.dataset("train")
        supply = {
            "length": len(dataset),
            "seed": config.seed,
            "metadata": Lazy(lambda: getattr(dataset, "metadata", None)),
            "batch_size": self._batch_size("train"),
            "tail": config.batch.tail,
            "dataset": dataset,
            "data_source": dataset,
        }
        build = partial(make, config.sampler, "sampler", supply, True)
        sampler = build()
        if isinstance(sampler, (Order, BatchStrategy)):
            return sampler
        from pipeline.torch_samplers import adapt

        return adapt(build, config.seed, len(dataset))

    def collate(self) -> Any:
        """The function that makes a batch of samples."""
        if self.config.batch.size is None:
            return Single()
        return make(self.config.collate, "collate")

    def fetch(self, split: str, hashed: bool = False) -> Fetch:
        """Request to batch.

        Args:
            hashed: also hash every sample, as `task=digest` prints it.
        """
        dataset, transform = self.dataset(split), self.transform(split)
        common = dataset, transform, self.collate(), self.config.seed, hashed
        plan = self.plan(split)
        if not isinstance(plan, StreamPlan):
            return Fetch(*common)
        return StreamFetch(*common, order=plan.sampler, batch_size=plan.batch_size, tail=plan.tail)

    def loader(self, split: str, hashed: bool = False) -> Loader:
        """Batches of a split; to be closed."""
        return Loader(
            self.plan(split), self.fetch(split, hashed), self._options(), self.world,
            self.fingerprint(split),
        )  # fmt: skip

    def fingerprint(self, split: str) -> dict[str, str]:
        """What the addresses of a split depend on, by key."""
        config = self.config
        dataset = self.dataset(split)
        data = getattr(dataset, "fingerprint", None) or length_of(dataset)
        parts: dict[str, Any] = {"seed": config.seed, "dataset": data}
        if split == "train":
            parts |= {"sampler": config.sampler, "batch.size": config.batch.size,
                      "batch.tail": config.batch.tail}  # fmt: skip
        else:
            parts["batch.val_size"] = self._batch_size(split)
        return {key: str(value) for key, value in parts.items()}

    def _options(self) -> LoaderOptions:
        given = self.config.loader
        count = _cores() if given.num_workers == "auto" else given.num_workers
        processes = given.backend == "process" and count > 0
        name = given.worker_init_fn
        return LoaderOptions(
            backend=given.backend,
            num_workers=count,
            prefetch_factor=given.prefetch_factor,
            persistent_workers=processes and given.persistent_workers is not False,
            pin_memory=world.has_accelerator() if given.pin_memory is None else given.pin_memory,
            pin_memory_device=given.pin_memory_device,
            timeout=given.timeout,
            worker_init_fn=trust.resolve(name, "loader.worker_init_fn") if name else None,
            multiprocessing_context=given.multiprocessing_context,
            in_order=given.in_order,
            generator=given.generator,
        )

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
        classes = getattr(self.dataset("train"), "classes", None)
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
                    f"(its facts: {known}); set it: +{problem.key}.{name}=..."
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


def _cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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
