"""What a trained model is for: the test split, rows for new files, a file for other programs.

    task=test run=RUN
    task=predict run=RUN dataset.root=NEW out=FILE
    task=export run=RUN format=weights|torch|onnx out=FILE

As a run begins, its manifest notes under `learned` what the training data has given, so a model is
used where that data is not:

    facts, classes    sizes of the model, names of what it predicts
    steps             of validation, with their statistics and vocabularies; these are copied to
                      `learned/` in the run's folder
    dataset           the dataset's own `learned`, a mapping of plain values

What is read without labels:

    images, videos   a folder of them at any depth, one file, or a list of files
    arrays           one .npy, or a folder that has the inputs' file; it is read into memory
    anything else    what the dataset's class method `unlabelled(root, learned, files, limits)`
                     gives, or the run's dataset at another root, without the column of labels
"""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from io import BytesIO
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from penstock.build.data import Split
from penstock.build.training import TrainingParts
from penstock.config.schema import Config
from penstock.config.targets import arguments, called, options
from penstock.datasets.arrays import Arrays, MappedArray, block
from penstock.datasets.files import FolderFile, Root, open_root, with_endings
from penstock.datasets.image_folder import EXTENSIONS
from penstock.datasets.reading.base import FolderDataset, Sample, Shares
from penstock.distributed.group import Group, join
from penstock.distributed.parallel import together
from penstock.distributed.world import World, launched_rank
from penstock.errors import ConfigError, DataError, PenstockError, Problem
from penstock.files.disk import replacing, write_atomically, writing
from penstock.files.limits import Limits
from penstock.loading.bad_samples import path_of
from penstock.loading.batch import Batch, hash_sample
from penstock.loading.facts import classes_of, unfiltered
from penstock.order.plan import Plan, is_stream
from penstock.order.samplers import Subset
from penstock.runs import checkpoint
from penstock.runs.folder import now, read_manifest, take, write_manifest
from penstock.runs.only_shown import only_shown, reason
from penstock.runs.resume import run_of
from penstock.tasks import validate
from penstock.tasks.summary import print_table
from penstock.terminal import put, say, watched
from penstock.training.adapter import Objective
from penstock.training.loop import Record
from penstock.training.step import autocast

Row = dict[str, Any]
_ENDINGS = {"weights": ".safetensors", "torch": ".pt2", "onnx": ".onnx"}


class Trained(NamedTuple):
    """The trained part of a run: `path` is the checkpoint of the weights."""

    parts: TrainingParts
    model: nn.Module
    objective: Objective
    path: Path
    learned: dict[str, Any]


def learned_of(path: Path) -> dict[str, Any]:
    """What the run of a checkpoint has learned of its data; {} for one in no run's folder."""
    folder = run_of(path)
    return read_manifest(folder, "run").get("learned") or {} if folder else {}


def trained(config: Config, world: World | None = None, elsewhere: bool = False) -> Trained:
    """The model of `config.run` on the device, with its best weights or those of `checkpoint`.

    Args:
        world: this process among the others; from the environment when None.
        elsewhere: what is known of the training data stands in its place, which is not opened.

    Raises:
        ConfigError: it is no run's folder, the configuration is refused, or its table gives another
            encoding than the one that the model was trained with.
        PenstockError: there are no weights, or they are damaged or of another model.
    """
    # The best weights, and not the last: those are what the metrics of the run are of.
    path = checkpoint.find(Path(config.checkpoint or str(config.run)))
    learned, config = learned_of(path), config.model_copy(deep=True)
    for section, nodes in learned.get("steps", {}).items():
        steps = getattr(config.transform, section)
        for name in nodes.keys() & steps.keys():
            known = nodes[name]
            if "vocabulary" in known:  # its name alone: a manifest names no file elsewhere
                kept = path.parent.parent / "learned" / Path(known["vocabulary"]).name
                known["vocabulary"] = str(kept)
            # Typed values stay: only facts learned from the training data are filled in.
            steps[name] = {
                key: known[key] if value == "dataset" else value
                for key, value in steps[name].items()
            }
    parts = TrainingParts(config, world)
    parts.data.recorded = learned.get("classes", [])
    encoding = (learned.get("dataset") or {}).get("encoding")
    if elsewhere and learned:
        parts.data.train.dataset = SimpleNamespace(**learned)  # its facts and classes
    elif encoding not in (None, _plain(parts.data.train.dataset).get("encoding")):
        raise ConfigError(
            Problem(
                "dataset",
                "scales and categories of its training rows are others than those of the run, so "
                "the model would get other numbers. task=predict reads another table as the run "
                "read its own; a run with dataset.val_file measures on one",
            )
        )
    model, objective, device = parts.model(), parts.objective(), parts.world.device
    validate.load_weights(model, path)
    return Trained(parts, model.to(device).eval(), objective.to(device), path, learned)


