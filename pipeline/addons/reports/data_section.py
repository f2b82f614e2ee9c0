"""The data in a run's report: what there was, how often it was drawn, and what was left out."""

from __future__ import annotations

from itertools import pairwise

from markupsafe import Markup

from penstock.addons.reports import page
from penstock.addons.reports.facts import DataFacts, LengthFacts, SplitFacts, read_facts
from penstock.addons.reports.figures import drawing, label_powers
from penstock.addons.reports.page import Section
from penstock.errors import PenstockError
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
        drawn = [_histogram(split, split.lengths) for split in data.splits if split.lengths]
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
def _histogram(split: SplitFacts, lengths: LengthFacts) -> Markup:
    from penstock.addons.reports.charts import COLORS, embed, new_axes

    figure, axes = new_axes()
    edges = lengths.edges
    widths = [right - left for left, right in pairwise(edges)]
    axes.bar(
        edges[:-1],
        lengths.counts,
        widths,
        align="edge",
        color=COLORS[0],
        linewidth=0.5,
        edgecolor="none",
    )
    if min(edges) > 0 and max(widths) > 3 * min(widths):
        axes.set_xscale("log")
        label_powers(axes.xaxis)
    axes.set_xlabel(one_line(lengths.unit))
    axes.set_ylabel("rows")
    title = f"Lengths, {split.name}"
    summary = (
        f"From {lengths.least:,.4g} to {lengths.most:,.4g} {lengths.unit}, half of them "
        f"below {lengths.median:,.4g}"
    )
    return embed(figure, title, summary)


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
