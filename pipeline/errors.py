"""Errors that a person's input can cause, and the exit code that says which kind it was.

Everything else is a bug (Penstock's or in a person's own code) and keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

PREEMPTED = 75  # the exit code of a run that was asked to stop and can resume (EX_TEMPFAIL)


class PenstockError(Exception):
    """Base of the errors that are reported as one message, without a traceback.

    Attributes:
        reported: whether the message has been printed.
        kind: what the message begins with.
    """

    exit_code, reported, kind = 1, False, "error: "


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a configuration: where, what was given, what would be right."""

    key: str
    message: str

    def __str__(self) -> str:
        key = self.key if self.key.isprintable() else ascii(self.key)[1:-1]  # a stranger's
        return f"{key}: {self.message}".removeprefix(": ")


class ConfigError(PenstockError):
    """The configuration cannot be used; carries every problem found, not only the first."""

    exit_code = 2

    def __init__(self, problems: str | Problem | Iterable[Problem]) -> None:
        self.problems = (
            [problems if isinstance(problems, Problem) else Problem("", problems)]
            if isinstance(problems, str | Problem)
            else list(problems)
        )
        many = f"{len(self.problems)} errors in the configuration:\n  "
        self.kind = many if len(self.problems) > 1 else "error in the configuration: "
        super().__init__("\n  ".join(str(problem) for problem in self.problems))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[list[Problem]]]:
        return type(self), (self.problems,)


class DataError(PenstockError):
    """The data cannot be used: the message names the file, and the row, column or sample."""

    exit_code = 3


class UnreachableError(DataError):
    """The data cannot be got at now; its content is not to blame, so it is never left out."""
