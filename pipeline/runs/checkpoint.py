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
import re
import shutil
import struct
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from penstock.distributed.group import Group
from penstock.errors import ConfigError
from penstock.files.disk import DiskError, beside, prepare, replacing, sync_folder, writing
from penstock.files.limits import Count, PositiveFloat

State = dict[str, Any]

BEST = "best.safetensors"
FORMAT = "2"

_NAME = re.compile(r"step-(\d+)\.safetensors")
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
    """The text of `state`, and copies of its tensors on the CPU by name.

    Args:
        state: nested dicts (keys text or int), lists and tuples of tensors, None, bool, int, float
            and str. Tensors may be on any device and share memory. What is sharded is made whole.
        keeps: whether this rank wants the tensors; if any is sharded, all ranks make this call.

    Raises:
        TypeError: the state holds something else; the message has its path.
    """
    tensors: dict[str, Tensor] = {}
    return json.dumps(_encode(state, "", tensors, keeps)), tensors


def _encode(value: Any, path: str, tensors: dict[str, Tensor], keeps: bool) -> Any:
    if isinstance(value, Tensor):
        if value.layout != torch.strided or value.is_meta or value.dtype not in _DTYPES:
            kind = f"{value.dtype} ({value.layout}, {value.device})"
            raise TypeError(f"{path} is a tensor of {kind}, which a checkpoint cannot hold")
        name = path.lstrip("/") or "state"
        while name in tensors:  # {"a/b": ...} beside {"a": {"b": ...}}
            name += "'"
        part: Any = value.detach()
        whole: Tensor = part.full_tensor() if hasattr(part, "full_tensor") else part
        if keeps:
            plain = whole.resolve_conj().resolve_neg()
            tensors[name] = plain.to("cpu", copy=True, memory_format=torch.contiguous_format)
        return {"$tensor": name}
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str | int) or isinstance(key, bool):
                raise TypeError(f"{path} has the key {key!r}, which is neither text nor int")
        pairs = [
            [key, _encode(item, f"{path}/{key}", tensors, keeps)] for key, item in value.items()
        ]
        plain_keys = all(isinstance(key, str) and not key.startswith("$") for key in value)
        return dict(pairs) if plain_keys else {"$pairs": pairs}
    if isinstance(value, list | tuple):
        items = [_encode(item, f"{path}/{at}", tensors, keeps) for at, item in enumerate(value)]
        return {"$tuple": items} if isinstance(value, tuple) else items
    if value is None or isinstance(value, bool | int | float | str):
        return value  # also NaN and infinities, which Python's JSON knows
    raise TypeError(f"{path} is a {type(value).__name__}, which a checkpoint cannot hold")


def _decode(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_decode(item, tensors) for item in value]
    match value:
        case {"$tensor": name}:
            return tensors[name]
        case {"$tuple": items}:
            return tuple(_decode(items, tensors))
        case {"$pairs": pairs}:
            return {key: _decode(item, tensors) for key, item in pairs}
        case dict():
            return {key: _decode(item, tensors) for key, item in value.items()}
    return value


def save(path: Path, state: State) -> None:
    """Write `state` to `path`, atomically.

    Raises:
        TypeError: the state holds what cannot be saved, see `encode`.
        CheckpointError: it cannot be written.
    """
    write(path, *encode(state))


def write(path: Path, text: str, tensors: Mapping[str, Tensor]) -> None:
    """Write an encoded state, atomically; raises CheckpointError."""
    # Not by safetensors' save_file: a kill leaves its hidden file, whose name nobody knows.
    metadata = {"format": FORMAT, "state": text, "sha256": _digest(text, tensors)}
    names = sorted(tensors, key=lambda name: -tensors[name].element_size())  # so all are aligned
    header: dict[str, object] = {"__metadata__": metadata}
    end = 0
    for name in names:
        tensor, start = tensors[name], end
        end += tensor.nbytes
        kind, shape = _DTYPES[tensor.dtype], list(tensor.shape)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [start, end]}
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with replacing(path, CheckpointError) as file:
        file.write(struct.pack("<Q", len(head)) + head)
        file.writelines(_bytes(tensors[name]) for name in names)


