"""Images at an address, read ahead and as they are asked for: the wait for data, and the downloads.

    PYTHONPATH=. python benchmarks/remote.py [--images 1600] [--step 0.1] [--against FOLDER]

A web server on loopback, a process of its own, gives every image 20 ms after it was asked. One rank
with two workers reads the images in random order, three epochs, and sleeps a while after each batch
as if it trained. The cache holds 25, 50, 75 and 100 % of the images. In turns

    ahead    as it is by default
    lru      `dataset.files.ahead=0`: workers fetch what they need, what was used longest ago goes
    main     the same by the code in FOLDER, another checkout

Beside the downloads stand those of a reader that reads image after image in this very order, by
Belady's rule and by LRU. The hash over all batches has to be the same.
"""

from __future__ import annotations

import argparse
import hashlib
import heapq
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import OrderedDict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).parent.parent
SIZE = 8192  # bytes of an image
BATCH, EPOCHS, LATENCY = 16, 3, 0.02


def serve(images: int, log: str) -> None:
    """Serve images until killed; the port is the first line."""
    import numpy as np
    from PIL import Image

    contents = {}
    for number in range(images):
        pixels = np.random.default_rng(number).integers(0, 255, (12, 16, 3), dtype=np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).resize((72, 64)).save(file, "JPEG")
        name = f"/train/{'ab'[number % 2]}/{number:05d}.jpg"
        contents[name] = file.getvalue().ljust(SIZE, b"\0")  # as long as all others
    contents["/val/a/0.jpg"] = contents["/val/b/1.jpg"] = next(iter(contents.values()))
    folders: dict[str, set[str]] = {}
    for name in contents:
        parts = name.split("/")
        for depth in range(1, len(parts)):
            inner = parts[depth] + ("/" if depth < len(parts) - 1 else "")
            folders.setdefault("/".join(parts[:depth]) + "/", set()).add(inner)
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else a wait of 40 ms more

        def log_message(self, *_: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.give(with_body=False)

        def do_GET(self) -> None:
            if self.path in contents:
                time.sleep(LATENCY)
                with lock, open(log, "a") as file:
                    file.write(f"{self.path}\n")
            self.give(with_body=True)

        def give(self, with_body: bool) -> None:
            body, kind = contents.get(self.path), "image/jpeg"
            place = self.path.rstrip("/") + "/"
            if body is None and place in folders:
                links = sorted(folders[place])
                text = "".join(f'<a href="{place}{one}">{one}</a>\n' for one in links)
                body, kind = text.encode(), "text/html"
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Length", str(len(body or b"")))
            self.send_header("Content-Type", kind)
            self.send_header("Last-Modified", "Sun, 22 Nov 2026 12:00:00 GMT")
            self.end_headers()
            if with_body:
                self.wfile.write(body or b"")

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


def read(port: int, cache: str, size: int, step: float, options: list[str]) -> None:
    """Read all epochs; what was seen is printed."""
    from penstock import compose
    from penstock.build.data import DataParts
    from penstock.loading.fetch import batch_hash

    config = compose(
        "dataset=image_folder",
        f"dataset.root=http://127.0.0.1:{port}",
        "transform=none",
        f"batch.size={BATCH}",
        "loader.num_workers=2",
        "seed=1",
        f"dataset.files.cache_dir={cache}",
        f"dataset.files.cache_size={size}",
        *options,
    )
    loader = DataParts(config).train.loader(hashed=True)
    digest = hashlib.blake2b(digest_size=8)
    waited, took, order = [], [], []
    with loader:
        for epoch in range(EPOCHS):
            for batch in loader.epoch(epoch):
                digest.update(batch_hash([batch]).encode())
                order += batch.indices.tolist()
                time.sleep(step)
            waited.append(loader.stats.wait_seconds)
            took.append(loader.stats.total_seconds)
    cpu = sum(os.times()[:4])
    print(
        json.dumps(
            {
                "waited": waited,
                "took": took,
                "digest": digest.hexdigest(),
                "order": order,
                "cpu": cpu,
            }
        )
    )


def belady(order: list[int], room: int) -> int:
    """Downloads where what is needed latest goes first."""
    nexts, last = [0] * len(order), {}
    for place in reversed(range(len(order))):
        nexts[place] = last.get(order[place], len(order))
        last[order[place]] = place
    held: dict[int, int] = {}
    heap: list[tuple[int, int]] = []
    downloads = 0
    for place, image in enumerate(order):
        if image not in held:
            downloads += 1
            while len(held) >= room:
                need, victim = heapq.heappop(heap)
                if held.get(victim) == -need:
                    del held[victim]
        held[image] = nexts[place]
        heapq.heappush(heap, (-nexts[place], image))
    return downloads


def lru(order: list[int], room: int) -> int:
    """Downloads where what was used longest ago goes first."""
    held: OrderedDict[int, None] = OrderedDict()
    downloads = 0
    for image in order:
        if image in held:
            held.move_to_end(image)
            continue
        downloads += 1
        if len(held) >= room:
            held.popitem(last=False)
        held[image] = None
    return downloads


def one_run(kind: str, share: float, given: argparse.Namespace, folder: Path) -> dict:
    log = folder / "log"
    log.write_text("")
    server = subprocess.Popen(
        [sys.executable, __file__, "--serve", str(log), "--images", str(given.images)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        options = ["dataset.files.ahead=0"] if kind == "lru" else []
        root = given.against if kind == "main" else ROOT
        size = int(given.images * share) * SIZE
        with tempfile.TemporaryDirectory() as cache:
            command = [
                sys.executable,
                __file__,
                "--read",
                str(port),
                "--cache",
                cache,
                "--size",
                str(size),
                "--step",
                str(given.step),
                *options,
            ]
            done = subprocess.run(
                command,
                cwd=root,
                env={**os.environ, "PYTHONPATH": str(root)},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
        found = json.loads(done.stdout.splitlines()[-1])
        found["gets"] = len(log.read_text().splitlines())
        return found
    finally:
        server.kill()
        server.wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=1600)
    parser.add_argument("--step", type=float, default=0.1, help="seconds of training a batch")
    parser.add_argument("--against", type=Path)
    parser.add_argument("--shares", default="0.25,0.5,0.75,1.0")
    for hidden in ("--serve", "--read", "--cache", "--size"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    given, options = parser.parse_known_args()
    if given.serve:
        serve(given.images, given.serve)
        return
    if given.read:
        read(int(given.read), given.cache, int(given.size), given.step, options)
        return
    print("python benchmarks/remote.py", *sys.argv[1:])
    print(f"{given.images} images of {SIZE} bytes, batches of {BATCH}, {given.step:g} s a batch")
    print(
        f"{'cache':>6} {'':6} {'wait s':>20} {'wait %':>7} {'CPU s':>6} {'GETs':>6} "
        f"{'Belady':>7} {'LRU':>6}"
    )
    digests = set()
    for share in map(float, given.shares.split(",")):
        for kind in ("ahead", "lru", *(["main"] if given.against else [])):
            with tempfile.TemporaryDirectory() as folder:
                found = one_run(kind, share, given, Path(folder))
            digests.add(found["digest"])
            room = int(given.images * share)
            waits = " ".join(f"{one:6.2f}" for one in found["waited"])
            print(
                f"{share:6.0%} {kind:6} {waits} {sum(found['waited']) / sum(found['took']):7.1%} "
                f"{found['cpu']:6.1f} {found['gets']:6} {belady(found['order'], room):7} "
                f"{lru(found['order'], room):6}",
                flush=True,
            )
    print("digests:", *sorted(digests))


if __name__ == "__main__":
    main()