def leave(fit: Any) -> None:
    """Note in the manifest what the training data has given. Cost: 1 ms, and that of its facts."""
    data, folder = fit.data, fit.folder.path / "learned"
    with only_shown("what predictions need of the training data"):
        nodes: dict[str, Any] = {"val": {}, "val_batch": {}}
        for section, known in nodes.items():
            for name, node in getattr(data.config.transform, section).items():
                if "dataset" in (node or {}).values():
                    known[name] = {**data.with_statistics(node)}
                # The cache stays on this machine, and the run may be copied to another one.
                if node and node.get("vocabulary") == "dataset":
                    file = Path(known[name]["vocabulary"])  # of the cache, which stays here
                    folder.mkdir(exist_ok=True)
                    write_atomically(folder / file.name, file.read_bytes())
        fit.folder.manifest["learned"] = {
            "facts": data.facts,
            "classes": classes_of(data.train.dataset),
            "steps": nodes,
            "dataset": _plain(data.train.dataset),
        }
        fit.folder.note()


def _plain(dataset: Any) -> Any:
    """What JSON makes of `learned` of a dataset, which may have NumPy's arrays and numbers."""
    learned = getattr(unfiltered(dataset), "learned", {})
    return json.loads(json.dumps(learned, default=lambda array: array.tolist()))


def test(config: Config) -> float | None:
    """Measure `config.run` on its test split; returns the monitored metric.

    A split that is looked at again and again is one of validation: the result stands in the
    manifest, and is shown again as long as the run has the same best weights.

    Raises:
        ConfigError: the run is still training, or other splits have the rows of the test.
    """
    folder = Path(str(config.run))
    manifest = read_manifest(folder, "run")
    known = manifest.get("test") or {}
    if known and known["best"] == manifest.get("best"):
        say(f"measured once, at {known['at']}; a test split is not for choosing among models")
        values = {name: float("nan") if of is None else of for name, of in known["metrics"].items()}
        print_table({"test": values})
        return values.get(manifest["monitor"])
    # Its lock keeps a training from resuming, whose manifest would then be overwritten.
    lock_file = take(folder) if launched_rank()[0] == 0 else nullcontext()
    if lock_file is None:
        raise ConfigError(Problem("run", f"{folder} is still training; test it when it has ended"))
    with lock_file:
        return validate.run(config.model_copy(update={"split": "test"}), _note)


def _note(ready: Trained, metrics: Record) -> None:
    """Keep the result of a test in the manifest."""
    data, folder = ready.parts.data, run_of(ready.path) or Path()
    with suppress(DataError):  # of a damaged row
        first = _first_rows(data.test)
        for other in data.splits:
            # Equal rows within one split, such as blank images, say nothing about the other.
            if len(set(first)) > 1 and first == _first_rows(other):
                raise ConfigError(
                    Problem(
                        data.test.node[0],
                        f"{type(unfiltered(other.dataset)).__name__} gives the rows of the "
                        f"{other.name} split for the test: the first {len(first)} are equal, byte "
                        "by byte. Let it know split='test', write a node under data.test_dataset, "
                        "or divide the rows: data.split.val=0.1 data.split.test=0.1",
                    )
                )
    manifest = read_manifest(folder, "run")
    manifest["test"] = {
        "metrics": metrics,
        "at": now(),
        "best": manifest.get("best"),
        "checkpoint": str(ready.path),
    }
    write_manifest(folder, manifest)


