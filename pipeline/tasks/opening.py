"""The folder that a fit writes to, new or of the run it resumes, and the state it resumes from.

Only the first rank writes. All ranks read the checkpoint, so the folder must be on a disk that all
machines share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.build.data import Split
from penstock.config.hydra_loader import overrides
from penstock.config.identity import LENGTH, differences
from penstock.config.schema import Config
from penstock.distributed.group import Group
from penstock.distributed.world import launcher_start, restarts
from penstock.errors import ConfigError, PenstockError, Problem
from penstock.loading.known_by import ADVICE
from penstock.loading.loader import Loader
from penstock.order.address import Address
from penstock.order.plan import Plan
from penstock.order.skipped import Range, Skipped
from penstock.order.streams import StreamPlan
from penstock.runs import checkpoint, resumption
from penstock.runs.checkpoint import Checkpoints, Newest, State
from penstock.runs.identity.fingerprints import first_difference, in_mode_of, mode_in
from penstock.runs.identity.sources import changes
from penstock.runs.manifest import has_manifest, read_manifest
from penstock.runs.resumption import Source, same_but_for_length, same_but_for_skips
from penstock.runs.run_folder import RunFolder, last_code
from penstock.terminal import say
from penstock.training.runner import Session

_NAMED = 30  # differences from a checkpoint that are listed


@dataclass
class Opened(Session):
    """A run that can begin.

    Attributes:
        folder: the run's, on the first rank.
        renewed: the steps of a new schedule, if one begins now.
    """

    folder: RunFolder | None = None
    renewed: int | None = None

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
        latest = self.checkpoints.latest() if self.checkpoints else 0
        return latest > (int(self.state["updates"]) if self.state else 0)


@dataclass(frozen=True)
class Opening:
    """A fit that is built, and asks for its run's folder and state; all ranks together.

    Attributes:
        split: that is trained on, by `train`.
        fits: raises ValueError for a checkpoint with this run's fingerprint and other tensors.
        scheduled: raises ConfigError if there is no schedule for a number of steps.
        moves: of the scheduler in the whole run; 0 without one.
        facts: for the manifest of a new run.
    """

    config: Config
    group: Group
    split: Split
    train: Loader
    fits: Callable[[State], None]
    scheduled: Callable[[int], object]
    moves: int
    facts: Mapping[str, Any]

    @property
    def fingerprint(self) -> dict[str, str]:
        """Of this run; the checkpoint's must be the same."""
        return resumption.fingerprint(self.config, self.train.fingerprint, self.moves)

    def open(self) -> Opened:
        """Claim a folder, or resume in an old one.

        Raises:
            ConfigError: there is nothing to resume, or it is of another run.
            CheckpointError: the named checkpoint, or all of them, cannot be used.
        """
        config, group = self.config, self.group
        launchers, restarted = zip(*group.gather((launcher_start(), restarts() > 0)), strict=True)
        folder, newest, opened_as = None, None, ("", "")
        if group.is_first:
            folder, newest = self._open(sorted({*launchers} - {None}), any(restarted))
            opened_as = str(folder.path), str(newest.path) if newest else ""
        path, taken = group.from_first(opened_as)
        state = newest.state if newest else None
        if taken and newest is None:  # the first rank has found it
            state = checkpoint.load(Path(taken))
        opened = Opened(state=state, fingerprint=self.fingerprint, folder=folder)
        if (kept := config.trainer.checkpoint) is not None:
            saves = Checkpoints(Path(path) / "checkpoints", kept.keep_last, kept.background, group)
            if newest:
                saves.set_aside_after(int(newest.state["updates"]))
            opened.checkpoints = saves
        if state is not None:
            opened.fingerprint, opened.renewed = self._continued(state)
        return opened

    def _open(self, launchers: Sequence[str], restarted: bool) -> tuple[RunFolder, Newest | None]:
        """The folder, and the state that is resumed from; on the first rank.

        Args:
            launchers: of all ranks, see `world.launcher_start`.
            restarted: whether one of them has started its ranks before.
        """
        config, scheduler, own = self.config, self.config.scheduler, self.fingerprint
        if config.resume is None and (restarted or _outlived(Path(config.run_dir), launchers)):
            source: Source | None = Source(Path(config.run_dir), required=False)  # of its launcher
        else:
            source = resumption.source(config)
        newest, renewed = self._newest(source) if source else None, None
        if newest is not None:
            self._check_same(newest.state)
            run = resumption.run_of(newest.path)
            for part, module, before, now in changes(run and last_code(run), self.facts["code"]):
                say(
                    f"{part}: the code of {module} has changed since the run was last started "
                    f"({before} then, {now} now); samples may differ"
                )
            _, renewed = self._continued(newest.state)
            if renewed is not None:
                self.scheduled(renewed)
        size, words = self.group.world.size, list(overrides())
        at = _address(newest.state) if newest else Address(0, 0)
        old = source.folder if source else None
        if old is None or not has_manifest(old):
            folder = RunFolder.claim(
                Path(config.run_dir),
                config.plain(),
                world=size,
                overrides=words,
                fingerprint=own,
                **self.facts,
            )
            began = {"at": list(at), "resumed": str(newest.path)} if newest else {}
            folder.note(launchers=launchers, **began)
        else:
            kept = (*LENGTH, resumption.SKIP)
            folder = RunFolder.reopen(
                old,
                world=size,
                longer=[word for word in words if word.partition("=")[0] in kept],
                overrides=words,
                at=list(at),
                code=self.facts["code"],
                resumed=str(newest.path) if newest else None,
                lost=_outlived(old, launchers),
                launchers=launchers,
            )
            folder.had_other_data(self.facts["data"])
            repeated = folder.rewind(*at, int(newest.state["updates"]) if newest else 0)
            if repeated:
                folder.note(repeated=repeated)
        if skipped := Skipped.of(config.trainer.skip):
            folder.note(skipped=skipped.ranges)
        _say(folder, newest)
        if newest is not None and renewed is not None and scheduler is not None:
            planned = sum(resumption.spans(newest.state["fingerprint"]))
            unit = "epochs" if scheduler.get("interval") == "epoch" else "steps"
            kind = scheduler["_target_"].rpartition(".")[2]
            end = f"; the run's was made for {planned}" if planned else ""
            say(f"schedule: a new {kind}, over the {renewed} {unit} from here on{end}")
        return folder, newest

    def _newest(self, source: Source) -> Newest | None:
        if source.checkpoint is not None:
            state = checkpoint.load_checked(source.checkpoint, self._check)
            return Newest(source.checkpoint, state, [])
        assert source.folder is not None
        if not checkpoint.has_checkpoint(source.folder):
            if not source.required:
                return None
            with suppress(ConfigError):  # reported when the folder is opened
                if read_manifest(source.folder).get("status") == "preempted":
                    return None  # a run that was stopped before its first checkpoint starts again
        return checkpoint.find_newest(source.folder, self._check)

    def _continued(self, state: State) -> tuple[dict[str, str], int | None]:
        """See `resumption.with_schedules`."""
        scheduler = self.config.scheduler
        history, moves = state["progress"]["result"]["history"], int(state["updates"])
        if (scheduler or {}).get("interval") == "epoch":
            moves = len(history)
        saved = state["fingerprint"]
        return resumption.with_schedules(saved, self.fingerprint, moves, scheduler)

    def _check(self, state: State) -> None:
        """Raise ValueError for a state that this fit cannot load, if it is one of this run."""
        from penstock.runs import run_state

        run_state.check(state)
        own = self.fingerprint
        saved = same_but_for_length(state["fingerprint"], own)
        saved = same_but_for_skips(saved, own, _address(state))
        if not differences(saved, own):
            self.fits(state)

    def _check_same(self, state: State) -> None:
        """Raise ConfigError unless a checkpoint is this run's, comparing the data in its mode."""
        own, config, at = self.fingerprint, self.config, _address(state)
        saved: Mapping[str, str] = state["fingerprint"]
        then, now = mode_in(saved), mode_in(own)
        same_way = in_mode_of(saved, own, self.split.identity.data)
        saved = same_but_for_skips(same_but_for_length(saved, own), own, at)
        problems = resumption.differences(saved, same_way, config.resume_despite)
        for number, problem in enumerate(problems):
            if problem.key == resumption.SKIP:
                text = resumption.other_skips(saved, own, at)
                problems[number] = Problem(problem.key, text)
            file = first_difference(config.cache_dir, saved.get("dataset", ""), same_way["dataset"])
            if problem.key == "dataset" and file:
                text = f"{file}; its fingerprint {problem.message}"
                problems[number] = Problem(problem.key, text)
        if len(problems) > _NAMED:
            problems[_NAMED:] = [Problem("", f"{len(problems) - _NAMED} more keys differ")]
        if problems:
            raise ConfigError(problems)
        if not self.split.identity.is_told and "dataset" not in config.resume_despite:
            say(f"as far as is known, the data is that of the run; {ADVICE}")
        if then != now and mode_in(same_way) == then:
            say(
                f"the data is that of the run by {then}, its fingerprint so far; from now on it is "
                f"fingerprinted by {now}"
            )


