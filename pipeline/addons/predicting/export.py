"""`task=export run=RUN format=weights|torch|onnx out=FILE`: a trained model for elsewhere.

    weights    the module's state_dict, .safetensors
    torch      the computation and the weights, .pt2 (torch.export)
    onnx       the same for other runtimes, .onnx

The first dimension of inputs and outputs, the batch, may have any size; or it is one sample, where
the model (most detectors) cannot be traced for any. FILE.json beside it says what goes in and comes
out, and what makes it of pixels. The file is read again and compared with the model on a batch
of validation before it gets its name.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from penstock.addons.predicting.trained import Trained, trained
from penstock.config.schema import Config
from penstock.errors import ConfigError, DataError, PenstockError, Problem
from penstock.files.disk import write_atomically
from penstock.loading.facts import classes_of
from penstock.terminal import put
from penstock.transforms.image import IMAGENET

ENDINGS: dict[str, str] = {"weights": ".safetensors", "torch": ".pt2", "onnx": ".onnx"}
_CLOSE = 1e-4  # of the largest output
_TRACED = 4  # rows of the inputs that a model is traced with; 1 would stay 1
_PACKAGES = ("onnx", "onnxruntime", "onnxscript")


def run(config: Config) -> None:
    """Write `config.out`.

    Raises:
        ConfigError: the file cannot be written, or the objective does not name the model's inputs.
        PenstockError: the model cannot be exported, or the file computes something else.
    """
    asked = config.model_dump()
    format: str = asked["format"]
    out = _out(asked["out"], format)
    ready = trained(config)
    model = ready.model.cpu()
    inputs = _inputs(ready)
    beside = _beside(out)
    with tempfile.TemporaryDirectory(prefix=".exporting-", dir=out.absolute().parent) as folder:
        part = Path(folder) / out.name
        with warnings.catch_warnings():  # torchvision's and torch's, about each other
            warnings.simplefilter("ignore", FutureWarning)
            exported = _WRITERS[format](ready, model, inputs, part)
        inputs = tuple(field[: exported.batch] for field in inputs)
        with torch.no_grad():
            outputs = model(*inputs)
            difference = _difference(outputs, exported.outputs(*inputs))
        if not difference <= _CLOSE:
            raise PenstockError(
                f"the exported model gives other outputs than the model, by {difference:.2g} of "
                f"the largest; nothing was written. Try another format than {format}"
            )
        described = (
            json.dumps(_described(ready, format, exported.batch, inputs, outputs), indent=2) + "\n"
        )
        write_atomically(beside, described.encode())
        part.replace(out)
    put(f"{'exported':<10} {out}, {out.stat().st_size:,} bytes")
    samples = "1 sample" if len(inputs[0]) == 1 else f"{len(inputs[0])} samples"
    put(f"{'compared':<10} {samples}: outputs differ by {difference:.2g} at most")
    if exported.batch is not None:
        put(f"{'batch':<10} 1 sample: {type(model).__name__} cannot be traced for any number")
    put(f"{'described':<10} {beside}")


class _Exported(NamedTuple):
    """The written file, read again."""

    outputs: Callable[..., Any]  # of inputs
    batch: int | None = None  # samples that it takes; None: any number


def _out(named: Any, format: str) -> Path:
    ending = ENDINGS[format]
    if named is None or Path(named).suffix != ending:
        shown = "is missing" if named is None else f"{named!r} ends otherwise"
        raise ConfigError(Problem("out", f"{shown}: format={format} writes a file {ending}"))
    out = Path(named)
    if not out.absolute().parent.is_dir():
        reason = f"{named!r} is in a folder that is missing; name another file"
        raise ConfigError(Problem("out", reason))
    for path in (out, _beside(out)):
        if path.exists():
            reason = f"{str(path)!r} exists already; name another file"
            raise ConfigError(Problem("out", reason))
    return out


def _beside(out: Path) -> Path:
    """The file that says what is in it."""
    return out.with_name(f"{out.name}.json")


def _inputs(ready: Trained) -> tuple[Tensor, ...]:
    """The model's inputs from the first batch of validation (or training), on the CPU."""
    data, names = ready.parts.data, ready.objective.inputs
    if not names:
        reason = "does not name what the model takes; set objective.inputs to those fields"
        raise ConfigError(Problem("objective.inputs", reason))
    split = data.val if data.config.data.validates else data.train
    with split.loader() as loader:
        batch = next(iter(loader.epoch(0)), None)
    if batch is None:
        raise DataError(f"the split {split.name} has no batch to try the model with")
    if unfit := [name for name in names if not isinstance(batch.get(name), Tensor)]:
        reason = f"{unfit[0]!r} is no tensor of a batch; a model that takes it is not exported"
        raise ConfigError(Problem("objective.inputs", reason))
    fields = [batch[name].as_subclass(Tensor).cpu() for name in names]
    if len(fields[0]) < 2:
        fields = [field.repeat(2, *[1] * (field.ndim - 1)) for field in fields]
    return tuple(fields)


def _weights(ready: Trained, model: nn.Module, inputs: Sequence[Tensor], path: Path) -> _Exported:
    from safetensors.torch import load_file, save_file

    # Each by itself: tensors that share memory, as tied weights do, are written twice.
    save_file({name: value.clone() for name, value in model.state_dict().items()}, path)
    other = ready.parts.model().eval()
    other.load_state_dict(load_file(path))
    return _Exported(other)