def _first_rows(split: Split) -> list[bytes]:
    """Hashes of the first samples, before their transforms; none of a stream."""
    count = 0 if is_stream(split.dataset) else min(len(split.dataset), 16)
    return [hash_sample(split.dataset[row]) for row in range(count)]


def predict(config: Config) -> None:
    """Predict what is at `dataset.root`, and write it to `config.out`."""
    # Before the model is read: hours of work must not end at a full or missing folder.
    out = _new_file(config, (".jsonl", ".csv", ".parquet"))
    ready, wanted = trained(config, elsewhere=True), config.distributed
    with join(ready.parts.world, wanted.backend, wanted.timeout) as group:
        rows = predicted(ready, str(config.dataset["root"]), config.rows, group)
        if group.is_first:
            write(out, rows)
            damaged = sum("error" in row for row in rows)
            why = f"; {damaged} are damaged, and the column error says why" if damaged else ""
            put(f"predicted  {len(rows) - damaged} rows: {out}{why}")


def predicted(
    ready: Trained,
    root: str | Sequence[str | os.PathLike[str]],
    part: str | None = None,
    group: Group | None = None,
) -> list[Row]:
    """A row for each sample of all ranks, in their order; `about(row)` of a dataset adds columns.

    Args:
        root: a folder or file, or a list of files.
        part: "FROM:TO", which rows; None: all.

    Raises:
        ConfigError: the objective does not say how a prediction becomes a row, or the dataset reads
            no rows without labels.
    """
    group, rows, data = group or Group(), list[Row](), ready.parts.data.test
    # A damaged file has a row that says so.
    bad = data.config.bad_samples.model_copy(
        update={"on_error": "skip", "budget": 1.0, "quarantine": None}
    )
    data.config = data.config.model_copy(update={"bad_samples": bad})
    data.dataset = dataset = _unlabelled(ready, root)
    # One damaged file of a million ends nothing; it has a row that says why.
    data.fingerprint = {}  # no run continues with it
    about: Callable[[int], Row] = getattr(dataset, "about", lambda number: {})
    first, _, last = (part or ":").partition(":")
    chosen = range(len(dataset))[int(first or 0) : int(last or len(dataset))]
    if not chosen:
        raise DataError(f"dataset.root: {root!r} has {len(dataset)} rows, and none in {part}")
    order = Subset(len(dataset), 0, indices=chosen, shuffle=False)
    data.plan = Plan(order, data.batch_size, "keep")
    device, precision = torch.device(ready.parts.world.device), data.config.trainer.precision
    with torch.no_grad(), data.loader() as loader:
        batches: Iterator[Batch] = loader.epoch(0)
        if group.is_first:
            batches = watched(batches, data.plan.steps(0), "predicting")
        for batch in batches:
            # Ranks of FSDP gather weights layer by layer, so all of them make every forward pass.
            with autocast(device, precision), together(group, batch.request):
                outputs = ready.objective.answer(ready.model, batch)
            valid = ... if batch.valid is None else np.asarray(batch.valid)
            numbers = batch.indices[valid].tolist()
            # A rank whose share is all padding has made its outputs for the others' sake.
            predictions = ready.objective.rows(outputs, batch) if numbers else []
            if len(predictions) != len(numbers):
                counts = f"{len(predictions)} rows for {len(numbers)} samples"
                raise ConfigError(Problem("objective", f"rows(outputs, batch) gives {counts}"))
            own = [*zip(numbers, predictions, strict=True)]
            own += [(bad.index, {"error": bad.cause}) for bad in batch.left_out]
            for number, row in own:
                # Names of files may have bytes that are no text.
                path = path_of(dataset, number).encode(errors="backslashreplace").decode()
                rows.append({"row": number, "path": path, **about(number), **row})
    every = [row for share in group.gather(rows) for row in share]
    return sorted(every, key=lambda row: int(row["row"]))


