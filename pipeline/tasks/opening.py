"""The folder that a fit writes to, new or of the run it resumes, and the state it resumes from.

Only the first rank writes. All ranks read the checkpoint, so the folder must be on a disk that all
machines share. Where the launcher has started the ranks again, and a machine has a newer state in
its memory (runs/memory.py), that goes to all ranks instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from penstock import installed
from penstock.addons.memory_copies import memory
from penstock.addons.memory_copies.memory import Memory
from penstock.config.changes import differing
from penstock.config.schema import Config
from penstock.distributed import world
from penstock.distributed.group import Group
from penstock.errors import ConfigError, Problem
from penstock.loading.known_by import ADVICE, compared_rows, in_fingerprint
from penstock.order.address import Address
from penstock.order.skipped import Skipped
from penstock.runs import checkpoint, resumption, run_state
from penstock.runs.checkpoint import Checkpoints, Newest, State, steps_of
from penstock.runs.identity.fingerprints import first_difference, in_mode_of, mode_in
from penstock.runs.identity.sources import changes
from penstock.runs.manifest import has_manifest, read_manifest
from penstock.runs.resumption import Source, same_but_for_length, same_but_for_skips
from penstock.runs.run_folder import RunFolder, last_code
from penstock.tasks import machines
from penstock.tasks.machines import Machines
from penstock.terminal import say

_NAMED = 30  # differences from a checkpoint that are listed


@dataclass
class Opened:
    """A run that can begin."""

    folder: RunFolder | None  # on the first rank
    checkpoints: Checkpoints | None  # where to save, if anywhere
    state: State | None  # to resume from
    fingerprint: dict[str, str]  # with all schedules, past and present
    renewed: int | None = None  # the steps of a new schedule, if one begins now
    memory: Memory | None = None  # where to keep copies for ranks that are started again

    @property
    def start(self) -> Address:
        """The address of the next batch."""
        return _address(self.state) if self.state is not None else Address(0, 0)

    def put_back(self) -> None:
        """Remove what this session wrote to the folder's logs."""
        if self.folder is not None and self.state is not None:
            self.folder.rewind(*_address(self.state), int(self.state["updates"]))

    def came_further(self) -> bool:
        """Whether this session saved a checkpoint of a later step than the one it began with."""
        saved = self.checkpoints.saved() if self.checkpoints else []
        latest = max((steps_of(path) or 0 for path in saved), default=0)
        return latest > (int(self.state["updates"]) if self.state else 0)


def open_run(
    config: Config,
    group: Group,
    fingerprint: Mapping[str, str],
    overrides: Sequence[str],
    data_in: Callable[[str], str],
    fits: Callable[[State], None] | None = None,
    scheduled: Callable[[int], object] = lambda steps: None,
    look: Callable[[], Mapping[str, str]] | None = None,
    **facts: Any,
) -> Opened:
    """Claim a folder, or resume in an old one; all ranks together.

    Args:
        fingerprint: of this run; the checkpoint's must be the same.
        overrides: of this command, for the manifest.
        data_in: mode -> fingerprint of the training data.
        fits: raises ValueError for a checkpoint with this run's fingerprint and other tensors.
        scheduled: raises ConfigError if there is no schedule for a number of steps.
        look: what is seen of training data that has no fingerprint; None where it has one.
        facts: for the manifest of a new run.

    Raises:
        ConfigError: there is nothing to resume, or it is of another run.
        CheckpointError: the named checkpoint, or all of them, cannot be used.
    """
    members = machines.gather(group)
    folder, newest, where, source = None, None, ("", "", ""), None
    if group.is_first:
        wanted = _wanted(config, Machines(members, Path(config.run_dir)))
        found = Machines(members, wanted.folder if wanted else None)
        source = _copy(wanted, found)
    source = group.from_first(source)
    copy = None
    if source is not None:
        rank, start = source
        copy = memory.share(group, rank, start, run_state.check)
    if group.is_first:
        folder, newest = _open(
            config,
            group,
            fingerprint,
            list(overrides),
            data_in,
            facts,
            fits,
            scheduled,
            look,
            wanted,
            found,
            copy,
        )
        last = folder.manifest["sessions"][-1]["id"]
        where = str(folder.path), str(newest.path) if newest else "", last
    path, taken, session = group.from_first(where)
    state = newest.state if newest else None
    if taken and newest is None:  # another rank has found it
        shared = copy is not None and taken == str(copy.path)
        state = copy.state if copy is not None and shared else checkpoint.load(Path(taken))
    kept, made = config.trainer.checkpoint, None
    if kept is not None:
        made = Checkpoints(Path(path) / "checkpoints", kept.keep_last, kept.background, group)
    if made and newest:
        made.set_aside_after(int(newest.state["updates"]))
    opened = Opened(folder, made, state, dict(fingerprint))
    if state is not None:
        opened.fingerprint, opened.renewed = _going_on(state, fingerprint, config)
    # In parts (FSDP), the state of a lost machine would be lost with it.
    every = group.from_first(_every(config)) if config.distributed.strategy == "ddp" else None
    if every is not None:
        opened.memory = Memory(session, every, group, state is not None)
    return opened


