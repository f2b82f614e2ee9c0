"""How this program was started: as `penstock`, or from a checkout as `python run.py`.

Every command that a message suggests begins with `words()`, so that it can be pasted. A process
that neither of the two started (a library's user, a job's launcher) suggests the one that is there.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

COMMAND = "penstock"
VARIABLE = "PENSTOCK_STARTED_AS"  # what processes that a launcher starts say
_HOME = Path(__file__).resolve().parent.parent
_script: str | None = None


def started_from(script: str | None) -> None:
    """Note the file that this process was started from; None if it is another program's."""
    global _script
    _script = script


def script() -> str | None:
    """The file that this process was started from, if Python can run it."""
    if _script is None or (os.name == "nt" and not _script.endswith(".py")):
        return None  # Windows makes a program of `penstock`
    return _script


def words() -> list[str]:
    """The first words of a command line: ["penstock"], or ["python", "run.py"]."""
    if _script is not None:
        return ["python", _script] if _script.endswith(".py") else [COMMAND]
    if os.environ.get(VARIABLE):
        return shlex.split(os.environ[VARIABLE])
    return ["python", "run.py"] if in_checkout() else [COMMAND]


def text(*arguments: str) -> str:
    """A command line of this program, to be pasted into a shell."""
    return shlex.join([*words(), *arguments])


def base_of_paths() -> Path:
    """The folder that `--config-path` is relative to: that of run.py, or the working folder."""
    return Path() if words() == [COMMAND] else _HOME


def in_checkout() -> bool:
    """Whether this code lies in a checkout, and not in site-packages."""
    return (_HOME / "run.py").is_file() and (_HOME / "conf" / "config.yaml").is_file()
