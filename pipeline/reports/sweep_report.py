"""The report of a sweep: `report.html` in its folder, made from the folder's files only.

    path = write(folder)
    is_due(folder)         whether it is time to write it again, while the sweep runs

Sections: leaderboard, what matters, curves, same data, cost, settings. Cost: 2 s for 64 jobs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from statistics import stdev

from markupsafe import Markup

from pipeline import program
from pipeline.files.disk import write_atomically
from pipeline.reports import page, sweep_charts
from pipeline.reports.importance import Importance, importance
from pipeline.reports.page import Section
from pipeline.reports.same_data import Relation, SameData
from pipeline.reports.sweep_charts import short
from pipeline.reports.sweep_data import (
    FINISHED,
    SEED,
    UNDONE,
    SeedGroup,
    SweepJob,
    SweepRecord,
    finite,
)  # fmt: skip
from pipeline.runs.stored_sweep import quoted

NAME = "report.html"

_MOST_ROWS = 20  # of the leaderboard that are not folded
_MOST_METRICS = 5  # columns beside the metric
_MOST_KEYS = 8  # charts of keys
_MOST_CLASSES = 64  # of jobs with the same data, in the matrix
_EVERY = 10.0  # seconds between two reports of a sweep in progress, at least
_SHARE = 0.05  # of a sweep's time that goes into its report


def write(folder: Path, key: str = "runs") -> Path:
    """Make the report of the sweep in `folder`, and return its path.

    Args:
        key: of the configuration that names the folder.

    Raises:
        ConfigError: it is not a sweep's folder.
        DiskError: the report cannot be written.
    """
    global _took
    began = time.monotonic()
    path = folder / NAME
    content = make(SweepRecord.read(folder, key))
    write_atomically(path, content.encode(errors="backslashreplace"))
    _took = time.monotonic() - began
    return path


_took = 0.0  # seconds for the last report of this process


def is_due(folder: Path) -> bool:
    """Whether the report is so old that writing it again takes a small part of the sweep's time."""
    for name in (NAME, "multirun.yaml"):
        with suppress(OSError):
            age = time.time() - (folder / name).stat().st_mtime
            return age >= max(_EVERY, _took / _SHARE)
    return False


def make(sweep: SweepRecord) -> str:
    """The report of a sweep as HTML."""
    weights = _importance(sweep)
    sections = [
        _leaderboard(sweep), _what_matters(sweep, weights), _curves(sweep), _same_data(sweep),
        _cost(sweep), _settings(sweep),
    ]  # fmt: skip
    made = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M")
    foot = f"Made on {made} from the files in {sweep.path}; task=report makes it again."
    return page.render(
        f"Sweep {sweep.path.name}", "a sweep", _lead(sweep), [one for one in sections if one], foot
    )


def _lead(sweep: SweepRecord) -> Markup:
    """How far it came, what was best, and the command that goes on with it."""
    states = (*FINISHED, *UNDONE)
    count = {state: sum(job.status == state for job in sweep.jobs) for state in states}
    undone = ", ".join(f"{number} {state}" for state, number in count.items()
                       if number and state != "done")  # fmt: skip
    whole = sum(count[state] for state in FINISHED) == len(sweep.jobs)
    state = "running" if count["running"] else "done" if whole else "failed"
    word = "unfinished" if state == "failed" else state
    jobs = f"{count['done']} of {len(sweep.jobs)} jobs are done; {undone or 'others ended early'}"
    if count["done"] == len(sweep.jobs):
        jobs = f"All {len(sweep.jobs)} jobs are done"
    line = Markup('<p class="verdict"><span class="state {}">{}</span> {}. {}</p>').format(
        state, word, jobs, _best(sweep)
    )
    again = None
    if any(job.status in UNDONE and job.status != "running" for job in sweep.jobs):
        again = page.command(_resuming(sweep), "To run what is missing:")
    return page.together(line, again)


