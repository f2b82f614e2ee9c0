"""What the report of a sweep has below its leaderboard."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.addons.reports import page, sweep_charts, values
from penstock.addons.reports.charts import size_of
from penstock.addons.reports.importance import Importance, importance
from penstock.addons.reports.page import Section
from penstock.addons.reports.same_data import Relation, SameData
from penstock.addons.reports.settings import started_by
from penstock.addons.reports.sweep_charts import short
from penstock.addons.reports.sweep_data import FINISHED, LONGEST, SweepJob, SweepRecord
from penstock.addons.sweeps.repetitions import REPEATED
from penstock.loading.known_by import ADVICE, relation

_MOST_KEYS = 8  # charts of keys
_MOST_CLASSES = 64  # of jobs with the same data, in the matrix


def what_matters(sweep: SweepRecord) -> Section | None:
    """Importance of the keys, and the metric over each key."""
    done = [job for job in sweep.jobs if job.value is not None]
    ranks = [sweep.rank(job.value) for job in done]
    weights = importance([job.settings for job in done], ranks, sweep.varying)
    keys = [key for key in sweep.varying if key not in REPEATED] or sweep.varying
    keys = sweep_charts.worth_drawing(sweep, keys, weights)[:_MOST_KEYS]
    parts = []
    weighed = sorted({**weights.variance, **weights.optuna}, key=lambda key: -weights.of(key))
    if weighed:
        head = ["key", "share of the variance", "as a bar", *(["optuna"] if weights.optuna else [])]
        rows = []
        for key in weighed:
            share, best = weights.variance.get(key), weights.optuna.get(key)
            rows.append(
                [
                    key,
                    "" if share is None else f"{share:.0%}",
                    page.part("bar", share or 0),
                    *(["" if best is None else f"{best:.0%}"] if weights.optuna else []),
                ]
            )
        parts += [
            page.table("Importance of the keys", head, rows, [1, 3]),
            page.paragraph(_how_important(weights)),
        ]
    size = size_of(len(keys))
    parts.append(page.charts_of(sweep_charts.scatter(sweep, key, size) for key in keys))
    return Section("What matters", page.together(*parts)) if keys or weighed else None


def _how_important(weights: Importance) -> str:
    text = (
        "A share of the variance is what a key explains alone, adjusted for how many values it has."
    )
    if noise := [key for key in REPEATED if key in weights.variance]:
        text += f" The share of {' and '.join(noise)} is noise, and so may be the keys below it."
    if weights.optuna:
        text += (
            " Optuna's importance (PED-ANOVA) is what distinguishes the best tenth of the "
            "jobs from all of them."
        )
    return text


def curves(sweep: SweepRecord) -> Section | None:
    """The metric and the training loss of all jobs, over each other."""
    metric = sweep.metric.removeprefix("val/")
    titles = {
        f"val/{metric}": f"Validation {short(metric)}",
        "val/loss": "Validation loss",
        "train/loss": "Training loss",
    }
    names = [name for name in titles if sweep_charts.has_curves(sweep, name)]
    drawn = []
    for place, name in enumerate(names):
        title = titles[name] + (", in the same colours" if place else "")
        size = size_of(len(names) - 1) if place else "broad"
        drawn.append(sweep_charts.curves(sweep, name, title, size))
    return Section("Curves", page.charts_of(drawn)) if drawn else None


def same_data(sweep: SweepRecord) -> Section | None:
    """Which jobs saw the same batches, and where others part."""
    compared = SameData.of([job.run for job in sweep.jobs])
    if not compared.classes:
        return None
    names = [_letters(number) for number in range(len(compared.classes))]
    jobs = [[sweep.jobs[number] for number in members] for members in compared.classes]
    rows = [
        (name, _listed(own), _shared(sweep, own)) for name, own in zip(names, jobs, strict=True)
    ]
    begun, classes = sum(map(len, jobs)), len(jobs)
    whole = f"All {begun} jobs" if begun == len(sweep.jobs) else f"The {begun} jobs"
    whole = "Both jobs" if begun == len(sweep.jobs) == 2 else whole
    lead = (
        f"{whole} saw the same batches."
        if classes == 1 and begun > 1
        else f"{begun} jobs saw {classes} different sequences of batches. Jobs of one row saw the "
        "same: the same samples in the same order, made by the same settings."
    )
    caption = "Jobs that saw the same batches"
    if compared.alike:
        caption = "Jobs that read the same rows"
        lead = (
            f"{whole} read the same rows in the same order."
            if classes == 1
            else f"{begun} jobs read {classes} different sequences of rows."
        )
        lead += (
            " Whether their batches were the same is not known: the data has no fingerprint, "
            f"and few of its rows were compared; {ADVICE}."
        )
    parts = [page.paragraph(lead), page.table(caption, ("row", "jobs", "settings in common"), rows)]
    if classes > 1:
        size = min(classes, _MOST_CLASSES)
        cells = [[_cell(compared.relation(a, b)) for b in range(size)] for a in range(size)]
        caption = "Where each two part: the first epoch and step whose samples differ"
        parts += [
            page.part("matrix", caption, names[:size], cells),
            page.paragraph(
                "= the same batches as far as both went; ~ the same rows, of data that is not "
                "known to be the same; an address e·s is the first at which the "
                "samples differ; ≈ the same samples, made into other batches by other settings or "
                "code; ≠ other data, or other samples from an unknown address on; ? unknown, as a "
                "ledger is missing (trainer.ledger=true)."
            ),
        ]
    recorded = {number for members in compared.classes for number in members}
    silent = [job for number, job in enumerate(sweep.jobs) if job.run and number not in recorded]
    if silent:
        parts.append(page.paragraph(f"No batch is recorded of {_listed(silent)}."))
    if classes > _MOST_CLASSES:
        parts.append(page.paragraph(f"The matrix shows {_MOST_CLASSES} of {classes} rows."))
    parts += [page.paragraph(text) for text in compared.troubles[:10]]
    return Section("Same data", page.together(*parts))


def _cell(relation: Relation) -> tuple[str, str, str]:
    """Text, CSS class and explanation of a cell."""
    keys = ", ".join(short(key) for key in relation.keys[:5])
    if relation.kind == "part" and relation.address is not None:
        epoch, step = relation.address
        parted = f"part at epoch {epoch}, step {step}, after {relation.batches} equal batches"
        return f"{epoch}·{step}", "part", parted
    compared = f", {relation.batches} compared" if relation.batches is not None else ""
    return {
        "same": ("=", "same", f"the same batches{compared}"),
        "alike": ("~", "unknown", "the same rows, of data that is not known to be the same"),
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
        f"{key}={value}"
        for key, value in common.items()
        if value is not None and all(job.settings.get(key) == value for job in jobs)
    )


def _letters(number: int) -> str:
    """A, B ... Z, AA, AB ..."""
    text = ""
    while number >= 0:
        text = chr(ord("A") + number % 26) + text
        number = number // 26 - 1
    return text


def cost(sweep: SweepRecord) -> Section:
    """What the jobs took: measured wall and CPU time, and what they used in common."""
    begun = [job for job in sweep.jobs if job.seconds]
    results = [job.result for job in sweep.jobs if job.result is not None]
    seconds = sum(job.seconds for job in begun)
    started = [result.started for result in results]
    wall = max((result.started + result.seconds for result in results), default=0) - min(
        started, default=0
    )
    wall = min(wall, LONGEST)
    at_once = f"{seconds / wall:.1f} at a time" if wall > 0 else ""
    cpu = [result.cpu_seconds for result in results if result.cpu_seconds is not None]
    lost = sum(job.seconds for job in begun if job.status not in FINISHED)
    numbers: list[tuple[str, object, object]] = [
        ("all jobs together", values.duration(seconds), f"{len(begun)} jobs, one after another"),
        ("from first to last", values.duration(wall), at_once),
    ]
    if cpu:
        note = f"measured, with workers, in the last start of {len(cpu)} jobs"
        hours = sum(cpu) / 3600
        used = values.duration(3600 * hours) if hours < 0.1 else f"{hours:.3g} CPU hours"
        numbers.append(("CPU time", used, note))
    if begun:
        numbers.append(
            (
                "a job",
                values.duration(seconds / len(begun)),
                f"mean; longest {values.duration(max(job.seconds for job in begun))}",
            )
        )
    if lost:
        numbers.append(("not to the end", values.duration(lost), "spent in jobs that are not done"))
    return Section("Cost", page.together(page.figures(numbers), page.facts(_in_common(sweep))))


def _in_common(sweep: SweepRecord) -> dict[str, object]:
    """Data and hardware, as far as the manifests name them."""
    runs = [job.run for job in sweep.jobs if job.run is not None]
    facts: dict[str, object] = {}
    data = [run.manifest.get("data") for run in runs]
    prints = {str(identity.get("train")) for identity in data if isinstance(identity, dict)}
    compared = [relation(data[0], identity) for identity in data]
    if len(prints) == 1 and len(runs) > 1 and all(identity.same for identity in compared):
        facts["data"] = f"all jobs read the same, fingerprint {short(next(iter(prints)))}"
    elif len(prints) > 1:
        facts["data"] = f"{len(prints)} different fingerprints"
    elif prints and len(runs) > 1:
        other = next((identity for identity in compared if identity.same is False), compared[0])
        facts["data"] = short(other.why, 200)
    ranks = sorted({str(session.get("world", 1)) for run in runs for session in run.sessions})
    machines = {(str(run.manifest.get("platform")), str(run.manifest.get("cpus"))) for run in runs}
    if runs:
        facts["ranks a job"] = short(", ".join(ranks))
        facts["machines"] = "; ".join(
            short(f"{name}, {cpus} CPU cores") for name, cpus in sorted(machines)[:5]
        )
    return facts


def settings(sweep: SweepRecord) -> Section:
    """What all jobs share, and how they were started."""
    command = next((started_by(job.run) for job in sweep.jobs if job.run), None)
    rows = list(sweep.common.items())
    return Section(
        "Settings",
        page.together(
            page.table("Overrides that all jobs share", ("key", "value"), rows) if rows else None,
            page.facts(
                {
                    "started by": command,
                    "folder": sweep.path,
                    "keys that vary": ", ".join(sweep.varying),
                }
            ),
        ),
    )
