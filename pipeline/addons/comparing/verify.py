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
from penstock.config.identity import effect_of
from penstock.config.schema import Changes, Config
from penstock.errors import PenstockError
from penstock.runs.record import RunRecord, two_runs
from penstock.tasks.summary import put_rows
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
    findings = []
    for compare in (compare_ledgers, compare_digests, compare_weights):
        new = compare(first, second)
        print_findings(new)
        findings += new
    known = [finding.same for finding in findings if finding.same is not None]
    if not known:
        raise PenstockError(
            "nothing to compare: the runs have neither both ledgers nor both "
            "checkpoints; train with trainer.ledger=true"
        )
    if not all(known):
        raise RunsDifferError("the two runs are not the same")
    unknown = [finding.what for finding in findings if finding.alike]
    put(
        f"not known to be the same: {unknown[0]}; what else was compared is"
        if unknown
        else "the same"
    )


def print_started(first: RunRecord, second: RunRecord) -> None:
    """Print differences of the runs' facts and settings; a key that changes a run "matters"."""

    def matters(difference: Difference) -> str:
        return "matters" if effect_of(difference.key).changes >= Changes.WEIGHTS else ""

    some = [difference for part in facts(first, second).values() for difference in part]
    rows = [("run", one_line(first.path), one_line(second.path), "")]
    rows += [
        (one_line(difference.key), *difference.texts(), difference.note) for difference in some
    ]
    rows += [
        (one_line(difference.key), *difference.texts(), matters(difference))
        for difference in settings(first, second)
    ]
    put_rows(rows)


def print_findings(findings: Iterable[Finding]) -> None:
    """Print what was compared and what was found, a line each."""
    for finding in findings:
        put(f"{finding.what:<13}{one_line(finding.text)}")
