"""`task=diff runs=[A,B]`: what two runs have in common, and which key made which difference.

    1. keys of the configuration that differ: those that change batches, only weights, or neither
    2. data, code, versions and hardware that differ
    3. where samples, losses, digests and weights part, as `task=verify` finds it
    4. the answer in a line

The exit code is 0 whether they differ or not, for a difference is what was asked for;
`task=verify` is for scripts. Cost: 0.4 s, 1 s more for the weights (of CPU).
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.addons.comparing.comparison import TITLES, Comparison, Difference, Finding, compare
from penstock.config.schema import Changes, Config
from penstock.errors import PenstockError
from penstock.runs.record import two_runs
from penstock.tasks.summary import put_rows
from penstock.terminal import one_line, put


def run(config: Config) -> None:
    """Print the differences between the two runs of `config.runs`.

    Raises:
        ConfigError: they are not the folders of two runs.
    """
    comparison = compare(*two_runs(config.runs))
    _put_started(comparison)
    _put_findings(comparison.findings)
    weights = _weights(comparison, config.diff.weights)
    _put_findings(weights)
    comparison.findings += weights
    put("")
    for line in comparison.answer():
        put(line)


def _put_started(comparison: Comparison) -> None:
    runs = zip("AB", (comparison.first, comparison.second), strict=True)
    put_rows([(name, one_line(run.path), one_line(run.state)) for name, run in runs])
    for effect, some in comparison.settings.items():
        if some or effect >= Changes.WEIGHTS:
            _put_part(TITLES[effect], some)
    for title, some in comparison.facts.items():
        if some:
            _put_part(title, some)
    put("")


def _put_part(title: str, some: Sequence[Difference]) -> None:
    put(f"\n{title}{'' if some else ': none'}")
    if some:
        rows = [
            (f"  {one_line(difference.key)}", *difference.texts(), one_line(difference.note))
            for difference in some
        ]
        put_rows([("", "A", "B", ""), *rows])


def _put_findings(findings: Sequence[Finding]) -> None:
    for finding in findings:
        put(f"{finding.what:<14}{one_line(finding.text)}")


def _weights(comparison: Comparison, compares: bool) -> list[Finding]:
    if not compares:
        return [Finding("weights", "not compared: diff.weights=false", None)]
    if not all(
        (run.path / "checkpoints").exists() for run in (comparison.first, comparison.second)
    ):
        return [Finding("weights", "not compared: a run has no checkpoints", None)]
    from penstock.addons.comparing.weight_comparison import compare_weights  # imports torch

    try:
        return compare_weights(comparison.first, comparison.second)
    except PenstockError as error:
        return [Finding("weights", f"not compared: {error}", None)]