def _every(config: Config) -> int | Literal["auto"] | None:
    """Steps between two copies in memory; None if nothing will ask for them."""
    kept = config.trainer.checkpoint
    every = kept.option("memory_every_steps") if kept is not None else None
    wanted = every is not None and (every != "auto" or world.starts_again())
    return every if wanted and memory.launcher() is not None else None


def _wanted(config: Config, there: Machines) -> Source | None:
    """What to resume from; the run itself, if its launcher has started all ranks again."""
    if config.resume is None and there.started_again:
        return Source(Path(config.run_dir), required=False)
    return resumption.source(config)


def _copy(wanted: Source | None, found: Machines) -> tuple[int, str] | None:
    """Rank and start of a state in memory, if no checkpoint is newer."""
    copy = found.newest_copy()
    if wanted is None or wanted.folder is None or wanted.checkpoint is not None or copy is None:
        return None
    saved = Checkpoints(wanted.folder / "checkpoints").saved()
    steps, rank, start = copy
    newest = max((checkpoint.steps_of(path) or 0 for path in saved), default=0)
    return (rank, start) if steps >= newest else None


def _going_on(
    state: State, fingerprint: Mapping[str, str], config: Config
) -> tuple[dict[str, str], int | None]:
    """See `resumption.with_schedules`."""
    by_epochs = (config.scheduler or {}).get("interval") == "epoch"
    history = state["progress"]["result"]["history"]
    moves = len(history) if by_epochs else int(state["updates"])
    return resumption.with_schedules(state["fingerprint"], fingerprint, moves, config.scheduler)


def _open(
    config: Config,
    group: Group,
    fingerprint: Mapping[str, str],
    overrides: list[str],
    data_in: Callable[[str], str],
    facts: dict[str, Any],
    fits: Callable[[State], None] | None,
    scheduled: Callable[[int], object],
    look: Callable[[], Mapping[str, str]] | None,
    wanted: Source | None,
    found: Machines,
    copy: Newest | None,
) -> tuple[RunFolder, Newest | None]:
    def check(state: State) -> None:
        run_state.check(state)
        saved = same_but_for_length(state["fingerprint"], fingerprint)
        saved = same_but_for_skips(saved, fingerprint, _address(state))
        if fits is not None and not differing(saved, fingerprint):
            fits(state)

    newest, renewed = copy, None
    if newest is not None:
        try:
            check(newest.state)
        except ValueError as error:
            say(f"the copy in memory cannot be used: {error}")
            newest = copy = None
    if newest is None and wanted:
        newest = _newest(wanted, check)
    if newest is not None:
        _check_same(newest.state, fingerprint, config, data_in, look)
        run = wanted.folder if copy and wanted else resumption.run_of(newest.path)
        for part, module, before, now in changes(run and last_code(run), facts["code"]):
            say(
                f"{part}: the code of {module} has changed since the run was last started "
                f"({before} then, {now} now); samples may differ"
            )
        _, renewed = _going_on(newest.state, fingerprint, config)
        if renewed is not None:
            scheduled(renewed)
    size = group.world.size
    old = wanted.folder if wanted else None
    if old is None or not has_manifest(old):
        folder = RunFolder.claim(
            Path(config.run_dir),
            config.written(),
            world=size,
            overrides=overrides,
            fingerprint=dict(fingerprint),
            **facts,
        )
        began = {"at": list(_address(newest.state)), "resumed": str(newest.path)} if newest else {}
        folder.note(**found.facts, **began)
    else:
        at = _address(newest.state) if newest else (0, 0)
        kept = (*resumption.LENGTH, resumption.SKIP)
        longer = [word for word in overrides if word.partition("=")[0] in kept]
        folder = RunFolder.reopen(
            old,
            world=size,
            longer=longer,
            overrides=overrides,
            at=list(at),
            code=facts["code"],
            resumed=str(newest.path) if newest else None,
            lost=found.same_launch,
            **found.facts,
        )
        folder.had_other_data(facts["data"])
        repeated = folder.rewind(*at, int(newest.state["updates"]) if newest else 0)
        if repeated:
            folder.note(repeated=repeated)
    if skipped := Skipped.of(config.trainer.skip):
        folder.note(skipped=skipped.ranges)
    _say(folder, newest, found, copy is not None)
    if newest is not None and renewed is not None and config.scheduler is not None:
        planned = sum(resumption.spans(newest.state["fingerprint"]))
        unit = "epochs" if config.scheduler.get("interval") == "epoch" else "steps"
        kind = config.scheduler["_target_"].rpartition(".")[2]
        end = f"; the run's was made for {planned}" if planned else ""
        say(f"schedule: a new {kind}, over the {renewed} {unit} from here on{end}")
    return folder, newest


