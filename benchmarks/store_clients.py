"""CPU time of a GET: this project's client beside fsspec's, over HTTP and S3.

    python benchmarks/store_clients.py

A server in a process of its own (store_server.py) has 500 files of 78 kB, 30 ms to the first byte
and 40 MB/s a connection. 32 threads get them all, or one thread 32 at a time (`exchange`, which
fetches ahead), each client in turn. Wants aiohttp and s3fs.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import fsspec

from penstock.addons.stores.direct import S3, DirectClient
from penstock.addons.stores.exchange import Exchange

COUNT, SIZE, THREADS, ROUNDS = 500, 78_000, 32, 3
NAMES = [f"bucket/{number:04}.bin" for number in range(COUNT)]


def client_of(kind: str, base: str) -> tuple[DirectClient, Callable[[str], str]]:
    """A client, and the URL of a file."""
    if kind == "http":
        return DirectClient(60.0), lambda name: f"{base}/{name}"
    s3 = S3({"endpoint_url": base})
    return DirectClient(60.0, s3.sign, s3.authorities), lambda name: s3.url(*name.split("/"))


def ours(kind: str, base: str) -> Callable[[], list[int]]:
    """Gets all files by threads, and says their sizes."""
    client, url_of = client_of(kind, base)
    return by_threads(lambda name: client.get(url_of(name)).body)


def exchange(kind: str, base: str) -> Callable[[], list[int]]:
    """The same by one thread."""
    client, url_of = client_of(kind, base)
    requests = Exchange(60.0, ThreadPoolExecutor(THREADS))

    def get() -> list[int]:
        sizes: list[int] = []
        asked = 0
        while len(sizes) < COUNT:
            while asked < COUNT and asked - len(sizes) < THREADS:
                requests.ask(
                    client,
                    client.request(url_of(NAMES[asked])),
                    SIZE,
                    lambda answer: sizes.append(len(answer.body)),
                )
                asked += 1
            select.select([requests], [], [])
            requests.work()
        return sizes

    return get


def theirs(kind: str, base: str) -> Callable[[], list[int]]:
    """The same by fsspec."""
    if kind == "http":
        web = fsspec.filesystem("http", skip_instance_cache=True)
        return by_threads(lambda name: web.cat_file(f"{base}/{name}"))
    options = {
        "client_kwargs": {"endpoint_url": base, "region_name": "us-east-1"},
        "config_kwargs": {"max_pool_connections": 100},
    }
    store = fsspec.filesystem("s3", skip_instance_cache=True, **options)
    return by_threads(store.cat_file)


def by_threads(get: Callable[[str], Any]) -> Callable[[], list[int]]:
    def sizes() -> list[int]:
        with ThreadPoolExecutor(THREADS) as pool:
            return [len(body) for body in pool.map(get, NAMES)]

    return sizes


def milliseconds(get: Callable[[], list[int]]) -> float:
    """CPU of this process a GET."""
    began = time.process_time()
    assert get() == [SIZE] * COUNT
    return (time.process_time() - began) / COUNT * 1e3


def main() -> None:
    os.environ |= {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    server = str(Path(__file__).with_name("store_server.py"))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "bucket").mkdir()
        for name in NAMES:
            (Path(folder) / name).write_bytes(os.urandom(SIZE))
        with subprocess.Popen(
            [sys.executable, server, folder], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            base = f"http://127.0.0.1:{int(process.stdout.readline())}"
            for kind in ("http", "s3"):
                clients = {
                    "threads": ours(kind, base),
                    "exchange": exchange(kind, base),
                    "fsspec": theirs(kind, base),
                }
                for get in clients.values():
                    milliseconds(get)  # connections, imports
                for _ in range(ROUNDS):
                    for name, get in clients.items():
                        print(f"{kind:5}{name:12} {milliseconds(get):.2f} ms of CPU a GET")
            process.kill()


if __name__ == "__main__":
    main()
