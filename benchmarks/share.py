"""What four runs of a sweep over the learning rate cost with one decode for all of them.

    python benchmarks/share.py                     all cases
    python benchmarks/share.py --cases hard turn   some of them

Every run is a real `run.py` on JPEG files, with a small network and a pause a step in place of an
accelerator. The cost of making batches is the CPU time of the worker processes (utime + stime in
/proc, looked at every 50 ms, so up to the last 50 ms of each). Each run's ledger is compared with
that of its own run without sharing.

    one      a run alone                    alone    the same with loader.share
    four     four at the same time          shared   the same with loader.share
    hard     shared; one is killed halfway, one joins late, one trains three times slower
    turn     a sweep, one job after the other          jobs     a sweep with sweep.jobs=4
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
RATES = ("0.1", "0.03", "0.01", "0.003")
CASES = ("one", "alone", "four", "shared", "hard", "turn", "jobs")
TICK = os.sysconf("SC_CLK_TCK")
WORKER = "pt_data_worker"
MODEL = """
import time
from torch import nn
from torch.nn.functional import adaptive_avg_pool2d

class Paced(nn.Module):
    def __init__(self, num_classes, pause):
        super().__init__()
        self.pause, self.last = pause, nn.Linear(48, num_classes)

    def forward(self, image):
        if self.training:
            time.sleep(self.pause)
        return self.last(adaptive_avg_pool2d(image, 4).flatten(1))
"""


def draw(folder: Path, count: int, width: int, height: int) -> None:
    """JPEG files of two classes with the detail of photographs, about."""
    random = np.random.default_rng(0)
    for number in range(count):
        place = folder / ("cats", "dogs")[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        coarse = random.integers(0, 256, (height // 8, width // 8, 3), np.uint8)
        picture = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        picture.save(place / f"{number}.jpg", quality=90)


class Workers(threading.Thread):
    """Counts the CPU time of all worker processes below this one."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.ticks: dict[tuple[int, str], int] = {}  # by pid and start
        self.done = threading.Event()

    @property
    def seconds(self) -> float:
        return sum(self.ticks.values()) / TICK

    def run(self) -> None:
        while not self.done.wait(0.05):
            for folder in Path("/proc").iterdir():
                with suppress(OSError, IndexError, ValueError):
                    pid = int(folder.name)
                    text = (folder / "stat").read_text()
                    if f"({WORKER})" in text and self._is_ours(pid):
                        words = text.rpartition(")")[2].split()
                        self.ticks[pid, words[19]] = int(words[11]) + int(words[12])

    def _is_ours(self, pid: int) -> bool:
        """Also of a process whose parent was killed: it works in the same folder."""
        return Path(f"/proc/{pid}/cwd").readlink() == Path.cwd()


@contextmanager
def counted() -> Iterator[Workers]:
    workers = Workers()
    workers.start()
    try:
        yield workers
    finally:
        workers.done.set()
        workers.join()