def _resuming(sweep: SweepRecord) -> str:
    """The command that goes on with it."""
    if sweep.is_stored:
        return program.text("-m", f"resume={quoted(str(sweep.path))}")
    place = f"hydra.sweep.dir={quoted(str(sweep.path))}"
    commands = (job.run.manifest.get("command") for job in sweep.jobs if job.run)
    command = next((one for one in commands if isinstance(one, str)), program.text("-m", "..."))
    return command if "hydra.sweep.dir=" in command else f"{command} {place}"


def _best(sweep: SweepRecord) -> str:
    """The best group, and whether it is further ahead than its seeds are apart."""
    known = [one for one in sweep.groups if one.mean is not None]
    if not known:
        return "No job has a value yet."
    first = known[0]
    text = f"Best {_metric(sweep)} {_number(first.mean)}"
    if not sweep.has_seeds:
        return f"{text} by job {first.jobs[0].name}: {first.name()}."
    text += f" with {first.name()}, the mean of {_seeds(len(first.values))}"
    if len(known) == 1:
        return f"{text}."
    second = known[1]
    ahead = abs((first.mean or 0.0) - (second.mean or 0.0))
    text += f". {second.name()} is {_number(ahead, 2)} behind"
    noise = _standard_error(first, second)
    if noise is None:
        return f"{text}; with one seed each, that may be chance."
    told = "more" if ahead > 2 * noise else "not more"
    return f"{text}, {told} than twice the standard error of {_number(noise, 2)} over the seeds."


def _standard_error(first: SeedGroup, second: SeedGroup) -> float | None:
    """Of the difference of two means; None where a group has a single value."""
    if min(len(first.values), len(second.values)) < 2:
        return None
    return math.sqrt(sum(stdev(one.values) ** 2 / len(one.values) for one in (first, second)))


def _leaderboard(sweep: SweepRecord) -> Section:
    """Groups of seeds, or jobs; those without a value last, with the reason."""
    if not sweep.has_seeds:
        return Section("Leaderboard", _job_table(sweep, "The jobs, the best first"))
    keys = [key for key in sweep.varying if key != SEED]
    head = ["place", f"{_metric(sweep)}, mean", "spread", "seeds", *keys, "best", "worst"]
    rows = []
    for place, group in enumerate(sweep.groups, 1):
        best = min(group.values, key=sweep.rank, default=None)
        worst = max(group.values, key=sweep.rank, default=None)
        rows.append([place if group.values else "–", _number(group.mean), _number(group.spread, 3),
                     f"{len(group.values)} of {len(group.jobs)}",
                     *(group.settings.get(key, "") for key in keys),
                     _number(best), _number(worst)])  # fmt: skip
    numbers = [1, 2, 3, len(head) - 2, len(head) - 1]
    caption = "Settings, the best first; the spread is the standard deviation over the seeds"
    table = page.table(caption, head, rows[:_MOST_ROWS], numbers)
    if rows[_MOST_ROWS:]:
        rest = page.table("The other settings", head, rows[_MOST_ROWS:], numbers)
        title = f"The other {len(rows) - _MOST_ROWS} settings"
        table = page.together(table, page.folded(title, rest))
    undone = [job for job in sweep.jobs if job.value is None]
    return Section("Leaderboard", page.together(
        table,
        _job_table(sweep, "Jobs without a value", undone) if undone else None,
        page.folded(f"Every one of the {len(sweep.jobs)} jobs", _job_table(sweep, "Every job")),
    ))  # fmt: skip


