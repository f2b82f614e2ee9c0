"""What a run was asked to do: its command, git state, and configuration beside the defaults; what
it ran on, and the lines that make the same run again.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from functools import cache
from pathlib import PurePath
from typing import Any

import yaml
from markupsafe import Markup
from packaging.version import InvalidVersion, Version

from penstock import program
from penstock.addons.reports import page
from penstock.addons.reports.page import Section
from penstock.addons.reports.values import as_yaml, clock, command, overrides
from penstock.config import parsing
from penstock.config.changes import leaves
from penstock.config.composition import Composer
from penstock.config.own_command import config_dir
from penstock.errors import ConfigError
from penstock.runs.manifest import PACKAGES
from penstock.runs.record import RunRecord
from penstock.terminal import one_line

_OF_EVERY_RUN = ("run_dir", "resume", "task", "runs")
_NOT_SET = object()
_MOST_ROWS = 300


def section(run: RunRecord) -> Section:
    """The command, the git state, the configuration as a difference, and all of it, folded."""
    whole = yaml.safe_dump(dict(run.config), sort_keys=False, allow_unicode=True, width=88)
    facts = {
        "started": clock(run.manifest, "started"),
        "started by": started_by(run),
        **resumed_by(run),
        "folder": run.path,
        "git": git(run),
        "seed": run.config.get("seed"),
    }
    return Section(
        "Settings",
        page.together(
            page.facts(facts),
            *_differences(run),
            page.folded("The whole configuration", page.code(whole, "config.yaml")),
        ),
    )


def started_by(run: RunRecord) -> str:
    """What the folder says that the run was started by: to be read and not to be pasted."""
    command = run.manifest.get("command")
    return one_line(typed(command)) if isinstance(command, str) else ""


def resumed_by(run: RunRecord) -> dict[str, str]:
    """The command of the last start, unless that is the first one."""
    last = run.sessions[-1] if len(run.sessions) > 1 else None
    command = last.get("command") if isinstance(last, dict) else None
    is_other = isinstance(command, str) and command != run.manifest.get("command")
    return {"last resumed by": one_line(typed(str(command)))} if is_other else {}


def _typed_later(run: RunRecord) -> set[str]:
    """The keys that were typed when the run was resumed; anybody may have written the manifest."""
    lists = [session.get("overrides") for session in run.sessions if isinstance(session, dict)]
    words = [word for words in lists if isinstance(words, list) for word in words]
    return {word.lstrip("+~").partition("=")[0] for word in words if isinstance(word, str)}


def typed(command: str) -> str:
    """A command line as it was typed: `python run.py`, or `penstock`, without their folders."""
    try:
        words = shlex.split(command)
    except ValueError:
        return command
    if len(words) < 2 or not PurePath(words[0]).name.startswith("python"):
        return command
    script, *others = words[1:]
    name = PurePath(script).name
    if name == program.COMMAND:  # the file that pip installed runs Python
        return program.joined([name, *others])
    script = name if name == "run.py" else script
    return program.joined(["python", script, *others])


def git(run: RunRecord) -> str:
    """The commit that the run was started from, and whether files differed from it."""
    state = run.manifest.get("git")
    if not isinstance(state, dict):
        return "not a checkout, or without git"
    return f"{state.get('commit')}{', and files differed from it' if state.get('dirty') else ''}"


def _differences(run: RunRecord) -> list[Markup]:
    """What was typed; folded, what else the chosen options and their own keys make different."""
    own, words = dict(leaves(run.config)), overrides(run)
    try:
        composer = _composer(config_dir())
        choices = tuple(word for word in words if _is_choice(composer, word))
        _, usual = _defaults((), config_dir())
        default, options = _defaults(choices, config_dir())
    except ConfigError as error:
        return [page.paragraph(f"It cannot be compared with the defaults: {error}")]
    typed = {word.lstrip("+~").partition("=")[0]: word.partition("=")[2] for word in words}
    later = _typed_later(run)
    chosen = {word.lstrip("+").partition("=")[0] for word in choices}
    missing = [
        word
        for word in words
        if word not in choices and _key_of(word) and composer.options(_key_of(word))
    ]
    changed = {
        key: (_text(default.get(key, _NOT_SET)), _text(own.get(key, _NOT_SET)))
        for key in {**own, **default}
        if key.partition(".")[0] not in _OF_EVERY_RUN
        and own.get(key, _NOT_SET) != default.get(key, _NOT_SET)
    }
    rows, rest = [], dict(changed)
    for key, value in typed.items():
        if key in chosen:
            rows.append((key, usual.get(key) or "none", value))
            continue
        below = [name for name in changed if name == key or name.startswith((f"{key}.", f"{key}["))]
        # config.yaml is of the first start; a later one may have typed another value.
        rows += [
            (name, changed[name][0], value if name == key in later else changed[name][1])
            for name in below
        ]
        for name in below:
            rest.pop(name, None)
        if not below:  # the option gives it anyway, or is not known to this program
            rows.append((key, _text(default[key]) if key in default else "", value))
    swapped = [
        (group, usual.get(group) or "none", option or "none")
        for group, option in options.items()
        if option != usual.get(group) and group not in chosen
    ]
    parts = [
        page.table("What was typed", ("key", "default", "this run"), rows[:_MOST_ROWS])
        if rows
        else page.paragraph("Nothing was typed: every key has its default.")
    ]
    if missing:
        names = ", ".join(missing)
        text = f"{names}: no such option is found from here, so its own defaults are not known."
        parts.append(page.paragraph(text))
    others = []
    if swapped:
        title = "Options that they bring with them"
        others.append(page.table(title, ("group", "default", "this run"), swapped))
    if rest:
        title = "Other keys that differ from what the options give"
        head = ("key", "default", "this run")
        listed = [(key, *pair) for key, pair in rest.items()]
        others.append(page.table(title, head, listed[:_MOST_ROWS]))
        if len(listed) > _MOST_ROWS:
            others.append(page.paragraph(f"{len(listed) - _MOST_ROWS} more keys differ."))
    if others:
        count = len(swapped) + len(rest)
        title = f"What else differs from the defaults: {count} {'rows' if count > 1 else 'row'}"
        parts.append(page.folded(title, page.beside(others)))
    return parts


def _key_of(word: str) -> str:
    """The group that a word may choose an option of; "" if it cannot."""
    group, is_choice, _ = word.lstrip("+").partition("=")
    simple = group.replace("_", "").isalpha() and group != "hydra"
    return group if is_choice and simple else ""


def _is_choice(composer: Composer, word: str) -> bool:
    """Whether an override names an option of ours; the manifest may be anybody's."""
    group, option = _key_of(word), word.partition("=")[2]
    options = composer.options(group) if group else []
    return all(choice.strip() in options for choice in option.strip("[]").split(","))