def write(path: Path, rows: Sequence[Row]) -> None:
    """Write rows in one piece; lists and mappings are JSON in a CSV file.

    Raises:
        ConfigError: a value is not plain, pyarrow is missing, or a column of Parquet has values of
            several kinds.
    """
    import pandas as pd

    with replacing(path) as file:
        try:
            if path.suffix == ".jsonl":
                file.writelines(json.dumps(row).encode() + b"\n" for row in rows)
            elif path.suffix == ".csv":
                cells = [
                    {
                        n: json.dumps(of) if isinstance(of, list | dict) else of
                        for n, of in row.items()
                    }
                    for row in rows
                ]
                # As objects, so that numbers stay whole where some rows have none.
                pd.DataFrame(cells, dtype=object).to_csv(file, index=False)
            else:
                frame = pd.DataFrame(rows, dtype=object)
                frame.to_parquet(file, engine="pyarrow", index=False)
        except (ValueError, TypeError, ImportError) as error:  # of which Arrow's errors are
            reason = f"the rows cannot be written as {path.suffix}: {error}; .jsonl takes any JSON"
            raise ConfigError(Problem("out", reason)) from error


def _unlabelled(ready: Trained, root: str | Sequence[str | os.PathLike[str]]) -> Any:
    """The dataset of the rows to predict."""
    split, limits = ready.parts.data.train, ready.parts.config.limits
    key, node = split.node
    kind = called(node)
    names, bases = arguments(kind), getattr(kind, "__mro__", ())
    if hasattr(kind, "unlabelled"):
        facts, files = ready.learned.get("dataset"), options(ready.parts.config, "files")
        return kind.unlabelled(root, facts, files, limits)
    if FolderDataset in bases and {"reader", "lazy"} & names.keys():
        steps = filter(None, ready.parts.config.transform.val.values())
        # A step that decodes other files than images says how they end.
        endings = chain.from_iterable(getattr(called(step), "extensions", ()) for step in steps)
        return _Images(root, node, split.decodes, limits, (*endings,) or EXTENSIONS)
    if Arrays in bases:
        path, name = Path(str(root)), str(node.get("inputs", "inputs.npy"))
        path = path / name if path.is_dir() else path
        inputs = MappedArray(
            FolderFile(open_root(str(path.parent), name), path.name), "dataset.root", limits
        )
        return TensorDataset(block(inputs, np.arange(len(inputs))))
    # One that divides rows by itself would leave some of the new ones out.
    divides = {"split", "train"} & set(names) and not kind.__module__.startswith("penstock.")
    if "root" not in node or divides:
        raise ConfigError(
            Problem(
                key,
                f"{node['_target_']} does not say how rows without labels are read; give it a "
                "class method unlabelled(root, learned, files, limits) (docs/predicting.md)",
            )
        )
    # All rows are new: none is held out, and none has a label.
    supplied: dict[str, Any] = {
        "root": root,
        "shares": Shares(0.0),
        **dict.fromkeys(("label", "val_file", "split_column")),
        **({"file": None} if Path(str(root)).is_file() else {}),
    }
    if isinstance(node.get("fields"), Mapping):
        target = ready.parts.config.objective.get("target")
        supplied["fields"] = {name: of for name, of in node["fields"].items() if name != target}
    return split.read(split.decodes, **{name: supplied[name] for name in supplied if name in names})