def _torch(ready: Trained, model: nn.Module, inputs: Sequence[Tensor], path: Path) -> _Exported:
    program, batch = _traced("torch", model, inputs)
    program.example_inputs = None  # samples are nobody else's
    with path.open("wb") as file:
        torch.export.save(program, file)
    with path.open("rb") as file:
        return _Exported(torch.export.load(file).module(), batch)


def _onnx(ready: Trained, model: nn.Module, inputs: Sequence[Tensor], path: Path) -> _Exported:
    try:
        import onnxruntime
        import onnxscript  # noqa: F401  (torch.onnx needs it)
    except ImportError as error:
        reason = f"onnx needs {', '.join(_PACKAGES)}: pip install 'penstock-loader[onnx]'"
        raise ConfigError(Problem("format", reason)) from error
    program, batch = _traced("onnx", model, inputs)
    names = list(ready.objective.inputs)
    try:
        made = torch.onnx.export(program, input_names=names, dynamo=True, verbose=False)
        assert made is not None
        made.save(path)
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise _unfit("onnx", model, error) from error
    taken = [each.name for each in session.get_inputs()]

    def again(*fields: Tensor) -> list[Tensor]:
        feed = {name: field.numpy() for name, field in zip(taken, fields, strict=True)}
        return [torch.as_tensor(value) for value in session.run(None, feed)]

    return _Exported(again, batch)


def _traced(
    format: str, model: nn.Module, inputs: Sequence[Tensor]
) -> tuple[torch.export.ExportedProgram, int | None]:
    """The computation of a model, and the samples of its batches: None for any number, else 1."""
    few = tuple(field[:_TRACED] for field in inputs)
    any_size = ({0: torch.export.Dim("batch")},) * len(few)
    with torch.no_grad():
        try:
            return torch.export.export(model, few, dynamic_shapes=any_size), None
        except Exception as error:
            try:
                return torch.export.export(model, tuple(field[:1] for field in inputs)), 1
            except Exception:
                raise _unfit(format, model, error) from error


def _unfit(format: str, model: nn.Module, error: Exception) -> PenstockError:
    reason = str(error).strip().partition("\n")[0][:300].rstrip(".")
    return PenstockError(
        f"{type(model).__name__} cannot be exported as {format}: {type(error).__name__}: {reason}. "
        "format=weights always can"
    )


_WRITERS = {"weights": _weights, "torch": _torch, "onnx": _onnx}


def _difference(outputs: Any, others: Any) -> float:
    """The largest difference of two outputs of the same structure, over the largest output."""
    own, other = (
        [leaf for leaf in pytree.tree_leaves(each) if isinstance(leaf, Tensor)]
        for each in (outputs, others)
    )
    if [leaf.shape for leaf in own] != [leaf.shape for leaf in other]:
        return float("inf")
    pairs = [(a.double(), b.double()) for a, b in zip(own, other, strict=True) if a.numel()]
    scale = max((float(a.abs().max()) for a, _ in pairs), default=0.0)
    most = max((float((a - b).abs().max()) for a, b in pairs), default=0.0)
    return most / max(scale, 1e-12)


def _described(
    ready: Trained, format: str, batch: int | None, inputs: Sequence[Tensor], outputs: Any
) -> Any:
    parts = ready.parts
    steps = parts.config.transform
    leaves = [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor)]
    done = {"samples": _steps(ready, steps.val), "batches": _steps(ready, steps.val_batch)}
    return {
        "format": format,
        "model": parts.config.model,
        "checkpoint": str(ready.path),
        "torch": torch.__version__,
        "inputs": [
            {"name": name, **_shape(field, batch), **_pictures(field, done)}
            for name, field in zip(ready.objective.inputs, inputs, strict=True)
        ],
        "outputs": [_shape(leaf, batch) for leaf in leaves],
        "classes": classes_of(parts.data.train.dataset),
        "transform": done,
    }


def _pictures(field: Tensor, transform: Mapping[str, Any]) -> dict[str, Any]:
    """How pictures become an input: all that a program needs that has nothing but the file."""
    steps = [step or {} for part in transform.values() for step in dict(part or {}).values()]
    scales = [step["statistics"] for step in steps if isinstance(step.get("statistics"), dict)]
    if field.ndim not in (4, 5) or not scales:
        return {}
    channels, height, width = field.shape[-3:]
    frames = ", frames" * (field.ndim == 5)
    return {
        "layout": f"batch{frames}, channels, height, width",
        "height": height,
        "width": width,
        "channels": {1: "grey", 3: "red, green, blue"}.get(channels, channels),
        "values": "(pixels / 255 - mean) / std of each channel, of pixels from 0 to 255",
        **scales[-1],
    }


def _shape(field: Tensor, batch: int | None) -> dict[str, Any]:
    """Of a batch of any size, or of one sample, whose outputs may begin with something else."""
    shape = [*field.shape] if batch else ["batch", *field.shape[1:]]
    return {"dtype": str(field.dtype).removeprefix("torch."), "shape": shape}


def _steps(ready: Trained, steps: Any) -> Any:
    """Transforms of validation by name, with the statistics of the training rows in numbers."""
    if not isinstance(steps, dict):
        return steps
    steps = {name: ready.parts.data.with_statistics(node) for name, node in steps.items()}
    return {
        name: {**node, "statistics": IMAGENET}
        if (node or {}).get("statistics") == "imagenet"
        else node
        for name, node in steps.items()
    }
