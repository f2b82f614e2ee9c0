"""Images in a store, read by us and by peers, in turns, in one run.

    python benchmarks/stores.py [--peers PYTHON] [--rounds 2] [--latency 0.03] [--rate 40e6]
        [--only "ours files http;ours shards s3"] [--against FOLDER] [--faults busy:40]
        [--grid] [--half] [--images 2000]

`tests/support/store_server.py` serves 2,000 drawn JPEGs of 500 x 375 (155 MB) in its own process:
as single files, as 20 tar files with an index of each, as a pack of the encoded files (all of them
with an index of the folder, for a web server), and as LitData's chunks of 8 MB. Each contender has
two workers (ours are threads, which `loader=fast` chooses) and an empty cache; it makes float32
batches of 64 random resized crops of 224. Two epochs. Reported are the seconds to the first batch,
from the start of the process and from when its libraries are imported, the seconds of both epochs,
CPU milliseconds an image of the first (of the process tree, after the imports), the requests and
bytes of the first, and the server's CPU seconds; then first epochs as ratios to the peers'.

`--grid` takes each of 1, 30, 100 ms by 10, 40, 200 MB/s and reports ours beside the best peer, and
the bytes a second as a share of what the connections could bring. `--half` gives ours a cache of
half of the data, and reports the bytes of the second epoch beside the least that any cache of this
size has to fetch (each row is needed once an epoch; of an archive with its headers), and requests a
row; memory holds 256 MB and what is fetched ahead beside it, so take much more data, by `--images`.

PYTHON is one of an environment that has `litdata`, `obstore`, `zstd` and `webdataset`; peers decode
by Pillow, as their users do. `--against FOLDER` takes ours from another checkout, too. What else is
given goes to ours as overrides: `files.ahead=0`.
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
IMAGES, SHARDS, BATCH, SIZE, WORKERS = 2000, 20, 64, 224, 2
OURS = [
    f"{what} {way}" for what in ("files", "shards", "indexed", "packs") for way in ("http", "s3")
]
GRID = [(latency, rate) for latency in (0.001, 0.03, 0.1) for rate in (10e6, 40e6, 200e6)]
PEERS = ["litdata chunks", "litdata files", "webdataset"]
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "DISABLE_VERSION_CHECK": "1",  # of LitData, which asks PyPI
}


def draw(root: Path) -> None:
    """The images, and the tar files of them, in a bucket `data`."""
    import numpy as np
    from PIL import Image

    shards: dict[str, tarfile.TarFile] = {}
    for number in range(IMAGES + 64):
        split = "train" if number < IMAGES else "val"
        draws = np.random.default_rng(number)
        soft = Image.fromarray(draws.integers(0, 255, (24, 32, 3), dtype=np.uint8))
        pixels = np.asarray(soft.resize((500, 375), Image.Resampling.BICUBIC), np.int16)
        pixels = (pixels + draws.integers(-56, 56, (375, 500, 3))).clip(0, 255)
        file = io.BytesIO()
        Image.fromarray(pixels.astype(np.uint8)).save(file, "JPEG", quality=75)
        path = root / f"data/files/{split}/{'ab'[number % 2]}/{number:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.getvalue())
        shard = f"{split}-{number * SHARDS // IMAGES:02}.tar"
        if shard not in shards:
            (root / "data/shards").mkdir(exist_ok=True)
            shards[shard] = tarfile.open(root / "data/shards" / shard, "w")  # noqa: SIM115
        for ending, content in (("jpg", file.getvalue()), ("cls", f"{number % 2}".encode())):
            member = tarfile.TarInfo(f"{number:05}.{ending}")
            member.size = len(content)
            shards[shard].addfile(member, io.BytesIO(content))
    for opened in shards.values():
        opened.close()


# --- The contenders: a generator of each, which yields None when its libraries are imported.


def ours(kind: str, url: str, cache: Path, more: list[str]) -> Iterator[Any]:
    import torchvision.transforms.v2  # noqa: F401

    import penstock
    from penstock import build_train_loader

    what, way = kind.split()
    # `penstock` imports its modules when they are needed, which others do at once.
    for module in (
        "config.compose",
        "config.hydra",
        "build.data",
        "loading.loader",
        "addons.storage.client",
        {
            "files": "datasets.image_folder",
            "shards": "addons.tars.tars",
            "indexed": "addons.tars.tars",
            "packs": "addons.packs.folder",
        }[what],
    ):
        importlib.import_module(f"penstock.{module}")
    yield None
    folder = "shards" if what == "indexed" else what
    root = f"s3://data/{folder}" if way == "s3" else f"{url}/data/{folder}"
    config = penstock.compose(
        *{
            "files": ["dataset=image_folder", f"dataset.root={root}"],
            "shards": ["dataset=tar_shards", "dataset.classes=[a,b]", f"dataset.root={root}"],
            "indexed": ["dataset=indexed_tars", "dataset.classes=[a,b]", f"dataset.root={root}"],
            "packs": ["dataset=packed", f"dataset.folder={root}"],
        }[what],
        *([f"+files.options.endpoint_url={url}"] if way == "s3" else []),
        f"files.cache_dir={cache}",
        "transform=images_fast",
        "loader=threads",  # as loader=fast chooses them for it
        f"loader.num_workers={WORKERS}",
        f"batch.size={BATCH}",
        "trainer.device=cpu",
        "task=digest",  # which imports no metrics
        *more,
    )
    loader = build_train_loader(config)
    with loader:
        for epoch in range(2):
            for batch in loader.epoch(epoch):
                yield batch["image"]
            yield None


def _transform() -> Callable[[Any], Any]:
    import torch
    from torchvision.transforms import v2

    return v2.Compose(
        [
            v2.PILToTensor(),
            v2.RandomResizedCrop(SIZE, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )


def litdata_chunks(kind: str, url: str, cache: Path, more: list[str]) -> Iterator[Any]:
    import litdata
    from PIL import Image

    _allow_http()
    transform = _transform()
    yield None

    class Images(litdata.StreamingDataset):
        def __getitem__(self, index: Any) -> Any:
            sample = super().__getitem__(index)
            return transform(Image.open(io.BytesIO(sample["image"])).convert("RGB")), sample[
                "label"
            ]

    data = Images(
        "s3://data/chunks",
        cache_dir=str(cache),
        shuffle=True,
        storage_options={"endpoint_url": url},
        max_cache_size="20GB",
    )
    yield from _epochs(litdata.StreamingDataLoader(data, batch_size=BATCH, num_workers=WORKERS))


def litdata_files(kind: str, url: str, cache: Path, more: list[str]) -> Iterator[Any]:
    import litdata
    from torch.utils.data import DataLoader

    _allow_http()
    yield None
    data = litdata.StreamingRawDataset(
        "s3://data/files/train",
        cache_dir=str(cache),
        cache_files=True,
        storage_options={"endpoint_url": url},
        transform=_decoded,
    )
    # It lists by obstore in this process, after which it refuses forked ones.
    options: dict[str, Any] = {"multiprocessing_context": "spawn", "persistent_workers": True}
    options |= {"num_workers": WORKERS, "worker_init_fn": _allow_http}
    loader = DataLoader(data, batch_size=BATCH, shuffle=True, **options)
    yield from _epochs(loader, bare=True)


def _allow_http(*_: object) -> None:
    """LitData reads by obstore, and has no option for a server without TLS."""
    from litdata.streaming import downloader

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True


def _decoded(content: bytes) -> Any:
    from PIL import Image

    return _transform()(Image.open(io.BytesIO(content)).convert("RGB"))


def webdataset(kind: str, url: str, cache: Path, more: list[str]) -> Iterator[Any]:
    import webdataset as wds

    transform = _transform()
    yield None
    cache.mkdir()
    names = f"{url}/data/shards/train-{{00..{SHARDS - 1}}}.tar"
    data = (
        wds.WebDataset(names, cache_dir=str(cache), shardshuffle=SHARDS)
        .shuffle(1000)
        .decode("pil")
        .to_tuple("jpg", "cls")
        .map_tuple(transform, int)
        .batched(BATCH, partial=True)
    )
    yield from _epochs(wds.WebLoader(data, batch_size=None, num_workers=WORKERS))


def _epochs(loader: Any, bare: bool = False) -> Iterator[Any]:
    for _ in range(2):
        for batch in loader:
            yield batch if bare else batch[0]
        yield None


def measure(kind: str, url: str, cache: Path, more: list[str]) -> dict[str, Any]:
    """One contender in this process."""
    from benchmarks.images import cpu_seconds

    began = _born()
    make = globals().get(kind.replace(" ", "_"), ours)
    work = make(kind, url, cache, more)
    next(work)
    imported, before = time.time(), cpu_seconds()
    figures: dict[str, Any] = {"imports": imported - began}
    start, seen = imported, 0
    for batch in work:
        if batch is not None:
            assert batch.shape[1:] == (3, SIZE, SIZE), batch.shape
            if not seen and "first" not in figures:
                figures["first"] = time.time() - imported
                figures["first_all"] = time.time() - began
            seen += len(batch)
            continue
        assert IMAGES - BATCH < seen <= IMAGES, seen
        name = "epoch2" if "epoch1" in figures else "epoch1"
        figures[name] = time.time() - start
        figures[f"cpu{name[-1]}"] = (cpu_seconds() - before) / seen * 1e3
        if name == "epoch1":
            figures |= {"counts": counts(url)}
        else:
            figures |= {"counts2": counts(url)}
        start, before, seen = time.time(), cpu_seconds(), 0
    return figures


def _born() -> float:
    """When this process began, seconds since 1970."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    up = float(Path("/proc/uptime").read_text().split()[0])
    return time.time() - (up - ticks / os.sysconf("SC_CLK_TCK"))


