"""A run's folder as an object, for notebooks, tasks and reports: `from penstock import Run`.

A run may be writing to its folder at this moment, so an incomplete last line is left out. Any other
broken line is an error that names it. Cost: 5 us a line. torch and the run's dataset are imported
when a batch or the model is asked for, so lists of runs are shown in a second.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd
import yaml

from penstock.errors import ConfigError, PenstockError, Problem
from penstock.files.data import records
from penstock.runs.folder import CONFIG, DIGESTS, LEDGER, METRICS, read_manifest, state_of

if TYPE_CHECKING:
    from torch import nn

    from penstock.addons.predicting import Trained
    from penstock.build.data import DataParts
    from penstock.loading.batch import Batch

# In C where there is one.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Run:
    """A run that has ended, or goes on at this moment; each file is read once.

        run = Run("outputs/2026-11-22/10-00-00")
        run.metrics["val/loss"].min()
        run.batch(0, 17)["image"]

    Args:
        folder: of the run.
        key: of the configuration that names the folder, for messages.

    Attributes:
        path: the folder.
        config: the whole configuration, as nested dicts.
        manifest: command, versions, git state, hardware, hashes, starts and results.

    Raises:
        ConfigError: it is not a run's folder, or a file of it is damaged.
    """

    def __init__(self, folder: str | os.PathLike[str], key: str = "runs") -> None:
        self.path = Path(folder)
        self.manifest: Mapping[str, Any] = read_manifest(self.path, key)
        try:
            content = yaml.load((self.path / CONFIG).read_bytes(), _LOADER)
            self.config: Mapping[str, Any] = {**content}
        except (OSError, ValueError, TypeError, RecursionError, yaml.YAMLError) as error:
            reason = f"{self.path} is not a run's folder: {CONFIG}: {str(error)[:300]}"
            raise ConfigError(Problem(key, reason)) from error

    @property
    def state(self) -> str:
        """done, running, failed, preempted, interrupted, or killed: its process has gone."""
        return state_of(self.path, self.manifest)

    @property
    def sessions(self) -> list[dict[str, Any]]:
        """A mapping for every start: command, started, at, status, ended ..."""
        return self.manifest.get("sessions", [])

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """A row an epoch: step, losses, metrics, seconds, speed ...; empty before the first. What
        was not finite is NaN.
        """
        return self._measured("epoch")

    @cached_property
    def logs(self) -> pd.DataFrame:
        """A row for every `trainer.log_every` steps within the epochs."""
        return self._measured("log")

    def _measured(self, event: str) -> pd.DataFrame:
        lines = [line for line in _lines(self.path / METRICS) if line.pop("event", None) == event]
        try:
            return pd.DataFrame(lines).apply(pd.to_numeric)
        except (ValueError, TypeError) as error:
            raise PenstockError(f"{self.path / METRICS} is broken: {error}") from error

    @cached_property
    def ledger(self) -> pd.DataFrame | None:
        """A row a batch: epoch, step, samples (rows of the global batch), order (uint64 hash of its
        rows and positions) and loss (mean over the batch, exact); None if the run wrote none
        (trainer.ledger=false).
        """
        path = self.path / LEDGER
        try:
            frame = pd.DataFrame([line for line in _lines(path) if "skipped_to" not in line])
            if frame.empty:
                return None
            # Exact, as JSON numbers are not: 64 bits, and a float in hexadecimal.
            order = frame["order"].map(lambda text: int(text, 16)).astype("uint64")
            return frame.assign(order=order, loss=frame["loss"].map(float.fromhex))
        except (ValueError, TypeError, KeyError) as error:
            raise PenstockError(f"{path} is broken: {error}") from error

    @cached_property
    def digests(self) -> pd.DataFrame:
        """A row a batch: epoch, step and hash (trainer.digest=true); else empty."""
        return pd.DataFrame(_lines(self.path / DIGESTS), columns=["epoch", "step", "hash"])

    @cached_property
    def left_out(self) -> pd.DataFrame:
        """The samples that the run left out: the lines of its quarantine.csv."""
        path = self.path / "quarantine.csv"
        return pd.read_csv(path, na_filter=False) if path.exists() else pd.DataFrame()

    def batch(self, epoch: int, step: int, split: Literal["train", "val"] = "train") -> Batch:
        """The very batch that the run had at an address, as `task=replay` makes it.

        It is made from the stored configuration, with the rules for what that may call, from this
        process's working folder. If the run wrote digests.jsonl, the batch is compared with it.
        Cost: the dataset is opened at the first call.

        Raises:
            ConfigError: the configuration is refused or does not fit here, or there is no such
                batch.
            DataError: the data is missing or damaged.
            PenstockError: the batch is not the one that the run had: data or code have changed.
        """
        from penstock.loading.batch import batch_hash
        from penstock.tasks.replay import recompute

        # The batch is made anew, by the same code as in the run.
        address = {"split": split, "epoch": epoch, "step": step}
        batch = recompute(getattr(self._data, split), self._data.config.model_copy(update=address))
        known = self.digests.query("epoch == @epoch and step == @step")["hash"].tolist()
        made = batch_hash([batch])
        if split == "train" and known not in ([], [made]):
            raise PenstockError(
                f"batch ({epoch}, {step}) has the hash {made}, and {known[0]} in "
                f"{self.path / DIGESTS}: since the run, the data or the code has changed"
            )
        return batch

    def model(self) -> nn.Module:
        """The run's module in evaluation mode, with its best weights, on the CPU.

        Raises:
            ConfigError: the configuration is refused or does not fit here.
            PenstockError: there are no weights, or they are damaged or of another model.
        """
        return self._trained.model

    def predict(
        self, paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
    ) -> list[dict[str, Any]]:
        """A row for each sample, without labels, as `task=predict` writes it: `row`, `path`, and
        what the objective says; or `error` for a file that is damaged.

        Args:
            paths: a folder or file, or a list of files.

        Raises:
            ConfigError: the objective has no rows, or the dataset reads none without labels.
        """
        from penstock.addons.predicting import predicted

        root = os.fspath(paths) if isinstance(paths, os.PathLike) else paths
        return predicted(self._trained, root)

    def report(self) -> Path:
        """The path of report.html, which is made anew; raises PenstockError."""
        from penstock.addons.reports import report

        return report.save(Run(self.path))

    @cached_property
    def _trained(self) -> Trained:
        from penstock.addons.predicting import trained

        config = self._data.config.model_copy(update={"run": str(self.path)})
        return trained(config, self._data.world, elsewhere=True)

    @cached_property
    def _data(self) -> DataParts:
        from penstock.build.data import DataParts
        from penstock.config import compose
        from penstock.distributed.world import World

        # A batch needs no tracker, whose package or server may not be there, and nothing is
        # written to the run's folder.
        without: dict[str, object] = {"tracker": {}, "resume": None, "run_dir": "outputs"}
        return DataParts(compose.accept({**self.config, **without}), World())

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}: {self.state}, {len(self.metrics)} epochs)"


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file; none without the file."""
    try:
        with path.open("rb") as file:
            yield from (record for _, record in records(file))
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise PenstockError(f"{path}, {error}") from error
