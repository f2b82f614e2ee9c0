"""Atomic, verified and versioned files of a run's state; never a pickle.

A checkpoint is one safetensors file, so that every tool that reads those can read the weights, each
under its path in the state ("model/head.weight"):

    tensors       the tensors of the state, each once, however often the state holds it
    metadata      format   version of what is described here
                  state    the state as JSON, with tensors by name
                  sha256   over the two above and all tensors: any changed bit is noticed

What plain JSON cannot say is a mapping with one key of these: {"$tensor": name}, {"$tuple": [...]},
{"$float": "inf"}, {"$dict": [[key, value], ...]} (keys that are not text, or that start with "$").

Writing goes to a file beside it, to the disk, and then in one step to its name: a crash leaves the
old file or the new one. Cost: a copy of the tensors on the CPU while it is written, and beside the
disk's own time about 1 s a GiB for the hash.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from pipeline.errors import PenstockError

FORMAT = 1
BEST = "best.safetensors"

State = dict[str, Any]


class CheckpointError(PenstockError):
    """A file that cannot be used; the message names it and says what to do."""


def save(path: Path, state: State) -> None:
    """Write `state` to `path`, atomically; what stood there is replaced.

    Args:
        state: nested dicts (keys text or int), lists and tuples of tensors, None, bool, int, float
            and str. Tensors may be on any device, share memory or be strided.

    Raises:
        TypeError: the state holds something else; the message has its path.
    """
    tensors: dict[str, torch.Tensor] = {}
    tree = json.dumps(_encode(state, "", tensors, {}), allow_nan=False)
    metadata = {"format": str(FORMAT), "state": tree, "sha256": _digest(str(FORMAT), tree, tensors)}
    with _replacing(path) as beside:
        save_file(tensors, beside, metadata)


def load(path: Path) -> State:
    """The state that was saved to `path`, its tensors on the CPU.

    Raises:
        CheckpointError: no checkpoint, a damaged one, or one of a newer version.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            _check_format(path, metadata)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: there is no such checkpoint") from error
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: {_unreadable(path)} ({error})") from error
    tree = metadata.get("state", "")
    if metadata.get("sha256") != _digest(metadata["format"], tree, tensors):
        raise CheckpointError(f"{path}: the checkpoint is damaged: its contents do not have the "
                              "checksum that was saved with them. Use an earlier one")  # fmt: skip
    state: State = _decode(json.loads(tree), tensors)
    return state


class Checkpoints:
    """The checkpoints of a run: the last few, and the best.

    Args:
        folder: made when the first one is saved.
        keep_last: how many of the last to keep.
    """

    def __init__(self, folder: Path, keep_last: int = 1) -> None:
        self.folder = folder
        self.keep_last = keep_last

    def save(self, state: State, step: int, best: bool = False) -> Path:
        """Save as the last one, after `step` optimizer steps, and as the best one if it is."""
        path = self.folder / f"step-{step:08d}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        save(path, state)
        if best:
            _link(path, self.folder / BEST)
        for old in self.saved()[: -self.keep_last]:
            old.unlink()
        return path

    def saved(self) -> list[Path]:
        """The last ones, oldest first."""
        return sorted(self.folder.glob("step-*.safetensors"), key=lambda p: int(p.stem[5:]))

    def best(self) -> Path | None:
        """The best one; the last one where none was called the best."""
        path = self.folder / BEST
        return path if path.exists() else next(reversed(self.saved()), None)


def write_atomically(path: Path, data: bytes) -> None:
    """Put `data` on the disk, and then in one step in the place of what `path` held."""
    with _replacing(path) as beside:
        beside.write_bytes(data)


def find(path: Path) -> Path:
    """The file that a person means: a checkpoint, a run's folder (its best), or their folder.

    Raises:
        CheckpointError: there is none.
    """
    if path.is_file():
        return path
    for folder in (path / "checkpoints", path):
        best = Checkpoints(folder).best()
        if best is not None:
            return best
    raise CheckpointError(f"{path}: there is no checkpoint in it; give the folder of a run, or a "
                          "file of its checkpoints folder")  # fmt: skip


