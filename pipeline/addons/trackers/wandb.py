"""Runs of Weights & Biases.

Offline runs of Weights & Biases, read back; its own reader is not for Python.

A file is a head of seven bytes, and a log as LevelDB writes it: blocks of 32 KiB, with records of a
checksum, a length, a kind and data. Each record is a message of W&B's protobuf schema.
"""

from __future__ import annotations

import importlib
import os
import re
import secrets
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.addons.trackers import known
from penstock.addons.trackers.tracker import Points, TrackedRun, Tracker
from penstock.errors import ConfigError, Problem
from penstock.files.regular_file import open_regular

if TYPE_CHECKING:
    from wandb import Run

# Not sent are the command line, which may hold secrets, the machine, the environment, the code.
_KEPT_HERE: dict[str, Any] = {
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_disable_machine_info": True,
    "x_save_requirements": False,
    "disable_git": True,
    "disable_code": True,
    "save_code": False,
    "console": "off",
    "x_transaction_log_flush_interval": 1.0,  # seconds; a killed run loses what waits
}
_OF_A_PROJECT = {"entity", "project", "mode", "disabled"}  # that a working folder may choose
_LARGEST_SETTINGS = 1 << 16  # bytes
_SECONDS = 25  # for a connection, and for what is left to be sent at the end


class WandB(Tracker):
    """A run of Weights & Biases; the jobs of a sweep are a group.

    A resumed run continues in the same one. W&B's steps only increase, so of steps that are taken
    again it keeps the first ones.

    Args:
        project, entity: where the run is listed; None: as W&B is set up.
        mode: online | offline; None: WANDB_MODE, or online. Offline runs lie in the run folder,
            and `wandb sync` sends them.
        base_url: of a server of your own; None: WANDB_BASE_URL, or W&B's.
    """

    needs = "wandb"

    def __init__(
        self,
        folder: str | Path,
        run: TrackedRun,
        project: str | None = "penstock",
        entity: str | None = None,
        mode: str | None = None,
        base_url: str | None = None,
    ) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        _check_settings(Path(os.environ.get("WANDB_DIR") or "."))
        _check_settings(Path())
        import wandb  # noqa: F401

        self.folder, self.run = Path(folder), run
        self.project, self.entity = project, entity
        self.mode = mode or os.environ.get("WANDB_MODE") or "online"
        self.base_url = base_url
        self._client: Run | None = None
        self._sent = -1  # the last step that was handed over
        self._row: dict[str, Any] = {}  # of the step after it; W&B has one row a step
        self._step = -1

    def start(self) -> None:
        import wandb

        # Otherwise it asks for a key, in a terminal, and waits for the answer.
        wandb.setup(settings=wandb.Settings(silent=True, show_info=False))
        kept = known.read(self.folder)
        if kept is None:
            kept = known.write(self.folder, secrets.token_hex(4), secrets.token_hex(8))
        chosen: dict[str, Any] = {"mode": self.mode}
        if self.base_url is not None:
            chosen["base_url"] = self.base_url
        sweep = self.run.sweep
        self._client = wandb.init(
            project=self.project,
            entity=self.entity,
            id=str(kept["id"]),
            resume="allow",
            name=self.run.name,
            config=dict(self.run.config),
            dir=str(self.folder),
            group=None if sweep is None else "/".join(sweep.absolute().parts[-2:]),
            job_type=None if sweep is None else "job",
            settings=wandb.Settings(
                silent=True,
                symlink=False,
                reinit="create_new",
                init_timeout=_SECONDS,
                finish_timeout=_SECONDS,
                **_KEPT_HERE,
                **chosen,
            ),
        )
        # A link to W&B's own log in ~/.cache: a run folder with links is not resumed.
        for path in Path(self._client.dir).parent.glob("logs/*"):
            if path.is_symlink():
                path.unlink(missing_ok=True)
        if self.mode == "offline":
            self._sent = last_step(Path(self._client.dir).parent.parent)
        elif self._client.resumed:
            self._sent = self._client.starting_step - 1
        for metrics, step in self.run.before:
            self.log(metrics, step)

    def log(self, metrics: Points, step: int) -> None:
        if step <= self._sent:
            return
        if step != self._step:
            self._hand_over()
            self._step = step
        self._row |= metrics

    def picture(self, name: str, path: Path, step: int) -> None:
        import wandb

        if step <= self._sent:  # the run was done when it was resumed
            self.file(path)
        else:
            self.log({name: wandb.Image(str(path))}, step)  # type: ignore[dict-item]

    def file(self, path: Path) -> None:
        if self._client is not None:
            inside = Path(self._client.dir)
            # A copy: W&B would make a hard link, and nothing is written through those.
            copy = shutil.copyfile(path, inside / path.name)
            self._client.save(str(copy), base_path=str(inside), policy="now")

    def close(self, ending: str = "done") -> None:
        if self._client is not None:
            self._hand_over()
            client, self._client = self._client, None
            client.finish(exit_code=0 if ending in ("done", "preempted") else 1)

    def _hand_over(self) -> None:
        if self._client is None or not self._row:
            return
        self._client.log(self._row, step=self._step, commit=True)
        self._row, self._sent = {}, self._step


def _check_settings(folder: Path) -> None:
    """Raise ConfigError for settings of the working folder that say where the run is sent, or how.

    W&B reads `wandb/settings` there, and the folder may be that of a stranger's data or run:
    another server would get the run, with the key of the person who starts it.
    """
    for path in (folder / "wandb" / "settings", folder / ".wandb" / "settings"):
        try:
            with open_regular(path) as file:
                text = file.read(_LARGEST_SETTINGS).decode(errors="replace")
                lines = [*text.splitlines(), *(["(more)"] if file.read(1) else [])]
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise ConfigError(Problem("tracker.wandb", f"{path}: {error.strerror}")) from error
        names = [re.split("[=:]", line, maxsplit=1)[0].strip().lower() for line in lines]
        odd = [
            name for name in names if name and name[0] not in "[#;" and name not in _OF_A_PROJECT
        ]
        if odd:
            known = ", ".join(sorted(_OF_A_PROJECT))
            raise ConfigError(
                Problem(
                    "tracker.wandb",
                    f"W&B would take {odd[0][:60]!r} from {path} of the working "
                    f"folder, which may hold {known} only. Put it into ~/.config/wandb/settings or "
                    "the environment, or work elsewhere",
                )
            )


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
