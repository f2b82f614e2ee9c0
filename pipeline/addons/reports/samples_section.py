"""Samples in a run's report: the first training batches, and validation's best and worst."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from markupsafe import Markup

from penstock.addons.reports import page
from penstock.addons.reports.facts import Facts, ShownBatch, ShownSample, read_facts
from penstock.addons.reports.page import Section
from penstock.addons.reports.values import replay
from penstock.errors import PenstockError
from penstock.runs.record import RunRecord

TITLE = "Samples"
_TINY = 64  # pixels of a picture's width, up to which it was kept as small as it is
_EXPLAINED = {
    "recordings": " Above is the recording as it is stored, below what the model got of it: time "
    "from left to right, the lowest band at the bottom.",
    "signals": " Time goes from left to right.",
}


def section(run: RunRecord) -> Section | None:
    """Contact sheets of batches, each with the line that makes it again, and predictions."""
    try:
        facts = read_facts(run.path)
    except PenstockError:  # which the section on the data tells
        return None
    if facts is None or not (facts.batches or facts.predictions or facts.notes):
        return None
    parts = [_batch(run, batch) for batch in facts.batches]
    if facts.predictions:
        parts.append(_predictions(facts))
    parts += [page.paragraph(note) for note in facts.notes]
    return Section(TITLE, page.together(*parts))


def _batch(run: RunRecord, batch: ShownBatch) -> Markup:
    count = f"{len(batch.samples)} of its {batch.rows} rows"
    if len(batch.samples) >= batch.rows:
        count = f"its {batch.rows} rows"
    line = replay(run, batch.epoch, batch.step)
    return page.together(
        _heading(f"Training batch: epoch {batch.epoch}, step {batch.step}"),
        page.paragraph(
            f"As the model got it, after augmentation: {count}.{_EXPLAINED.get(batch.kind, '')}"
        ),
        _tiles(batch.samples, batch.kind)
        if any(sample.picture for sample in batch.samples)
        else page.table(
            f"Rows of batch ({batch.epoch}, {batch.step})",
            ["row", "sample", "truth"],
            [(sample.index, sample.words, sample.truth) for sample in batch.samples],
            numbers=[0],
        ),
        page.command(line, "To make this batch again:") if line else None,
    )


def _heading(text: str) -> Markup:
    return Markup("<h3>{}</h3>").format(page.shown(text))


def _predictions(facts: Facts) -> Markup:
    kind = facts.batches[0].kind if facts.batches else ""
    parts = [_heading("Predictions of validation")]
    losses = facts.losses
    if losses is not None:
        text = f"Chosen by their loss in the validation of epoch {losses.epoch}"
        if losses.quantiles:
            least, _, median, _, high, most = (f"{quantile:.3g}" for quantile in losses.quantiles)
            text += (
                f": of {losses.samples:,} samples, half have a loss below {median}, 95 % "
                f"below {high}; the least is {least}, the largest {most}"
            )
        if losses.ranks > 1:
            text += f". They are the first rank's share, of {losses.ranks} ranks"
        if losses.by_batch:
            text += ". The loss is one number a batch, so these are samples of such batches"
        parts.append(page.paragraph(f"{text}."))
    if any(
        prediction.picture and prediction.predicted and not prediction.truth
        for prediction in facts.predictions
    ):
        parts.append(page.paragraph("Drawn in green is the truth, in orange the prediction."))
    if not any(prediction.picture for prediction in facts.predictions):
        rows = [
            (
                prediction.index,
                prediction.group,
                prediction.words,
                prediction.truth,
                _marked(prediction),
                _number(prediction.loss),
            )
            for prediction in facts.predictions
        ]
        head = ["row", "group", "sample", "truth", "prediction", "loss"]
        return page.together(*parts, page.table("Predictions", head, rows, numbers=[0, 5]))
    groups = []
    for group in dict.fromkeys(prediction.group for prediction in facts.predictions):
        chosen = [prediction for prediction in facts.predictions if prediction.group == group]
        title = Markup("<h4>{}</h4>").format(page.shown(group.capitalize()))
        groups.append(page.together(title, _tiles(chosen, kind)))
    return page.together(*parts, page.part("groups", groups, template="samples.html"))


def _tiles(samples: Sequence[ShownSample], kind: str) -> Markup:
    shape = "wide-ones" if kind in ("signals", "recordings") else "square"
    return page.part("tiles", [_tile(sample) for sample in samples], shape, template="samples.html")


def _tile(sample: ShownSample) -> dict[str, object]:
    truth, guess = sample.truth, sample.predicted
    lines = [guess or truth] if guess or truth else []
    if guess and truth and _is_wrong(sample):
        lines.append(f"not {truth}")
    elif guess and truth and not guess.endswith("%"):
        lines.append(f"true {truth}")
    if sample.loss is not None:
        lines.append(f"loss {_number(sample.loss)}")
    lines.append(f"row {sample.index}" + (f", {sample.words}" if sample.words else ""))
    words = [f"row {sample.index}", truth and f"truth: {truth}", guess and f"prediction: {guess}"]
    return {
        "uri": sample.uri,
        "lines": lines,
        "path": sample.path,
        "name": PurePath(sample.path).name,
        "wrong": _is_wrong(sample),
        "alt": ", ".join(filter(None, words)),
        # The width of a PNG, from its header; others are not tiny.
        "tiny": (sample.picture or b"")[1:4] == b"PNG"
        and int.from_bytes((sample.picture or b"")[16:20], "big") <= _TINY,
    }


def _is_wrong(sample: ShownSample) -> bool:
    """Whether the prediction names another class than the truth."""
    name, _, share = sample.predicted.rpartition(" ")
    return bool(sample.truth) and share.endswith("%") and name != sample.truth


def _marked(sample: ShownSample) -> object:
    if _is_wrong(sample):
        return Markup('<span class="wrong">{}</span>').format(page.shown(sample.predicted))
    return sample.predicted


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.3g}"
