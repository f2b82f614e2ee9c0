"""Offline runs of Weights & Biases, read back; its own reader is not for Python.

A file is a head of seven bytes, and a log as LevelDB writes it: blocks of 32 KiB, with records of a
checksum, a length, a kind and data. Each record is a message of W&B's protobuf schema.
"""

from __future__ import annotations

import importlib
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock.files.regular_file import open_regular

_MARK, _HEAD, _BLOCK = b":W&B", 7, 1 << 15
_WHOLE, _LAST = 1, 4  # kinds of records; the others are the first and the middle of one
_LARGEST = 64 << 20  # bytes of a record


def records(path: Path) -> Iterator[Any]:
    """The messages in a .wandb file, up to the first that was written in part.

    Raises:
        ValueError: it is no such file, or damaged.
        OSError: it cannot be read.
    """
    new = importlib.import_module("wandb.proto.wandb_internal_pb2").Record
    refused = importlib.import_module("google.protobuf.message").DecodeError
    with open_regular(path) as file:
        if not file.read(_HEAD).startswith(_MARK):
            raise ValueError(f"{path} is not a file of W&B")
        data, at = bytearray(), _HEAD
        while True:
            left = _BLOCK - at % _BLOCK
            if left < _HEAD:  # too short for a record
                file.read(left)
                at += left
                continue
            head = file.read(_HEAD)
            if len(head) < _HEAD:
                return
            _, length, kind = struct.unpack("<IHB", head)
            part = file.read(length)
            data += part
            at += _HEAD + length
            if len(part) < length:
                return
            if len(data) > _LARGEST:
                raise ValueError(f"{path} has a record of more than {_LARGEST >> 20} MiB")
            if kind in (_WHOLE, _LAST):
                record = new()
                try:
                    record.ParseFromString(bytes(data))
                except refused as error:
                    raise ValueError(f"{path} is damaged: {error}") from error
                data.clear()
                yield record


def last_step(folder: Path) -> int:
    """The last step of a run's offline files in `folder`; -1 if there is none.

    Raises:
        ValueError: a file is damaged.
    """
    last = -1
    for path in sorted(folder.glob("offline-run-*/run-*.wandb")):
        for record in records(path):
            if record.WhichOneof("record_type") == "history":
                last = max(last, record.history.step.num)
    return last
