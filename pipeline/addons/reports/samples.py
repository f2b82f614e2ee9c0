"""What only the process of a run knows of its data, for the report: RUN/report/facts.json.

It holds the splits, the first batches of training and predictions of validation, with small
pictures. Batches are made again from their addresses, as `task=replay` does, and only their first
rows: a sample depends on its own key alone. The run has made its last step by then, and generators
are put back.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from penstock.addons.reports import tiles
from penstock.addons.reports.facts import MADE, NAME, Sample, lines_of, read
from penstock.build.data import DataParts, Split
from penstock.files.disk import prepare, write_atomically
from penstock.loading.bad_samples import path_of
from penstock.loading.batch import Batch
from penstock.loading.compose import Compose
from penstock.loading.facts import classes_of, columns_of, own_row, table_of, unfiltered
from penstock.order.keys import IntArray
from penstock.order.plan import End, StreamPlan, length_of
from penstock.order.seeding import scope
from penstock.runs.only_shown import only_shown
from penstock.training.adapter import Objective, Rendered
from penstock.transforms.batch import BatchCompose
from penstock.transforms.image import Normalize

_BATCHES, _ROWS = 2, 16
_SPREAD = 12  # predictions, where no loss of each sample chooses them
_SHEET = 64  # pictures of a batch on a sheet
_STRIP = 8  # frames of a clip, spread evenly over it
_MOST_VALUES = 200  # of a column
_MOST_READ = 20_000  # rows of a dataset whose table is made; it may read headers of files


def write(
    folder: Path,
    data: DataParts,
    objective: Objective | None,
    predictions: Sequence[Sample],
    losses: Mapping[str, Any] | None,
) -> None:
    """Write the facts of a run; without an objective, those that are cheap, of one that failed.

    Args:
        losses: of the validation by which predictions were chosen.
    """
    facts: dict[str, Any] = {"mode": data.config.data.fingerprint, "notes": []}
    with only_shown("a part of the report (the data)"):
        facts["splits"] = [_split(split) for split in data.splits]
    batches = facts["batches"] = []
    if objective is None:
        facts["notes"].append("No samples are shown, since the run was not done.")
    else:
        with only_shown("a part of the report (the first batches)") as failed, _generators():
            batches.extend(_batches(data.train, objective))
        facts["notes"] += [f"The first batches are missing: {reason}" for reason in failed]
    before = read(folder) or {}
    if losses is None and before.get("losses"):  # nothing was validated in this session
        predictions, losses = before["predictions"], before["losses"]
    if objective is not None and not predictions:
        facts["notes"].append("There are no predictions of chosen samples.")
    facts |= {"predictions": predictions, "losses": losses}
    prepare((folder / NAME).parent)
    write_atomically(folder / NAME, json.dumps(facts, indent=1).encode())


def predictions(
    split: Split, model: nn.Module, objective: Objective, groups: Mapping[str, IntArray] | None
) -> list[Sample]:
    """Samples with what the model predicts for them.

    Args:
        groups: rows of the dataset by group, in their order; None: spread evenly over the split.

    Returns:
        None of a stream, in which samples cannot be chosen.
    """
    if isinstance(split.plan, StreamPlan):
        return []
    if groups is None:
        last = len(split.dataset) - 1
        rows = np.unique(np.linspace(0, last, min(last + 1, _SPREAD)).round().astype(np.int64))
        groups = {"spread over the split": rows}
    by_row = {int(row): name for name, rows in groups.items() for row in rows}
    with _generators():
        batch, losses, outputs = _predicted(split, model, objective, np.array([*by_row], np.int64))
    shown = getattr(getattr(objective, "own", objective), "shown", None)
    if shown is not None:  # an objective whose model makes pictures
        made = list(shown(outputs, batch))[:_SPREAD]
        return [
            {"row": row, "group": MADE, "uri": _uri(tiles.tile(picture, Rendered()))}
            for row, picture in enumerate(made)
        ]
    samples = {
        sample["row"]: sample | {"group": by_row[sample["row"]], "loss": _finite(loss)}
        for sample, loss in zip(
            _samples(split, objective, batch, outputs), losses.tolist(), strict=True
        )
    }
    return [samples[row] for row in by_row if row in samples]


def draw(
    chosen: Sequence[Sample], split: Split, model: nn.Module, objective: Objective, folder: Path
) -> Path | None:
    """Predictions as RUN/predictions.png, or predictions.md where they are words."""
    examples = objective.examples(model, split.dataset, split.transform, _SPREAD)
    if examples is not None:
        return _listed(examples, folder) if examples else None
    if not chosen:
        return None
    if any("uri" in sample for sample in chosen):
        sheet = [
            (
                base64.b64decode(sample["uri"].partition(",")[2]),
                [line for line in lines_of(sample) if not line.startswith("row ")],
                bool(sample.get("wrong")),
            )
            for sample in chosen
            if "uri" in sample
        ]
        return tiles.sheet(sheet, folder / "predictions.png")
    head = ("row", "sample", "true", "predicted")
    rows = [(str(s["row"]), s["words"], s["truth"], s["predicted"]) for s in chosen]
    return _listed([head, *rows], folder)


def draw_batch(split: Split, batch: Batch, folder: Path) -> Path | None:
    """A sheet of a batch of pictures with their landmarks, or of clips, as batch.png; else None."""
    name = next((name for name in ("video", "image") if name in batch), "")
    images = batch.get(name)
    if not is_pictures(images) and not is_clips(images):
        return None
    shown = _as_the_model_saw(split, name, batch)[:_SHEET]
    labels, points = batch.get("label"), batch.get("landmarks")
    sheet = []
    for row, image in enumerate(shown):
        view = Rendered(points=None if points is None else points[row])
        label = f": {labels[row].item()}" if isinstance(labels, Tensor) and labels.ndim == 1 else ""
        tile = tiles.tile(image, view, strip=is_clips(images))
        sheet.append((tile, [f"{int(batch.indices[row])}{label}"], False))
    return tiles.sheet(sheet, folder / "batch.png")


@contextmanager
def _generators() -> Iterator[None]:
    """Put back the generators of this process and of its GPU."""
    is_there = torch.cuda.is_initialized()
    devices = [torch.cuda.current_device()] if is_there else []
    with scope(), torch.random.fork_rng(devices):
        yield


def _split(split: Split) -> dict[str, Any]:
    """Name, dataset, rows and fingerprint of a split, and how often values of columns occur."""
    dataset, rows = split.dataset, length_of(split.dataset)
    target = str(split.config.objective.get("target", "label"))
    columns: Mapping[str, Any] = {}
    if rows is not None and not isinstance(split.plan, StreamPlan):
        columns = columns_of(dataset, split.data.fields)
        announced = getattr(dataset, "columns", None)
        offered = target in announced if announced is not None else False
        if target not in columns and offered and rows <= _MOST_READ:
            table = table_of(dataset, split.data.fields)
            columns = {} if table is None else {target: table[target].to_numpy()}
    counts = {}
    for name in dict.fromkeys((target, str(split.config.sampler.get("column")), "label")):
        if name in columns and name != "length" and columns[name].dtype.kind not in "fcmM":
            classes = classes_of(dataset) if name == target else []
            counts[name] = _counted(columns[name], classes)
    return {
        "name": split.name,
        "dataset": type(unfiltered(dataset)).__name__,
        "rows": rows,
        "fingerprint": split.fingerprint["dataset"],
        "counts": counts,
    }


def _counted(values: Any, classes: Sequence[str]) -> dict[str, int]:
    """The most frequent values of a column, with their counts."""
    texts = values.astype(str) if values.dtype == object else values
    kinds, counts = np.unique(texts, return_counts=True)
    kept = np.sort(np.argsort(-counts, kind="stable")[:_MOST_VALUES])
    named = classes and kinds.dtype.kind in "iu" and kinds[0] >= 0 and kinds[-1] < len(classes)
    names = [classes[kinds[i]] if named else str(kinds[i]) for i in kept]
    return dict(zip(names, counts[kept].tolist(), strict=True))


def _batches(split: Split, objective: Objective) -> Iterator[dict[str, Any]]:
    """The first batches of epoch 0 as the model got them, up to `_ROWS` rows of each."""
    fetch, steps = split.fetch(), split.plan.limit(0)
    for step in range(_BATCHES if steps is None else min(_BATCHES, steps)):
        batch = _made(fetch, split, step)
        if batch is None:
            return
        yield {
            "epoch": 0,
            "step": step,
            "rows": batch.request.total or len(batch.request),
            "kind": _kind(batch, objective)[0],
            "samples": _samples(split, objective, batch),
        }


def _made(fetch: Any, split: Split, step: int) -> Batch | None:
    """The first rows of a batch, or a few more where a transform needs groups of them."""
    plan = split.plan
    if isinstance(plan, StreamPlan):
        made: Batch | End = fetch(plan.request(0, step, 0, -(-plan.batch_size // _ROWS)))
        return None if isinstance(made, End) else made
    whole = plan.request(0, step)
    count = min(-(-_ROWS // plan.together) * plan.together, len(whole))
    request = replace(
        whole,
        positions=whole.positions[:count],
        indices=whole.indices[:count],
        valid=min(whole.valid, count),
        total=len(whole),
        parts=None if whole.parts is None else whole.parts[:count],
    )
    batch: Batch = fetch(request)
    return batch


def _predicted(
    split: Split, model: nn.Module, objective: Objective, indices: IntArray
) -> tuple[Batch, Tensor, Tensor]:
    """A batch of rows of the split; their losses, and the model's outputs.

    Where rows are packed, each is the beginning of a block of its own.
    """
    assert not isinstance(split.plan, StreamPlan)
    device = next(model.parameters()).device
    batch = split.fetch()(split.plan.rows(indices)).to(device)
    with torch.no_grad():
        losses, outputs = objective.to(device).measure(model.eval(), batch)
    by_row = torch.full((len(indices),), torch.nan, device=device)
    if losses is not None:
        places, of_rows = objective.by_sample(losses, batch)
        by_row = of_rows.new_full((len(indices),), torch.nan).index_copy(0, places, of_rows)
    return batch, by_row, outputs


def _samples(
    split: Split, objective: Objective, batch: Batch, outputs: Tensor | None = None
) -> list[Sample]:
    """The rows of a batch that are not padding, as they can be shown."""
    kind, field = _kind(batch, objective)
    rendered = objective.rendered(batch, outputs)
    pictures: list[bytes | None] = [None] * len(batch.indices)
    words = [""] * len(batch.indices)
    if any(view.past is not None for view in rendered):
        pictures = [tiles.forecast(view) for view in rendered]
    elif kind == "signals":
        for row, (steps, index) in enumerate(
            zip(_unpadded(batch, field), batch.indices.tolist(), strict=True)
        ):
            pictures[row] = tiles.signal(steps, _recording(split, batch, index))
            words[row] = f"{len(steps)} steps"
    elif kind in ("pictures", "views", "clips"):
        shown, seen = _as_the_model_saw(split, field, batch), batch[field]
        for row, (image, view) in enumerate(zip(shown, rendered, strict=True)):
            marks = view if field == objective.shown_field(batch) else Rendered()
            scale = (image.shape[-1] / seen.shape[-1], image.shape[-2] / seen.shape[-2])
            pictures[row] = tiles.tile(image, marks, scale, kind == "clips")
    else:
        about = getattr(split.dataset, "about", None)
        words = [
            _words(batch, objective, row)
            if about is None
            else ", ".join(
                f"{name} {cell}" for name, cell in about(index).items() if cell is not None
            )
            for row, index in enumerate(batch.indices.tolist())
        ]
    samples = []
    for row in (
        range(len(words)) if batch.valid is None else batch.valid.nonzero().flatten().tolist()
    ):
        index = int(batch.indices[row])
        own, view, picture = own_row(split.dataset, index), rendered[row], pictures[row]
        sample = {
            "row": index,
            "path": path_of(split.dataset, index) or ("" if own is None else f"row {own}"),
            "truth": _shortened(view.truth, 200),
            "predicted": _shortened(view.predicted, 200),
            "wrong": view.wrong,
            "words": _shortened(words[row], 600),
        }
        samples.append(sample | ({"uri": _uri(picture)} if picture else {}))
    return samples


def _kind(batch: Batch, objective: Objective) -> tuple[str, str]:
    """How a batch is shown, and the field that is."""
    target = getattr(objective, "target", None)
    names = [name for name in (*objective.inputs, *batch) if name in batch and name != target]
    kinds = (("pictures", is_pictures), ("clips", is_clips), ("signals", _is_signals))
    for kind, fits in kinds:
        field = next((name for name in names if fits(batch[name])), None)
        if field is not None and kind == "pictures" and _views(batch, field):
            return "views", field
        if field is not None:
            return kind, field
    return "words", objective.shown_field(batch)


def is_pictures(value: object) -> bool:
    """Whether a field of a batch is [B, C, H, W] with colours or shades of grey."""
    return isinstance(value, Tensor) and value.ndim == 4 and value.shape[1] in (1, 3)


def is_clips(value: object) -> bool:
    """Whether a field of a batch is [B, T, C, H, W] with colours or shades of grey."""
    return isinstance(value, Tensor) and value.ndim == 5 and value.shape[2] in (1, 3)


def _is_signals(value: object) -> bool:
    """Whether a field of a batch is [B, T, F] or [B, F, T]."""
    return isinstance(value, Tensor) and value.is_floating_point() and value.ndim == 3


def _as_the_model_saw(split: Split, field: str, batch: Batch) -> list[Tensor]:
    """The pictures of a field before they were normalised; of clips, strips of frames.

    Further views stand beside the first, unless points or boxes are drawn on that.
    """
    shown = (
        _strips(batch[name]) if is_clips(batch[name]) else batch[name]
        for name in [field, *_views(batch, field)]
    )
    stacks = [
        denormalized(stack, split.transform, split.batch_transform)
        for stack in shown
        if is_pictures(stack)
    ]
    return list(torch.cat([one for one in stacks if one.shape[:3] == stacks[0].shape[:3]], dim=3))


def _views(batch: Batch, field: str) -> list[str]:
    """The further views of a field, where nothing is drawn on the first."""
    if f"{field}_2" not in batch or not set(batch.kinds.values()) <= {"image"}:
        return []
    from penstock.addons.pairs import further_views

    return further_views(batch, field)


def _strips(clips: Tensor) -> Tensor:
    """Clips [B, T, C, H, W] as pictures of frames side by side, [B, C, H, n * W]."""
    chosen = np.linspace(0, clips.shape[1] - 1, min(clips.shape[1], _STRIP)).round().astype(int)
    return torch.cat([clips[:, frame] for frame in chosen.tolist()], dim=-1)


def denormalized(images: Tensor, *transforms: Compose | BatchCompose) -> Tensor:
    """Images before `Normalize`, to look at."""
    for transform in transforms:
        for step in transform.steps.values():
            if isinstance(step, Normalize):
                return step.inverse(images)
            if isinstance(step, Compose):  # views
                return denormalized(images, step)
    return images


def _unpadded(batch: Batch, field: str) -> list[tiles.Array]:
    """Each signal [T, F] without its padding.

    Time is the dimension that the longest fills; where no lengths are known, the longer one.
    """
    values, lengths = batch[field].detach().float().cpu(), batch.get(f"{field}_lengths")
    if not isinstance(lengths, Tensor):
        first = values.shape[1] >= values.shape[2]
        return [(signal if first else signal.T).numpy() for signal in values]
    first = values.shape[1] == int(lengths.max())
    pairs = zip(values, lengths.tolist(), strict=True)
    return [(signal if first else signal.T)[: max(length, 1)].numpy() for signal, length in pairs]


def _recording(split: Split, batch: Batch, index: int) -> Any:
    """The waveform [T] in the dataset, of a sample whose batch has only features of it."""
    if isinstance(split.plan, StreamPlan) or "audio" in batch:
        return None
    audio = split.data.fields.named(split.dataset[index]).get("audio")
    if not isinstance(audio, Tensor) or audio.ndim != 2 or not audio.is_floating_point():
        return None
    return np.nan_to_num(audio.mean(0).numpy())


def _words(batch: Batch, objective: Objective, number: int) -> str:
    """A sample in words: its texts, or else the beginning of the model's input."""
    lists = [value for value in batch.values() if isinstance(value, list) and len(value) > number]
    texts = [value[number] for value in lists if isinstance(value[number], str)]
    if texts:
        return " / ".join(texts)
    value = batch[objective.shown_field(batch)][number].flatten()
    few = ", ".join(f"{number:.4g}" for number in value[:8].tolist())
    return few + (" ..." if value.numel() > 8 else "")


def _listed(table: Sequence[Sequence[str]], folder: Path) -> Path:
    """A table with a head in Markdown, as predictions.md."""
    head, *rows = table
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for row in rows:
        cells = (_shortened(cell, 200).replace("|", r"\|") for cell in row)
        lines.append(f"| {' | '.join(cells)} |")
    path = folder / "predictions.md"
    write_atomically(path, ("\n".join(lines) + "\n").encode())
    return path


def _shortened(text: str, most: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 3] + "..."


def _uri(picture: bytes) -> str:
    kind = "png" if picture.startswith(b"\x89PNG") else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(picture).decode()}"


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