def _outlived(run: Path, launchers: Sequence[str]) -> bool:
    """Whether a launcher of the run's last start is still there: then its processes are gone."""
    with suppress(PenstockError, LookupError, TypeError):  # reported when it is opened
        before = read_manifest(run)["sessions"][-1].get("launchers") if has_manifest(run) else ()
        return not set(launchers).isdisjoint(before or ())
    return False


def _address(state: State) -> Address:
    return Address(int(state["loader"]["epoch"]), int(state["loader"]["step"]))


def _say(folder: RunFolder, newest: Newest | None) -> None:
    """Say where the run resumes, and the cost of damaged checkpoints."""
    if newest is None:
        return
    for path, reason in newest.skipped:
        say(f"cannot use {path}: {reason}")
    if newest.skipped:
        updates = int(newest.state["updates"])
        steps = max((checkpoint.steps_of(path) or 0) for path, _ in newest.skipped) - updates
        lost = f"the {steps} steps since then are" if steps > 1 else "the steps since then are"
        if steps == 1:
            lost = "the step since then is"
        after = f"{updates} step{'' if updates == 1 else 's'}"
        say(f"resuming from an older one, after {after}; {lost} repeated")
    epoch, step = _address(newest.state)
    say(f"resuming {folder.path} at epoch {epoch}, step {step} ({newest.path.name})")


