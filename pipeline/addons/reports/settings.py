"""What a run was asked to do: its command, git state, and configuration beside the defaults."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import yaml
from markupsafe import Markup

from penstock.addons.reports import page
from penstock.addons.reports.page import Section
from penstock.addons.reports.values import as_yaml, clock, overrides
from penstock.config import parsing
from penstock.config.changes import leaves
from penstock.config.composition import Composer
from penstock.errors import ConfigError
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
    return one_line(command) if isinstance(command, str) else ""


def git(run: RunRecord) -> str:
    """The commit that the run was started from, and whether files differed from it."""
    state = run.manifest.get("git")
    if not isinstance(state, dict):
        return "not a checkout, or without git"
    return f"{state.get('commit')}{', and files differed from it' if state.get('dirty') else ''}"


def _differences(run: RunRecord) -> list[Markup]:
    own = dict(leaves(run.config))
    try:
        composer = Composer()
        choices = tuple(word for word in overrides(run) if _is_choice(composer, word))
        _, usual = _defaults(())
        default, options = _defaults(choices)
    except ConfigError as error:
        return [page.paragraph(f"It cannot be compared with the defaults: {error}")]
    swapped = [
        (group, usual.get(group) or "none", option or "none")
        for group, option in options.items()
        if option != usual.get(group)
    ]
    changed = [
        (key, _text(default.get(key, _NOT_SET)), _text(own.get(key, _NOT_SET)))
        for key in {**own, **default}
        if key.partition(".")[0] not in _OF_EVERY_RUN
        and own.get(key, _NOT_SET) != default.get(key, _NOT_SET)
    ]
    parts: list[Markup] = []
    if swapped:
        parts.append(
            page.table(
                "Options chosen in place of the default ones",
                ("group", "default", "this run"),
                swapped,
            )
        )
    if not changed:
        return [*parts, page.paragraph("Every key has the value that these options give it.")]
    keys = page.table(
        f"Keys that differ from {'what these options give' if swapped else 'the defaults'}",
        ("key", "default", "this run"),
        changed[:_MOST_ROWS],
    )
    more = len(changed) - _MOST_ROWS
    tables = page.beside([*parts, keys])
    return [tables, *([page.paragraph(f"{more} more keys differ.")] if more > 0 else [])]


def _is_choice(composer: Composer, word: str) -> bool:
    """Whether an override names an option of ours; the manifest may be anybody's."""
    group, _, option = word.lstrip("+").partition("=")
    if not group.replace("_", "").isalpha() or group == "hydra":
        return False
    options = composer.options(group)
    return all(choice.strip() in options for choice in option.strip("[]").split(","))


@cache
def _defaults(choices: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The keys, as a run would write them, and the options of the groups, with these choices."""
    composer = Composer()
    composed = composer.compose(composer.parse(choices)[0])
    config, problems = parsing.check(composed.config)
    options = dict(composed.hydra.get("runtime", {}).get("choices", {}))
    for key, value in composed.config.items():  # hydra does not name several options of one group
        if key not in options and isinstance(value, Mapping) and composer.options(key):
            options[key] = ", ".join(value)
    return dict(leaves(composed.config if problems else config.written())), options


def _text(value: object) -> str:
    return "not set" if value is _NOT_SET else as_yaml(value)
