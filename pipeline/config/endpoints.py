"""Servers that the options of stores name, and what is allowed to go there.

With `endpoint_url` or a proxy among the options, requests that are signed with a person's own
credentials go to any server that the configuration names. So a server that is not the provider's is
refused before anything is built, unless the options hold `anon: true` (nothing is signed), it is
this machine, or the command line names it: --allow-endpoint HOST.

The same holds for servers of add-ons, which bring a `Sends` each (`AddOn.sends`).

Requests that go elsewhere, and certificates that are not checked, are announced on stderr. An
endpoint that a person's own environment names (AWS_ENDPOINT_URL) is not looked at.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from penstock import installed
from penstock.config.messages import allowing
from penstock.errors import Problem

VARIABLE = "PENSTOCK_ALLOW_ENDPOINT"
SAID = "PENSTOCK_SAID"  # hashes of what this process, or one that it comes from, has announced

_OPTIONS = re.compile(r"(options|kwargs)$")
_MOVES = re.compile(
    "endpoint|prox|base_url|^(host|hostname|server|url|uri|address)$", re.IGNORECASE
)
_CHECKS = re.compile(
    r"^(ssl|verify|verify_ssl|ssl_verify|use_ssl|check_hostname|secure)$", re.IGNORECASE
)
# Strict, as libraries disagree on what else is the host: of "https://a\@b/", for example.
_SERVER = re.compile(
    r"(?:(https?)://)?(\[[0-9A-Fa-f:]+\]|[A-Za-z0-9.\-]+)(?::(\d{1,5}))?(?:/[\w.\-/]*)?"
)
# Names below amazonaws.com are for everybody to have: ec2-...compute.amazonaws.com.
_PROVIDERS = re.compile(
    r"s3([.-](?!compute)[a-z0-9-]+){0,3}\.amazonaws\.com(\.cn)?"
    r"|(storage|www)\.googleapis\.com"
)
_LONGEST = 300  # characters of a server; a name has 253 at most
_ALLOWED = re.compile(r"(\[[0-9A-Fa-f:]+\]|[A-Za-z0-9.\-]+)(:\d{1,5})?")


@dataclass(frozen=True)
class Endpoint:
    """A server that options name: key and value of the option; whether nothing is signed."""

    key: str
    given: str
    anonymous: bool

    @property
    def server(self) -> tuple[str, str, str]:
        """Scheme, host and port; empty where the value is not one plain server."""
        match = _SERVER.fullmatch(self.given) if len(self.given) <= _LONGEST else None
        return ("", "", "") if match is None else (match[1] or "", match[2].lower(), match[3] or "")

    @property
    def is_providers(self) -> bool:
        scheme, host, port = self.server
        return bool(_PROVIDERS.fullmatch(host)) and scheme == "https" and port in ("", "443")

    @property
    def is_allowed(self) -> bool:
        """Whether the command line names it, or nothing can be lost to it."""
        _, host, port = self.server
        if self.anonymous or self.is_providers or host == "localhost":
            return True
        with suppress(ValueError):
            if ipaddress.ip_address(host.strip("[]")).is_loopback:
                return True
        names = [name.strip().lower() for name in os.environ.get(VARIABLE, "").split(",")]
        return bool(host) and (host in names or bool(port and f"{host}:{port}" in names))

    @property
    def way(self) -> str:
        """The option that allows it; empty where the value is not one plain server."""
        name = ":".join(filter(None, self.server[1:]))
        return allowing("--allow-endpoint", name, "HOST") if name else ""


class Sends(Protocol):
    """The servers of an add-on, for a configuration of plain values: a module."""

    def problems(self, config: Mapping[str, Any], /) -> Iterable[Problem]:
        """Servers to which credentials would go, and that nobody has allowed."""

    def notices(self, config: Mapping[str, object], /) -> Iterable[str]:
        """Announcements of what is sent where."""

    def sent(self, config: Mapping[str, Any], /) -> Iterable[str]:
        """Keys of nodes whose values leave this machine."""


def check_allowed(names: list[str]) -> list[Problem]:
    """Problems with the names that --allow-endpoint was given."""
    return [
        Problem("--allow-endpoint", f"{name!r} is not a server; give HOST or HOST:PORT")
        for name in names
        if not _ALLOWED.fullmatch(name)
    ]


def check(config: Mapping[str, Any]) -> list[Problem]:
    """Refuse servers to which a configuration would have credentials sent."""
    problems = []
    for endpoint in found(config):
        if endpoint.is_allowed:
            continue
        way = f", {way}" if (way := endpoint.way) else ""
        reason = (
            f"sends requests, signed with your credentials, to {endpoint.given!r}, "
            f"which is not the provider's. If that is right{way}; public data: anon: true beside it"
        )
        problems.append(Problem(endpoint.key, reason))
    of_addons = [
        problem for sends in installed.asked(config, "sends") for problem in sends.problems(config)
    ]
    return of_addons + problems


def notices(config: Mapping[str, object]) -> Iterator[str]:
    """Announcements about a configuration's stores, once for a process and all that it starts."""
    for text in _texts(config):
        mark = hashlib.blake2b(text.encode(errors="replace"), digest_size=8).hexdigest()
        said = os.environ.get(SAID, "").split(",")
        if mark not in said:
            os.environ[SAID] = ",".join(filter(None, [*said, mark]))
            yield text


