"""`task=test run=RUN`: loss and metrics of the best weights on the test split.

No training reads that split. Its first measurement goes into the run's manifest and report; the
task then shows that one, because what is looked at again and again is a validation split.

A class that is only asked whether rows validate gives training rows for `split="test"`. So it has
to declare its test split, and the first rows must not be those of training or validation.
"""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from copy import copy
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock.addons.predicting.trained import trained
from penstock.build.data import DataParts, Split
from penstock.config.schema import Config
from penstock.config.targets import arguments, called, walk
from penstock.distributed.group import join
from penstock.errors import ConfigError, PenstockError, Problem
from penstock.files.disk import write_atomically
from penstock.loading.collate import List
from penstock.loading.facts import unfiltered
from penstock.loading.loader import Loader
from penstock.loading.stream import StreamFetch
from penstock.order.address import Skipped
from penstock.order.plan import Plan, StreamOrder
from penstock.order.samplers import Subset
from penstock.runs.manifest import NAME, read_manifest
from penstock.runs.run_folder import finite, take
from penstock.tasks.summary import print_table
from penstock.tasks.validate import measured, monitored
from penstock.terminal import put, say

_COMPARED = 16  # rows of a test with those of the other splits


def run(config: Config) -> float | None:
    """Measure `config.run` on its test split, once; returns the monitored metric."""
    ready = trained(config)
    assert config.run is not None
    folder = Path(config.run)
    manifest = read_manifest(folder, "run")
    known, best = manifest.get("test"), manifest.get("best")
    known = known if isinstance(known, dict) else {}
    name, _ = monitored(ready.parts.config, ready.objective)
    wanted, data = ready.parts.config.distributed, ready.parts.data
    # A run that went on may have other weights.
    if known.get("best") == best and isinstance(known.get("metrics"), dict):
        say(f"measured once, at {known.get('at')}; a test split is not for choosing among models")
        return _shown({"test": known["metrics"]}, name, known.get("checkpoint"))
    split = data.test
    check_declared(split)
    with join(ready.parts.world, wanted.backend, wanted.timeout) as group:
        # Its lock keeps a training from resuming, whose manifest would then be overwritten.
        held = take(folder) if group.is_first else None
        if any(group.agree(group.is_first and held is None)):
            reason = f"{folder} is still training; test it when it has ended"
            raise ConfigError(Problem("run", reason))
        with held or nullcontext(), split.loader() as loader:
            _check_other_rows(data, loader)
            parts = data, ready.model, ready.objective
            columns = measured(ready.parts.config, *parts, split, loader, group)
            if not group.is_first:
                return columns["test"].get(name)
            at, metrics = datetime.now(UTC).isoformat(timespec="seconds"), columns["test"]
            kept = {"metrics": metrics, "at": at, "checkpoint": str(ready.path), "best": best}
            manifest = finite({**read_manifest(folder, "run"), "test": kept})
            text = json.dumps(manifest, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
            write_atomically(folder / NAME, text.encode(errors="backslashreplace"))
        return _shown(columns, name, ready.path)


def check_declared(split: Split) -> None:
    """Refuse a configuration and a class of which neither says that there is a test split.

    Raises:
        ConfigError: says how it is declared.
    """
    key, node = split.node
    if key == "data.test_dataset" or split.config.data.divides:
        return
    reason = "does not give other rows for the test than for training and validation"
    for _, inner in walk(node, key):
        kind = called(inner)
        taken = arguments(kind)
        if "split" in taken and "split" not in inner:
            known = str(getattr(kind, "__module__", "")).startswith(("penstock.", "torchvision."))
            if known or "test" in str(taken["split"].annotation):
                return  # torchvision's refuse a name that they do not know
            reason = "takes `split`, and does not say that it knows one named test"
        elif "train" in taken:
            reason = "knows `train` as true or false, and no test"
    raise ConfigError(
        Problem(
            key,
            f"{node['_target_']} {reason}; annotate it, `split: Literal['train', 'val', 'test']`, "
            "or write a node under data.test_dataset, or divide the rows: "
            "data.split.val=0.1 data.split.test=0.1 (docs/predicting.md)",
        )
    )


def _check_other_rows(data: DataParts, loader: Loader) -> None:
    """Refuse a test split whose first rows are those of training or of validation."""
    own = _first_rows(data.test, loader)
    for other in data.splits:
        if len(set(own)) > 1 and own == _first_rows(other, loader)[: len(own)]:
            reason = (
                f"{type(unfiltered(other.dataset)).__name__} gives the rows of the {other.name} "
                f"split for the test: the first {len(own)} are equal, byte by byte. A measurement "
                "on them says nothing; give the test split rows of its own"
            )
            raise ConfigError(Problem(data.test.node[0], reason))


def _first_rows(split: Split, loader: Loader) -> list[bytes]:
    """Hashes of the first rows; a worker reads them, as what is opened must not be forked."""
    fetch = replace(split.fetch(hashed=True), transform=None, batch_transform=None, collate=List())
    plan: Any = copy(split.plan)
    if isinstance(fetch, StreamFetch):
        plan.sampler, plan.most, plan.skipped = StreamOrder(0), 1, Skipped()
        fetch.plan = plan
    else:
        rows = list(range(min(len(split.dataset), _COMPARED)))
        plan = Plan(Subset(len(split.dataset), 0, indices=rows, shuffle=False), _COMPARED)
    workers = min(loader.options.num_workers, 1)
    options = replace(loader.options, num_workers=workers, persistent_workers=False)
    with Loader(plan, fetch, options, replace(loader.world, rank=0, size=1)) as batches:
        return next((list(batch.hashes or ()) for batch in batches.epoch(0)), [])[:_COMPARED]


def _shown(columns: dict[str, Any], name: str, path: object) -> float | None:
    numbers = {
        title: {
            key: math.nan if value is None else float(value)  # as the manifest has NaN
            for key, value in column.items()
            if value is None or _is_number(value)
        }
        for title, column in columns.items()
    }
    print_table(numbers)
    put(f"checkpoint   {path}")
    value = numbers["test"].get(name)
    if value is None:
        raise PenstockError(f"trainer.monitor is {name!r}, which the test does not give")
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
