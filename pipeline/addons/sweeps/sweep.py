"""A sweep: every value is checked before the first job starts, and a table of them ends it.

A job's folder is named by those of its overrides that change a result (`job_name`), so the same
command finds it again, whatever was killed in between. Its manifest is the only record of a job; a
lock that ends with its process keeps others out. The table is made of manifests, so it is the same
whatever processes ran the jobs, and however often they were killed.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig

from penstock import program
from penstock.config import compose
from penstock.config.schema import Config
from penstock.distributed import stop, world
from penstock.errors import PREEMPTED, ConfigError, Problem
from penstock.files.disk import prepare, write_atomically
from penstock.files.locks import is_locked, lock
from penstock.runs.folder import (
    HOLDER,
    MANIFEST,
    has_manifest,
    read_manifest,
    state_of,
    write_manifest,
)
from penstock.runs.resume import SCHEDULES, fingerprint, is_harmless, key_of
from penstock.terminal import put, say

_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")  # of settings, which are sorted by their size
TABLE, MEANS, LOCK = "sweep.csv", "means.csv", "job.lock"
FINISHED, PRUNING = ("done", "pruned"), "pruning"  # the reason in a hopeless trial's manifest

# Keys whose values repeat a setting.
REPEATED = {"seed": "seeds", "data.fold": "folds"}
# What says how a job is run, and not which one it is.
_NO_SETTINGS = ("resume", "resume_despite", "run_dir", "sweep", "hydra")


def settings_of(words: Sequence[str]) -> dict[str, str]:
    """The values that override lines give to keys, by name; the last one of a key counts."""
    pairs = {key_of(word): "~" if word[0] == "~" else word.partition("=")[2] for word in words}
    return {
        key: pairs[key] for key in sorted(pairs) if re.split("[./]", key)[0] not in _NO_SETTINGS
    }


def job_name(words: Sequence[str]) -> str:
    """The folder's name of a job with these override lines, in any order.

    It begins with short names of the keys and their values, and ends with a hash of all overrides
    that change a result. It needs no quotes, in a shell or for Hydra.
    """
    kept = {
        key: value for key, value in settings_of(words).items() if not is_harmless(f"{key}={value}")
    }
    shown = [
        re.sub(r"[^\w.]+", "_", f"{key.rpartition('.')[2]}_{kept[key]}")[:20].strip("_")
        for key in sorted(kept, key=lambda key: (key.count("."), key))
        if "/" not in kept[key]  # the path of a file says little in a few letters
    ]
    text = "\n".join(f"{key}={value}" for key, value in kept.items()).encode()
    return "-".join([*shown[:6], blake2b(text, digest_size=4).hexdigest()])


@dataclass(frozen=True)
class Job:
    """A job by the manifest in its folder.

    Attributes:
        name: its folder, below the sweep's.
    """

    name: str
    path: Path
    manifest: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path) -> Job:
        """The job in a folder; its manifest is empty if it has not begun."""
        return cls(
            folder.name,
            folder,
            read_manifest(folder, "hydra.sweep.dir") if has_manifest(folder) else {},
        )

    @property
    def settings(self) -> dict[str, str]:
        """Values by key, of its overrides."""
        return settings_of(self.manifest.get("overrides") or [])

    @property
    def status(self) -> str:
        """As in the manifest, or "pruned"; "killed" if it is unfinished and no process runs it."""
        status = state_of(self.path, self.manifest)
        return "pruned" if status == "done" and self.manifest.get("reason") == PRUNING else status

    @property
    def metric(self) -> str:
        """The name of `value`."""
        return str(self.manifest.get("monitor") or "value")

    @property
    def metrics(self) -> dict[str, float]:
        """What validation measured in the best epoch; empty unless the job is at its end."""
        best = self.manifest.get("best") or {} if self.status in FINISHED else {}
        return {key[4:]: value for key, value in best.items() if key.startswith("val/")}

    @property
    def value(self) -> float | None:
        """The best value of the monitored metric."""
        return self.metrics.get(self.metric)

    @property
    def error(self) -> str:
        """Why it failed, in a line."""
        return str(self.manifest.get("error", "")) if self.status == "failed" else ""


def jobs_of(folder: Path) -> list[Job]:
    """The jobs of the sweep in `folder` that have begun, by their settings."""
    jobs = []
    for path in sorted(
        {one.parent for one in folder.rglob(MANIFEST) if one.stat().st_size} - {folder}
    ):
        try:
            jobs.append(Job.read(path))
        except ConfigError as error:  # it is damaged
            jobs.append(
                Job(
                    path.name,
                    path,
                    {"status": "failed", "error": str(error), "exit_code": error.exit_code},
                )
            )
    return sorted(
        jobs,
        key=lambda job: [
            (float(value), "") if _NUMBER.fullmatch(value) else (math.inf, value)
            for value in job.settings.values()
        ],
    )


def note(folder: Path, **facts: Any) -> None:
    """Add facts to the manifest of a job that no run has claimed, or whose run has ended."""
    write_manifest(folder, {**Job.read(folder).manifest, **facts})


def run_job(
    accept: Callable[[Path], Config],
    task: Callable[[Config], float | None],
    report: Callable[[BaseException], int],
) -> float:
    """Run the job that Hydra has composed, unless it is done or another process runs it.

    Args:
        accept: returns the checked configuration of the job in that folder, or raises.
        report: prints an error, and returns the exit code for it.

    Returns:
        The value of the task; NaN for a job that failed or was left alone, which sweepers take as
        a failed trial.

    Raises:
        KeyboardInterrupt, SystemExit: the sweep ends.
    """
    hydra, config, code, value = HydraConfig.get(), None, 0, None
    folder, words = Path(hydra.runtime.output_dir), list(map(str, hydra.overrides.task))
    try:
        with lock(folder / LOCK):
            if is_locked(folder / HOLDER):  # by ranks that live on after their sweep was killed
                raise BlockingIOError
            config = accept(folder)
            job = Job.read(folder)
            if job.status in FINISHED:
                then = job.manifest.get("fingerprint", {})
                for key, now in fingerprint(config, {}, 0).items():
                    if key != SCHEDULES and then.get(key, now) != now:  # by a YAML that has changed
                        raise ConfigError(
                            Problem(
                                key,
                                f"is {now} here and was {then[key]} when this job was done; give "
                                "the sweep another folder: hydra.sweep.dir=...",
                            )
                        )
                say(f"job {job.name}: done before, {job.metric} {job.value}")
                return math.nan if job.value is None else job.value
            say(f"job {job.name}: {' '.join(words) or '(defaults)'}")
            if not job.manifest.get("sessions"):  # it failed before it became a run
                (folder / MANIFEST).unlink(missing_ok=True)
            elif config.task == "fit":
                config = config.model_copy(update={"resume": "auto"})
            value = task(config)
            if has_manifest(folder):  # of ranks too, which are other processes
                value = Job.read(folder).value
            else:
                best = {"val/value": value} if math.isfinite(value or 0) else {}
                note(folder, status="done", best=best, overrides=words)
    except BlockingIOError:
        say(f"job {folder.name}: another process runs it, and it is left alone")
    except (Exception, stop.Stop) as error:
        code, text = report(error), (str(error) or repr(error)).partition("\n")[0]
        if code != PREEMPTED:
            with suppress(ConfigError):  # a damaged manifest says itself that the job failed
                note(folder, status="failed", error=text, exit_code=code, overrides=words)
    requeues = callable(signal.getsignal(signal.SIGUSR1))  # submitit, which waits for it
    if code == PREEMPTED and os.environ.get("SUBMITIT_EXECUTOR") == "slurm" and requeues:
        signal.raise_signal(signal.SIGUSR1)
    # Before there is a configuration, a request to stop is one to the sweep, whatever it would say.
    then = (
        (config.sweep.on_preempted if config else "stop")
        if code == PREEMPTED
        else config and config.sweep.on_failure
    )
    if code and then == "stop" and "SUBMITIT_EXECUTOR" not in os.environ:
        raise SystemExit(code)  # through Hydra, also from joblib's processes
    return math.nan if value is None else value


def values_of(override: Any) -> list[str]:
    """The lines that Hydra's override of one key is made of in a sweep; the ends of an interval."""
    if not override.is_sweep_override():
        return [str(override.input_line)]
    key, value = override.get_key_element(), override.value()
    ends = (value.start, value.end) if override.is_interval_sweep() else None
    if not (values := list(ends or override.sweep_string_iterator())):
        raise ConfigError(Problem(key, f"{override.input_line} has no values"))
    return [f"{key}={value}" for value in values]