def _job_table(sweep: SweepRecord, caption: str, jobs: Sequence[SweepJob] | None = None) -> Markup:
    jobs = sweep.ranked if jobs is None else jobs
    others = dict.fromkeys(name for job in sweep.jobs if job.result for name in job.result.others)
    metrics = list(others)[:_MOST_METRICS]
    troubled = any(job.trouble for job in jobs)
    head = ["job", _metric(sweep), "status", *sweep.varying, *map(short, metrics), "seconds"]
    rows = []
    for job in jobs:
        own = job.result.others if job.result is not None else {}
        value = _number(job.value) if job.value is not None else _so_far(sweep, job)
        rows.append([
            _link(sweep, job), value, _state(job),
            *(job.settings.get(key, "") for key in sweep.varying),
            *(_number(finite(own.get(name)), 4) for name in metrics), f"{job.seconds:.1f}",
            *([_reason(job)] if troubled else ()),
        ])  # fmt: skip
    numbers = [1, *range(len(sweep.varying) + 3, len(head))]
    return page.table(caption, [*head, *(["what happened"] if troubled else ())], rows, numbers)


def _link(sweep: SweepRecord, job: SweepJob) -> object:
    """The job's name; a link to its report if it has one, which only works beside this page."""
    if not (sweep.path / job.name / NAME).is_file() or not job.name.isalnum():
        return job.name
    return Markup('<a href="{0}/{1}">{0}</a>').format(job.name, NAME)


def _reason(job: SweepJob) -> Markup:
    """Why a job failed; an announcement of further lines, which are not here, is left out."""
    text = job.trouble
    if text.endswith(":") and ". " in text:
        text = text[: text.rindex(". ")]
    return Markup('<span class="long">{}</span>').format(short(text, 300))


def _state(job: SweepJob) -> Markup:
    known = job.status if job.status in (*FINISHED, *UNDONE) else "failed"
    return Markup('<span class="state {}">{}</span>').format(known.replace(" ", "-"), job.status)


def _so_far(sweep: SweepRecord, job: SweepJob) -> str:
    """The best value of a job that has not ended, or failed."""
    name = f"val/{sweep.metric.removeprefix('val/')}"
    found = [(value, one["epoch"]) for one in job.epochs
             if (value := finite(one.get(name))) is not None]  # fmt: skip
    if not found:
        return ""
    value, epoch = min(found, key=lambda one: sweep.rank(one[0]))
    return f"{_number(value)} in epoch {epoch}"


def _importance(sweep: SweepRecord) -> Importance:
    done = [job for job in sweep.jobs if job.value is not None]
    values = [sweep.rank(job.value) for job in done]
    return importance([job.settings for job in done], values, sweep.varying)


def _what_matters(sweep: SweepRecord, weights: Importance) -> Section | None:
    """Importance of the keys, all keys at once, and the metric over each key."""
    keys = [key for key in sweep.varying if key != SEED] or sweep.varying
    keys = sweep_charts.worth_drawing(sweep, keys, weights)[:_MOST_KEYS]
    parts = []
    known = sorted({**weights.variance, **weights.optuna}, key=lambda key: -weights.of(key))
    if known:
        head = ["key", "share of the variance", "", *(["optuna"] if weights.optuna else [])]
        rows = []
        for key in known:
            share, best = weights.variance.get(key), weights.optuna.get(key)
            rows.append(
                [
                    key,
                    "" if share is None else f"{share:.0%}",
                    page.part("bar", share or 0),
                    *(["" if best is None else f"{best:.0%}"] if weights.optuna else []),
                ]
            )
        parts += [page.table("Importance of the keys", head, rows, [1, 3]),
                  page.paragraph(_how_important(weights))]  # fmt: skip
    if len(keys) > 1:
        parts.append(sweep_charts.parallel(sweep, keys))
    parts.append(page.charts_of(sweep_charts.scatter(sweep, key) for key in keys))
    return Section("What matters", page.together(*parts)) if keys or known else None


def _how_important(weights: Importance) -> str:
    text = ("A share of the variance is what a key explains alone, adjusted for how many values "
            "it has.")  # fmt: skip
    if SEED in weights.variance:
        text += " What the seed explains is noise: a key below it cannot be told from chance."
    if weights.optuna:
        text += (" Optuna's importance (PED-ANOVA) is what distinguishes the best tenth of the "
                 "jobs from all of them.")  # fmt: skip
    return text