class Bench:
    """Runs of one set of pictures.

    Args:
        folder: the working folder, with the pictures in `pictures`.
        words: overrides of all runs.
        pause: seconds a step.
    """

    def __init__(self, folder: Path, words: list[str], pause: float) -> None:
        self.folder, self.pause = folder, pause
        (folder / "paced.py").write_text(MODEL)
        self.words = [
            "--trust",
            "paced",
            "dataset=image_folder",
            f"dataset.root={folder}/pictures",
            "model={_target_: paced.Paced}",
            f"+model.pause={pause}",
            "trainer.log_every=4",
            "trainer.pictures=false",
            "trainer.report=false",
            "trainer.checkpoint=null",
            f"cache_dir={folder}/cache",
            *words,
        ]
        self.name = f"bench-{secrets.token_hex(4)}"

    def command(self, *words: str) -> list[str]:
        return [sys.executable, str(ROOT / "run.py"), *self.words, *words]

    def start(self, run: str, rate: str, shared: bool, pause: float | None = None):
        words = [f"optimizer.lr={rate}", f"run_dir={run}"]
        words += [f"loader.share={self.name}"] if shared else []
        words += [f"model.pause={pause}"] if pause is not None else []
        return self.popen(run, *words)

    def popen(self, log: str, *words: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{self.folder}"}
        with (self.folder / f"{log}.log").open("wb") as file:
            return subprocess.Popen(
                self.command(*words), stdout=file, stderr=file, env=environment, cwd=self.folder
            )

    def ledger(self, run: str) -> list[str]:
        path = self.folder / run / "ledger.jsonl"
        return path.read_text().splitlines() if path.exists() else []

    def wait_for(self, run: str, steps: int) -> None:
        """Until a run has trained that many steps."""
        while len(self.ledger(run)) < steps:
            time.sleep(0.05)

    def ended(self, run: str, process: subprocess.Popen[bytes]) -> None:
        if process.wait() != 0:
            raise SystemExit((self.folder / f"{run}.log").read_text()[-3000:])

    def shared(self, run: str) -> int:
        """Batches of training that a run got from others."""
        path = self.folder / run / "metrics.jsonl"
        records = map(json.loads, path.read_text().splitlines() if path.exists() else [])
        return sum(one.get("shared_batches", 0) for one in records if one["event"] == "epoch")

    def case(self, name: str) -> tuple[float, float, dict[str, str]]:
        """CPU seconds of workers, wall seconds, and the runs of a case with their rates."""
        runs = {f"{name}-{place}": rate for place, rate in enumerate(RATES)}
        began = time.perf_counter()
        with counted() as workers:
            if name in ("one", "alone"):
                runs = dict(list(runs.items())[:1])
            if name in ("turn", "jobs"):
                rates = ",".join(RATES)
                words = ["-m", f"optimizer.lr={rates}", f"hydra.sweep.dir={name}"]
                words += ["sweep.jobs=4"] if name == "jobs" else []
                self.ended(name, self.popen(name, *words, f"loader.share={self.name}"))
                runs = {f"{name}/{place}": rate for place, rate in enumerate(RATES)}
            elif name == "hard":
                self._hard(runs)
            else:
                started = {
                    run: self.start(run, rate, name in ("alone", "shared"))
                    for run, rate in runs.items()
                }
                for run, process in started.items():
                    self.ended(run, process)
        return workers.seconds, time.perf_counter() - began, runs

    def _hard(self, runs: dict[str, str]) -> None:
        first, killed, late, slow = runs
        steps = len(self.ledger("four-0"))
        started = {
            run: self.start(run, runs[run], True, 3 * self.pause if run == slow else None)
            for run in (first, killed, slow)
        }
        self.wait_for(first, steps // 3)
        started[late] = self.start(late, runs[late], True)
        self.wait_for(killed, steps // 2)
        started[killed].send_signal(signal.SIGKILL)
        started.pop(killed).wait()
        for run, process in started.items():
            self.ended(run, process)

    def compare(self, runs: dict[str, str]) -> str:
        """Whether each run's ledger is that of its run without sharing, as far as it came."""
        whole = []
        for run, rate in runs.items():
            mine, own = self.ledger(run), self.ledger(f"four-{RATES.index(rate)}")
            if not mine or mine != own[: len(mine)]:
                raise SystemExit(f"{run}: another ledger than its own run without sharing")
            whole.append(len(mine) == len(own))
        return f"{sum(whole)} of {len(whole)} whole" if not all(whole) else "equal"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=640)
    parser.add_argument("--size", type=int, nargs=2, default=(500, 375))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--pause", type=float, default=0.5, help="seconds a step")
    parser.add_argument("--cases", nargs="+", default=CASES, choices=CASES)
    parser.add_argument("words", nargs="*", help="overrides of all runs")
    given, others = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        draw(Path("pictures"), given.images, *given.size)
        words = [f"trainer.max_epochs={given.epochs}", "batch.size=32", *given.words, *others]
        bench = Bench(Path(folder).resolve(), words, given.pause)
        bench.ended("warm", bench.start("warm", "0.1", False))  # hashes and statistics are kept
        print(f"{'case':<8} {'CPU s':>8} {'of one':>7} {'wall s':>7}  ledgers; batches of others")
        base = 0.0
        for case in ("four", "one", *(one for one in given.cases if one not in ("four", "one"))):
            seconds, wall, runs = bench.case(case)
            base = seconds if case == "one" else base
            taken = ", ".join(str(bench.shared(run)) for run in runs)
            share = f"{seconds / base:7.2f}" if base else f"{'':7}"
            print(
                f"{case:<8} {seconds:8.2f} {share} {wall:7.1f}  {bench.compare(runs)}; {taken}",
                flush=True,
            )


if __name__ == "__main__":
    main()
