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
from pathlib import Path

from penstock.addons.comparing.comparison import TITLES, Comparison, Difference, Finding, compare
from penstock.addons.comparing.options import DiffSection
from penstock.config.schema import Config
from penstock.errors import PenstockError
from penstock.runs.record import two_runs
from penstock.tasks.tables import put_rows
from penstock.terminal import one_line, put


def run(config: Config) -> None:
    """Print the differences between the two runs of `config.runs`.

    Raises:
        ConfigError: they are not the folders of two runs.
        DiskError: the page cannot be written.
    """
    found = compare(*two_runs(config.runs))
    _put_started(found)
    _put_findings(found.findings)
    weights = _weights(found, DiffSection.of(config).weights)
    _put_findings(weights)
    found.findings += weights
    put("")
    for line in found.answer():
        put(line)
    if page := DiffSection.of(config).page:
        from penstock.addons.comparing import diff_page  # imports jinja2

        put(f"page  {one_line(diff_page.write(found, Path(page)))}")


def _put_started(found: Comparison) -> None:
    runs = zip("AB", (found.first, found.second), strict=True)
    put_rows([(name, one_line(run.path), one_line(run.state)) for name, run in runs])
    for effect, some in found.settings.items():
        _put_part(TITLES[effect], some)
    for title, some in found.facts.items():
        if some:
            _put_part(title, some)
    put("")


def _put_part(title: str, some: Sequence[Difference]) -> None:
    put(f"\n{title}{'' if some else ': none'}")
    if some:
        rows = [(f"  {one_line(one.key)}", *one.texts(), one_line(one.note)) for one in some]
        put_rows([("", "A", "B", ""), *rows])


def _put_findings(found: Sequence[Finding]) -> None:
    for one in found:
        put(f"{one.what:<14}{one_line(one.text)}")


def _weights(found: Comparison, wanted: bool) -> list[Finding]:
    if not wanted:
        return [Finding("weights", "not compared: diff.weights=false", None)]
    if not all((run.path / "checkpoints").exists() for run in (found.first, found.second)):
        return [Finding("weights", "not compared: a run has no checkpoints", None)]
    from penstock.addons.comparing.weight_comparison import compare_weights  # imports torch

    try:
        return compare_weights(found.first, found.second)
    except PenstockError as error:
        return [Finding("weights", f"not compared: {error}", None)]
