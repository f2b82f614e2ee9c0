"""What a key of the configuration has an effect on: batches, only weights, or neither.

A key changes batches if some training batch (epoch, step) differs for it, in its samples or in what
was made of them; the digest of a batch is the judge. It changes weights if every batch stays as it
is at its address, and the weights differ nevertheless: by how they learn, from how many batches, or
by rounding. What only measures, places or speeds up a run changes neither.

A rule holds for a key and all keys below it; the longest one decides. Where the configuration alone
does not tell, a rule asks the two runs: a dataset's arguments change nothing if the data has the
same fingerprint, a folder that moved for example.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Any

from pipeline.config.schema import TASK_KEYS
from pipeline.errors import ConfigError
from pipeline.runs import left_out
from pipeline.runs.record import RunRecord


class Effect(StrEnum):
    """What differs if a key does."""

    BATCHES = "batches"
    WEIGHTS = "weights"
    NEITHER = "neither"


TITLES = {
    Effect.BATCHES: "keys that change batches",
    Effect.WEIGHTS: "keys that change weights, and no batch",
    Effect.NEITHER: "keys that change neither",
}

Found = tuple[Effect, str]  # with the reason, where it is not plain
Judge = Callable[[RunRecord, RunRecord], Found]


def effect_of(key: str, first: RunRecord, second: RunRecord) -> Found:
    """What a key that differs between two runs has an effect on, and why.

    A key that this version does not know counts as one that changes batches.
    """
    rule = rule_of(key)
    if rule is None:
        return Effect.BATCHES, "unknown to this version"
    return RULES[rule](first, second)


def rule_of(key: str) -> str | None:
    """The longest of the RULES that `key` is or lies below."""
    while key and key not in RULES:
        key = key.rpartition(".")[0]
    return key or None


def _always(effect: Effect, why: str = "") -> Judge:
    return lambda first, second: (effect, why)


def _data(first: RunRecord, second: RunRecord) -> Found:
    """Arguments of the dataset, which its fingerprint stands for."""
    one, other = (_mapping(run.manifest.get("data")) for run in (first, second))
    if one.get("fingerprint") != other.get("fingerprint"):
        return Effect.BATCHES, "the data was fingerprinted in different ways"
    if one.get("train") != other.get("train"):
        return Effect.BATCHES, "the data differs"
    if not all(tells(one.get(split)) for split in ("train", "val")):
        return Effect.BATCHES, "the data has no fingerprint of its own"
    if one.get("val") != other.get("val"):
        return _validation(first, second)
    return Effect.NEITHER, "the data has the same fingerprint"


def tells(fingerprint: Any) -> bool:
    """Whether it says more than a number of samples, as of a dataset that offers none."""
    own = fingerprint.partition(" kept=")[0] if isinstance(fingerprint, str) else "None"
    return own != "None" and not own.isdigit()


def _packed(first: RunRecord, second: RunRecord) -> Found:
    if any("decoder" in _mapping(run.manifest.get("fingerprint")) for run in (first, second)):
        return Effect.BATCHES, "pixels of packs and of the transform's decoder differ by rounding"
    return _data(first, second)


def _pack(first: RunRecord, second: RunRecord) -> Found:
    if all(_mapping(run.config.get("dataset")).get("packed") != "auto" for run in (first, second)):
        return Effect.NEITHER, "neither run made a pack"
    return _packed(first, second)


def _facts(first: RunRecord, second: RunRecord) -> Found:
    """Facts of a dataset that the model is told, unless they are arguments of the dataset."""
    found = _data(first, second)
    return found if found[0] == Effect.BATCHES else (Effect.WEIGHTS, "the model is made of it")


def _validation(first: RunRecord, second: RunRecord) -> Found:
    """What validation sees and measures, which only some runs learn from."""
    for run in (first, second):
        if _mapping(run.config.get("trainer")).get("patience") is not None:
            return Effect.WEIGHTS, "validation decides when to stop: trainer.patience"
        target = str(_mapping(run.config.get("scheduler")).get("_target_") or "pipeline.")
        # A schedule of somebody's own may be a kind of it.
        known = target.startswith(("torch.optim.", "pipeline."))
        if target.endswith("ReduceLROnPlateau") or not known:
            return Effect.WEIGHTS, "validation moves the learning rate: scheduler"
    return Effect.NEITHER, "validation only; it chooses the best epoch"


def _left_out(first: RunRecord, second: RunRecord) -> Found:
    """What becomes of samples that are left out: `bad_samples.on_error`."""
    found = [_bad(run) for run in (first, second)]
    if any(one is None for one in found):
        return Effect.BATCHES, f"the {left_out.NAME} of a run cannot be read"
    splits = {split for one in found for split, _ in one or ()}
    if "train" in splits:
        return Effect.BATCHES, "samples were left out"
    if splits:
        return _validation(first, second)
    return Effect.NEITHER, "no sample was left out"


def _which_left_out(first: RunRecord, second: RunRecord) -> Found:
    """Which samples are left out: limits on what they claim, and those known to be bad."""
    one, other = (_bad(run) for run in (first, second))
    if one and one == other:
        return Effect.NEITHER, "the same samples were left out"
    return _left_out(first, second)


def _bad(run: RunRecord) -> set[tuple[str, str | int]] | None:
    """Split and identity of the samples that a run left out; None if that cannot be read."""
    path = run.path / left_out.NAME
    try:
        entries = left_out.read(path) if path.exists() else []
    except ConfigError:
        return None
    return {(one.split, one.sample[1]) for one in entries}


def _device(first: RunRecord, second: RunRecord) -> Found:
    one, other = (run.manifest.get("device") for run in (first, second))
    if one == other:
        return Effect.NEITHER, f"both trained on {one}"
    if any(_mapping(_transform(run).get("train_batch")) for run in (first, second)):
        return Effect.BATCHES, "transforms of batches round in another way"
    return Effect.WEIGHTS, "rounding"


def _batch_place(first: RunRecord, second: RunRecord) -> Found:
    if all(run.manifest.get("device") == "cpu" for run in (first, second)):
        return Effect.NEITHER, "the same on a CPU"
    if not any(_mapping(_transform(run).get("train_batch")) for run in (first, second)):
        return _validation(first, second)
    return Effect.BATCHES, "rounding, which the digest leaves out"


def _ranks(first: RunRecord, second: RunRecord) -> Found:
    shared = any(_mapping(one).get("world") != 1 for run in (first, second) for one in run.sessions)
    sharded = any(_mapping(run.config.get("distributed")).get("strategy") == "fsdp"
                  for run in (first, second))  # fmt: skip
    if shared or sharded:
        return Effect.WEIGHTS, "sums, batch norms and dropout depend on the ranks"
    return Effect.NEITHER, "one process"


def _transform(run: RunRecord) -> Mapping[str, Any]:
    return _mapping(run.config.get("transform"))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


_BATCHES, _WEIGHTS, _NEITHER = map(_always, Effect)
_LENGTH = _always(Effect.WEIGHTS, "the length of the run")
_ROUNDING = _always(Effect.WEIGHTS, "rounding")


def _rules() -> Iterator[tuple[str, Judge]]:
    """The rule of each section; new keys of `trainer` need one of their own."""
    for key in ("seed", "batch.size", "batch.tail", "sampler", "dataset.fields"):
        yield key, _BATCHES
    for key in ("transform.train", "transform.train_batch", "trainer.overfit_batches"):
        yield key, _BATCHES
    yield "collate", _always(Effect.BATCHES, "the digest covers samples, not how they are joined")
    yield "resume_despite", _always(Effect.BATCHES, "a part of the run had other settings")
    yield "loader.worker_init_fn", _always(Effect.BATCHES, "may change a worker's dataset")
    yield "dataset", _data
    yield "dataset.packed", _packed
    yield "dataset.facts", _facts
    yield "dataset.fingerprint", _NEITHER
    yield "pack", _pack
    yield "bad_samples.on_error", _left_out
    for key in ("bad_samples.quarantine", "limits"):
        yield key, _which_left_out
    for key in ("bad_samples.budget", "limits.batch_bytes"):
        yield key, _always(Effect.NEITHER, "only stops a run")

    for key in ("model", "objective", "optimizer", "scheduler"):
        yield key, _WEIGHTS
    for key in ("accumulate", "clip_norm", "patience"):
        yield f"trainer.{key}", _WEIGHTS
    yield "trainer.skip", _always(Effect.WEIGHTS, "which batches are learned from")
    yield "trainer.ema", _always(Effect.WEIGHTS, "those that are validated and predict")
    for key in ("max_epochs", "max_steps", "limit_batches.train", "fast_dev_run"):
        yield f"trainer.{key}", _LENGTH
    for key in ("precision", "compile", "channels_last"):
        yield f"trainer.{key}", _ROUNDING
    yield "trainer.device", _device
    yield "transform.batch_on", _batch_place
    yield "loader.in_order", _always(Effect.WEIGHTS, "the order in which batches arrive")
    for key in ("distributed", "batch.balance"):
        yield key, _ranks
    for key in ("distributed.timeout", "distributed.max_restarts"):
        yield key, _NEITHER

    for key in ("batch.val_size", "transform.val", "transform.val_batch", "objective.metrics"):
        yield key, _validation
    for key in ("val_every", "monitor", "mode", "limit_batches.val"):
        yield f"trainer.{key}", _validation
    for key in ("log_every", "checkpoint", "baseline", "digest", "ledger", "progress", "pictures",
                "report"):  # fmt: skip
        yield f"trainer.{key}", _NEITHER
    for key in ("loader", "run_dir", "cache_dir", "resume", "sweep", "tracker", "task", *TASK_KEYS):
        yield key, _NEITHER


RULES: Mapping[str, Judge] = dict(_rules())
