"""Who can reach a Ray that is started here, and which Ray this program joins.

Anyone who reaches the ports or sockets of a Ray can run code in it and in the programs that use it.
So one that is started here

1. lives in a folder inside of one that only its user can enter, as Ray gives its own mode 0777;
2. listens on the loopback interface alone;
3. demands a token, since other users of this machine reach that interface too.

A Ray that runs already is joined with a token, unless the environment has RAY_AUTH_MODE=disabled.
`auto` is the one of RAY_ADDRESS, or one that this user or root runs on this machine: Ray itself
would follow any process that looks like one, and a file in /tmp that anybody may have written.

Imports no ray; callers hand it in. Cost: 1 ms, and 30 ms to look through the processes of `auto`.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError, Problem
from penstock.terminal import one_line

log = logging.getLogger(__name__)

PREFIX = "penstock-ray-"
# Sockets lie in the folder of Ray's session, and a socket's path has at most 107 characters.
_LONGEST_FOLDER = 19
_LAST = 3.0  # seconds for Ray's last processes to stop writing logs
_LOOPBACK = ("127.0.0.1", "::1")
_LISTENING = "0A"  # in /proc/net/tcp
_SERVER = re.compile(r"(\[[0-9A-Fa-f:]+\]|[A-Za-z0-9](?:[A-Za-z0-9.\-]*[A-Za-z0-9])?):(\d{1,5})")
_ADDRESS = "loader.ray.address"
# Ray has this for laptops, whose firewalls ask at each port: nodes are found at 127.0.0.1 only, and
# then all of Ray's servers listen there. `_node_ip_address` alone is replaced by a reachable one.
_ALONE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


@contextmanager
def private(ray: Any) -> Iterator[Path]:
    """A folder for Ray's `_temp_dir`; a Ray that is started in it is this user's alone.

    It has to be shut down before the end, when the folder is removed.
    """
    parent = Path(tempfile.gettempdir()).resolve()
    if len(str(parent)) > _LONGEST_FOLDER:
        parent = Path("/tmp").resolve()
    own = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    try:
        folder, token = own / "r", own / "token"
        folder.mkdir(mode=0o700)
        descriptor = os.open(token, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32))
        variables = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_AUTH_TOKEN": None,
            _ALONE: "0",
        }
        constants = ray._private.ray_constants
        before = constants.ENABLE_RAY_CLUSTER
        constants.ENABLE_RAY_CLUSTER = False
        try:
            with _variables(ray, variables):
                yield folder
        finally:
            constants.ENABLE_RAY_CLUSTER = before
    finally:
        ends = time.monotonic() + _LAST
        while own.exists() and time.monotonic() < ends:
            shutil.rmtree(own, ignore_errors=True)


def check_private(ray: Any, folder: Path) -> None:
    """Raise ConfigError unless the Ray that was started in `folder` can be reached by nobody else.

    Ray changes the modes of its folders, and this relies on how it chooses its addresses.
    """
    address = ray.util.get_node_ip_address()
    if address not in _LOOPBACK:
        raise ConfigError(
            Problem(
                "loader.ray",
                f"Ray {ray.__version__} was to be started for this machine alone "
                f"and listens at {address}; use another version of Ray, or loader=default",
            )
        )


@contextmanager
def by_token(ray: Any, address: str) -> Iterator[None]:
    """Let Ray use its token while it is joined, unless the environment says otherwise."""
    mode = os.environ.get("RAY_AUTH_MODE", "")
    if mode == "disabled":
        log.warning(
            "RAY_AUTH_MODE=disabled: anyone who reaches the ports of the Ray at %s, or of this "
            "program, can run code here",
            address,
        )
    with _variables(ray, {} if mode else {"RAY_AUTH_MODE": "token"}):
        yield


@contextmanager
def _variables(ray: Any, variables: Mapping[str, str | None]) -> Iterator[None]:
    """Set environment variables, or remove them (None), for a time, and let Ray read them anew."""
    before = {name: os.environ.get(name) for name in variables}
    _set(ray, variables)
    try:
        yield
    finally:
        _set(ray, before)


def _set(ray: Any, variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    ray._raylet.Config.initialize("")
    ray._raylet.AuthenticationTokenLoader.instance().reset_cache()


def address_of(ray: Any, name: str) -> str:
    """HOST:PORT of the Ray that `loader.ray.address` names.

    Raises:
        ConfigError: there is none, there are several, it is for Ray's client, or on this machine
            and another user's.
    """
    address = name
    if name == "auto":
        address = os.environ.get("RAY_ADDRESS") or _running(ray)
    refuse_client(address)
    match = _SERVER.fullmatch(address)
    if match is None:
        raise ConfigError(Problem(_ADDRESS, f"got {one_line(address)}, expected auto or host:port"))
    host, port = match[1].strip("[]"), int(match[2])
    others = _listeners(port) - _trusted_users() if _is_loopback(host) else set()
    if others:
        raise ConfigError(
            Problem(
                _ADDRESS,
                f"at {one_line(address)} listens another user (number {min(others)}), who could "
                "run code here; give the address of a Ray of your own",
            )
        )
    return address


def refuse_client(address: str | None) -> None:
    """Raise ConfigError for the address of a Ray client: batches need an object store at hand."""
    if address is not None and address.startswith("ray://"):
        raise ConfigError(
            Problem(
                _ADDRESS,
                f"{one_line(address)} is for Ray's client, through which no batches "
                "can come: run the program on a node of that cluster, with "
                "loader.ray.address=auto or host:port (of its head)",
            )
        )


def _trusted_users() -> set[int]:
    return {os.geteuid() if hasattr(os, "geteuid") else 0, 0}


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host.lower() == "localhost"


def _running(ray: Any) -> str:
    """The address of the one Ray of which this user or root runs a node here."""
    flag, trusted = "--gcs-address=", _trusted_users()
    psutil = ray._private.services.psutil  # which Ray brings along
    addresses = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            words = process.cmdline()
            if not words or Path(words[0]).name != "raylet" or set(process.uids()) - trusted:
                continue
            if any(f"/{PREFIX}" in word for word in words):
                continue  # started by a program like this one, for itself
            addresses |= {word.removeprefix(flag) for word in words if word.startswith(flag)}
    if len(addresses) == 1:
        return str(addresses.pop())
    reason = (
        f"there are several: {', '.join(sorted(map(one_line, addresses)))}"
        if addresses
        else "none runs here as this user or root. Start one (ray start --head)"
    )
    raise ConfigError(
        Problem(
            _ADDRESS,
            f"auto joins the Ray of this machine, and {reason}; name one in "
            "RAY_ADDRESS, or as host:port with --allow-endpoint host:port; or set "
            "loader.ray.address=null, which starts one",
        )
    )


def _listeners(port: int) -> set[int]:
    """The users who listen at a port of this machine, by number; empty where no /proc tells."""
    users = set()
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                _, address, _, state, _, _, _, user = line.split()[:8]
                if state == _LISTENING and int(address.rpartition(":")[2], 16) == port:
                    users.add(int(user))
    return users
