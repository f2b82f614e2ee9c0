"""The data in a run's report: what there was, how often it was drawn, and what was left out;
samples of the first training batches, and validation's best and worst.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from itertools import pairwise
from pathlib import PurePath

from markupsafe import Markup

from penstock.addons.reports import charts, page
from penstock.addons.reports.facts import (
    MADE,
    DataFacts,
    Facts,
    LengthFacts,
    ShownBatch,
    ShownSample,
    SplitFacts,
    read_facts,
)
from penstock.addons.reports.figures import drawing, label_numbers, label_powers, numeral
from penstock.addons.reports.page import Section
from penstock.addons.reports.values import replay
from penstock.errors import PenstockError
from penstock.files.regular_file import TooLargeError, read_bounded
from penstock.runs.record import RunRecord
from penstock.terminal import one_line

TITLE = "Data"
_SHOWN = 20  # values of a column; more are folded
_NAMED = 20  # samples that were left out


def section(run: RunRecord) -> Section:
    """Rows, fingerprints, the balance of classes, lengths, the order, and what was left out."""
    parts: list[Markup] = []
    try:
        facts = read_facts(run.path)
    except PenstockError as error:
        facts = None
        parts.append(page.paragraph(str(error)))
    data = facts.data if facts else None
    fingerprints = run.manifest.get("data")
    if data is not None:
        rows = [
            (
                split.name,
                split.dataset,
                "a stream" if split.rows is None else f"{split.rows:,}",
                split.fingerprint,
            )
            for split in data.splits
        ]
        head = ["split", "dataset", "rows", f"fingerprint, by {data.mode}"]
        parts.append(page.table("Splits", head, rows, numbers=[2]))
        names = dict.fromkeys(column.name for split in data.splits for column in split.columns)
        parts += [_balance(data, name) for name in names]
        measured = [(split, split.lengths) for split in data.splits if split.lengths]
        drawn = [_histogram(*pair, charts.size_of(len(measured))) for pair in measured]
        parts += [page.charts_of(drawn)] if drawn else []
    elif isinstance(fingerprints, dict):
        texts = {name: str(fingerprints.get(name) or "") for name in ("train", "val")}
        parts.append(page.facts({f"fingerprint of {name}": text for name, text in texts.items()}))
    parts.append(_left_out(run))
    order = run.manifest.get("order")
    if isinstance(order, str) and order:
        parts.append(page.facts({"order of the samples": order}))
        parts.append(
            page.paragraph(
                "Runs with the same order read rows of the same numbers in the same batches; "
                "task=verify finds the first that differ."
            )
        )
    return Section(TITLE, page.together(*parts))


def _balance(data: DataFacts, name: str) -> Markup:
    """How often each value of a column occurs in each split, and is drawn in epoch 0."""
    counts: dict[str, dict[str, int]] = {}  # of each value, by what was counted
    others, drawn = 0, ""
    for split in data.splits:
        for column in (column for column in split.columns if column.name == name):
            counts[split.name] = dict(zip(column.values, column.rows, strict=True))
            others += column.others
            if column.drawn:
                drawn = "drawn in epoch 0"
                counts[drawn] = dict(zip(column.values, column.drawn, strict=True))
    values = list(dict.fromkeys(value for rows_of in counts.values() for value in rows_of))
    shares = {
        key: {value: rows_of.get(value, 0) / (sum(rows_of.values()) or 1) for value in values}
        for key, rows_of in counts.items()
    }
    largest = max((share for of in shares.values() for share in of.values()), default=0) or 1
    rows = [
        (
            value,
            [
                {
                    "count": f"{counts[key].get(value, 0):,}",
                    "share": f"{of[value]:.1%}",
                    "width": round(100 * of[value] / largest, 2),
                }
                for key, of in shares.items()
            ],
        )
        for value in values
    ]
    caption = f"How often each {name} occurs"
    if drawn and data.drawn != data.places:
        caption += f"; draws are the first {data.drawn or 0:,} of the epoch"
    table = page.part("balance", caption, list(shares), rows, template="samples.html")
    if others:
        rest = f"{others:,} more rows have values that are not listed."
        table = page.together(table, page.paragraph(rest))
    return page.folded(f"{caption}: {len(rows)} values", table) if len(rows) > _SHOWN else table


@drawing()
def _histogram(split: SplitFacts, lengths: LengthFacts, size: charts.Size) -> Markup:
    edges, figures = lengths.edges, []
    widths = [right - left for left, right in pairwise(edges)]
    for part_of_row in charts.sizes(size):
        figure, axes = charts.new_axes(part_of_row)
        axes.bar(
            edges[:-1],
            lengths.counts,
            widths,
            align="edge",
            color=charts.COLORS[0],
            linewidth=0.5,
            edgecolor="none",
        )
        label_numbers(axes.xaxis)
        label_numbers(axes.yaxis)
        if min(edges) > 0 and max(widths) > 3 * min(widths):
            axes.set_xscale("log")
            label_powers(axes.xaxis)
        axes.set_xlabel(one_line(lengths.unit))
        axes.set_ylabel("rows")
        charts.make_room(figure, axes)
        figures.append(figure)
    title = f"Lengths, {split.name}"
    summary = (
        f"From {numeral(lengths.least)} to {numeral(lengths.most)} {lengths.unit}, half of them "
        f"below {numeral(lengths.median)}"
    )
    return charts.embed(figures, title, summary, size=size)


def _left_out(run: RunRecord) -> Markup:
    options = run.config.get("bad_samples")
    listed = options.get("quarantine") if isinstance(options, dict) else None
    note = page.paragraph(f"The samples in {listed} were not read at all.") if listed else None
    if not run.left_out:
        return page.together(page.paragraph("No sample was left out by this run."), note)
    rows = [(row.split, row.index, row.path, row.cause) for row in run.left_out[:_NAMED]]
    count = f"{len(run.left_out):,} sample{'s' if len(run.left_out) > 1 else ''}"
    more = "" if len(rows) == len(run.left_out) else f"; the first {len(rows)} of quarantine.csv"
    table = page.table(
        f"Left out, as they could not be read: {count}{more}",
        ["split", "row", "file", "cause"],
        rows,
        numbers=[1],
    )
    return page.together(table, note)


_SAMPLES = "Samples"
_TINY = 64  # pixels of a picture's width, up to which it was kept as small as it is
_SHAPES = {
    "views": "wide-ones",
    "signals": "wide-ones",
    "recordings": "wide-ones",
    "clips": "strips",
    "boxes": "marked",
    "masks": "marked",
    "series": "wide-ones",
}
_EXPLAINED = {
    "views": " The views of one image are side by side.",
    "recordings": " Above is the recording as it is stored, below what the model got of it: time "
    "from left to right, the lowest band at the bottom.",
    "masks": " Masks lie over grey, each class in a colour of its own.",
    "clips": " Frames of a clip stand side by side.",
    "signals": " Time goes from left to right.",
    "series": " Time goes from left to right: the past is grey, and what followed is green.",
}


def samples(run: RunRecord) -> Section | None:
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
    return Section(_SAMPLES, page.together(*parts))


PAIRS = "pairs.png"  # which the fit draws, of an objective that has a matrix
_LARGEST = 1 << 20  # bytes of it
_PNG = b"\x89PNG\r\n\x1a\n"


def pairs(run: RunRecord) -> Section | None:
    """How like pictures and captions are, as the fit drew it; None where it did not."""
    try:
        picture = read_bounded(run.path / PAIRS, _LARGEST)
    except (OSError, TooLargeError):
        return None
    if not picture.startswith(_PNG):
        return None
    text = (
        "Each row is a picture of validation, each column a caption; the number is the cosine "
        "between their places. On the diagonal, in bold, are the pairs."
    )
    uri = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
    alt = "A matrix of the likeness of pictures and captions"
    image = Markup('<img src="{}" alt="{}" style="max-width: 100%">').format(uri, alt)
    return Section("Pairs", page.together(page.paragraph(text), image))


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
            without_empty=True,
        ),
        page.command(line, "To make this batch again:") if line else None,
    )


def _heading(text: str) -> Markup:
    return Markup("<h3>{}</h3>").format(page.shown(text))


def _predictions(facts: Facts) -> Markup:
    kind = facts.batches[0].kind if facts.batches else ""
    is_made = all(prediction.group == MADE for prediction in facts.predictions)
    parts = [] if is_made else [_heading("Predictions of validation")]
    losses = facts.losses
    if losses is not None:
        text = f"Chosen by their loss in the validation of epoch {losses.epoch}"
        if losses.quantiles:
            least, _, median, _, high, most = (
                numeral(quantile, 3) for quantile in losses.quantiles
            )
            text += (
                f": of {losses.samples:,} samples, half have a loss below {median}, 95 % "
                f"below {high}; the least is {least}, the largest {most}"
            )
        if losses.ranks > 1:
            text += f". They are the first rank's share, of {losses.ranks} ranks"
        if losses.by_batch:
            text += ". The loss is one number a batch, so these are samples of such batches"
        parts.append(page.paragraph(f"{text}."))
    elif not is_made:
        parts.append(page.paragraph("Spread evenly, as there is no loss of each sample."))
    if kind == "masks":
        text = (
            "The true mask is on the left, the predicted one on the right; a class has one colour."
        )
        parts.append(page.paragraph(text))
    elif kind != "views" and any(
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
        return page.together(
            *parts, page.table("Predictions", head, rows, [0, 5], without_empty=True)
        )
    groups = []
    for group in dict.fromkeys(prediction.group for prediction in facts.predictions):
        chosen = [prediction for prediction in facts.predictions if prediction.group == group]
        title = Markup("<h4>{}</h4>").format(page.shown(group.capitalize()))
        groups.append(page.together(title, _tiles(chosen, kind)))
    return page.together(*parts, page.part("groups", groups, template="samples.html"))


def _tiles(samples: Sequence[ShownSample], kind: str) -> Markup:
    shape = _SHAPES.get(kind, "square")
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
    if sample.group != MADE:
        lines.append(f"row {sample.index}" + (f", {sample.words}" if sample.words else ""))
    row = f"{sample.group}, " if sample.group == MADE else "row "
    words = [f"{row}{sample.index}", truth and f"truth: {truth}", guess and f"prediction: {guess}"]
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
    return "not finite" if value is None else numeral(value, 3)
