"""What a run ran on, and the lines that make the same run again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packaging.version import InvalidVersion, Version

from penstock import program
from penstock.addons.reports import page
from penstock.addons.reports.page import Section
from penstock.addons.reports.values import command, overrides
from penstock.config.disclosure import is_redacted
from penstock.config.own_command import must_be_typed
from penstock.runs.git_state import is_commit
from penstock.runs.manifest import PACKAGES
from penstock.runs.record import RunRecord

_AGAIN = "outputs/again"


def section(run: RunRecord) -> Section:
    """Machine and versions, and the commands."""
    manifest = run.manifest
    packages = manifest.get("packages")
    installed = (
        {str(name): version for name, version in packages.items() if version}
        if isinstance(packages, dict)
        else {}
    )
    gpus = manifest.get("gpus")
    machine = {
        "device": manifest.get("device"),
        "GPUs": ", ".join(map(str, gpus)) if isinstance(gpus, list) else gpus,
        "cores": manifest.get("cpus"),
        "threads": manifest.get("threads"),
        "platform": manifest.get("platform"),
        "Python": manifest.get("python"),
        "Penstock": manifest.get("penstock"),
        **installed,
    }
    lines, notes = reproduction(run, installed)
    what = "To reproduce the run, and to check that it is the same one:"
    return Section(
        "Environment, and the same run again",
        page.together(
            page.facts(machine, short=True),
            page.command("\n".join(lines), what) if lines else None,
            page.listed(notes) if notes else None,
        ),
    )


def reproduction(run: RunRecord, packages: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Commands that make the run again and compare, and what they leave open.

    Args:
        packages: version by name, as the folder says it.
    """
    git, lines, notes = run.manifest.get("git"), [], []
    commit = git.get("commit") if isinstance(git, dict) else None
    if is_commit(commit):
        lines.append(program.joined(["git", "checkout", commit]))
    if isinstance(git, dict) and git.get("dirty"):
        notes.append(
            "Files differed from that commit when the run was started; their changes are not kept."
        )
    pinned = [
        f"{name}=={version}" for name in PACKAGES if (version := _version(packages.get(name)))
    ]
    if pinned:
        lines.append(program.joined(["python", "-m", "pip", "install", *pinned]))
    again = command(run, program.override("run_dir", _AGAIN), again=True)
    if own := [word.partition("=")[0] for word in overrides(run) if must_be_typed(word)]:
        notes.append(
            f"Of {', '.join(own)} no command is made, as it says where files are written, or what "
            "runs. If it is yours, type it with the run's other overrides."
        )
    elif again is None:
        notes.append("The folder's overrides are not such that a command could be made of them.")
    if again is not None:
        runs = f"runs=[{program.literal(run.path)},{_AGAIN}]"
        lines += filter(None, [again, command(run, "task=verify", runs)])
    if any(map(is_redacted, overrides(run))):
        notes.append("Words with *** were secrets; put yours in their place.")
    if run.ledger is None:
        notes.append("The run wrote no ledger, so only weights can be compared.")
    return lines, notes


def _version(text: Any) -> str | None:
    """A version as packages have them; None for anything else, such as an address."""
    try:
        return str(Version(text))
    except (InvalidVersion, TypeError):
        return None