def check(plan: Plan | StreamPlan, max_epochs: int) -> None:
    """Raise ConfigError if nothing is left to train on, as far as an epoch's length is known."""
    skipped = plan.skipped
    for epoch in range(max_epochs if skipped else 0):
        if next(skipped.steps(epoch, 0, plan.steps(epoch)), None) is not None:
            return
    if skipped:
        raise ConfigError(
            Problem(
                "trainer.skip",
                f"{skipped} leaves out every batch of "
                f"trainer.max_epochs={max_epochs}; leave something to train on",
            )
        )


def short_steps(plan: Plan | StreamPlan, accumulate: int) -> str:
    """What a person may not expect of `trainer.accumulate`, where an epoch is no multiple of it."""
    batches = plan.steps(0)
    if accumulate == 1:
        return ""
    if batches is None:
        what = "the last optimizer step of an epoch may take fewer"
    elif not batches % accumulate:
        return ""
    elif batches < accumulate:
        what = f"an epoch has {batches}, so each optimizer step takes {batches}"
    else:
        what = f"an epoch has {batches:,}, so its last optimizer step takes {batches % accumulate}"
    return (
        f"trainer.accumulate: {accumulate} batches make a step, but {what}: none is carried into "
        "the next epoch"
    )


def describe(plan: Plan | StreamPlan, max_epochs: int) -> str:
    """The ranges, and how many batches of the run they leave out; empty without any."""
    return "; ".join(_of_range(skipped, plan, max_epochs) for skipped in plan.skipped.ranges)


def _of_range(skipped: Range, plan: Plan | StreamPlan, max_epochs: int) -> str:
    start, stop = skipped
    text, count = f"from {start} to before {stop}", 0
    for epoch in range(start.epoch, min(stop.epoch + 1, max_epochs)):
        steps = plan.steps(epoch)
        if steps is None:
            return text
        count += Skipped([skipped]).count(epoch, 0, steps)
    if not count:
        return f"{text}, where this run has no batch"
    return f"{text}, {count:,} batch{'' if count == 1 else 'es'}"
