"""Permissions given outside of the configuration, for one command and all its processes.

    --trust PACKAGE         a configuration may call what is in it
    --allow-env NAME        the value of an environment variable may leave this machine
    --allow-endpoint HOST   credentials may go to this server; this Ray may be joined
    --allow-write FOLDER    a configuration may have files written there

Each may be given several times, or with commas. They travel in the environment, where processes of
launchers see them too; a configuration cannot set them (`hydra.job.env_set`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.config import allow_list, endpoints, environment, outputs
from penstock.errors import Problem

OPTIONS = {
    "--trust": allow_list.VARIABLE,
    "--allow-env": environment.VARIABLE,
    "--allow-endpoint": endpoints.VARIABLE,
    "--allow-write": outputs.VARIABLE,
}


def names(values: Iterable[str]) -> list[str]:
    """The names in values such as "a,b"."""
    return [name.strip() for word in values for name in word.split(",") if name.strip()]


def check(named: Mapping[str, list[str]]) -> list[Problem]:
    """The problems with names, given by variable."""
    return [
        *allow_list.check_trusted(named[allow_list.VARIABLE]),
        *environment.check_allowed(named[environment.VARIABLE]),
        *endpoints.check_allowed(named[endpoints.VARIABLE]),
        *outputs.check_allowed(named[outputs.VARIABLE]),
    ]