def counts(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/_counts") as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def chunk(root: Path, output: Path) -> None:
    """LitData's chunks of the images; called in the peers' Python."""
    import litdata

    paths = sorted(map(str, root.rglob("*.jpg")))
    litdata.optimize(_described, paths, str(output), num_workers=1, chunk_bytes="8MB")


def _described(path: str) -> dict[str, Any]:
    return {"image": Path(path).read_bytes(), "label": int(Path(path).parent.name == "b")}


def prepared(folder: Path, peers: str | None) -> None:
    if not (folder / "data/files").exists():
        draw(folder)
    from penstock import command
    from penstock.addons.storage import index as file_index
    from penstock.addons.tars import index

    if not list((folder / "data/shards").glob("*.index")):
        index.write(str(folder / "data/shards"))
    if not (folder / "data/packs").exists():
        command.main(
            [
                "task=pack",
                "dataset=image_folder",
                f"dataset.root={folder}/data/files",
                "pack.format=encoded",
                f"pack.out={folder}/data/packs",
            ]
        )
    for kind in ("files", "shards", "packs"):
        if not (folder / "data" / kind / file_index.INDEX).exists():
            file_index.write(folder / "data" / kind)
    if peers and not (folder / "data/chunks").exists():
        command = [peers, __file__, "--chunk", str(folder)]
        subprocess.run(command, check=True, env=environment(ROOT), stdout=subprocess.DEVNULL)


def environment(root: Path) -> dict[str, str]:
    # The measuring stays that of this file, whichever checkout is measured.
    return {**os.environ, **ENVIRONMENT, "PYTHONPATH": f"{root}{os.pathsep}{ROOT}"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--peers", help="a Python that has litdata and webdataset")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--latency", type=float, default=0.03)
    parser.add_argument("--rate", type=float, default=40e6)
    parser.add_argument("--faults", default="")
    parser.add_argument("--only", help="contenders, separated by ';'")
    parser.add_argument("--against", type=Path, help="another checkout of ours")
    parser.add_argument("--grid", action="store_true", help="each latency by each rate")
    parser.add_argument("--half", action="store_true", help="a cache of half of the data, for ours")
    parser.add_argument("--images", type=int, default=IMAGES, help="with a --data of their own")
    parser.add_argument("--data", type=Path, default=ROOT / "data/benchmark_stores")
    for hidden in ("--run", "--url", "--cache", "--chunk"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    given, more = parser.parse_known_args()
    globals()["IMAGES"] = given.images
    if given.chunk:
        chunk(Path(given.chunk) / "data/files/train", Path(given.chunk) / "data/chunks")
        return
    if given.run:
        print(json.dumps(measure(given.run, given.url, Path(given.cache), more)))
        return
    # Caches are deleted at the end: ext4 looks longer for the place of a new file where others were
    # deleted in the last minutes.
    given.scratch = tempfile.TemporaryDirectory()
    prepared(given.data, given.peers)
    runs = {f"ours {kind}": (kind, sys.executable, ROOT) for kind in OURS}
    if given.against:
        runs |= {f"against {kind}": (kind, sys.executable, given.against) for kind in OURS}
    if given.peers:
        runs |= {kind: (kind, given.peers, ROOT) for kind in PEERS}
    if given.only:
        runs = {name: run for name, run in runs.items() if name in given.only.split(";")}
    print("python benchmarks/stores.py", *sys.argv[1:])
    size = sum(path.stat().st_size for path in (given.data / "data/files/train").rglob("*.jpg"))
    if given.half:
        more = [*more, f"files.cache_size={size // 2}"]
        runs = {name: run for name, run in runs.items() if name not in PEERS}
    for latency, rate in GRID if given.grid else [(given.latency, given.rate)]:
        given.latency, given.rate = latency, rate
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in runs}
        for _ in range(given.rounds):
            for name, (kind, python, root) in runs.items():
                found[name] += filter(None, [one(kind, python, root, given, more)])
        found = {name: figures for name, figures in found.items() if figures}
        print(f"\n{1000 * latency:g} ms, {rate / 1e6:g} MB/s a connection")
        show(found)
        compare(found, rate)
        if given.half:
            show_half(found, given.data, size // 2)


def one(
    kind: str, python: str, root: Path, given: argparse.Namespace, more: list[str]
) -> dict[str, Any]:
    """Figures of one contender, beside a server of its own."""
    server = subprocess.Popen(
        [
            given.peers or sys.executable,  # uvloop is among the peers
            str(ROOT / "tests/support/store_server.py"),
            str(given.data),
            f"--latency={given.latency}",
            f"--rate={given.rate}",
            f"--faults={given.faults}",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    folder = Path(tempfile.mkdtemp(dir=given.scratch.name))
    try:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        cpu = counts(url)["cpu"]
        command = [python, __file__, "--run", kind, "--url", url, "--cache", str(folder / "cache")]
        command += ["--images", str(given.images)]
        done = subprocess.run(
            [*command, *more],
            cwd=folder,
            env=environment(root),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            print(f"{kind} failed:\n{done.stderr[-1500:]}", flush=True)
            return {}
        figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        figures["server"] = counts(url)["cpu"] - cpu
        return figures
    finally:
        server.kill()
        server.wait()


def show(found: dict[str, list[dict[str, Any]]]) -> None:
    columns = {
        "first_all": "first batch with imports, s",
        "first": "after them, s",
        "epoch1": "first epoch, s",
        "cpu1": "CPU ms an image",
        "epoch2": "second epoch, s",
        "server": "server CPU, s",
    }
    print(f"\n| | {' | '.join(columns.values())} | requests | MB |")
    print("|---|" + "---|" * (len(columns) + 2))
    for name, runs in found.items():
        cells = []
        for key in columns:
            values = sorted(run[key] for run in runs)
            spread = f" ({values[0]:.2f} to {values[-1]:.2f})" if len(values) > 1 else ""
            cells.append(f"{statistics.median(values):.2f}{spread}")
        asked = runs[-1]["counts"]
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(asked["requests"].items()))
        print(f"| {name} | {' | '.join(cells)} | {kinds} | {asked['bytes'] / 1e6:.0f} |")


def compare(found: dict[str, list[dict[str, Any]]], rate: float) -> None:
    """First epochs as ratios to the peers', and bytes a second beside what connections allow."""
    epochs = {
        name: statistics.median(run["epoch1"] for run in runs) for name, runs in found.items()
    }
    peers = {name: epochs[name] for name in PEERS if name in epochs}
    columns = [*peers, *(["the best of them"] if peers else [])]
    print(f"\n| first epoch over that of | {' | '.join(columns)} | MB/s | of connections x rate |")
    print("|---|" + "---|" * (len(columns) + 2))
    for name, seconds in epochs.items():
        others = [*peers.values(), *([min(peers.values())] if peers else [])]
        asked = found[name][-1]["counts"]
        pace = asked["bytes"] / found[name][-1]["epoch1"]
        share = pace / (asked["connections"] * rate)
        cells = [f"{seconds / other:.2f}" for other in others]
        cells += [f"{pace / 1e6:.1f}", f"{share:.0%} of {asked['connections']}"]
        print(f"| {name} | {' | '.join(cells)} |")


def show_half(found: dict[str, list[dict[str, Any]]], data: Path, kept: int) -> None:
    """Bytes and requests of the second epoch, with a cache of `kept` bytes."""
    images = sum(path.stat().st_size for path in (data / "data/files/train").rglob("*.jpg"))
    members = sum(map(_members, (data / "data/shards").glob("train-*.tar")))
    print("\n| second epoch | MB | of the least possible | requests a row |")
    print("|---|---|---|---|")
    for name, runs in found.items():
        asked = runs[-1]["counts2"]
        least = (members if name.split()[1] in ("shards", "indexed") else images) - kept
        gets = asked["requests"].get("GET", 0) / IMAGES
        print(
            f"| {name} | {asked['bytes'] / 1e6:.1f} | {asked['bytes'] / least:.3f} | {gets:.2f} |"
        )


def _members(archive: Path) -> int:
    """Bytes of the files in an archive, headers and all."""
    with tarfile.open(archive) as opened:
        last = opened.getmembers()[-1]
    return last.offset_data + -(-last.size // 512) * 512


if __name__ == "__main__":
    main()