@contextmanager
def running(words: Sequence[str], config_name: str) -> Iterator[str]:
    """Check a command line with `-m`, and let Hydra run its jobs in here; the table follows.

    Yields:
        A word that Hydra needs besides.

    Raises:
        ConfigError: with all that is wrong in any of the jobs.
        SystemExit: with the exit code of the first job that failed.
    """
    from penstock.addons.reports.report import of_sweep

    if world.is_launched():
        raise ConfigError(
            "a sweep starts the ranks of each of its jobs itself; run it with "
            f"{program.text('-m')}, and not under torchrun or srun"
        )
    os.environ["PENSTOCK_SWEEP"] = job_name([one for one in words if not one.startswith("hydra")])
    loader = compose.open_loader((), config_name)  # whose grammar is asked alone
    typed = [compose.parse(word, loader) for word in words]
    fixed = [str(one.input_line) for one in typed if not one.is_sweep_override()]
    base, problems, _ = compose.load(fixed, config_name)
    folders = compose.resolved(base.hydra.sweep, problems)
    problems += [
        Problem("run_dir", "a sweep names the folders of its jobs, below hydra.sweep.dir=...")
        for one in typed
        if one.key_or_group == "run_dir"
    ]
    compose.refuse(problems)
    if base.sweep.get("optuna"):
        try:
            from penstock.addons.sweeps.optuna_sweeper import register
        except ImportError as error:
            raise ConfigError(
                Problem(
                    "sweep",
                    f"{error}: pip install 'penstock-loader[optuna]', or choose sweep=grid",
                )
            ) from error
        register()
    params = base.hydra.sweeper.get("params") or {}
    swept = [compose.parse(f"{key}={value}", loader) for key, value in params.items()] + typed
    lines = list({one.get_key_element(): values_of(one) for one in swept}.values())
    say("a sweep over", *(one.input_line for one in swept if one.is_sweep_override()))
    of_jobs: dict[Problem, str] = {}
    # Each value of a key once, with the first one of others: a large grid would take minutes. What
    # two values do to each other, their job says as it starts.
    for number, job in enumerate(itertools.zip_longest(*lines)):
        words = [one or several[0] for one, several in zip(job, lines, strict=True)]
        try:
            compose.compose(*words, config_name=config_name)
        except ConfigError as error:
            where = f" (in the job {' '.join(filter(None, job))})" * bool(number)
            of_jobs = dict.fromkeys(error.problems, where) | of_jobs
    if of_jobs:
        raise ConfigError(Problem(one.key, one.message + where) for one, where in of_jobs.items())
    folder, config = Path(str(folders["dir"])), compose.resolved(base, [])
    # A launcher's programs are asked to stop as others are.
    os.environ.setdefault("SUBMITIT_PREEMPT_SIGNAL", "USR1")
    prepare(folder)
    try:
        # A pattern such as ${now:%H} may give each process another folder.
        yield program.override("hydra.sweep.dir", folder)
    finally:
        if jobs := jobs_of(folder):
            # The folder may have jobs of other grids; how many Optuna runs is a key.
            count = 0 if base.sweep.get("optuna") else math.prod(map(len, lines))
            show(folder, jobs, max(count, len(jobs)))
            of_sweep(config, folder)
    if code := next(
        (job.manifest.get("exit_code", 1) for job in jobs if job.status == "failed"), 0
    ):
        raise SystemExit(code)


