"""What a run was asked to do: its command, git state, and configuration beside the defaults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from pipeline.config import parsing
from pipeline.config.composition import Composer
from pipeline.config.disclosure import HIDDEN
from pipeline.errors import ConfigError
from pipeline.reports import page
from pipeline.reports.page import Section
from pipeline.runs.record import RunRecord
from pipeline.runs.resumption import leaves

_ALWAYS_DIFFER = ("run_dir", "resume", "task", "runs")


def section(run: RunRecord) -> Section:
    """Command, git state, and the configuration as a diff, whole below."""
    git = run.manifest.get("git")
    facts = {
        "started": run.manifest.get("started"),
        "folder": run.path,
        "seed": run.config.get("seed"),
    }
    if isinstance(git, dict):
        facts["git"] = f"{git.get('commit')}{', with changes' if git.get('dirty') else ''}"
    whole = yaml.safe_dump(dict(run.config), sort_keys=False, allow_unicode=True, width=88)
    return Section("Settings", page.together(
        page.command(str(run.manifest.get("command", "")), "It was started by"),
        page.facts(facts), _difference(run),
        page.folded("The whole configuration", page.code(whole, "config.yaml")),
    ))  # fmt: skip


def _difference(run: RunRecord) -> page.Markup:
    own = dict(leaves(run.config))
    words = [str(one) for one in run.manifest.get("overrides", [])]
    plain, chosen, options = defaults(words)
    rows = [(key, _text(chosen.get(key, MISSING)), _text(own.get(key, MISSING)))
            for key in {**own, **chosen}
            if key.split(".")[0] not in _ALWAYS_DIFFER
            and own.get(key, MISSING) != chosen.get(key, MISSING)]  # fmt: skip
    return page.table("Keys that differ from the defaults", ("key", "default", "this run"), rows)


MISSING = object()


def _text(value: Any) -> str:
    return "not set" if value is MISSING else "null" if value is None else str(value)


def defaults(words: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """The defaults by dotted key: with no overrides, and with the options that `words` choose.

    Also returns those choices. Options that this program does not have are left out.
    """
    composer = Composer()
    choices = [word for word in words if HIDDEN not in word and _is_known(composer, word)]
    plain = _settled(composer, [])
    return plain, _settled(composer, choices) if choices else plain, choices


def _is_known(composer: Composer, word: str) -> bool:
    group, _, option = word.lstrip("+").partition("=")
    try:
        return option in composer.options(group)
    except Exception:
        return False


def _settled(composer: Composer, words: Sequence[str]) -> dict[str, Any]:
    composed = composer.compose(composer.parse(words)[0])
    config, _ = parsing.check(composed.config)
    try:
        return dict(leaves(config.written()))
    except (ConfigError, AttributeError, TypeError, ValueError):
        return dict(leaves(composed.config))
