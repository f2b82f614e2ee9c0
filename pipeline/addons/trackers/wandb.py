"""Runs of Weights & Biases."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.addons.trackers.tracker import Points, TrackedRun, Tracker, require

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
_SECONDS = 25  # for a connection, and for what is left to be sent at the end


require("wandb")


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

    _client: Run

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
        import wandb  # noqa: F401

        self.folder, self.run = Path(folder), run
        self.project, self.entity = project, entity
        self.settings: dict[str, Any] = {"mode": mode or os.environ.get("WANDB_MODE") or "online"}
        if base_url is not None:
            self.settings["base_url"] = base_url

    def start(self) -> None:
        import wandb

        # Otherwise it asks for a key, in a terminal, and waits for the answer.
        wandb.setup(settings=wandb.Settings(silent=True, show_info=False))
        sweep = self.run.sweep
        self.folder.mkdir(parents=True, exist_ok=True)
        self._client = wandb.init(
            project=self.project,
            entity=self.entity,
            id=self.run.id,
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
                **self.settings,
            ),
        )

    def log(self, metrics: Points, step: int) -> None:
        self._client.log(dict(metrics), step=step)

    def picture(self, name: str, path: Path, step: int) -> None:
        import wandb

        self._client.log({name: wandb.Image(str(path))}, step=step)

    def file(self, path: Path) -> None:
        self._client.save(str(path), base_path=str(path.parent), policy="now")

    def close(self, ending: str = "done") -> None:
        self._client.finish(exit_code=0 if ending in ("done", "preempted") else 1)
