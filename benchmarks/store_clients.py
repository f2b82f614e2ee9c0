"""CPU time of a GET: this project's client beside fsspec's, over HTTP and S3.

    python benchmarks/store_clients.py

A server in a process of its own (store_server.py) has 500 files of 78 kB, 30 ms to the first byte
and 40 MB/s a connection. 32 threads get them all, each client in turn. Wants aiohttp and s3fs.
"""

from __future__ import annotations

import os
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

COUNT, SIZE, THREADS, ROUNDS = 500, 78_000, 32, 3
NAMES = [f"bucket/{number:04}.bin" for number in range(COUNT)]


def ours(kind: str, base: str) -> Callable[[str], Any]:
    """Gets a file by its name."""
    if kind == "http":
        client = DirectClient(60.0)
        return lambda name: client.get(f"{base}/{name}").body
    s3 = S3({"endpoint_url": base})
    signing = DirectClient(60.0, s3.sign, s3.authorities)
    return lambda name: signing.get(s3.url(*name.split("/"))).body


def theirs(kind: str, base: str) -> Callable[[str], Any]:
    """The same by fsspec."""
    if kind == "http":
        web = fsspec.filesystem("http", skip_instance_cache=True)
        return lambda name: web.cat_file(f"{base}/{name}")
    options = {
        "client_kwargs": {"endpoint_url": base, "region_name": "us-east-1"},
        "config_kwargs": {"max_pool_connections": 100},
    }
    store = fsspec.filesystem("s3", skip_instance_cache=True, **options)
    return store.cat_file


def milliseconds(get: Callable[[str], Any]) -> float:
    """CPU of this process a GET."""
    began = time.process_time()
    with ThreadPoolExecutor(THREADS) as pool:
        sizes = [len(body) for body in pool.map(get, NAMES)]
    assert sizes == [SIZE] * COUNT
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
                clients = {"this client": ours(kind, base), "fsspec": theirs(kind, base)}
                for get in clients.values():
                    milliseconds(get)  # connections, imports
                for _ in range(ROUNDS):
                    for name, get in clients.items():
                        print(f"{kind:5}{name:12} {milliseconds(get):.2f} ms of CPU a GET")
            process.kill()


if __name__ == "__main__":
    main()
