"""Reading a run's manifest and configuration, which may come from anybody, with checks.

A manifest says what is run (`overrides`) and printed. It is small plain JSON of a fixed shape, or
an error names the file and what is wrong. This imports no torch, since the command line reads it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from penstock.errors import ConfigError, Problem
from penstock.files import data as plain_json
from penstock.files.data import JsonError, mapping

NAME = "manifest.json"
PACKAGES = (
    "torch",
    "torchvision",
    "numpy",
    "hydra-core",
    "omegaconf",
    "pandas",
    "pillow",
    "scikit-image",
    "torchmetrics",
    "safetensors",
    "albumentations",
)

_MAX_SESSIONS = 100_000
_MAX_OVERRIDES = 1000
_LONGEST = 1 << 16  # characters of an override
_YAML: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C where there is one


def has_manifest(folder: Path) -> bool:
    """Whether a run has begun in `folder`; one that was killed before left an empty manifest."""
    path = folder / NAME
    return path.exists() and path.stat().st_size > 0


def read_manifest(folder: Path, key: str = "resume") -> dict[str, Any]:
    """The manifest of the run in `folder`, with checked types.

    Args:
        key: of the configuration that names the folder.

    Raises:
        ConfigError: there is none, it cannot be read, or it is damaged.
    """
    path = folder / NAME
    try:
        return _checked(mapping(plain_json.read(path)))
    except FileNotFoundError:
        reason = f"{folder} is not a run's folder: it has no {NAME}"
    except OSError as error:
        reason = f"{path} cannot be read: {error.strerror or error}"
    except JsonError as error:
        reason = (
            f"{path} is damaged: {error}. Put a copy of it in its place, or begin anew from "
            "a checkpoint of that run (resume=<file>)"
        )
    raise ConfigError(Problem(key, reason))


def _checked(manifest: dict[str, object]) -> dict[str, Any]:
    sessions = manifest.get("sessions", [])
    if not isinstance(sessions, list) or not all(isinstance(session, dict) for session in sessions):
        raise JsonError("its sessions are not a list of mappings")
    if len(sessions) > _MAX_SESSIONS:
        raise JsonError(f"it has {len(sessions)} sessions, more than {_MAX_SESSIONS}")
    check_overrides(manifest.get("overrides", []))
    if not isinstance(manifest.get("best") or {}, dict):
        raise JsonError(f"best is {plain_json.name(manifest['best'])}, and must be a mapping")
    return manifest


def check_overrides(words: object) -> None:
    """Refuse what is not a list of a command line's words; raises JsonError."""
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise JsonError("its overrides are not a list of texts")
    if len(words) > _MAX_OVERRIDES:
        raise JsonError(f"it has {len(words)} overrides, more than {_MAX_OVERRIDES}")
    if any(len(word) > _LONGEST for word in words):
        raise JsonError(f"it has an override of more than {_LONGEST} characters")


def read_config(path: Path) -> dict[str, object]:
    """A run's config.yaml.

    Raises:
        ValueError, yaml.YAMLError, OSError: what is wrong with it, without its name.
    """
    return mapping(yaml.load(path.read_bytes(), _YAML))