class _Images(FolderDataset):
    """One sample: `image`, as in `ImageFolder`; files in the order of their names."""

    def __init__(
        self,
        root: str | Sequence[str | os.PathLike[str]],
        node: Row,
        lazy: bool,
        limits: Limits,
        endings: tuple[str, ...],
    ) -> None:
        from penstock.datasets.reading.image import check_reader, encoded_image, read_image

        reader = check_reader(node.get("reader", "torchvision"), node.get("orientation"))
        self.reading = encoded_image if lazy else read_image, reader
        if not isinstance(root, str) or Path(root).is_file():
            paths = [root] if isinstance(root, str) else root
            self.folder, names = Root(""), [str(Path(path).absolute())[1:] for path in paths]
        else:
            self.folder = open_root(root, "the files")
            names = with_endings(self.folder.files(), endings, root)
        self.limits, self.names = limits, np.array([os.fsencode(name) for name in names])

    def __getitem__(self, index: int) -> Sample:
        read, reader = self.reading
        return {
            "image": self._read(index, lambda path, shown: read(path, reader, shown, self.limits))
        }


def export(config: Config) -> None:
    """Write the model of `config.run` to `config.out`.

    Raises:
        ConfigError: the file cannot be written, or the objective does not name the model's inputs.
        PenstockError: the model cannot be exported, or the file computes something else.
    """
    format, out = config.format, _new_file(config, [_ENDINGS[config.format]])
    ready, content = trained(config, elsewhere=config.format == "weights"), BytesIO()
    # On the CPU, so that the file does not ask for the GPU that it was written on.
    model, names = ready.model.cpu(), list(ready.objective.inputs)
    if format == "weights":
        # Each by itself: tensors that share memory, as tied weights do, are written twice.
        content.write(save({name: value.clone() for name, value in model.state_dict().items()}))
    else:
        data = ready.parts.data
        with (data.val if data.config.data.validates else data.train).loader() as loader:
            batch = next(iter(loader.epoch(0)))
        if not names or not all(isinstance(batch.get(name), Tensor) for name in names):
            raise ConfigError(
                Problem(
                    "objective.inputs",
                    f"{names}: the model's inputs must be named, and tensors of a batch",
                )
            )
        # Two rows or more, as a dimension of 1 would be traced as a constant.
        inputs = tuple(torch.cat([batch[name].as_subclass(Tensor).cpu()[:2]] * 2) for name in names)
        try:
            with torch.no_grad(), warnings.catch_warnings(action="ignore", category=FutureWarning):
                rows = ({0: torch.export.Dim("batch")},) * len(inputs)
                program = torch.export.export(model, inputs, dynamic_shapes=rows)
                program.example_inputs = None  # the file must not contain samples
                if format == "torch":
                    torch.export.save(program, content)
                else:
                    from torch.onnx.testing import assert_onnx_program

                    made: Any = torch.onnx.export(program, input_names=names, verbose=False)
                    assert_onnx_program(made, args=inputs, strategy=None)
                    content.write(made.model_proto.SerializeToString())
        except Exception as error:
            raise PenstockError(
                f"{type(model).__name__} cannot be exported as {format}: {reason(error)}. "
                "format=weights always can"
            ) from error
    write_atomically(out, content.getvalue())
    put(f"exported  {out}, {out.stat().st_size:,} bytes, of {type(model).__name__}")


def _new_file(config: Config, endings: Sequence[str]) -> Path:
    """`config.out`, which can be written, and at which nothing is: known before hours are spent.

    Raises:
        ConfigError: it has another ending, exists, or its folder is missing.
        DiskError: its folder takes no files.
    """
    out = Path(str(config.out))
    if out.suffix not in endings or out.exists() or not out.absolute().parent.is_dir():
        raise ConfigError(
            Problem(
                "out",
                f"{config.out!r}{' exists; it' if out.exists() else ''} must be a new file in a "
                f"folder that is there, and end in {' or '.join(endings)}",
            )
        )
    with writing(out), tempfile.TemporaryFile(dir=out.absolute().parent):
        return out