def _curves(sweep: SweepRecord) -> Section | None:
    """The metric and the training loss of all jobs, over each other."""
    metric = sweep.metric.removeprefix("val/")
    drawn = [sweep_charts.curves(sweep, f"val/{metric}", f"{short(metric)} of the validation")]
    below = ", in the same colours" if drawn[0] else ""
    if metric != "loss":
        drawn.append(
            sweep_charts.curves(sweep, "val/loss", f"Loss of the validation{below}", False)
        )
    drawn.append(sweep_charts.curves(sweep, "train/loss", f"Loss of the training{below}", False))
    drawn = [one for one in drawn if one]
    return Section("Curves", page.charts_of(drawn)) if drawn else None


def _same_data(sweep: SweepRecord) -> Section | None:
    """Which jobs saw the same batches, and where others part."""
    found = SameData.of([job.run for job in sweep.jobs])
    if not found.classes:
        return None
    names = [_letters(place) for place in range(len(found.classes))]
    jobs = [[sweep.jobs[place] for place in one] for one in found.classes]
    rows = [(name, _listed(own), _shared(sweep, own))
            for name, own in zip(names, jobs, strict=True)]  # fmt: skip
    begun, classes = sum(map(len, jobs)), len(jobs)
    whole = f"All {begun}" if begun == len(sweep.jobs) else f"The {begun}"
    lead = (f"{whole} jobs saw the same batches." if classes == 1 and begun > 1 else
            f"{begun} jobs saw {classes} different sequences of batches. Jobs of one row saw the "
            "same: the same samples in the same order, made by the same settings.")  # fmt: skip
    parts = [
        page.paragraph(lead),
        page.table("Jobs that saw the same batches", ("", "jobs", "settings in common"), rows),
    ]
    if classes > 1:
        size = min(classes, _MOST_CLASSES)
        cells = [[_cell(found.relation(a, b)) for b in range(size)] for a in range(size)]
        caption = "Where each two part: the first epoch and step whose samples differ"
        parts += [page.part("matrix", caption, names[:size], cells), page.paragraph(
            "= the same batches as far as both went; an address e·s is the first at which the "
            "samples differ; ≈ the same samples, made into other batches by other settings or "
            "code; ≠ other data, or other samples from an unknown address on; ? unknown, as a "
            "ledger is missing (trainer.ledger=true).")]  # fmt: skip
    known = {place for one in found.classes for place in one}
    silent = [job for place, job in enumerate(sweep.jobs) if job.run and place not in known]
    if silent:
        parts.append(page.paragraph(f"No batch is recorded of {_listed(silent)}."))
    if classes > _MOST_CLASSES:
        parts.append(page.paragraph(f"The matrix shows {_MOST_CLASSES} of {classes} rows."))
    parts += [page.paragraph(text) for text in found.troubles[:10]]
    return Section("Same data", page.together(*parts))


def _cell(relation: Relation) -> tuple[str, str, str]:
    """Text, CSS class and explanation of a cell."""
    keys = ", ".join(short(key) for key in relation.keys[:5])
    if relation.kind == "part" and relation.address is not None:
        epoch, step = relation.address
        said = f"part at epoch {epoch}, step {step}, after {relation.batches} equal batches"
        return f"{epoch}·{step}", "part", said
    compared = f", {relation.batches} compared" if relation.batches is not None else ""
    return {
        "same": ("=", "same", f"the same batches{compared}"),
        "made": ("≈", "made", f"the same samples, made by other settings: {keys}"),
        "data": ("≠", "part", "other data"),
        "differ": ("≠", "part", "other samples, from an unknown address on"),
    }.get(relation.kind, ("?", "unknown", "unknown"))


def _listed(jobs: Sequence[SweepJob], most: int = 20) -> str:
    text = ", ".join(short(job.name, 30) for job in jobs[:most])
    return text if len(jobs) <= most else f"{text} and {len(jobs) - most} more"


