"""Hydra's help texts, and the overrides of the job that runs."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from penstock import program, terminal
from penstock.config import hydra_internals


@contextmanager
def shown() -> Iterator[None]:
    """Let hydra print what `--cfg`, `--info` or `--help` asks for."""

    def fitted(text: str) -> str:
        text = text.replace("python run.py", program.text())
        return _fitted(text, shutil.get_terminal_size((100, 24)).columns)

    with hydra_internals.helped_by(fitted), terminal.held_back():
        yield


def _fitted(text: str, width: int) -> str:
    """Break the lines of a help text that are longer than a terminal is wide; commands stay whole.

    Text behind two spaces or more is a description, whose lines begin below each other.
    """
    lines = []
    for line in text.strip().splitlines():
        indent = "  " if re.match(r"\w+: \w+(, \w+)*$", line) else ""  # the options of a group
        if len(indent + line) <= width or line.startswith("    "):
            lines.append(indent + line)
            continue
        described = re.match(r" *\S.*? {2,}(?=\S)", line)
        hanging = " " * (len(described[0]) if described else 2 * len(indent))
        lines += textwrap.wrap(
            line, max(width, 40), initial_indent=indent, subsequent_indent=hanging
        )
    return "\n".join(lines)


def overrides() -> list[str]:
    """The overrides of this job as they were given: reading them one by one would resolve them."""
    if not HydraConfig.initialized():
        return []
    words: Any = OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False)
    return list(map(str, words))
