"""`task=verify runs=[A,B]`: whether two runs are the same, and if not, from which step on.

Compares configurations, ledgers and digests step by step, and the last checkpoints bit by bit. Exit
code 1 if samples, losses or weights differ.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.addons.comparing.comparison import (
    Difference,
    Finding,
    compare_digests,
    compare_ledgers,
    facts,
    settings,
)
from penstock.addons.comparing.weight_comparison import compare_weights
from penstock.config.changes import between
from penstock.config.schema import Config
from penstock.config.sections import Changes
from penstock.errors import PenstockError
from penstock.runs.record import RunRecord, two_runs
from penstock.tasks.tables import put_rows
from penstock.terminal import one_line, put


class RunsDifferError(PenstockError):
    """The runs differ; the differences have been printed."""


def run(config: Config) -> None:
    """Compare the two runs of `config.runs`.

    Raises:
        ConfigError: they are not the folders of two runs.
        RunsDifferError: they differ.
    """
    first, second = two_runs(config.runs)
    print_started(first, second)
    found = []
    for compare in (compare_ledgers, compare_digests, compare_weights):
        new = compare(first, second)
        print_findings(new)
        found += new
    known = [one.same for one in found if one.same is not None]
    if not known:
        raise PenstockError(
            "nothing to compare: the runs have neither both ledgers nor both "
            "checkpoints; train with trainer.ledger=true"
        )
    if not all(known):
        raise RunsDifferError("the two runs are not the same")
    unknown = [one.what for one in found if one.alike]
    put(
        f"not known to be the same: {unknown[0]}; what else was compared is"
        if unknown
        else "the same"
    )


def print_started(first: RunRecord, second: RunRecord) -> None:
    """Print differences of the runs' facts and settings; a key that changes a run "matters"."""

    def matters(one: Difference) -> str:
        changes, _ = between(one.key, first.known, second.known)
        return "matters" if changes >= Changes.WEIGHTS else ""

    some = [one for part in facts(first, second).values() for one in part]
    rows = [("run", one_line(first.path), one_line(second.path), "")]
    rows += [(one_line(one.key), *one.texts(), one.note) for one in some]
    rows += [(one_line(one.key), *one.texts(), matters(one)) for one in settings(first, second)]
    put_rows(rows)


def print_findings(found: Iterable[Finding]) -> None:
    """Print what was compared and what was found, a line each."""
    for one in found:
        put(f"{one.what:<13}{one_line(one.text)}")
