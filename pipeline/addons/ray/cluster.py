"""The Ray that actors run in: the one there is, or one that is started here and stopped.

Where a program has called `ray.init` itself (or runs inside an actor or a Ray Train worker), that
Ray is used and left as it was. Otherwise `loader.ray.address` says which: None starts one on this
machine, which all loaders of this process share and which ends when the last of them is closed.
`access.py` keeps others out of it.

Only `connect` imports ray. Cost: 2 s to start one, 0.3 s to attach to one that is there.
"""

from __future__ import annotations

import atexit
import importlib.util
import logging
import os
import re
import signal
import sys
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from penstock.addons.ray import access as ray_access
from penstock.distributed.preemption import held
from penstock.errors import ConfigError, Problem
from penstock.files.limits import Count
from penstock.loading.workers.options import LoaderOptions
from penstock.terminal import one_line

if TYPE_CHECKING:
    from penstock.addons.ray.pool import RayBackend
    from penstock.loading.fetch import Fetch


GIB = 2**30

# Logical CPUs of a Ray that is started here. How many actors there are is the loader's business.
_MANY = 10_000

# Ray waits 30 s for what it has started, which a busy machine may take longer for; then once more.
_LATE = "timed out during startup"

LAST_ON_PATH = "PENSTOCK_LAST_ON_PATH"  # folders that an actor finds behind what is installed

_OLDEST = (2, 52)  # that knows tokens


@dataclass(frozen=True)
class RayOptions:
    """Where actors run, and what each of them needs; the section `loader.ray`.

    Attributes:
        address: None starts Ray here; "auto" attaches to one, and so does the "host:port" of a
            program, which no configuration gives.
        num_actors: for each rank; "auto" is `num_workers`.
        cpus_per_actor: that Ray reserves, and the threads of a batch are not limited by.
        resources: by name, of Ray's custom resources, for each actor.
        window: GiB of batches that are ahead of the consumer, at most; one batch always is.
    """

    address: Annotated[str, Field(pattern="^auto$")] | None = None
    num_actors: Count | Literal["auto"] = "auto"
    cpus_per_actor: Annotated[float, Field(ge=0, le=10_000)] = 1.0
    # Ray writes the names into a list with commas, on a command line of its own.
    resources: dict[
        Annotated[str, Field(pattern=r"^[A-Za-z_][\w.:-]{0,99}$")],
        Annotated[float, Field(gt=0, le=10_000)],
    ] = field(default_factory=dict)
    window: Annotated[float, Field(gt=0, le=1_000_000)] = 1.0


def options_of(options: LoaderOptions) -> RayOptions:
    """Where the actors of a loader run."""
    return options.own if isinstance(options.own, RayOptions) else RayOptions()


class _State:
    """Who uses Ray in this process.

    Attributes:
        users: loaders that are open, and `kept` contexts.
        left: leaves, or stops, the Ray that was begun here, when it is closed.
    """

    users = 0
    left: ExitStack | None = None


_state = _State()

_lock = threading.RLock()


def require_installed() -> None:
    """Raise ConfigError if ray is not installed, or too old; does not import it."""
    spec = importlib.util.find_spec("ray")
    if spec is None or spec.origin is None:
        raise ConfigError(
            Problem(
                "loader.backend",
                "ray needs the package ray, which is not installed: "
                "pip install penstock-loader[ray], or loader.backend=process",
            )
        )
    version = metadata.version("ray")
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        raise ConfigError(
            Problem(
                "loader.backend",
                f"Ray {version} lets everybody in who reaches its ports; from {oldest} on it can "
                f"demand a token: pip install 'ray>={oldest}', or loader.backend=process",
            )
        )


def open_backend(fetch: Fetch, options: LoaderOptions) -> RayBackend:
    """The backend `loader.backend=ray`; raises ConfigError as `require_installed` does."""
    require_installed()
    from penstock.addons.ray.pool import RayBackend

    return RayBackend(fetch, options)


def connect(options: RayOptions) -> None:
    """Have Ray, until `disconnect` has been called as often.

    Raises:
        ConfigError: it is not installed, there is none at the address, or there is only its client.
    """
    require_installed()
    import ray
    from ray.util.client import ray as client

    ray_access.refuse_client("ray://" if client.is_connected() else options.address)
    with _lock:
        if not ray.is_initialized():
            with held(), _own_handlers(ray), ExitStack() as stack:
                _init(ray, options, stack)
                _state.left = stack.pop_all()
                atexit.register(_leave, os.getpid())
        _state.users += 1


def disconnect() -> None:
    """Stop Ray, or leave it, if it was begun here and nobody else in this process uses it."""
    with _lock:
        _state.users -= 1
        if not _state.users:
            _leave(os.getpid())


def _leave(owner: int) -> None:
    """Stop or leave what was begun by this process, and not by the one that it was forked from."""
    if _state.left is not None and os.getpid() == owner:
        left, _state.left = _state.left, None
        atexit.unregister(_leave)
        left.close()