def _encode(value: Any, path: str, tensors: dict[str, torch.Tensor], seen: dict[Any, str]) -> Any:
    """`value` as JSON; its tensors go to `tensors`, by path."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, torch.Tensor):
        return {"$tensor": _name_tensor(value, path, tensors, seen)}
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):  # JSON text gives back a finite float exactly
        return float(value) if math.isfinite(value) else {"$float": repr(float(value))}
    if isinstance(value, (list, tuple)):
        items = [_encode(item, f"{path}/{i}", tensors, seen) for i, item in enumerate(value)]
        return {"$tuple": items} if isinstance(value, tuple) else items
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, (str, int)) or isinstance(key, bool):
                raise TypeError(f"{path or 'the state'} has the key {key!r}; text or int can be "
                                "saved")  # fmt: skip
        pairs = [[k, _encode(v, f"{path}/{k}", tensors, seen)] for k, v in value.items()]
        plain = all(isinstance(key, str) and not key.startswith("$") for key in value)
        return dict(pairs) if plain else {"$dict": pairs}
    raise TypeError(f"{path} is a {type(value).__name__}, which a checkpoint cannot hold")


def _name_tensor(
    tensor: torch.Tensor, path: str, tensors: dict[str, torch.Tensor], seen: dict[Any, str]
) -> str:
    """The name under which a tensor is saved; the same one for the same tensor."""
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        raise TypeError(f"{path} is a tensor without plain data ({tensor.layout}, {tensor.dtype}, "
                        f"{tensor.device}), which a checkpoint cannot hold")  # fmt: skip
    same = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(),
            tensor.is_conj(), tensor.is_neg())  # fmt: skip
    if same not in seen or not tensor.numel():
        name = path.lstrip("/") or "state"
        while name in tensors:  # {"a/b": ...} beside {"a": {"b": ...}}
            name += "'"
        # A copy of its own, as safetensors refuses views of one storage.
        own = tensor.detach().resolve_conj().resolve_neg()
        tensors[name] = own.to("cpu", copy=True, memory_format=torch.contiguous_format)
        seen[same] = name
    return seen[same]


def _decode(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, list):
        return [_decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    match value:
        case {"$tensor": name}:
            return tensors[name]
        case {"$float": text}:
            return float(text)
        case {"$tuple": items}:
            return tuple(_decode(item, tensors) for item in items)
        case {"$dict": pairs}:
            return {key: _decode(item, tensors) for key, item in pairs}
    return {key: _decode(item, tensors) for key, item in value.items()}


def _digest(version: str, tree: str, tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over format, the state's text and all tensors: names, types, shapes and bytes."""
    digest = hashlib.sha256(f"{version} {len(tree)} {tree}".encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{len(name)} {name} {tensor.dtype} {list(tensor.shape)}".encode())
        if tensor.numel():
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _check_format(path: Path, metadata: Mapping[str, str]) -> None:
    version = metadata.get("format", "")
    if "state" not in metadata or not version.isdecimal():
        raise CheckpointError(f"{path}: a safetensors file, but no checkpoint of Penstock's")
    if int(version) > FORMAT:
        raise CheckpointError(f"{path}: written in format {version} by a newer Penstock; this one "
                              f"reads up to {FORMAT}. Update Penstock to use it")  # fmt: skip


def _unreadable(path: Path) -> str:
    if path.is_dir():
        return "this is a folder; give the file"
    with path.open("rb") as file:
        start = file.read(2)
    if start == b"PK" or start[:1] == b"\x80":
        return ("this is a pickle, as torch.save writes it. A pickle can run any code when it is "
                "read, so Penstock never does; write what you trust anew with pipeline.checkpoint."
                "save")  # fmt: skip
    return "the checkpoint is cut off or damaged. Use an earlier one"


def _link(source: Path, path: Path) -> None:
    """Give a file a second name, atomically, so that it outlives the first; copy if need be."""
    with _replacing(path) as beside:
        try:
            os.link(source, beside)
        except OSError:  # a file system without hard links
            shutil.copyfile(source, beside)


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A name to write to; what was written takes the place of `path` unless that failed."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.unlink(missing_ok=True)
    try:
        yield beside
        with beside.open("rb+") as file:
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Bring a rename to the disk; where folders cannot be opened (Windows) there is no way to."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