def tables(jobs: Sequence[Job]) -> tuple[Any, Any, list[str], str]:
    """Tables of a sweep: a row a job; a row for each setting, which seeds and folds may repeat: the
    mean, how many jobs have a value, and the standard deviation over each. The keys that vary; and
    which setting was best, in words.
    """
    import pandas

    metric = next((job.metric for job in jobs if job.value is not None), "value")
    frame = pandas.DataFrame(
        {
            "job": job.name,
            **job.settings,
            "status": job.status,
            "error": job.error or None,
            metric: job.value,
            **job.metrics,
        }
        for job in jobs
    )
    varied = [
        key
        for key in sorted({key for job in jobs for key in job.settings})
        if len(jobs) == 1 or frame[key].nunique(dropna=False) > 1
    ]
    settings = [key for key in varied if key not in REPEATED]
    by: Any = settings or (lambda row: "")
    columns = {f"mean {metric}": (metric, "mean"), "jobs": (metric, "count")}
    summary = frame.groupby(by, sort=False, dropna=False).agg(**columns)
    for key in sorted({*varied} - {*settings}):  # of the mean for each seed, or fold
        each = frame.groupby([*settings, key], dropna=False)[metric].mean()
        summary[f"over {REPEATED[key]}"] = each.groupby(by, dropna=False).std()
    summary = summary.reset_index(drop=not settings)
    best = frame[frame["status"] == "done"]
    if len(summary) < len(frame) and summary["jobs"].any():
        # A setting that lacks jobs may have run the easiest fold alone.
        best, metric = summary[summary["jobs"] == summary["jobs"].max()], f"mean {metric}"
    ascending = all(job.manifest.get("mode") != "max" for job in jobs)
    best = best.dropna(subset=metric).sort_values(metric, ascending=ascending, kind="stable")
    of = " ".join(f"{key}={best[key].iloc[0]}" for key in varied if key in best and len(best))
    return (
        *(frame, summary, varied),
        "" if best.empty else f"{metric} {best[metric].iloc[0]:.4g} with {of or '(defaults)'}",
    )


def show(folder: Path, jobs: Sequence[Job], count: int) -> None:
    """Print and write the tables of a sweep of `count` jobs, of which some have begun."""
    frame, summary, varied, best = tables(jobs)
    for name, made in {TABLE: frame, MEANS: summary}.items():
        write_atomically(folder / name, made.to_csv(index=False, float_format="%.6g").encode())
    shown: Any = {"index": False, "na_rep": "", "float_format": "{:.6g}".format}
    done = int(frame["status"].isin(FINISHED).sum())
    more = "; the same command runs the others" * (done < count)
    put(f"{done} of {count} jobs in {folder} are done{more}")
    kept = [name for name in frame if name in varied or name not in jobs[0].settings]
    put(frame[kept].dropna(axis=1, how="all").to_string(**shown))
    if len(summary) < len(frame) and summary["jobs"].any():
        put(summary.to_string(**shown))
    if best:
        put(f"best: {best}")
