"""Where checkpoints stand: the address of the next batch of a run that resumes from one.

Reads no tensor and verifies no checksum; whoever loads one does. Cost: 1 ms a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.files import plain_json
from penstock.files.plain_json import integer, mapping
from penstock.files.regular_file import open_regular
from penstock.order.address import Address
from penstock.runs.sharded_checkpoint import STATE

_LARGEST = 128 << 20  # bytes of a header or a state.json


@dataclass(frozen=True)
class Saved:
    """A checkpoint; it has learned from all batches before `address`, as far as that is known."""

    path: Path
    address: Address | None
    trouble: str = ""

    @property
    def is_usable(self) -> bool:
        """Whether a run may resume from it: not if it was set aside as damaged or abandoned."""
        return self.address is not None and not self.path.name.startswith("set-aside-")


def saved_in(run: Path) -> list[Saved]:
    """The checkpoints in a run's folder under all their names, by address, the best first."""
    folder = run / "checkpoints"
    paths = folder.iterdir() if folder.is_dir() else ()
    checkpoints = [
        _read(path) for path in paths if path.suffix == ".safetensors" or (path / STATE).exists()
    ]
    return sorted(
        checkpoints, key=lambda checkpoint: (checkpoint.address or (0, 0), checkpoint.path.name)
    )


def _read(path: Path) -> Saved:
    try:
        if path.is_dir():
            text = mapping(plain_json.read(path / STATE, _LARGEST))["state"]
        else:
            text = mapping(_header(path)["__metadata__"])["state"]
        if not isinstance(text, str):
            raise TypeError(f"its state is {plain_json.name(text)}, and must be a text")
        loader = mapping(mapping(plain_json.parse(text, _LARGEST)).get("loader"))
        return Saved(path, Address(integer(loader, "epoch"), integer(loader, "step")))
    except (OSError, ValueError, LookupError, TypeError) as error:
        return Saved(path, None, f"{type(error).__name__}: {str(error)[:200]}")


def _header(path: Path) -> dict[str, object]:
    """The header of a safetensors file: 8 bytes with its length, and JSON."""
    with open_regular(path) as file:
        size = int.from_bytes(file.read(8), "little")
        if size > _LARGEST:
            raise ValueError(f"its header claims {size} bytes, more than {_LARGEST}")
        return mapping(plain_json.parse(file.read(size), _LARGEST))


def newest_before(saved: list[Saved], address: Address) -> Iterator[Saved]:
    """Those that a run may resume from and that have not learned from `address`, latest first."""
    usable = [checkpoint for checkpoint in saved if checkpoint.is_usable]
    yield from (
        checkpoint
        for checkpoint in reversed(usable)
        if checkpoint.address is not None and checkpoint.address <= address
    )
