"""The servers that our trackers send to: who allows them, and which line announces them.

A server that a configuration names gets this run's settings, numbers and pictures, with the
credentials of the person who runs it. So the command line has to name it
(`penstock.config.endpoints`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from penstock.config import disclosure
from penstock.config.endpoints import Endpoint
from penstock.errors import Problem

_WANDB = "https://api.wandb.ai"
# Trackers of ours that send, with the servers of their makers.
TRACKERS = {
    "penstock.addons.trackers.mlflow.MLflow": "",
    "penstock.addons.trackers.wandb.WandB": _WANDB,
}
_SERVERS = {"uri": "MLFLOW_TRACKING_URI", "base_url": "WANDB_BASE_URL"}
_LOCAL = re.compile(
    r"(?:sqlite:///|file:)[^?#]*|(?![A-Za-z][\w+.\-]*:)[^?#]*|databricks(://[\w-]+)?"
)


def _nodes(config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Key and node of each tracker that sends what it is given."""
    section = config.get("tracker")
    if isinstance(section, Mapping):
        for name, node in {None: section, **section}.items():
            if isinstance(node, Mapping) and node.get("_target_") in TRACKERS:
                yield "tracker" if name is None else f"tracker.{name}", node


def sent(config: Mapping[str, Any]) -> Iterator[str]:
    """Keys of trackers, which send all that they are given."""
    return (key for key, _ in _nodes(config))


def problems(config: Mapping[str, Any]) -> Iterator[Problem]:
    """Servers that nobody has allowed."""
    for key, node in _nodes(config):
        for name, variable in _SERVERS.items():
            value = node.get(name)
            if not isinstance(value, str) or not value or _LOCAL.fullmatch(value):
                continue
            endpoint = Endpoint(f"{key}.{name}", value, anonymous=False)
            if endpoint.is_allowed or value == _WANDB:
                continue
            way = f", {way}" if (way := endpoint.way) else ""
            reason = (
                f"sends this run's configuration, numbers and pictures to "
                f"{disclosure.urls(value)!r}, with your credentials. If that is "
                f"right{way}, or name it in {variable} of the environment"
            )
            yield Problem(endpoint.key, reason)


def notices(config: Mapping[str, Any]) -> Iterator[str]:
    """Where this run's numbers go."""
    for key, node in _nodes(config):
        mode = node.get("mode", "online") or os.environ.get("WANDB_MODE")
        if config.get("task") == "fit" and mode != "offline":
            names = [name for name in _SERVERS if name in node]
            own = [node[name] or os.environ.get(_SERVERS[name]) for name in names]
            server = next(filter(None, own), TRACKERS[node["_target_"]])
            if server and not _LOCAL.fullmatch(server):
                yield (
                    f"notice: configuration, numbers and pictures of this run go to "
                    f"{disclosure.urls(server)} ({key})"
                )
