"""Out-of-fold predictions of a sweep over folds: `out_of_fold.csv` in its folder.

    row,path,dataset.fold,truth,predicted,score/ham,score/spam
    0,,3,ham,ham,0.98,0.02

Each fold's model, with its best weights, predicts the rows that validated it, when its job has
ended: into `out_of_fold.jsonl` of the job's folder, with the weights in the first line. When the
sweep ends, those of all jobs become one table by row; a job that lacks its part (it ran elsewhere,
or its process died) is made up for then. Cost: an epoch of validation a job.
"""

from __future__ import annotations

import heapq
import json
import re
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from torch import Tensor

from penstock.addons.predicting.predict import predicted
from penstock.addons.predicting.tables import write
from penstock.addons.predicting.trained import Trained, loaded
from penstock.addons.sweeps.job_result import JobResult, read_results
from penstock.addons.sweeps.repetitions import varying
from penstock.config import preflight
from penstock.config.nodes import of_the_build
from penstock.distributed.world import World
from penstock.files import plain_json
from penstock.files.disk import check_replaceable, replacing
from penstock.files.disk import write as write_all
from penstock.files.regular_file import open_regular
from penstock.loading.batch import Batch
from penstock.loading.wrapped import own_row
from penstock.runs import checkpoint
from penstock.runs.only_shown import only_shown
from penstock.runs.record import RunRecord
from penstock.terminal import put

PART, NAME = "out_of_fold.jsonl", "out_of_fold"
FOLD = "dataset.fold"
_MADE = {
    "csv": re.compile(rb'"?row"?,'),
    "jsonl": re.compile(rb'\{"row": '),
    "parquet": re.compile(rb"PAR1"),
}

Row = dict[str, Any]


def of_sweep(config: Mapping[str, Any], folder: Path, in_between: bool) -> None:
    """Predict what lacks its part, and at the end of a sweep over all folds write the table."""
    options = config["sweep"]
    if options.get("folds") is None or options.get("out_of_fold") is None:
        return
    if config["task"] != "fit":
        return
    with only_shown("the table of out-of-fold predictions"):
        if in_between:
            own = Path(str(config["hydra"]["runtime"]["output_dir"]))
            _part(own, JobResult.read(own / "result.json"))
        else:
            path = table(folder, str(options["out_of_fold"]))
            put(f"{'out of fold':<12} {path}")


def table(folder: Path, ending: str) -> Path:
    """Write the table of a sweep's folder, of all jobs that are done, and return its path."""
    jobs = [(folder / name, result) for name, result in read_results(folder)]
    parts = [(part, result.settings) for path, result in jobs if (part := _part(path, result))]
    several = [key for key in varying([settings for _, settings in parts]) if key != FOLD]
    columns: dict[str, None] = {}
    for part, _ in parts:
        columns |= dict.fromkeys(chain.from_iterable(_rows(part)))

    def of(part: Path, settings: Mapping[str, str]) -> Iterator[Row]:
        own = {key: settings.get(key) for key in several}
        for row in _rows(part):
            yield {
                "row": row.pop("row"),
                "path": row.pop("path"),
                **own,
                FOLD: row.pop(FOLD),
                **row,
            }

    def rows() -> Iterator[Row]:
        return heapq.merge(*(of(*part) for part in parts), key=lambda row: int(row["row"]))

    path = folder / f"{NAME}.{ending}"
    check_replaceable(path, _MADE[ending])
    first = ["row", "path", *several, FOLD]
    names = [*first, *(name for name in columns if name not in first)]
    write(path, sorted(names, key=lambda name: name == "error"), rows)
    return path


def _rows(part: Path) -> Iterator[Row]:
    """The rows of a job, without the first line."""
    with open_regular(part) as file:
        for number, line in plain_json.lines_of(file):
            if number > 1:
                yield line


def _part(folder: Path, result: JobResult) -> Path | None:
    """The predictions of a job that is done, made if they are not those of its weights."""
    if result.status != "done" or FOLD not in result.settings:
        return None
    weights = checkpoint.find(folder)
    stat = weights.stat()
    head = {"weights": [str(weights.name), stat.st_size, stat.st_mtime_ns]}
    part = folder / PART
    if part.exists():
        with open_regular(part) as file:
            first = next(plain_json.lines_of(file), (0, {}))[1]
        if first == head:
            return part
    config = preflight.stored(
        {**RunRecord.read(folder).config, "tracker": {}, "resume": None, "run_dir": "outputs"}
    )
    with replacing(part) as descriptor:
        write_all(descriptor, [json.dumps(head).encode() + b"\n"])
        for rows in _predicted(loaded(config, weights, World())):
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            write_all(descriptor, [lines.encode()])
    return part


def _predicted(ready: Trained) -> Iterator[list[Row]]:
    """The rows of the validation split of a fold, as the whole dataset numbers them."""
    fold = of_the_build(ready.parts.config.dataset, "fold")
    data = ready.parts.data.val
    skipping = {"on_error": "skip", "budget": 1.0, "quarantine": None}
    bad = ready.parts.config.bad_samples.model_copy(update=skipping)
    data.config = data.config.model_copy(update={"bad_samples": bad})
    for rows in predicted(ready, data, truth=lambda batch: truths(ready.objective, batch)):
        for row in rows:
            row["row"] = own_row(data.dataset, row["row"])
        yield sorted(({**row, FOLD: fold} for row in rows), key=lambda row: int(row["row"]))


def truths(objective: Any, batch: Batch) -> list[Row]:
    """The truth of each sample, if the objective names its field: `objective.target`."""
    own = getattr(objective, "own", objective)
    target = batch.get(str(getattr(own, "target", "")))
    if not isinstance(target, (Tensor, list)):
        return [{} for _ in batch.indices]
    names = list(getattr(objective, "names", None) or [])
    return [{"truth": _truth(value, names)} for value in target]


def _truth(value: Any, names: list[str]) -> Any:
    value = value.tolist() if isinstance(value, Tensor) else value
    if not names:
        return value
    if isinstance(value, int) and 0 <= value < len(names):
        return names[value]
    if isinstance(value, list) and len(value) == len(names):
        return ", ".join(name for name, there in zip(names, value, strict=True) if there >= 0.5)
    return value