def load(path: Path) -> State:
    """The state saved to `path`, with its tensors on the CPU.

    Raises:
        CheckpointError: no checkpoint, a damaged one, or one of another version.
    """
    try:
        path.open("rb").close()  # says more than safe_open where this is not possible
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if "state" not in metadata:
            raise CheckpointError(f"{path}: a safetensors file, but not a checkpoint of Penstock's")
        if metadata.get("format") != FORMAT:
            raise CheckpointError(
                f"{path}: written in format {metadata.get('format')!r:.20} by another version of "
                f"Penstock; this one reads format {FORMAT}. Use that version"
            )
        if metadata.get("sha256") != _digest(metadata["state"], tensors):
            raise CheckpointError(
                f"{path}: the checkpoint is damaged: its contents do not match their checksum. "
                "Use an earlier one"
            )
        return {**_decode(json.loads(metadata["state"]), tensors)}
    except FileNotFoundError as error:
        raise NoCheckpointError(f"{path}: there is no such checkpoint") from error
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (SafetensorError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise CheckpointError(
            f"{path}: the checkpoint is truncated or damaged, or no safetensors file ({error}). "
            "Use an earlier one"
        ) from error


def _digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over the state's text, and names, types, shapes and bytes of the tensors."""
    digest = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(_bytes(tensor))
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the CPU, not copied."""
    if not tensor.numel():  # torch has no view of nothing as bytes
        return memoryview(b"")
    view: memoryview = tensor.reshape(-1).view(torch.uint8).numpy().data
    return view


class Checkpoints:
    """The checkpoints of a run: the last few, and the best.

    Every rank has one of these and makes the same calls. Rank 0 alone writes. What is sharded
    (FSDP) is made whole on it, a tensor at a time: its memory has to hold the state.

    Args:
        folder: made at the first save.
        group: the ranks.
        keep_last: how many of the last to keep.
        background: write in a thread.
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
        background: bool = False,
        every_epochs: Count = 1,
        every_steps: Count | None = None,
        every_minutes: PositiveFloat | None = None,
    ) -> None:
        self.folder = folder
        self.keep_last = keep_last
        self.every_epochs, self.every_steps = every_epochs, every_steps
        self.every_minutes = every_minutes
        self._background = background
        self._writes = group is None or group.is_first
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._saving: Future[None] | None = None
        self._passing: Path | None = None

    def save(self, state: State, step: int, best: bool = False, passing: bool = False) -> Path:
        """Save as the last one, after `step` optimizer steps, and also as the best one if `best`.

        It replaces one of the same step, and one that was `passing`: which steps the clock falls
        on must not decide how far back the last `keep_last` reach. `state` may be changed as soon
        as this returns.

        Raises:
            TypeError: the state holds what cannot be saved.
            CheckpointError: it, or the previous one, cannot be written.
        """
        self.flush()  # so that there are never two copies
        path = self.folder / f"step-{step:08d}.safetensors"
        text, tensors = encode(state, self._writes)
        if self._writes:
            self._saving = self._thread.submit(self._save, path, text, tensors, best, passing)
        if not self._background:
            self.flush()
        return path

    def _save(
        self, path: Path, text: str, tensors: dict[str, Tensor], best: bool, passing: bool
    ) -> None:
        prepare(self.folder, CheckpointError, idle=0)
        write(path, text, tensors)
        if best:
            _link(path, self.folder / BEST)
        # Those of later steps are of a run that was resumed from an earlier one, and not in count.
        known = [file for file in _numbered(self.folder) if steps_of(file) <= steps_of(path)]
        passed = [file for file in known if file == self._passing != path]
        old = [file for file in known if file not in passed][: -self.keep_last]
        for file in [*passed, *old]:
            with suppress(OSError):  # then the next save tries again
                file.unlink()
        self._passing = path if passing else None

    def flush(self) -> None:
        """Wait until what was saved is on the disk; raises the error of its writing, once."""
        self._wait()
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.result()

    def _wait(self) -> None:
        if self._saving is not None:
            wait([self._saving])

    def saved(self) -> list[Path]:
        """The last ones, oldest first; waits for the one that is being written."""
        self._wait()
        return _numbered(self.folder)

    def latest(self) -> int:
        """Optimizer steps of the newest one; 0 without any."""
        return max(map(steps_of, self.saved()), default=0)

    def best(self) -> Path | None:
        """The best one, or else the last one; waits for the one that is being written."""
        saved, best = self.saved(), self.folder / BEST
        return best if best.exists() else next(reversed(saved), None)

    def set_aside_after(self, step: int) -> list[Path]:
        """Rename those of a later step, so that no run resumes from them; returns the new names.

        For a run that resumes from `step`: later ones are damaged or of an abandoned branch. So
        none of them stays the best.
        """
        later = [path for path in self.saved() if steps_of(path) > step]
        best = self.folder / BEST
        if best.exists() and any(best.samefile(path) for path in later):
            best.unlink()
        return [path.replace(path.with_name(f"set-aside-{path.name}")) for path in later]