def _texts(config: Mapping[str, Any]) -> Iterator[str]:
    for sends in installed.asked(config, "sends"):
        yield from sends.notices(config)
    for endpoint in found(config):
        if not endpoint.is_providers:
            how = "without credentials" if endpoint.anonymous else f"signed with {_credentials()}"
            yield f"notice: requests go to {endpoint.given} ({endpoint.key}), {how}"
    for key, value, _ in _options(config, "", False, None):
        name = key.rpartition(".")[2].partition("[")[0]
        text = str(value).lower()
        if _CHECKS.match(name) and text in ("false", "0", "no", "off"):
            yield (
                f"WARNING: {key}={value} turns off the protection of the connection: others on the "
                "network can read and change the data, and steal credentials"
            )
        elif _CHECKS.match(name) and isinstance(value, str) and text not in ("true", "1"):
            yield f"WARNING: {key}: certificates are checked against {value}"
        elif name == "trust_env" and value:
            yield f"notice: {key}: proxies and ~/.netrc of this machine are used"


def _credentials() -> str:
    known = {
        "AWS_ACCESS_KEY_ID": "the key of AWS_ACCESS_KEY_ID",
        "AWS_PROFILE": "AWS_PROFILE's",
        "GOOGLE_APPLICATION_CREDENTIALS": "those of GOOGLE_APPLICATION_CREDENTIALS",
    }
    credentials = [words for name, words in known.items() if os.environ.get(name)]
    return " or ".join(credentials) or "whatever credentials ~/.aws or gcloud hold"


def found(config: Mapping[str, Any]) -> Iterator[Endpoint]:
    """The servers that the options of stores name, at any depth."""
    for key, value, anonymous in _options(config, "", False, None):
        parts = [part.partition("[")[0] for part in key.split(".")[1:]]
        first = next((i for i, part in enumerate(parts) if _OPTIONS.search(part)), 0)
        moves = any(map(_MOVES.search, parts[first:]))
        if isinstance(value, str) and value and (moves or "://" in value):
            yield Endpoint(key, value, anonymous)


def _options(
    node: object, key: str, within: bool, anonymous: bool | None
) -> Iterator[tuple[str, object, bool]]:
    """Key and value of every leaf of options, and whether these are of requests without signature.

    Args:
        within: whether `node` is, or is inside of, options.
        anonymous: what the options say; None where they don't begin yet. Only their own `anon`
            counts: a mapping inside of them may have one that nobody reads.
    """
    if isinstance(node, Mapping):
        if within and anonymous is None and "_target_" not in node:
            anonymous = node.get("anon") is True
        for name, value in node.items():
            starts = bool(_OPTIONS.search(str(name))) or (
                name == "_args_" and str(node.get("_target_", "")).endswith(".Files")
            )
            yield from _options(value, f"{key}.{name}".lstrip("."), within or starts, anonymous)
    elif isinstance(node, (list, tuple)):
        for number, value in enumerate(node):
            yield from _options(value, f"{key}[{number}]", within, anonymous)
    elif within:
        yield key, node, bool(anonymous)
