"""`task=predict run=RUN dataset.root=NEW out=FILE`: a row a sample, for data without labels.

FILE is written in one piece at the end: .jsonl, .csv or .parquet; `rows=0:100000` predicts a part
of large data. Rows whose file is damaged have the reason in the column `error`. The run's manifest
has the facts of the training data that the model needs (`trained.py`). Memory: the rows.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from penstock.addons.predicting.new_data import NewData
from penstock.addons.predicting.trained import Trained, trained
from penstock.build.data import Split
from penstock.config.hydra import overrides
from penstock.config.schema import Config
from penstock.distributed.group import Group, join
from penstock.distributed.parallel import together
from penstock.errors import ConfigError, Problem
from penstock.files.disk import replacing, writing
from penstock.loading.bad_samples import SampleError, path_of
from penstock.loading.batch import Batch
from penstock.runs.record import RunRecord
from penstock.runs.resumption import key_of, run_of
from penstock.terminal import put, watched
from penstock.training.train_step import autocast

ROOT = "dataset.root"
ENDINGS = (".jsonl", ".csv", ".parquet")
_NAMED = 5  # damaged rows that are named
Row = dict[str, Any]


def run(config: Config) -> None:
    """Predict what is at `dataset.root`, and write it to `config.out`."""
    out = _out(config)
    if ROOT not in map(key_of, overrides()):
        raise ConfigError(Problem(ROOT, "is missing: a folder or file to predict for"))
    root = str(config.dataset["root"])
    folder = Path(str(config.run))
    known: Any = RunRecord.read(run_of(folder) or folder, "run").config["dataset"]
    dataset = {**config.dataset, "root": known.get("root")}  # that of the training
    ready = trained(config.model_copy(update={"dataset": dataset}), elsewhere=True)
    wanted = ready.parts.config.distributed
    with join(ready.parts.world, wanted.backend, wanted.timeout) as group:
        data = data_of(ready, root, config.rows)
        try:
            made = [row for rows in predicted(ready, data, group) for row in rows]
        except SampleError as error:
            raise data.refusal(f"fails where there are no labels: {error}") from error
        if not group.is_first:
            return
        made.sort(key=lambda row: int(row["row"]))
        write(out, made)
        damaged = [str(row.get("path")) for row in made if row.get("error")]
        put(f"{'predicted':<10} {len(made) - len(damaged)} rows: {out}")
        if damaged:
            more = f" and {len(damaged) - _NAMED} more" if len(damaged) > _NAMED else ""
            named = ", ".join(damaged[:_NAMED])
            put(f"{'damaged':<10} {len(damaged)}: {named}{more}; column error says why")


def _out(config: Config) -> Path:
    out = Path(config.out or "")
    if out.suffix not in ENDINGS:
        reason = f"{config.out!r} ends in none of {', '.join(ENDINGS)}"
        raise ConfigError(Problem("out", reason))
    if out.exists() or not out.absolute().parent.is_dir():
        wrong = "exists already" if out.exists() else "is in a folder that is missing"
        raise ConfigError(Problem("out", f"{config.out!r} {wrong}; name another file"))
    with writing(out), tempfile.TemporaryFile(dir=out.absolute().parent):
        return out  # hours before it is needed, it is known that the folder takes files


def write(path: Path, rows: Sequence[Row]) -> None:
    """Write rows in one piece; lists and mappings are JSON in a CSV file, as they are elsewhere.

    Raises:
        ConfigError: a value is not plain, pyarrow is missing, or a column of Parquet has values of
            several kinds.
    """
    import pandas as pd

    def cell(value: Any) -> Any:
        if isinstance(value, (list, dict)) and path.suffix == ".csv":
            return json.dumps(value)
        if isinstance(value, str):  # a name of a file may have bytes that are no text
            return value.encode(errors="backslashreplace").decode()
        return value

    # Of objects, so that numbers stay whole where some rows have none; why a row fails comes last.
    cells = [{name: cell(value) for name, value in row.items()} for row in rows]
    table = pd.DataFrame(cells, dtype=object)
    table = table[sorted(table.columns, key=lambda name: name == "error")]
    with replacing(path) as file:
        try:
            if path.suffix == ".jsonl":
                file.writelines(json.dumps(row).encode() + b"\n" for row in rows)
            elif path.suffix == ".csv":
                table.to_csv(file, index=False)
            else:
                table.to_parquet(file, engine="pyarrow", index=False)
        except (ValueError, TypeError, ImportError) as error:  # of which Arrow's errors are
            reason = f"the rows cannot be written as {path.suffix}: {error}; .jsonl takes any JSON"
            raise ConfigError(Problem("out", reason)) from error


def data_of(ready: Trained, root: str | Sequence[str], rows: str | None = None) -> NewData:
    """The rows to predict; damaged ones are left out, and none of it is written elsewhere."""
    config = ready.parts.config
    skipping = config.bad_samples.model_copy(
        update={"on_error": "skip", "budget": 1.0, "quarantine": None}
    )
    made = NewData(ready.parts.data, root, rows, ready.learned)
    made.config = config.model_copy(update={"bad_samples": skipping})
    return made


def predicted(ready: Trained, data: Split, group: Group | None = None) -> Iterator[list[Row]]:
    """The rows of each batch, those of all ranks; a dataset may say more of each, `about(row)`.

    Raises:
        ConfigError: the objective does not say how a prediction becomes a row.
    """
    group, dataset, parts = group or Group(), data.dataset, ready.parts
    about: Callable[[int], Row] = getattr(dataset, "about", lambda number: {})
    device, precision = torch.device(parts.world.device), parts.config.trainer.precision
    with torch.no_grad(), data.loader() as loader:
        batches: Iterator[Batch] = loader.epoch(0)
        if group.is_first:
            batches = watched(batches, data.plan.steps(0), "predicting")
        for batch in batches:
            with autocast(device, precision), together(group, batch.request):
                outputs = ready.objective.answer(ready.model, batch)
            made: Sequence[Mapping[str, Any]] = []
            if batch.request.valid:
                made = ready.objective.rows(outputs, batch)
            valid = np.ones(len(batch.indices), bool) if batch.valid is None else batch.valid
            numbers = batch.indices[np.asarray(valid)].tolist()
            if len(made) != len(numbers) and batch.request.valid:
                reason = f"rows(outputs, batch) gives {len(made)} rows for {len(numbers)} samples"
                raise ConfigError(Problem("objective", reason))
            rows = [
                {"row": number, "path": path_of(dataset, number), **about(number), **row}
                for number, row in zip(numbers, made, strict=True)
            ]
            rows += [
                {"row": bad.index, "path": bad.path, **about(bad.index), "error": bad.cause}
                for bad in batch.left_out
            ]
            yield [row for share in group.gather(rows) for row in share]