def find(path: Path) -> Path:
    """The checkpoint that a path refers to: itself, or the best one of a run or of its folder.

    Raises:
        CheckpointError: there is none.
    """
    best = path if path.is_file() else Checkpoints(_folder_of(path)).best()
    if best is None:
        raise NoCheckpointError(f"{path}: {_NONE}")
    return best


@dataclass(frozen=True)
class Newest:
    """The newest checkpoint that could be loaded.

    Attributes:
        skipped: newer ones that cannot be used, the newest first, and what is wrong with each.
    """

    path: Path
    state: State
    skipped: list[tuple[Path, str]] = field(default_factory=list)


def has_checkpoint(path: Path) -> bool:
    """Whether a run's folder, or the folder of its checkpoints, has any, usable or not."""
    return any(_newest_first(path))


def find_newest(path: Path) -> Newest:
    """The newest usable checkpoint of a run's folder, or of the folder of its checkpoints.

    Raises:
        CheckpointError: there is none, or none can be used; with what is wrong with each.
    """
    skipped: list[tuple[Path, str]] = []
    for file in _newest_first(path):
        try:
            return Newest(file, load(file), skipped)
        except CheckpointError as error:
            skipped.append((file, str(error).removeprefix(f"{file}: ")))
    if not skipped:
        raise NoCheckpointError(f"{path}: {_NONE}")
    reasons = "".join(f"\n  {file.name}: {reason}" for file, reason in skipped)
    raise CheckpointError(f"{path}: none of its checkpoints can be used:{reasons}")


def _newest_first(path: Path) -> Iterator[Path]:
    """All checkpoints, each once. The best is last: if it is not among the others, it is older."""
    folder = _folder_of(path)
    numbered = _numbered(folder)
    yield from reversed(numbered)
    best = folder / BEST
    if best.exists() and not any(best.samefile(file) for file in numbered if file.exists()):
        yield best


def _folder_of(path: Path) -> Path:
    """The folder of a run's checkpoints, given that of the run or this one itself."""
    inner = path / "checkpoints"
    return inner if inner.is_dir() else path


def _numbered(folder: Path) -> list[Path]:
    """The checkpoints of a folder that have a step in their names, by step."""
    named = (path for path in folder.glob("step-*") if _NAME.fullmatch(path.name))
    return sorted(named, key=steps_of)


def steps_of(path: Path) -> int:
    """The optimizer steps in a checkpoint's name; 0 if it has none."""
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else 0


def _link(path: Path, best: Path) -> None:
    """Make `path` the best one, atomically, by a hard link, which outlives the first name, or a
    copy on a file system without hard links.
    """
    hidden = beside(best)
    with writing(best, CheckpointError):
        try:
            os.link(path, hidden)
        except OSError:
            shutil.copyfile(path, hidden)
        hidden.replace(best)
        sync_folder(best.parent)
