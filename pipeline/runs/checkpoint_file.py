"""A checkpoint in one safetensors file, atomic, verified and versioned.

Its metadata has `format`, `state` (JSON, see run_state.py) and `sha256` over both and all tensors.
Cost: a copy of the tensors on the CPU, and about 1 s a GiB for the hash beside the disk's own time.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from penstock.files.disk import replacing
from penstock.runs import run_state
from penstock.runs.run_state import CheckpointError, NoCheckpointError, State, encode, is_sharded

FORMAT = 1

_DIGITS = 9  # of a version
_MOST_TENSORS = 1 << 18
_SMALL = 64 << 20  # bytes
_SPARSE = 16  # more than disks that compress save

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def save(path: Path, state: State) -> None:
    """Write `state` to `path`, atomically.

    Args:
        state: nested dicts (keys text or int), lists and tuples of tensors, None, bool, int, float
            and str. Tensors may be on any device, share memory or be strided.

    Raises:
        TypeError: the state holds something else; the message has its path.
        CheckpointError: it cannot be written.
    """
    text, tensors = encode(state)
    write_file(path, text, copied(tensors))


def copied(tensors: Mapping[str, Tensor], keeps: bool = True) -> dict[str, Tensor]:
    """Copies of whole tensors on the CPU; raises TypeError as `save` does.

    Args:
        keeps: whether this rank wants them; if any is sharded, all ranks make this call.
    """
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES:
            reason = f"a tensor of {tensor.dtype}, which a checkpoint's file cannot hold"
            raise TypeError(f"{name} is {reason}")
    copies: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        part: Any = tensor
        whole = part.full_tensor() if is_sharded(tensor) else tensor
        if keeps:
            copies[name] = on_cpu(whole)
    return copies


def on_cpu(tensor: Tensor) -> Tensor:
    """A contiguous copy."""
    plain = tensor.resolve_conj().resolve_neg()
    return plain.to("cpu", copy=True, memory_format=torch.contiguous_format)


def write_file(path: Path, text: str, tensors: Mapping[str, Tensor]) -> None:
    """Write an encoded state and copies of its tensors; raises CheckpointError."""
    digest = _digest(str(FORMAT), text, tensors)
    names = sorted(tensors, key=lambda name: -tensors[name].element_size())  # so all are aligned
    header: dict[str, object] = {
        "__metadata__": {"format": str(FORMAT), "state": text, "sha256": digest}
    }
    end = 0
    for name in names:
        tensor, start = tensors[name], end
        end += tensor.nbytes
        header[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with replacing(path, CheckpointError) as file:
        file.write(struct.pack("<Q", len(head)) + head)
        file.writelines(_bytes(tensors[name]) for name in names)


def load(path: Path) -> State:
    """The state saved to `path`, with its tensors on the CPU.

    Raises:
        CheckpointError: no checkpoint, a damaged one, or one of a newer version.
    """
    try:
        with path.open("rb") as opened:  # says more than safe_open if there is no permission
            check_size(path, os.fstat(opened.fileno()))
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            version = metadata.get("format", "")
            if "state" not in metadata or not (version.isascii() and version.isdecimal()):
                raise CheckpointError(
                    f"{path}: a safetensors file, but not a checkpoint of Penstock's"
                )
            check_version(path, int(version[:_DIGITS]))
            names = file.keys()
            if len(names) > _MOST_TENSORS:
                raise damaged(path, f"it has {len(names)} tensors, more than {_MOST_TENSORS}")
            tensors = {name: file.get_tensor(name) for name in names}
    except FileNotFoundError as error:
        raise NoCheckpointError(f"{path}: there is no such checkpoint") from error
    except PermissionError as error:
        raise CheckpointError(f"{path}: no permission to read it. Give yourself that") from error
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: {_unreadable(path)} ({error})") from error
    text = metadata["state"]
    if metadata.get("sha256") != _digest(version, text, tensors):
        raise damaged(path, "its contents do not match their checksum")
    try:
        return run_state.decode(text, tensors)
    except ValueError as error:
        raise damaged(path, f"its state cannot be read ({error})") from error


DAMAGED = "the checkpoint is damaged"


def damaged(path: Path, reason: object) -> CheckpointError:
    return CheckpointError(f"{path}: {DAMAGED}: {reason}. Use an earlier one")


def check_version(path: Path, version: int) -> None:
    """Refuse a checkpoint of a newer Penstock."""
    if version > FORMAT:
        raise CheckpointError(
            f"{path}: written in format {version} by a newer Penstock; this one "
            f"reads up to {FORMAT}. Update Penstock to use it"
        )


def check_size(path: Path, state: os.stat_result) -> None:
    """Refuse a file larger than this machine's memory, or one that is sparse, as no run writes."""
    blocks = getattr(state, "st_blocks", None)  # of 512 bytes; Windows has no such number
    if blocks is not None and state.st_size > _SMALL and blocks * 512 * _SPARSE < state.st_size:
        raise damaged(path, f"nearly all of its {state.st_size} bytes were never written")
    if hasattr(os, "sysconf"):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if 0 < memory < state.st_size:
            raise CheckpointError(
                f"{path}: its {state.st_size} bytes do not fit into the "
                f"{memory} bytes of this machine's memory"
            )


def _digest(version: str, text: str, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over the format, the state's text, and names, types, shapes and bytes of tensors."""
    digest = hashlib.sha256(f"{version} {len(text)} {text}".encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{len(name)} {name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(_bytes(tensor))
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the CPU, not copied."""
    if not tensor.numel():
        return memoryview(b"")
    view: memoryview = tensor.reshape(-1).view(torch.uint8).numpy().data
    return view


def _unreadable(path: Path) -> str:
    if path.is_dir():
        return "this is a folder; give the file"
    try:
        with path.open("rb") as file:
            start = file.read(2)
    except OSError as error:
        return f"{DAMAGED}: {error.strerror}. Use an earlier one"
    if start == b"PK" or start[:1] == b"\x80":
        return (
            "this is a pickle, as torch.save writes it. Reading a pickle can run any code, so "
            "Penstock does not; convert one that you trust with "
            "penstock.runs.checkpoint.save"
        )
    return "the checkpoint is truncated or damaged. Use an earlier one"
