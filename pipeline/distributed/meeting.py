"""How the ranks of one machine find each other: through a folder that only their user can open.

torch's stores are servers that listen on all interfaces, authenticate nobody, and hold pickled
objects: anyone who reaches one runs code in the ranks. The ranks of one machine need no server.

1. The launcher makes a folder of mode 0700 and names it in PENSTOCK_MEETING.
2. torch's launcher is given a rendezvous of a single member, itself, that listens nowhere.
3. The ranks meet in a `FileStore` in that folder, one for each time that they are started.
4. gloo and NCCL, which carry the tensors, listen on the loopback interface only.
5. Signs of life (`presence`) are notes in that folder, a file each.

Under another launcher the store is torch's. Where rank 0 has to serve it and MASTER_ADDR is a plain
IP address, it is served at that address only (`store`).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path

from torch.distributed import (  # type: ignore[attr-defined]
    FileStore,
    HashStore,
    PrefixStore,
    Store,
    TCPStore,
)
from torch.distributed.elastic.rendezvous import (
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous
from torch.distributed.rendezvous import rendezvous

from penstock.distributed.world import (
    MEETING,
    World,
    launcher_serves,
    meeting_folder,
    restarts,
    store_address,
)

BACKEND = "penstock"

_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
_LOOPBACK = ("lo", "lo0")  # Linux, macOS
_NO_PORT = 9  # discard; ranks expect an address, and nothing listens there


class Alone(StaticTCPRendezvous):
    """A rendezvous whose only member is this launcher; its store is memory of this process.

    torch's static rendezvous differs in one point: its store listens.
    """

    use_agent_store = False

    def get_backend(self) -> str:
        return BACKEND

    def next_rendezvous(self) -> RendezvousInfo:
        info = RendezvousStoreInfo(self.master_addr, self.master_port)
        return RendezvousInfo(HashStore(), self.rank, self.world_size, info)


def _alone(asked: RendezvousParameters) -> Alone:
    return Alone("127.0.0.1", _NO_PORT, 0, 1, asked.run_id, timeout=0)


@contextmanager
def announced(folder: Path) -> Iterator[str]:
    """Let processes started in this context meet in `folder`, of mode 0700, on this machine only.

    Yields:
        the name of the rendezvous for torch's launcher.
    """
    rendezvous_handler_registry.register(BACKEND, _alone)  # once more is nothing new
    interfaces = {name for _, name in socket.if_nameindex()}
    loopback = next((name for name in _LOOPBACK if name in interfaces), _LOOPBACK[0])
    variables = {MEETING: str(folder), **dict.fromkeys(_INTERFACES, loopback)}
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield BACKEND
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def store(world: World, limit: timedelta) -> Store:
    """Where the ranks learn each other's addresses: from our launcher, or from the program that
    started them.

    A launcher that starts all ranks again may keep its store, and with it the addresses of ranks
    that are gone; so each start has a file, or names in the store, of its own. A store that rank 0
    serves is new each time, and machines that have joined later count their starts from 0.
    """
    folder = meeting_folder()
    if folder is not None:
        return FileStore(str(folder / f"start-{restarts()}"), world.size)
    address = store_address()
    if address is None:
        shared, _, _ = next(rendezvous("env://", world.rank, world.size, timeout=limit))
        return PrefixStore(f"start-{restarts()}", shared) if launcher_serves() else shared
    host, port = address
    listening = _listening(host, port, world.size) if world.rank == 0 else None
    return TCPStore(
        host,
        port,
        world.size,
        world.rank == 0,
        limit,
        wait_for_workers=False,  # this store helps to find out who does not come
        master_listen_fd=listening,
    )


class Notes:
    """Short notes of ranks to each other, with the methods of a torch store.

    A `FileStore` keeps all that was ever written, and signs of life are written every second. Here
    a note is a file that the next one of its name replaces. A folder that is gone is a
    RuntimeError, as with torch's stores.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def set(self, name: str, value: str) -> None:
        beside = self._folder / f".{name}.{os.getpid()}"
        with self._guarded():
            beside.write_text(value)
            beside.replace(self._folder / name)

    def get(self, name: str) -> bytes:
        with self._guarded():
            return (self._folder / name).read_bytes()

    def check(self, names: Sequence[str]) -> bool:
        return all((self._folder / name).exists() for name in names)

    def add(self, name: str, amount: int) -> int:
        """Count under a name; every caller gets another number."""
        # Appended bytes are never mixed.
        with self._guarded(), (self._folder / name).open("ab") as file:
            file.write(b"+" * amount)
            file.flush()
            return file.tell()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RuntimeError(f"{self._folder} is gone: {error}") from error


def notes() -> Notes | None:
    """Where ranks of one machine leave notes; None if the launcher is not ours."""
    folder = meeting_folder()
    if folder is None:
        return None
    own = folder / f"notes-{restarts()}"
    own.mkdir(exist_ok=True)
    return Notes(own)


def _listening(host: str, port: int, size: int) -> int | None:
    """A socket that listens at MASTER_ADDR only; None where torch has to choose the address.

    That is where MASTER_ADDR is a name, which may mean another address on this machine than on the
    others.
    """
    try:
        family = socket.AF_INET6 if ip_address(host).version == 6 else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=size).detach()
    except (ValueError, OSError):  # a name, or an address that is translated on its way here
        return None