@cache
def _composer(folder: str | None) -> Composer:
    return Composer(config_dir=folder)


@cache
def _defaults(
    choices: tuple[str, ...], folder: str | None
) -> tuple[dict[str, object], dict[str, object]]:
    """The keys, as a run would write them, and the options of the groups, with these choices."""
    composer = _composer(folder)
    composed = composer.compose(composer.parse(choices)[0])
    config, problems = parsing.check(composed.config)
    options = dict(composed.hydra.get("runtime", {}).get("choices", {}))
    for key, value in composed.config.items():  # hydra does not name several options of one group
        if key not in options and isinstance(value, Mapping) and composer.options(key):
            options[key] = ", ".join(value)
    return dict(leaves(composed.config if problems else config.plain())), options


def _text(value: object) -> str:
    return "not set" if value is _NOT_SET else as_yaml(value)


_AGAIN = "outputs/again"


def environment(run: RunRecord) -> Section:
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


def reproduction(run: RunRecord, packages: Mapping[str, object]) -> tuple[list[str], list[str]]:
    """Commands that make the run again and compare, and what they leave open.

    Args:
        packages: version by name, as the folder says it.
    """
    git, lines, notes = run.manifest.get("git"), [], []
    commit = git.get("commit") if isinstance(git, dict) else None
    if isinstance(commit, str) and re.fullmatch("[0-9a-f]{40,64}", commit):
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
    if again is None:
        notes.append("The folder's overrides are not such that a command could be made of them.")
    if again is not None:
        runs = f"runs=[{program.literal(run.path)},{_AGAIN}]"
        lines += filter(None, [again, command(run, "task=verify", runs)])
    if run.ledger is None:
        notes.append("The run wrote no ledger, so only weights can be compared.")
    return lines, notes


def _version(text: Any) -> str | None:
    """A version as packages have them; None for anything else, such as an address."""
    try:
        return str(Version(text))
    except (InvalidVersion, TypeError):
        return None