def _check_same(
    state: State,
    own: Mapping[str, str],
    config: Config,
    data_in: Callable[[str], str],
    look: Callable[[], Mapping[str, str]] | None,
) -> None:
    """Raise ConfigError unless a checkpoint is this run's, comparing the data in its mode."""
    saved: Mapping[str, str] = state["fingerprint"]
    if look is not None:
        own = {**own, **in_fingerprint(look())}
    at = _address(state)
    then, now = mode_in(saved), mode_in(own)
    same_way = in_mode_of(saved, own, data_in)
    saved = same_but_for_skips(same_but_for_length(saved, own), own, at)
    problems = resumption.differences(saved, same_way, config.resume_despite)
    for place, one in enumerate(problems):
        if one.key == resumption.SKIP:
            problems[place] = Problem(one.key, resumption.other_skips(saved, own, at))
        file = first_difference(config.cache_dir, saved.get("dataset", ""), same_way["dataset"])
        if one.key == "dataset" and file:
            problems[place] = Problem(one.key, f"{file}; its fingerprint {one.message}")
    for explain in filter(None, (addon.explains for addon in installed.addons().values())):
        problems = installed.load(explain)(problems, saved, same_way, at)
    if len(problems) > _NAMED:
        problems[_NAMED:] = [Problem("", f"{len(problems) - _NAMED} more keys differ")]
    if problems:
        raise ConfigError(problems)
    if look is not None and "dataset" not in config.resume_despite:
        say(
            f"as far as is known, the data is that of the run: {compared_rows(saved, own)}; "
            f"{ADVICE}"
        )
    if then != now and mode_in(same_way) == then:
        say(
            f"the data is that of the run by {then}, its fingerprint so far; from now on it is "
            f"fingerprinted by {now}"
        )


def _newest(wanted: Source, check: Callable[[State], None]) -> Newest | None:
    if wanted.checkpoint is not None:
        return Newest(wanted.checkpoint, checkpoint.load_checked(wanted.checkpoint, check), [])
    assert wanted.folder is not None
    if not checkpoint.has_checkpoint(wanted.folder):
        if not wanted.required:
            return None
        with suppress(ConfigError):  # reported when the folder is opened
            if read_manifest(wanted.folder).get("status") == "preempted":
                return None  # a run that was stopped before its first checkpoint starts again
    return checkpoint.find_newest(wanted.folder, check)


def _address(state: State) -> Address:
    return Address(int(state["loader"]["epoch"]), int(state["loader"]["step"]))


def _say(folder: RunFolder, newest: Newest | None, found: Machines, copied: bool) -> None:
    """Say where the run resumes, who takes part, and the cost of damaged checkpoints."""
    change = f"{changed}; " if (changed := found.changes()) else ""
    if newest is None:
        if change:
            say(f"{change}starting {folder.path} again, as there is no checkpoint")
        return
    for path, reason in newest.skipped:
        say(f"cannot use {path}: {reason}")
    if newest.skipped:
        updates = int(newest.state["updates"])
        steps = max((checkpoint.steps_of(path) or 0) for path, _ in newest.skipped) - updates
        lost = f"the {steps} steps" if steps > 0 else "the steps"
        say(f"resuming from an older one, after {updates} steps; {lost} since then are repeated")
    epoch, step = _address(newest.state)
    source, copy = newest.path.name, found.newest_copy()
    if copied and copy is not None:
        source = f"from the memory of rank {copy[1]} on {found.members[copy[1]].host}"
    say(f"{change}resuming {folder.path} at epoch {epoch}, step {step} ({source})")
