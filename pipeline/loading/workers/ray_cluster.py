"""The Ray that actors run in: the one there is, or one that is started here and stopped.

Where a program has called `ray.init` itself (or runs inside an actor or a Ray Train worker), that
Ray is used and left as it was. Otherwise `loader.ray.address` says which: None starts one on this
machine, which all loaders of this process share and which ends when the last of them is closed.

Only `connect` imports ray. Cost: 2 s to start one, 0.3 s to attach to one that is there.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import signal
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.distributed.preemption import held
from pipeline.errors import ConfigError, Problem
from pipeline.terminal import one_line

GIB = 2**30
# Sockets lie in the folder of Ray's session, and a socket's path has at most 107 characters.
_LONGEST_FOLDER = 19
# Logical CPUs of a Ray that is started here. How many actors there are is the loader's business.
_MANY = 10_000
_LAST = 3.0  # seconds


@dataclass(frozen=True)
class RayOptions:
    """Where actors run, and what each of them needs; the section `loader.ray`.

    Attributes:
        address: None starts Ray here; "auto" or "host:port" attaches to one.
        cpus_per_actor: that Ray reserves, and the threads of a batch are not limited by.
        resources: by name, of Ray's custom resources, for each actor.
        runtime_env: Ray's own description of what actors find on their nodes.
        window: GiB of batches that are ahead of the consumer, at most; one batch always is.
    """

    address: str | None = None
    cpus_per_actor: float = 1.0
    resources: Mapping[str, float] = field(default_factory=dict)
    runtime_env: Mapping[str, Any] = field(default_factory=dict)
    window: float = 1.0


class _State:
    """Who uses Ray in this process.

    Attributes:
        users: loaders that are open, and `kept` contexts.
        ours: whether it is to be left when nobody uses it.
        folder: of the Ray that was started here.
    """

    users = 0
    ours = False
    folder: str | None = None


_state = _State()
_lock = threading.RLock()


def require_installed() -> None:
    """Raise ConfigError if ray is not installed; does not import it."""
    spec = importlib.util.find_spec("ray")
    if spec is None or spec.origin is None:
        raise ConfigError(
            Problem("loader.backend", "ray needs the package ray, which is not installed: "
                    "pip install penstock-loader[ray], or loader.backend=process")
        )  # fmt: skip


def refuse_client(address: str | None) -> None:
    """Raise ConfigError for the address of a Ray client: batches need an object store at hand."""
    if address is not None and address.startswith("ray://"):
        raise ConfigError(
            Problem("loader.ray.address", f"{one_line(address)} is for Ray's client, through which "
                    "no batches can come: run the program on a node of that cluster, with "
                    "loader.ray.address=auto or host:port (of its head)")
        )  # fmt: skip


def connect(options: RayOptions) -> None:
    """Have Ray, until `disconnect` has been called as often.

    Raises:
        ConfigError: it is not installed, there is none at the address, or there is only its client.
    """
    require_installed()
    import ray
    from ray.util.client import ray as client

    refuse_client("ray://" if client.is_connected() else options.address)
    with _lock:
        if not ray.is_initialized():
            with held(), _own_handlers(ray):
                _init(ray, options)
            _state.ours = True
        _state.users += 1


def disconnect() -> None:
    """Stop Ray, or leave it, if it was begun here and nobody else in this process uses it."""
    with _lock:
        _state.users -= 1
        if not _state.users and _state.ours:
            _stop()


@contextmanager
def kept() -> Iterator[None]:
    """Let several loaders after each other share one Ray: it is not stopped inside."""
    with _lock:
        _state.users += 1
    try:
        yield
    finally:
        disconnect()


def _init(ray: Any, options: RayOptions) -> None:
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    # Also before Ray sets it: it says who may connect to what it starts.
    logging.getLogger("ray").setLevel(logging.ERROR)
    # It writes of each dead actor to stdout, whatever it is told.
    ray._private.worker.print_to_stdstream = lambda *args, **named: None
    runtime_env = environment(options)
    if options.address is not None:
        try:
            ray.init(address=options.address, runtime_env=runtime_env, **quiet)
        except Exception as error:  # Ray has a dozen kinds of them, and plain RuntimeErrors
            ray.shutdown()
            raise ConfigError(
                Problem("loader.ray.address", f"there is no Ray to be had at {options.address!r}: "
                        f"{_first_line(error)}. Start one (ray start --head; with an address in "
                        "place of auto, RAY_AUTH_MODE=token may be wanted), or set "
                        "loader.ray.address=null, which starts one on this machine")
            ) from error  # fmt: skip
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    parent = tempfile.gettempdir()
    parent = parent if len(parent) <= _LONGEST_FOLDER else "/tmp"
    _state.folder = tempfile.mkdtemp(prefix="penstock-ray-", dir=parent)
    try:
        with _own_sessions(ray):
            ray.init(
                address="local", num_cpus=_MANY, include_dashboard=False, runtime_env=runtime_env,
                resources=dict.fromkeys(options.resources, _MANY), _temp_dir=_state.folder,
                object_store_memory=int((2 * options.window + 0.25) * GIB),
                # The first would start as many processes as there are CPUs.
                _system_config={"prestart_worker_first_driver": False, "enable_timeline": False,
                                "enable_metrics_collection": False}, **quiet,
            )  # fmt: skip
    except BaseException as error:
        _stop()
        if not isinstance(error, Exception):
            raise
        raise ConfigError(
            Problem("loader.ray", f"Ray cannot be started on this machine: {_first_line(error)}")
        ) from error


def _stop() -> None:
    import ray

    folder, _state.folder, _state.ours = _state.folder, None, False
    with held():
        ray.shutdown()
    ends = time.monotonic() + _LAST
    while folder is not None and Path(folder).exists() and time.monotonic() < ends:
        shutil.rmtree(folder, ignore_errors=True)  # its last process may still write a log


@contextmanager
def _own_sessions(ray: Any) -> Iterator[None]:
    """Start Ray's processes outside of this one's group, so that no signal to it ends them first.

    They end with this process all the same, as the kernel is told so.
    """
    services = ray._private.services
    before = services.ConsolePopen
    services.ConsolePopen = partial(before, start_new_session=True)
    try:
        yield
    finally:
        services.ConsolePopen = before


@contextmanager
def _own_handlers(ray: Any) -> Iterator[None]:
    """Keep the handler of SIGTERM, for which Ray has two of its own; one of them aborts."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    utils, before = ray._private.utils, signal.getsignal(signal.SIGTERM)
    kept = utils.set_sigterm_handler
    utils.set_sigterm_handler = lambda handler: signal.signal(signal.SIGTERM, before)
    try:
        yield
    finally:
        utils.set_sigterm_handler = kept
        signal.signal(signal.SIGTERM, before)


def environment(options: RayOptions) -> dict[str, Any]:
    """Ray's runtime environment: as configured, with this program's own folders on its path."""
    given = dict(options.runtime_env)
    variables = dict(given.get("env_vars") or {})
    installed = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
    own = [str(Path(entry or ".").resolve()) for entry in sys.path]
    own = [
        entry for entry in own
        if not entry.startswith(tuple(installed)) and not entry.endswith((".zip", "-packages"))
    ]  # fmt: skip
    path = [*filter(None, [variables.get("PYTHONPATH")]), *own]
    return {**given, "env_vars": {**variables, "PYTHONPATH": os.pathsep.join(path)}}


def actor_options(options: RayOptions) -> dict[str, Any]:
    """What Ray is told of each actor; deaths are counted here, so it is not to start them again."""
    told = {
        "num_cpus": options.cpus_per_actor, "resources": dict(options.resources),
        "max_restarts": 0, "max_task_retries": 0,
        "enable_task_events": False,  # which cost 0.05 ms a request
        # Each is a thread beside the one that makes batches.
        "concurrency_groups": {"life": 1, "watch": 1},
    }  # fmt: skip
    return told if _state.ours else {**told, "runtime_env": environment(options)}


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(": .")
