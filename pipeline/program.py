"""Commands of this program that messages suggest, to be pasted into a shell.

A path or a name in one may be anything. It is quoted for Hydra, which reads overrides, and for the
shell.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# This program with the options that were typed, as processes that it starts say it, too.
VARIABLE = "PENSTOCK_COMMAND"


def started(script: str | None, options: Sequence[str]) -> str:
    """The first words of a command: `penstock`, or `python run.py`, and options."""
    is_checkout = Path(__file__).resolve().parents[1].joinpath("run.py").is_file()
    own = script if script and script.endswith(".py") else "run.py" if is_checkout else None
    return shlex.join([*(["python", own] if own else ["penstock"]), *options])


def text(*words: str) -> str:
    """A command line of this program with these words."""
    return f"{os.environ.get(VARIABLE) or started(None, ())} {joined(words)}".rstrip()


def joined(words: Sequence[str]) -> str:
    """Words for a shell; those with a single quote in double ones, if a person can read them."""
    return " ".join(
        f'"{one}"' if re.fullmatch(r"""[^"$`!\\]*'[^"$`!\\]*""", one) else shlex.quote(one)
        for one in words
    )


def override(key: str, value: object) -> str:
    """An override that gives `key` the text of `value`, whatever it is."""
    return f"{key}={literal(value)}"


def literal(value: object) -> str:
    """A text as an override has it: in quotes where Hydra would read something else."""
    name = r"(?!(?i:true|false|null|nan|inf)$)([A-Za-z_]|[\w.]*/)[\w./+@-]*"
    if re.fullmatch(name, str(value), re.ASCII):
        return str(value)
    # A backslash stands for itself, but before a quote.
    return "'{}'".format(re.sub(r"(\\+)(?='|$)", r"\1\1", str(value)).replace("'", "\\'"))


def name_of(node: Any) -> str:
    """The name of what a node calls, which may be another thing than the option of its group."""
    called = str(node.get("_target_")).rpartition(".")[2] if isinstance(node, dict) else "?"
    return str(node["name"]) if called == "torchvision_model" else called
