"""Reading a run's manifest and configuration, which may come from anybody, with checks.

A manifest says what is run (`overrides`) and printed. It is small plain JSON of a fixed shape, or
an error names the file and what is wrong. This imports no torch, since the command line reads it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from penstock.errors import ConfigError, Problem
from penstock.loading.fingerprint import differing

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

# Of a dataset without a fingerprint: where its class, code, arguments, length and labels agree, it
# may still be another one.
UNPROVEN = {"known_by": "what is seen of it"}

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
        return _checked({**json.loads(path.read_bytes())})
    except FileNotFoundError:
        reason = f"{folder} is not a run's folder: it has no {NAME}"
    except OSError as error:
        reason = f"{path} cannot be read: {error.strerror or error}"
    except (ValueError, TypeError) as error:
        reason = (
            f"{path} is damaged: {error}. Put a copy of it in its place, or begin anew from "
            "a checkpoint of that run (resume=<file>)"
        )
    raise ConfigError(Problem(key, reason))


def _checked(manifest: dict[str, object]) -> dict[str, Any]:
    sessions = manifest.get("sessions", [])
    if not isinstance(sessions, list) or not all(isinstance(session, dict) for session in sessions):
        raise ValueError("its sessions are not a list of mappings")
    words = manifest.get("overrides", [])
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError("its overrides are not a list of texts")
    if not isinstance(manifest.get("best") or {}, dict):
        raise ValueError(f"best is {manifest['best']!r:.60}, and must be a mapping")
    return manifest


def same_data(first: object, second: object) -> bool | None:
    """Whether two runs had the same training data, by `data` of their manifests; None: unknown."""
    kinds, marks = [], []
    for run in (first, second):
        data: dict[str, Any] = run if isinstance(run, dict) else {}
        identity = data.get("identity")
        known = identity.get("train") if isinstance(identity, dict) else None
        kinds.append(data.get("fingerprint"))
        marks.append((data.get("train"), known or {}))
    if kinds[0] != kinds[1] or not all(train for train, _ in marks):
        return None
    if marks[0][0] != marks[1][0] or differing(marks[0][1], marks[1][1]):
        return False
    return None if UNPROVEN["known_by"] in marks[0][1].values() else True


def read_config(path: Path) -> dict[str, object]:
    """A run's config.yaml.

    Raises:
        ValueError, TypeError, yaml.YAMLError, OSError: what is wrong with it, without its name.
    """
    return {**yaml.load(path.read_bytes(), _YAML)}