@contextmanager
def kept() -> Iterator[None]:
    """Let several loaders after each other share one Ray: it is not stopped inside."""
    with _lock:
        _state.users += 1
    try:
        yield
    finally:
        disconnect()


def _init(ray: Any, options: RayOptions, stack: ExitStack) -> None:
    """Start Ray, or join it; what undoes that goes onto `stack`."""
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    # Also before Ray sets it: it says who may connect to what it starts.
    logging.getLogger("ray").setLevel(logging.ERROR)
    # It writes of each dead actor to stdout, whatever it is told.
    ray._private.worker.print_to_stdstream = lambda *args, **named: None
    runtime_env = environment()
    if options.address is not None:
        address = ray_access.address_of(ray, options.address)
        stack.enter_context(ray_access.by_token(ray, address))
        stack.callback(_shut_down, ray)
        try:
            ray.init(address=address, runtime_env=runtime_env, **quiet)
        except Exception as error:  # Ray has a dozen kinds of them, and plain RuntimeErrors
            raise ConfigError(
                Problem(
                    "loader.ray.address",
                    f"there is no Ray to be had at {address!r}: {_first_line(error)}. Start one "
                    "(RAY_AUTH_MODE=token ray start --head) and give its token here too "
                    "(RAY_AUTH_TOKEN_PATH, or ~/.ray/auth_token); or set loader.ray.address=null, "
                    "which starts one on this machine. RAY_AUTH_MODE=disabled joins one without "
                    "tokens, in which everybody who reaches its ports can run code",
                )
            ) from error
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    folder = stack.enter_context(ray_access.private(ray))
    stack.callback(_shut_down, ray)
    start = partial(
        ray.init,
        address="local",
        num_cpus=_MANY,
        include_dashboard=False,
        runtime_env=runtime_env,
        resources=dict.fromkeys(options.resources, _MANY),
        _temp_dir=str(folder),
        object_store_memory=int((2 * options.window + 0.25) * GIB),
        # The first would start as many processes as there are CPUs.
        _system_config={
            "prestart_worker_first_driver": False,
            "enable_timeline": False,
            "enable_metrics_collection": False,
        },
        **quiet,
    )
    try:
        try:
            with _own_sessions(ray):
                start()
        except Exception as error:
            if _LATE not in str(error):
                raise
            ray.shutdown()
            with _own_sessions(ray):
                start()
    except Exception as error:
        raise ConfigError(
            Problem("loader.ray", f"Ray cannot be started on this machine: {_first_line(error)}")
        ) from error
    ray_access.check_private(ray, folder)


def _shut_down(ray: Any) -> None:
    with held():
        ray.shutdown()


@contextmanager
def _own_sessions(ray: Any) -> Iterator[None]:
    """Start Ray's processes outside of this one's group, so that no signal to it ends them first.

    They end with this process all the same, because the kernel sees to it; and at once, where Ray
    gives up starting.
    """
    services = ray._private.services
    before, processes = services.ConsolePopen, []

    def started(*words: Any, **options: Any) -> Any:
        processes.append(before(*words, **{**options, "start_new_session": True}))
        return processes[-1]

    services.ConsolePopen = started
    try:
        yield
    except BaseException:
        for process in processes:
            process.kill()
            process.wait()
        raise
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


def environment() -> dict[str, Any]:
    """Ray's runtime environment, with this program's own folders on its path.

    Those that come behind the installed packages here do so in an actor as well.
    """
    installed = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
    first: list[str] = []
    last: list[str] = []
    own = first
    for entry in (str(Path(entry or ".").resolve()) for entry in sys.path):
        if entry.endswith("-packages"):
            own = last
        elif not entry.startswith(tuple(installed)) and not entry.endswith(".zip"):
            own.append(entry)
    path = {"PYTHONPATH": os.pathsep.join(first), LAST_ON_PATH: os.pathsep.join(last)}
    return {"env_vars": path}


def actor_options(options: RayOptions) -> dict[str, Any]:
    """The options of each actor. This module counts deaths, so Ray must not restart actors."""
    settings = {
        "num_cpus": options.cpus_per_actor,
        "resources": dict(options.resources),
        "max_restarts": 0,
        "max_task_retries": 0,
        "enable_task_events": False,  # which cost 0.05 ms a request
        # Each is a thread beside the one that makes batches.
        "concurrency_groups": {"life": 1, "watch": 1},
    }
    return settings if _state.left is not None else {**settings, "runtime_env": environment()}


def _first_line(error: Exception) -> str:
    """The first sentence of an error's message, or its first line if that is shorter."""
    lines = str(error).strip().splitlines()
    text = one_line(lines[0].split(". ")[0]) if lines else ""
    return f"{type(error).__name__}: {text}".rstrip(": .")