def _shared(sweep: SweepRecord, jobs: Sequence[SweepJob]) -> str:
    """The varying settings that all these jobs have in common."""
    common = {key: jobs[0].settings.get(key) for key in sweep.varying}
    return " ".join(
        f"{key}={value}" for key, value in common.items()
        if value is not None and all(job.settings.get(key) == value for job in jobs)
    )  # fmt: skip


def _letters(place: int) -> str:
    """A, B ... Z, AA, AB ..."""
    text = ""
    while place >= 0:
        text = chr(ord("A") + place % 26) + text
        place = place // 26 - 1
    return text


def _cost(sweep: SweepRecord) -> Section:
    """What the jobs took: measured wall and CPU time, and what they used in common."""
    ended = [job.result for job in sweep.jobs if job.result is not None]
    seconds = sum(max(0.0, one.seconds) for one in ended)
    started = [one.started for one in ended]
    wall = max((one.started + one.seconds for one in ended), default=0.0) - min(started, default=0)
    cpu = [one.cpu_seconds for one in ended if one.cpu_seconds is not None]
    lost = sum(one.seconds for one in ended if one.status not in FINISHED)
    numbers: list[tuple[str, object, object]] = [
        ("all jobs together", _time(seconds), f"{len(ended)} jobs, one after another"),
        ("from first to last", _time(wall), f"{seconds / wall:.1f} at a time" if wall else ""),
    ]
    if cpu:
        note = "measured, with workers" + (
            "" if len(cpu) == len(ended) else f"; of {len(cpu)} of {len(ended)} jobs"
        )
        numbers.append(("CPU hours", f"{sum(cpu) / 3600:.3g}", note))
    if ended:
        numbers.append(("a job", _time(seconds / len(ended)), f"mean; longest "
                        f"{_time(max(one.seconds for one in ended))}"))  # fmt: skip
    if lost:
        numbers.append(("not to the end", _time(lost), "spent in jobs that are not done"))
    return Section("Cost", page.together(page.figures(numbers), page.facts(_in_common(sweep))))


def _in_common(sweep: SweepRecord) -> dict[str, object]:
    """Data and hardware, as far as the manifests name them."""
    runs = [job.run for job in sweep.jobs if job.run is not None]
    facts: dict[str, object] = {}
    data = [one.manifest.get("data") for one in runs]
    prints = {str(one.get("train")) for one in data if isinstance(one, dict)}
    if len(prints) == 1 and len(runs) > 1:
        facts["data"] = f"all jobs read the same, fingerprint {short(next(iter(prints)))}"
    elif prints:
        facts["data"] = f"{len(prints)} different fingerprints"
    ranks = sorted({str(session.get("world", 1)) for one in runs for session in one.sessions})
    machines = {(str(one.manifest.get("platform")), str(one.manifest.get("cpus"))) for one in runs}
    if runs:
        facts["ranks a job"] = short(", ".join(ranks))
        facts["machines"] = "; ".join(short(f"{name}, {cpus} CPU cores")
                                      for name, cpus in sorted(machines)[:5])  # fmt: skip
    return facts


def _settings(sweep: SweepRecord) -> Section:
    """What all jobs share, and how they were started."""
    command = next((job.run.manifest.get("command") for job in sweep.jobs if job.run), None)
    rows = list(sweep.common.items())
    return Section("Settings", page.together(
        page.command(str(command), "It was started by") if command else None,
        page.table("Overrides that all jobs share", ("key", "value"), rows) if rows else None,
        page.facts({"folder": sweep.path, "keys that vary": ", ".join(sweep.varying)}),
    ))  # fmt: skip


def _metric(sweep: SweepRecord) -> str:
    return short(sweep.metric, 40)


def _seeds(count: int) -> str:
    return f"{count} seed{'s' * (count != 1)}"


def _number(value: float | None, digits: int = 5) -> str:
    return "" if value is None else f"{value:.{digits}g}"


def _time(seconds: float) -> str:
    if not seconds < 1e9:
        return "unknown"
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 100 else f"{minutes / 60:.1f} h"
