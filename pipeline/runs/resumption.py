"""Going on with a run: which one is meant, and whether it is the same one.

    with_overrides_of_run  `resume=<folder>` stands for the command line that started that run
    source                 the folder or file that is meant, and where the run goes on writing
    fingerprint            everything that weights depend on, by key
    differences            what keeps a checkpoint from being gone on with
    with_schedules         a run that is made longer or shorter: a new schedule for what is left

Who loads the data, on which machine, in how many processes, is no part of a fingerprint.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config import allow_list, signatures
from pipeline.config.composition import CONF
from pipeline.config.disclosure import is_redacted
from pipeline.config.schema import Config
from pipeline.errors import ConfigError, Problem
from pipeline.runs.manifest import read_manifest

_OF_THE_RUN = ("seed", "sampler", "collate", "model", "objective", "optimizer", "scheduler")
_OF_THE_TRAINER = ("accumulate", "clip_norm", "precision", "monitor", "mode", "patience")
_KEY = re.compile(
    r"(\+\+|\+|~)?(?P<key>[A-Za-z_]\w*([./][\w-]+)*)(@(?P<package>[\w.]+))?", re.ASCII
)
_NOT_KEPT = ("resume", "resume_despite", "run_dir", "task", "hydra")
LENGTH = ("trainer.max_epochs", "trainer.max_steps")  # what may be another one without more ado
SCHEDULES = "scheduler.steps"  # of a fingerprint: for how many steps each schedule was made
_SPANS = re.compile(r"\d{1,16}(\+\d{1,16}){0,999}", re.ASCII)
_COUNTS = {"total_steps", "T_max", "total_iters"}  # of steps, which the build supplies
_TIMED = re.compile(r"\d{4}-\d\d-\d\d/\d\d-\d\d-\d\d(/\d+)?$")  # a folder no command meets twice


@dataclass(frozen=True)
class Source:
    """What to go on with.

    Attributes:
        folder: the run's; it is written on in it. None starts another run's folder.
        checkpoint: the file (or sharded checkpoint) to read; None takes the newest of the folder.
        required: whether it is an error if nothing is there.
    """

    folder: Path | None
    checkpoint: Path | None = None
    required: bool = True


def source(config: Config) -> Source | None:
    """What `resume` means; None if it is null.

    Raises:
        ConfigError: nothing is there, or never can be.
    """
    if config.resume is None:
        return None
    if config.resume == "auto":
        if _TIMED.search(config.run_dir):
            raise ConfigError(
                Problem("resume", f"auto goes on with what lies in run_dir, but {config.run_dir} "
                        "is named by the time of the start and new each time; set run_dir=outputs/"
                        "<name> (hydra.sweep.dir=... for a sweep)")
            )  # fmt: skip
        return Source(Path(config.run_dir), required=False)
    path = Path(config.resume)
    if not path.exists():
        raise ConfigError(Problem("resume", f"{path} does not exist; give the folder of a run, one "
                                  "of its checkpoints, or auto"))  # fmt: skip
    if (path / "manifest.json").exists():
        return Source(path)
    if path.is_file() or run_of(path) is not None:
        return Source(None, path)
    raise ConfigError(Problem("resume", f"{path} is no folder of a run (it has no manifest.json) "
                              "and no checkpoint"))  # fmt: skip


def run_of(path: Path) -> Path | None:
    """The folder of the run that a run's folder or checkpoint belongs to."""
    for folder in (path, path.parent.parent):
        if (folder / "manifest.json").exists():
            return folder
    return None


def with_overrides_of_run(overrides: Sequence[str]) -> list[str]:
    """A command line's overrides, preceded by those of the run that it resumes.

    What is given now wins. A group chosen now (`distributed=none`) takes the place of what the run
    changed inside of the one it had. Whatever is wrong with the path shows later, where it is
    looked for.

    Raises:
        ConfigError: the run's manifest cannot be read, is damaged, or holds what is no override.
    """
    given = [word for word in overrides if word.startswith("resume=")]
    value = given[-1].partition("=")[2].strip("'\"") if given else "null"
    folder = run_of(Path(value)) if value not in ("null", "auto", "") else None
    if folder is None:
        return list(overrides)
    now = {_key(word) for word in overrides}
    kept = [word for word in _saved(folder) if not {_key(word), _group(word)} & now]
    _check_words(kept, folder)
    raise_if_redacted(folder, kept)
    return kept + list(overrides)


def raise_if_redacted(folder: Path, words: Sequence[str]) -> None:
    """Raise ConfigError for words of a manifest whose values were secrets."""
    lacking = [_key(word) for word in words if is_redacted(word)]
    if lacking:
        raise ConfigError([
            Problem(key, f"is a secret that {folder} was started with, which was not written down; "
                    f"give it again: {key}=...") for key in lacking
        ])  # fmt: skip


def _saved(folder: Path) -> Iterator[str]:
    for word in read_manifest(folder).get("overrides", []):
        if _group(word) not in _NOT_KEPT:
            yield word


def _check_words(words: Sequence[str], folder: Path) -> None:
    """Refuse what is no override of a run's own keys: a manifest may come from anybody.

    Raises:
        ConfigError: with the first word that is an option, one of hydra's or of no known key.
    """
    groups = {path.name for path in CONF.iterdir() if path.is_dir()} - {"hydra"}
    known = groups | set(Config.model_fields)
    for word in words:
        reason = _why_not(word, known, groups)
        if reason:
            said = word if len(word) < 80 else f"{word[:80]}..."
            where = folder / "manifest.json"
            raise ConfigError(Problem("resume", f"{where} says {said!r}, which {reason}; it is not "
                                      "taken from there. Give the run's overrides yourself, and "
                                      "its folder as run_dir with resume=auto"))  # fmt: skip


