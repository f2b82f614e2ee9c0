"""What a run ran on, and the lines that make the same run again."""

from __future__ import annotations

import shlex
from typing import Any

from pipeline.config.disclosure import is_redacted
from pipeline.reports import page
from pipeline.reports.page import Section
from pipeline.reports.values import command, overrides, value
from pipeline.runs.record import RunRecord

_AGAIN = "outputs/again"


def section(run: RunRecord) -> Section:
    """Machine and versions, and the commands."""
    manifest = run.manifest
    packages = manifest.get("packages")
    known = {str(name): one for name, one in packages.items() if one} if isinstance(
        packages, dict) else {}  # fmt: skip
    gpus = manifest.get("gpus")
    machine = {
        "device": manifest.get("device"),
        "GPUs": ", ".join(map(str, gpus)) if isinstance(gpus, list) else gpus,
        "cores": manifest.get("cpus"), "threads": manifest.get("threads"),
        "platform": manifest.get("platform"), "Python": manifest.get("python"),
        "Penstock": manifest.get("penstock"), **known,
    }  # fmt: skip
    lines, notes = reproduction(run, known)
    what = "To reproduce the run, and to check that it is the same one:"
    return Section("Environment, and the same run again", page.together(
        page.facts(machine, short=True), page.command("\n".join(lines), what),
        page.listed(notes) if notes else None,
    ))  # fmt: skip


def reproduction(run: RunRecord, packages: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Commands that make the run again and compare, and what they leave open."""
    git, lines, notes = run.manifest.get("git"), [], []
    words = overrides(run)
    if isinstance(git, dict):
        lines.append(shlex.join(["git", "checkout", str(git.get("commit"))]))
        if git.get("dirty"):
            notes.append("Files differed from that commit when the run was started; their changes "
                         "are not kept.")  # fmt: skip
    wanted = [f"{name}=={one}" for name, one in packages.items()]
    if wanted:
        lines.append(shlex.join(["python", "-m", "pip", "install", *wanted]))
    lines.append(command(run, *words, value("run_dir", _AGAIN)))
    lines.append(command(run, "task=verify", f"runs=[{_listed(run)},{_AGAIN}]"))
    if any(map(is_redacted, words)):
        notes.append("Words with *** were secrets; put yours in their place.")
    if run.ledger is None:
        notes.append("The run wrote no ledger, so only weights can be compared.")
    return lines, notes


def _listed(run: RunRecord) -> str:
    return value("", run.path).removeprefix("=")
