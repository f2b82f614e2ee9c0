"""Penstock's entry: `python run.py --help` says what can be run and changed."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

# Before any other package named `penstock`, wherever this is started from.
sys.path.insert(0, str(Path(__file__).resolve().parent))

from penstock.distributed import preemption

if __name__ == "__main__":
    preemption.leave_early()  # the imports below take seconds
    gc.disable()  # it took a tenth of their time; a job turns it on again

import hydra
from omegaconf import DictConfig

from penstock import command


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def run(config: DictConfig) -> float | None:
    """Run one job; returns the value that a sweep optimises."""
    return command.execute(config)


if __name__ == "__main__":
    preemption.leave(command.main(sys.argv[1:], run))