def _why_not(word: str, known: Set[str], groups: Set[str]) -> str | None:
    key, _, value = word.partition("=")
    parts = _KEY.fullmatch(key)
    if parts is None or not word.isprintable():
        return "is no override"
    for name in (parts["key"], parts["package"]):
        first = re.split(r"[./]", name)[0] if name else None
        if first is not None and first not in known:
            return f"sets {first!r}, which is no key of a run"
    elsewhere = ".." in value or value.lstrip("'\"[ ").startswith("/") or "${" in value
    if parts["key"] in groups and not value.startswith("{") and elsewhere:
        return "chooses a file outside of the configuration"
    return None


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+~").partition("@")[0]


def _group(override: str) -> str:
    return _key(override).partition(".")[0]


def fingerprint(config: Config, data: Mapping[str, str], moves: int) -> dict[str, str]:
    """Everything that the weights of a fit depend on, by key.

    Args:
        data: the training loader's fingerprint; what it says of the dataset stands for its
            arguments, so that a folder may lie somewhere else.
        moves: of the scheduler in the whole run; 0 without one.
    """
    whole = config.compared()
    parts: dict[str, Any] = {name: whole[name] for name in _OF_THE_RUN}
    parts |= {"batch.size": config.batch.size, "batch.tail": config.batch.tail}
    parts |= {f"trainer.{name}": whole["trainer"][name] for name in _OF_THE_TRAINER}
    # Keys that came later: a run without them is the same as one that was begun before.
    parts |= {f"trainer.{name}": whole["trainer"][name] for name in ("ema", "overfit_batches")
              if whole["trainer"][name] is not None}  # fmt: skip
    if config.trainer.limit_batches.train is not None:
        parts["trainer.limit_batches.train"] = config.trainer.limit_batches.train
    parts |= {f"transform.{name}": steps for name, steps in whole["transform"].items()
              if name.startswith("train")}  # fmt: skip
    parts |= {name: value for name, value in data.items() if name not in parts}
    if config.scheduler is not None:
        parts[SCHEDULES] = moves
    return {key: str(value) for key, value in _flat(parts, "")}


def _flat(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for name, item in value.items():
            yield from _flat(item, f"{key}.{name}" if key else str(name))
    else:
        yield key, value


def differences(
    saved: Mapping[str, str], own: Mapping[str, str], despite: Sequence[str]
) -> list[Problem]:
    """Why a checkpoint with the fingerprint `saved` is not this run's.

    Args:
        despite: keys that may differ, each with what lies below it.
    """
    return [
        Problem(key, f"is {own.get(key, 'not set')} here and was {saved.get(key, 'not set')} in "
                "the run that is resumed, so it would not be the same run; give the old value, or "
                f"go on regardless with 'resume_despite=[{key}]'")
        for key in sorted(saved.keys() | own.keys())
        if saved.get(key) != own.get(key)
        and not any(key == name or key.startswith(name + ".") for name in despite)
    ]  # fmt: skip


def spans(facts: Mapping[str, str]) -> list[int]:
    """For how many steps each schedule of a run was made, by its fingerprint; empty: unknown."""
    text = facts.get(SCHEDULES, "")
    return list(map(int, text.split("+"))) if _SPANS.fullmatch(text) else []


def with_schedules(
    saved: Mapping[str, str], own: Mapping[str, str], done: int, scheduler: Mapping[str, Any] | None
) -> tuple[dict[str, str], int | None]:
    """The fingerprint `own` as that of a run that goes on from a checkpoint.

    Where its length is another one now, what is left gets a schedule of its own: "500+300" were
    500 steps of one and are 300 of the next. A schedule that asks for no number of steps goes on.

    Args:
        saved: the checkpoint's fingerprint.
        done: how often its scheduler had moved.
        scheduler: this run's node.

    Returns:
        The fingerprint, and the steps of a new schedule if one begins here.
    """
    before, now = spans(saved), spans(own)
    if not now or scheduler is None:
        return dict(own), None
    (moves,) = now
    other = _schedule(saved) != _schedule(own)
    if (sum(before) == moves and not other) or moves <= done:
        return {**own, SCHEDULES: saved.get(SCHEDULES, str(moves))}, None
    if not other and _is_endless(scheduler):
        return dict(own), None
    kept, left = [], done
    for span in before or [done]:
        kept.append(min(span, left))
        left -= kept[-1]
    parts = [*filter(None, kept), moves - done]
    return {**own, SCHEDULES: "+".join(map(str, parts))}, parts[-1]


def same_but_for_length(saved: Mapping[str, str], own: Mapping[str, str]) -> Mapping[str, str]:
    """`saved` with the schedules of `own`, where both have any."""
    if spans(saved) and spans(own):
        return {**saved, SCHEDULES: own[SCHEDULES]}
    return saved


def _schedule(facts: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in facts.items()
            if key.partition(".")[0] == "scheduler" and key != SCHEDULES}  # fmt: skip


def _is_endless(node: Mapping[str, Any]) -> bool:
    """Whether a schedule is the same one however long the run is, up to its warm-up."""
    from torch.optim.lr_scheduler import ConstantLR  # `--cfg` imports this file, and not torch

    function = allow_list.resolve(node["_target_"], "scheduler._target_")
    asked = _COUNTS.intersection(signatures.arguments(function).names) - node.keys()
    return not asked or (function is ConstantLR and node.get("factor") == 1)
