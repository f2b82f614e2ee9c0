"""Runs of Weights & Biases."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.addons.trackers.tracker import TrackedRun, Tracker

os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # to its makers; read when it is imported

import wandb

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

    def __init__(
        self,
        folder: str | Path,
        run: TrackedRun,
        project: str | None = "penstock",
        entity: str | None = None,
        mode: str | None = None,
        base_url: str | None = None,
    ) -> None:
        # Otherwise it asks for a key, in a terminal, and waits for the answer.
        wandb.setup(settings=wandb.Settings(silent=True, show_info=False))
        Path(folder).mkdir(parents=True, exist_ok=True)
        self._client = wandb.init(
            project=project,
            entity=entity,
            id=run.id,
            resume="allow",
            name=run.name,
            config=dict(run.config),
            dir=str(folder),
            group="/".join(run.sweep.absolute().parts[-2:]) if run.sweep else None,
            job_type="job" if run.sweep else None,
            settings=wandb.Settings(
                silent=True,
                symlink=False,
                reinit="create_new",
                init_timeout=_SECONDS,
                finish_timeout=_SECONDS,
                # Not sent are the command line, which may hold secrets, the machine, the
                # environment, the code.
                x_disable_meta=True,
                x_disable_stats=True,
                x_disable_machine_info=True,
                x_save_requirements=False,
                disable_git=True,
                disable_code=True,
                save_code=False,
                console="off",
                x_transaction_log_flush_interval=1.0,  # seconds; a killed run loses what waits
                mode=mode or os.environ.get("WANDB_MODE") or "online",  # type: ignore[arg-type]
                **({"base_url": base_url} if base_url else {}),  # type: ignore[arg-type]
            ),
        )

    def log(self, metrics: dict[str, float], step: int) -> None:
        self._client.log(metrics, step=step)

    def file(self, path: Path) -> None:
        self._client.save(str(path), base_path=str(path.parent), policy="now")

    def close(self, status: str) -> None:
        self._client.finish(exit_code=0 if status in ("done", "preempted") else 1)
