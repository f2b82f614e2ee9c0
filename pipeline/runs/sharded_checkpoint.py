"""A checkpoint in a folder, to which every rank writes its own parts of the tensors.

    shard-*.safetensors   the parts, each with its place in the whole tensor
    state.json            format, the state as JSON (state_tree.py), shape and type of
                          every tensor, the SHA-256 of every shard, and that of all this

torch.distributed.checkpoint writes the parts, in its safetensors format, since its default is a
pickle. Cost: that of one file, shared by the ranks; a load reads the shards twice.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from penstock.distributed.group import Group
from penstock.errors import PenstockError
from penstock.files import disk, plain_json
from penstock.files.plain_json import integer, mapping, shown
from penstock.runs.checkpoint_file import DTYPES, FORMAT, check_size, check_version, damaged, on_cpu
from penstock.runs.run_state import CheckpointError, NoCheckpointError, State, decode

STATE = "state.json"


T = TypeVar("T")


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of this rank's parts of tensors on the CPU; raises TypeError for partial sums."""
    for name, tensor in tensors.items():
        if any(placement.is_partial() for placement in getattr(tensor, "placements", ())):
            raise TypeError(f"{name} is a tensor whose parts have yet to be added up")
    return {name: on_cpu(tensor) for name, tensor in tensors.items()}


def write_folder(
    path: Path, text: str, tensors: dict[str, Tensor], group: Group, parts: object
) -> None:
    """Write an encoded state to the new folder `path`; every rank makes this call.

    Args:
        text: rank 0's is written.
        tensors: copies.
        group: one that nobody else uses meanwhile.
        parts: the process group of `group`.

    Raises:
        CheckpointError: on all ranks, if any of them cannot write.
    """
    hold: disk.Hold | None = None
    shapes = {
        name: [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
        for name, tensor in tensors.items()
    }

    def make() -> str:
        nonlocal hold
        if not group.is_first:
            return ""
        disk.prepare(path.parent, CheckpointError)
        hidden = disk.beside(path)
        hidden.mkdir()
        try:
            hold = disk.Hold.take(hidden / disk.HELD, os.O_RDWR | os.O_CREAT)
        except OSError:
            disk.discard(hidden)
            raise
        return str(hidden)

    def complete() -> None:
        if not group.is_first:
            return
        if set(files) != {file.name for file in hidden.glob("*.safetensors")}:
            raise CheckpointError(f"{hidden} has other shards than the ranks have written")
        content = {"format": FORMAT, "state": text, "tensors": shapes, "files": files}
        described = {**content, "sha256": _digest(content)}
        disk.write_atomically(hidden / STATE, json.dumps(described).encode())
        (hidden / disk.HELD).unlink()
        disk.sync_folder(hidden)
        hidden.rename(path)
        disk.sync_folder(path.parent)

    hidden = Path(_together(group, path, make)[0])
    try:
        shards = _together(group, path, lambda: _write_shard(hidden, tensors, group, parts))
        files = {name: digest for shard in shards for name, digest in shard.items()}
        _together(group, path, complete)
    finally:
        if hold is not None:
            hold.release()
        if group.is_first and hidden.exists():
            disk.discard(hidden)


def load(path: Path) -> State:
    """The state saved to the folder `path`, with whole tensors on the CPU.

    Raises:
        CheckpointError: no checkpoint, a damaged one, or one of a newer version.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    content = _described(path)
    try:
        _check_files(path, content["files"])
        tensors = _empty(path, content["tensors"])
        reader = HuggingFaceStorageReader(str(path))
        with warnings.catch_warnings():  # about working without other ranks
            warnings.simplefilter("ignore")
            load(tensors, storage_reader=reader, no_dist=True)
        return decode(content["state"], tensors)
    except CheckpointError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise damaged(path, f"{type(error).__name__}: {error}") from error


def _empty(path: Path, described: dict[str, Any]) -> dict[str, Tensor]:
    """Tensors for the shards to fill; together they are no larger than the shards."""
    known = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}
    room = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    for name, (dtype, shape) in described.items():
        if dtype not in known or not all(type(side) is int and side >= 0 for side in shape):
            raise ValueError(f"{shown(name)} is not a tensor of numbers")
        room -= math.prod(shape) * known[dtype].itemsize
        if room < 0:
            raise ValueError(f"its tensors are larger than its shards, from {shown(name)} on")
    return {
        name: torch.empty(shape, dtype=known[dtype]) for name, (dtype, shape) in described.items()
    }


def _write_shard(
    folder: Path, tensors: dict[str, Tensor], group: Group, parts: Any
) -> dict[str, str]:
    """Write this rank's parts; returns the SHA-256 of its files by name."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    save(dict(tensors), storage_writer=writer, process_group=parts)
    mine = folder.glob(f"shard-{group.world.rank + 1:05d}-*.safetensors")
    return {file.name: _file_digest(file) for file in mine}


def _together(group: Group, path: Path, work: Callable[[], T]) -> list[T]:
    """The results of `work` on all ranks; if one fails, all raise its CheckpointError."""
    result: Any = None
    failure = None
    try:
        result = work()
    except BaseException as error:  # torch's CheckpointException is not an Exception
        failure = _failure(path, error)
    outcomes = group.gather((result, failure))
    failures = [(rank, reason) for rank, (_, reason) in enumerate(outcomes) if reason]
    if failures:
        rank, reason = failures[0]
        raise CheckpointError(reason if len(outcomes) == 1 else f"rank {rank}: {reason}")
    return [result for result, _ in outcomes]


def _failure(path: Path, error: BaseException) -> str:
    for cause in (error, *(pair[0] for pair in getattr(error, "failures", {}).values())):
        if isinstance(cause, OSError):
            error = cause
    try:
        if isinstance(error, OSError):
            disk.refuse(path, error, CheckpointError)
    except CheckpointError as refused:
        return str(refused)
    if isinstance(error, PenstockError):
        return str(error)
    return f"{path} cannot be written: {type(error).__name__}: {error}"


def _described(path: Path) -> dict[str, Any]:
    """The verified contents of state.json."""
    try:
        content = mapping(plain_json.read(path / STATE))
        check_version(path, integer(content, "format"))
        if content.pop("sha256") != _digest(content):
            raise ValueError("state.json does not match its checksum")
    except FileNotFoundError as error:
        raise NoCheckpointError(f"{path}: there is no checkpoint in this folder") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise damaged(path, error) from error
    return dict(content)


def _check_files(path: Path, files: dict[str, str]) -> None:
    present = {file.name for file in path.glob("*.safetensors")}
    if present != set(files):
        odd = ", ".join(sorted(present ^ set(files))[:5])[:200]
        raise damaged(path, f"{odd} is missing or unexpected")
    for name, digest in files.items():
        with (path / name).open("rb") as file:
            check_size(path / name, os.fstat(file.fileno()))
        if _file_digest(path / name) != digest:
            raise damaged(path, f"{name} does not match its checksum")


def _digest(content: dict[str, object]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
