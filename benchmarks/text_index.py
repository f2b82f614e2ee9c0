"""What an index of a big text file costs, beside `wc -l`; and what reading by it keeps in memory.

    python benchmarks/text_index.py [--gigabytes 2] [--folder FOLDER]

Makes files of random messages (a label, a tab, a text) and deletes them afterwards. For records of
several lengths, and for RFC 4180 quoting without and with quotes, it runs `wc -l` and the index in
turns, with the file in the system's cache, and prints bytes per second of CPU time (user and
system): what a core does, whatever else the machine is doing. Both have to count the same.

Then the resident memory of a process, and of two loader workers, that read at random through the
file; and for comparison a few ways to do the same.
"""

from __future__ import annotations

import argparse
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from penstock.addons.tables.delimited_text import ColumnScan, DelimitedText
from penstock.addons.tables.text.record_index import RecordIndex, scan
from penstock.datasets.reading.positioned_file import PositionedFile

KINDS = {  # name: (mean characters of a text, quoting, share of texts in quotes)
    "80 characters": (80, "none", 0.0),
    "80, may be quoted": (80, "standard", 0.0),
    "80, half are quoted": (80, "standard", 0.5),
    "400 characters": (400, "none", 0.0),
    "20 characters": (20, "none", 0.0),
}


def make(path: Path, size: int, mean: int, quoted: float) -> None:
    """Write `size` bytes of records, from a pool of 10,000 in random order."""
    rng = np.random.default_rng(0)
    letters = np.frombuffer(b"etaoin shrdlu cmfwyp", np.uint8)
    pool = []
    for length in np.maximum(1, rng.gamma(2.0, mean / 2, 10_000)).astype(int):
        text = rng.choice(letters, length).tobytes()
        text = b'"' + text + b'\nand ""more"""' if rng.random() < quoted else text
        pool.append((b"spam\t" if rng.random() < 0.13 else b"ham\t") + text)
    with path.open("wb") as file:
        file.write(b"label\ttext\n")
        while file.tell() < size:
            file.write(b"\n".join([pool[row] for row in rng.permutation(len(pool))]) + b"\n")


def cpu_of(function: Callable[[], object]) -> tuple[float, object]:
    """CPU seconds of this process and of the children it waits for, and the result."""

    def now() -> float:
        uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(use.ru_utime + use.ru_stime for use in uses)

    start = now()
    result = function()
    return now() - start, result


def wc(path: Path) -> int:
    done = subprocess.run(["wc", "-l", str(path)], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[0])


def compare(path: Path, quoting: str, rounds: int) -> str:
    """Both in turns; a line of medians."""
    size, ours, theirs = path.stat().st_size, [], []
    for _ in range(rounds):
        seconds, lines = cpu_of(lambda: wc(path))
        theirs.append(seconds)
        seconds, (_, records, _) = cpu_of(lambda: scan(PositionedFile(path), quoting, "\t"))
        ours.append(seconds)
        assert quoting == "standard" or records == lines
    speeds = [size / statistics.median(times) / 1e9 for times in (theirs, ours)]
    ratios = [wc / us for wc, us in zip(theirs, ours, strict=True)]
    return (
        f"{records:>12,d} {speeds[0]:8.2f} GB/s {speeds[1]:8.2f} GB/s "
        f"{statistics.median(ratios):7.0%}  ({min(ratios):.0%} to {max(ratios):.0%})"
    )


