"""Running the program inside this process, as its command line would."""

from dataclasses import dataclass
from pathlib import Path

from penstock import command

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "data"


@dataclass
class Outcome:
    code: int
    out: str
    err: str

    @property
    def hashes(self):
        """The lines of a digest without its total."""
        return [line for line in self.out.splitlines() if not line.startswith("total")]


def run(capsys, *arguments):
    """Exit code, stdout and stderr of `python run.py *arguments`."""
    capsys.readouterr()
    code = command.main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return Outcome(code, out, err)
