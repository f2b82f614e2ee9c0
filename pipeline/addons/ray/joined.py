"""The Ray that a configuration joins: the program sends it code, and unpickles its answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from penstock.config.endpoints import Endpoint
from penstock.config.messages import allowing
from penstock.errors import Problem

_KEY = "loader.ray.address"


def _endpoint(config: Mapping[str, Any]) -> Endpoint | None:
    node: Any = config
    for name in _KEY.split("."):
        node = node.get(name) if isinstance(node, Mapping) else None
    # What is for Ray's client is refused with the other contradictions.
    if isinstance(node, str) and node != "auto" and not node.startswith("ray://"):
        return Endpoint(_KEY, node, anonymous=False)
    return None


def sent(config: Mapping[str, Any]) -> Iterator[str]:
    """No key's values leave this machine as they are."""
    yield from ()


def problems(config: Mapping[str, Any]) -> Iterator[Problem]:
    """A Ray that nobody has allowed."""
    endpoint = _endpoint(config)
    if endpoint is None:
        return
    scheme, host, port = endpoint.server
    if scheme or not port or not endpoint.given.endswith(f":{port}"):
        yield Problem(_KEY, f"got {endpoint.given!r}, expected auto or host:port")
    elif not endpoint.is_allowed:
        yield Problem(
            _KEY,
            f"joins the Ray at {endpoint.given!r}, which can run code here, and gets the data and "
            "your token. If that is right, "
            f"{allowing('--allow-endpoint', f'{host}:{port}', 'HOST')}",
        )


def notices(config: Mapping[str, Any]) -> Iterator[str]:
    """Where batches come from."""
    endpoint = _endpoint(config)
    if endpoint is not None:
        yield f"notice: batches come from the Ray at {endpoint.given} ({_KEY})"