def resident(pid: int | str = "self") -> dict[str, int]:
    """MiB of a process: all of it, and what is its own (not files, not shared with its parent)."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in text.splitlines()[1:]}
    own = kilobytes["Private_Clean"] + kilobytes["Private_Dirty"]
    return {"Rss": kilobytes["Rss"] // 1024, "own": own // 1024}


def memory(path: Path, cache: str, reads: int) -> None:
    """Resident memory while reading at random, in this process and in two workers."""
    before = resident()
    print(f"\nresident memory, MiB (with all of torch: {before['Rss']} before the file is opened)")
    data = DelimitedText(str(path), cache_dir=cache, classes=["ham", "spam"], quoting="none")
    rng = np.random.default_rng(1)
    start = time.process_time()
    for _ in range(reads // 64):
        data.__getitems__(rng.integers(0, len(data), 64).tolist())
    each = (time.process_time() - start) / reads * 1e6
    after = resident()
    print(
        f"  main process, after {reads:,} reads: {after['Rss']} (+{after['Rss'] - before['Rss']})"
        f", {each:.1f} us a record"
    )
    for context in ("fork", "spawn"):
        workers(data, context, reads)


def workers(data: DelimitedText, context: str, reads: int) -> None:
    from penstock.loading.collate import List
    from penstock.loading.fetch import Fetch
    from penstock.loading.loader import Loader
    from penstock.loading.workers.options import LoaderOptions
    from penstock.order.plan import Plan
    from penstock.order.samplers import Random

    options = LoaderOptions(backend="process", num_workers=2, multiprocessing_context=context)
    plan = Plan(Random(len(data), 0), 256)
    with Loader(plan, Fetch(data, None, List(), seed=0), options) as loader:
        batches = loader.epoch(0)
        first: dict[int, dict[str, int]] = {}
        for _ in range(reads // 256):
            next(batches)
            if not first:
                first = {pid: resident(pid) for pid in children()}
        last = {pid: resident(pid) for pid in first}
    for pid in first:
        grown = last[pid]["Rss"] - first[pid]["Rss"]
        print(
            f"  {context}ed worker: {last[pid]['Rss']} (+{grown} since its first batch), "
            f"its own {last[pid]['own']}"
        )


def children() -> list[int]:
    """Worker processes of this one."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        found += [int(pid) for pid in (task / "children").read_text().split()]
    names = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in found}
    return [pid for pid, name in names.items() if b"resource_tracker" not in name]


def scanned(path: Path) -> None:
    index = RecordIndex(path, "none", "\t", None)
    data = DelimitedText(
        str(path), cache_dir=f"{path}-cache", classes=["ham", "spam"], quoting="none"
    )
    seconds, _ = cpu_of(lambda: ColumnScan(index, data.format, data._columns))
    print(
        f"\nlabels and lengths of all records: {seconds:.1f} s, "
        f"{path.stat().st_size / seconds / 1e9:.2f} GB/s"
    )


def others(path: Path) -> None:
    """Other ways to find line ends, on one GB or less of the same file."""
    import mmap

    chunk = 1 << 18
    size = min(path.stat().st_size, 2**30) // chunk * chunk

    def chunks() -> list[np.ndarray]:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        text = np.frombuffer(mapped, np.uint8)
        return [text[place : place + chunk] for place in range(0, size, chunk)]

    def readline() -> None:
        with path.open("rb") as file:
            while file.tell() < size:
                file.readline()

    def arrow(text: np.ndarray) -> object:
        import pyarrow as pa
        import pyarrow.compute as pc

        array = pa.Array.from_buffers(pa.uint8(), len(text), [None, pa.py_buffer(text)])
        return pc.indices_nonzero(pc.equal(array, pa.scalar(10, pa.uint8())))

    def words(text: np.ndarray) -> object:
        return np.packbits(text == 10).view(np.uint64).nonzero()

    ways: dict[str, Callable[[], object]] = {
        "flatnonzero(text == 10), whole": lambda: np.flatnonzero(np.concatenate(chunks()) == 10),
        "flatnonzero(text == 10), in chunks": lambda: [np.flatnonzero(t == 10) for t in chunks()],
        "words of packed bits, unrefined": lambda: [words(text) for text in chunks()],
        "bytes.count, no places": lambda: [t.tobytes().count(b"\n") for t in chunks()],
        "bytes.split": lambda: [len(t.tobytes().split(b"\n")) for t in chunks()],
        "file.readline()": readline,
    }
    try:
        import pyarrow  # noqa: F401

        ways["pyarrow, indices_nonzero"] = lambda: [arrow(text) for text in chunks()]
    except ImportError:
        pass
    print("\nother ways to find all line ends")
    for name, way in ways.items():
        seconds, _ = cpu_of(way)
        print(f"  {name:36s} {size / seconds / 1e9:6.2f} GB/s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--reads", type=int, default=100_000)
    parser.add_argument("--folder", help="where the files go for a while; a temporary folder")
    arguments = parser.parse_args()
    print(
        f"{platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}, "
        f"{arguments.gigabytes:g} GB"
    )
    print(f"{'':22s} {'records':>12} {'wc -l':>13} {'index':>13} {'share':>7}")
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path = Path(folder) / "text.tsv"
        for number, (name, (mean, quoting, quoted)) in enumerate(KINDS.items()):
            if number in (0, 2, 3, 4):
                make(path, int(arguments.gigabytes * 1e9), mean, quoted)
            print(f"{name:22s} {compare(path, quoting, arguments.rounds)}", flush=True)
        make(path, int(arguments.gigabytes * 1e9), 80, 0.0)
        scanned(path)
        memory(path, str(Path(folder) / "cache"), arguments.reads)
        others(path)


if __name__ == "__main__":
    main()
