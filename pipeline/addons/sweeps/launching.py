"""How hydra runs the jobs of a sweep, from the first to the last, and what submitit gets of them.

submitit pickles each job into its folder, and unpickles the result that it finds there. A sweep's
folder may come from anybody, with results in it under the numbers that jobs will have. So every
launch has a folder of its own, `.submitit/RANDOM` in the sweep's, which nobody but this user can
open, and which was not there before.
"""

from __future__ import annotations

import os
import secrets
import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import penstock
from penstock import program
from penstock.addons.sweeps import plugins, sweep, sweep_grid
from penstock.addons.sweeps.optuna_sweeper import OptunaSweeper
from penstock.config.composition import Composer
from penstock.config.hydra_internals import before_launch, called_back, swept_by, with_plugin
from penstock.config.messages import show
from penstock.config.own_options import environment_with
from penstock.config.preflight import raise_if
from penstock.distributed import preemption
from penstock.distributed.preemption import Preempted, Stop
from penstock.errors import ConfigError, PenstockError, Problem
from penstock.files.disk import private_folder, refuse


@contextmanager
def running(composer: Composer, typed: Sequence[str]) -> Iterator[None]:
    """Let hydra run the jobs of a sweep in here.

    Args:
        composer: with the grid that was checked.
        typed: the command line.

    Raises:
        Preempted: a signal came.
    """
    try:
        with ExitStack() as stack:
            stack.enter_context(environment_with(for_jobs()))
            stack.enter_context(preemption.job())
            if composer.sweep is not None:
                stack.enter_context(swept_by(partial(sweep_grid.run_grid, composer.sweep)))
            stack.enter_context(with_plugin(OptunaSweeper))
            stack.enter_context(called_back(sweep.SweepTable(typed)))
            stack.enter_context(before_launch(plugins.SUBMITIT, _prepare))
            yield
    except BaseException as error:
        sweep.say_how_far()
        if isinstance(error, Stop):
            text = "stopped in the sweep, where nothing is lost"
            raise Preempted(f"{error.name}: {text}") from None
        raise


def for_jobs() -> dict[str, str]:
    """Variables for a launcher's programs: they import our code, and nothing of their folder."""
    path = [str(Path(penstock.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "PYTHONSAFEPATH": "1",
        program.VARIABLE: shlex.join(program.words()),
        # What submitit has Slurm send before a job's time is over: a request to stop, as elsewhere.
        "SUBMITIT_PREEMPT_SIGNAL": "USR1",
    }


def _prepare(launcher: Any) -> None:
    """Check the parameters that submitit is about to get, and put the folder into them.

    Raises:
        SystemExit: caused by a PenstockError; hydra catches exceptions of other kinds.
    """
    try:
        raise_if([*plugins.of_script(launcher.params)])
        folder = folder_of_jobs(launcher.params["submitit_folder"])
        launcher.params = {**launcher.params, "submitit_folder": f"{folder}/%j"}
    except PenstockError as error:
        raise SystemExit(error.exit_code) from error


def folder_of_jobs(pattern: str) -> Path:
    """A new folder below the one that a pattern such as `FOLDER/%j` names."""
    base = Path(pattern.removesuffix("/%j")).expanduser().absolute()
    if "%" in str(base) or "\\" in str(base) or not str(base).isprintable():
        reason = f"got {show(str(base))}: Slurm and bash read other letters in it"
        raise ConfigError(Problem("hydra.sweep.dir", reason))
    try:
        folder = private_folder(base) / secrets.token_hex(8)
        folder.mkdir(mode=0o700)
        return folder
    except OSError as error:
        refuse(base, error)
