"""The checkpoints of a run: saved in the background, the last few and the best of them kept.

A checkpoint is one safetensors file. Its tensors are named by their paths in the state; its
metadata has `format`, `state` (everything else, as JSON) and `sha256` over state and tensors.
Nothing in it is unpickled or executed.

Once the first is written, there is a complete one at every moment, whatever is killed. A save costs
the training a copy of the state to the CPU, and a wait if the disk is slower than the training; the
checksum takes about 1 s a GiB in the background.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from penstock.distributed.group import Group
from penstock.errors import ConfigError
from penstock.files.disk import DiskError, prepare, replacing, temporary_name, writing
from penstock.files.limits import Count, PositiveFloat

State = dict[str, Any]

BEST = "best.safetensors"
FORMAT = "3"

_READERS = {"1": "commit 56af455b", "2": "commit fe76f2f2"}  # of the formats before this one
# As safetensors names them.
_DTYPES = {
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
_NONE = "it holds no checkpoint; give the folder of a run, or one of its checkpoints"


class CheckpointError(DiskError):
    """A checkpoint cannot be used or written; the message names it and says what to do."""


class NoCheckpointError(CheckpointError):
    """There is no checkpoint where the configuration names one."""

    exit_code = ConfigError.exit_code


def encode(state: State, keeps: bool = True) -> tuple[str, dict[str, Tensor]]:
    """The text of `state`, and copies of its tensors on the CPU by their paths in it.

    Args:
        state: nested mappings, lists and tuples of tensors, None, bool, int, float and str. Tensors
            may be on any device and share memory. What is sharded is made whole.
        keeps: whether this rank wants the tensors; if any is sharded, all ranks make this call.

    Raises:
        TypeError: the state holds something else; the message has its path.
    """
    tensors: dict[str, Tensor] = {}
    return json.dumps(_encode(state, "", tensors, keeps)), tensors


def _encode(value: Any, path: str, tensors: dict[str, Tensor], keeps: bool) -> Any:
    if isinstance(value, Tensor) and value.layout == torch.strided and value.dtype in _DTYPES:
        whole: Any = value.detach()
        if hasattr(whole, "full_tensor"):  # sharded: a collective, and so on all ranks
            whole = whole.full_tensor()
        while path in tensors:  # {"a/b": ..., "a": {"b": ...}} has two of one path
            path += "'"
        if keeps:
            # A conjugate is a flag of torch's, which bytes do not have.
            tensors[path] = (
                whole.resolve_conj()
                .resolve_neg()
                .to("cpu", copy=True, memory_format=torch.contiguous_format)
            )
        return {"$tensor": path}
    if isinstance(value, Mapping):
        # As pairs, since JSON would make text of a key that is a number.
        pairs = [
            [_encode(part, f"{path}/{key}".lstrip("/"), tensors, keeps) for part in (key, item)]
            for key, item in value.items()
        ]
        return {"$pairs": pairs}
    if isinstance(value, list | tuple):
        values = [_encode(item, f"{path}/{at}", tensors, keeps) for at, item in enumerate(value)]
        return {"$tuple": values} if isinstance(value, tuple) else values
    if value is None or isinstance(value, bool | int | float | str):
        return value  # also NaN and infinities, which Python's JSON knows
    raise TypeError(f"{path} is {value!r:.60} ({type(value).__name__}): no checkpoint can hold it")


def _decode(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    match value:
        case list():
            return [_decode(item, tensors) for item in value]
        case {"$tensor": name}:
            return tensors[name]
        case {"$tuple": items}:
            return tuple(_decode(items, tensors))
        case {"$pairs": pairs}:
            return dict(_decode(pairs, tensors))
    return value


def write(path: Path, text: str, tensors: Mapping[str, Tensor]) -> None:
    """Write an encoded state, atomically; raises CheckpointError."""
    # Not by safetensors' save_file: a kill leaves its hidden file under a random name, only
    # the owner may read what it writes, and its error for a full disk is no more than a number.
    metadata = {"format": FORMAT, "state": text, "sha256": _digest(text, tensors)}
    names = sorted(tensors, key=lambda name: -tensors[name].element_size())  # so all are aligned
    ends = accumulate((tensors[name].nbytes for name in names), initial=0)
    described = {
        name: {
            "dtype": _DTYPES[tensors[name].dtype],
            "shape": list(tensors[name].shape),
            "data_offsets": offsets,
        }
        for name, offsets in zip(names, pairwise(ends), strict=True)
    }
    head = json.dumps({"__metadata__": metadata, **described}).encode()
    head += b" " * (-len(head) % 8)  # the tensors begin at a multiple of 8, for mapped reading
    with replacing(path, CheckpointError) as file:
        file.write(struct.pack("<Q", len(head)) + head)
        file.writelines(_bytes(tensors[name]) for name in names)


def load(path: Path) -> State:
    """The state saved to `path`, with its tensors on the CPU.

    Raises:
        CheckpointError: no checkpoint, a damaged one, or one of another version.
    """
    try:
        path.open("rb").close()  # safe_open says of any file that it may not read: not found
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            if about["format"] != FORMAT:
                raise CheckpointError(
                    f"{path}: a checkpoint of format {about['format']:.20}, which "
                    f"{_READERS.get(about['format'], 'a later version of Penstock')} reads; "
                    f"this version reads format {FORMAT}"
                )
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if about["sha256"] != _digest(about["state"], tensors):
            raise ValueError("its contents do not match their checksum")
        return {**_decode(json.loads(about["state"]), tensors)}
    except FileNotFoundError as error:
        raise NoCheckpointError(f"{path}: there is no such checkpoint") from error
    except (OSError, SafetensorError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise CheckpointError(
            f"{path}: the checkpoint is truncated, damaged or unreadable, or no checkpoint of "
            f"Penstock's ({error}). Use an earlier one"
        ) from error


def _digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over the state's text, and names, types, shapes and bytes of the tensors.

    A disk that has lost a bit would otherwise give other weights without a word.
    """
    digest = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(_bytes(tensor))
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the CPU, not copied."""
    # torch has no view of nothing as bytes.
    return tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else memoryview(b"")


class Checkpoints:
    """The checkpoints of a run: the last few, and the best.

    Every rank has one of these and makes the same calls. Rank 0 alone writes. What is sharded
    (FSDP) is made whole on it, a tensor at a time: its memory has to hold the state.

    Args:
        folder: made at the first save.
        group: the ranks.
        keep_last: how many of the last to keep.
        every_epochs: between two of them; the best and the last are always saved.
        every_steps: of the optimizer, between two in an epoch; None: none.
        every_minutes: the same by the clock.
    """

    def __init__(
        self,
        folder: Path,
        group: Group | None = None,
        /,
        keep_last: Count = 1,
        every_epochs: Count = 1,
        every_steps: Count | None = None,
        every_minutes: PositiveFloat | None = None,
    ) -> None:
        self.folder, self.keep_last = folder, keep_last
        self.every_epochs, self.every_steps = every_epochs, every_steps
        self.every_minutes = every_minutes
        self._writes = group is None or group.is_first
        # One thread: two saves at once would be two copies of the state in memory.
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._saving: Future[None] | None = None

    def save(self, state: State, step: int, best: bool = False) -> Path:
        """Save as the last one, after `step` optimizer steps, and also as the best one if `best`.

        It replaces one of the same step. `state` may be changed as soon as this returns.

        Raises:
            TypeError: the state holds what cannot be saved.
            CheckpointError: it, or the previous one, cannot be written.
        """
        self.flush()  # so that there are never two copies
        path = self.folder / f"step-{step:08d}.safetensors"
        text, tensors = encode(state, self._writes)
        if self._writes:
            self._saving = self._thread.submit(self._save, path, text, tensors, best)
        return path

    def _save(self, path: Path, text: str, tensors: dict[str, Tensor], best: bool) -> None:
        # Nobody else writes here, so what a killed save has left goes at once.
        prepare(self.folder, CheckpointError, idle=0)
        # The best first: a run that is killed before the last has it resumes from before both, and
        # makes them again. The other way round, the last would know of a best that no file has.
        write(self.folder / BEST if best else path, text, tensors)
        if best:
            hidden = temporary_name(path)
            with writing(path, CheckpointError):
                try:
                    os.link(self.folder / BEST, hidden)
                except OSError:  # a file system without hard links
                    shutil.copyfile(self.folder / BEST, hidden)
                hidden.replace(path)
        # Only now, when the new one is whole on the disk.
        by_step = [file for file in saved(self.folder) if file.name != BEST]
        for old in by_step[: -self.keep_last]:
            with suppress(OSError):  # then the next save tries again
                old.unlink()

    def flush(self) -> None:
        """Wait until what was saved is on the disk; raises the error of its writing, once."""
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.result()

    def best(self) -> Path | None:
        """The best one, or else the last one; waits for the one that is being written."""
        if self._saving is not None:
            wait([self._saving])
        files = saved(self.folder)
        return next((file for file in files if file.name == BEST), files[-1] if files else None)

    def set_aside(self, damaged: Iterable[Path]) -> None:
        """Rename those that cannot be read, which would count among the last ones."""
        best = self.folder / BEST
        for path in damaged:
            if best.exists() and best.samefile(path):
                best.unlink()
            path.replace(path.with_name(f"damaged-{path.name}"))


class Newest(NamedTuple):
    """The newest checkpoint that could be loaded; `skipped`: newer ones, and what is wrong."""

    path: Path
    state: State
    skipped: Sequence[tuple[Path, str]] = ()


def saved(path: Path) -> list[Path]:
    """The checkpoints of a run's folder, or of the one in it: the best, then the last by step."""
    folders = path, path / "checkpoints"
    files = [file for folder in folders for file in folder.glob("*.safetensors")]
    ours = (file for file in files if file.name == BEST or file.name.startswith("step-"))
    # By length first, as a step may have more than 8 digits.
    return sorted(ours, key=lambda file: (len(file.name), file.name))


def find(path: Path) -> Path:
    """The checkpoint that a path refers to: itself, or the best one of a run or of its folder.

    Raises:
        CheckpointError: there is none.
    """
    files = [path] if path.is_file() else saved(path)
    if not files:
        raise NoCheckpointError(f"{path}: {_NONE if path.exists() else 'it is missing'}")
    return files[0] if files[0].name == BEST else files[-1]


def find_newest(path: Path) -> Newest:
    """The newest usable checkpoint of a run's folder, or of the folder of its checkpoints.

    Raises:
        CheckpointError: there is none, or none can be used; with what is wrong with each.
    """
    skipped = list[tuple[Path, str]]()
    # The best one comes last: it is one of the others, or older than they are.
    for file in reversed(saved(path)):
        try:
            return Newest(file, load(file), skipped)
        except CheckpointError as error:
            skipped.append((file, str(error).removeprefix(f"{file}: ")))
    if not skipped:
        raise NoCheckpointError(f"{path}: {_NONE}")
    reasons = "; ".join(f"{file.name}: {reason}" for file, reason in skipped)
    raise CheckpointError(f"{path}: none of its checkpoints can be used: {reasons}")
