"""Jobs that submitit runs: what goes into their scripts is checked, and their folder is new.

submitit pickles each job into its folder, and unpickles the result that it finds there. A sweep's
folder may come from anybody, with results in it under the numbers that jobs will have. So every
launch has a folder of its own, `.submitit/RANDOM` in the sweep's, which nobody but this user can
open, and which was not there before.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from penstock.addons.sweeps import batch_scripts
from penstock.config.hydra_internals import before_launch
from penstock.config.preflight import raise_if
from penstock.errors import PenstockError
from penstock.files.disk import refuse
from penstock.files.own_files import new_folder, own_folder

_KEY = "hydra.sweep.dir"


def guarded() -> AbstractContextManager[None]:
    """Let submitit's launchers launch jobs in this way, and no other."""
    return before_launch(batch_scripts.PLUGIN, _prepare)


def _prepare(launcher: Any) -> None:
    """Check the parameters that submitit is about to get, and put the folder into them.

    Raises:
        SystemExit: caused by a PenstockError; hydra catches exceptions of other kinds.
    """
    try:
        raise_if([*batch_scripts.problems(launcher.params)])
        folder = _folder(launcher.params[batch_scripts.FOLDER])
        launcher.params = {**launcher.params, batch_scripts.FOLDER: f"{folder}/%j"}
    except PenstockError as error:
        raise SystemExit(error.exit_code) from error


def _folder(pattern: str) -> Path:
    """A new folder below the one that a pattern such as `FOLDER/%j` names."""
    place = Path(batch_scripts.base_of(pattern)).expanduser().absolute()
    raise_if([*batch_scripts.folder_problems(place)])
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        own_folder(place.parent, link=True, key=_KEY)
        return new_folder(own_folder(place, key=_KEY))
    except OSError as error:
        refuse(place, error)
