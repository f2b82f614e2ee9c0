"""Runs over data that stalls for ever, to be stopped by signals and gone on with.

`begin` forks a process (one a rank) that runs the program's own command line. Its data stalls from
the moment that `stall` says where; `stop` sends signals, and says how the processes ended and when.
"""

import json
import os
import signal
import time
from pathlib import Path

import torch
import torchmetrics.regression  # noqa: F401
from torch.utils.data import Dataset

# What every run imports is imported once, here, and not by each process that is forked.
from penstock import command  # noqa: F401
from tests import port

ROWS, BATCH, EPOCHS = 64, 4, 6
DATASET = f"""# @package _global_
defaults: [override /transform: none, override /model: linear, override /objective: regression]
dataset: {{_target_: tests.support.stopping.Stalling, rows: {ROWS}, gate: '???'}}
objective: {{inputs: [x], target: y}}
"""
RUN = (
    "dataset=stalling",
    f"batch.size={BATCH}",
    f"trainer.max_epochs={EPOCHS}",
    "tracker=none",
    "trainer.checkpoint.every_epochs=2",
    "trainer.ledger=true",
    "trainer.log_every=1",
    "trainer.pictures=false",
    "trainer.progress=none",
    "loader.num_workers=2",
    "scheduler=none",
    "resume=auto",
)


class Stalling(Dataset):
    """Rows of numbers, until a file named `gate` says {"place": "train", "row": 0}.

    From then on reading rows of that split from that one on takes an hour, once this process has
    read such a row as often as "after" says; or making the dataset does, for the place "set-up".
    The file's neighbour `stalled` appears when it begins.
    """

    def __init__(self, gate: str, rows: int, split: str = "train"):
        self.gate, self.rows, self.split = Path(gate), rows, split
        self.read = 0
        if split == "train":
            self._pass("set-up", 0)

    def _pass(self, place, row):
        if not self.gate.exists():
            return
        wanted = json.loads(self.gate.read_text())
        if wanted["place"] == place and row >= wanted["row"]:
            self.read += 1
            if self.read <= wanted["after"]:
                return
            self.gate.with_name("stalled").touch()
            time.sleep(3600)

    def __len__(self):
        return self.rows

    def __getitem__(self, index):
        self._pass(self.split, index)
        x = torch.tensor([index % 3, index % 5, index % 7], dtype=torch.float32)
        return {"x": x, "y": x.sum(0, keepdim=True)}

    @property
    def facts(self):
        return {"num_features": 3, "num_outputs": 1}

    @property
    def fingerprint(self):
        return f"stalling-{self.rows}"


class Runs:
    """The runs of one folder.

    Args:
        backend: "main", "process" or "thread".
        more: overrides.
    """

    def __init__(self, folder, backend="main", ranks=1, more=()):
        self.folder, self.backend, self.ranks, self.more = Path(folder), backend, ranks, more
        self.run = self.folder / "run"
        self.gate = self.folder / "gate" / "gate"
        self.log = self.folder / "log"
        self.gate.parent.mkdir(parents=True)
        (self.folder / "conf" / "dataset").mkdir(parents=True)
        (self.folder / "conf" / "dataset" / "stalling.yaml").write_text(DATASET)

    def arguments(self):
        many = ["distributed=ddp"] if self.ranks > 1 else []
        return [
            "--config-dir",
            f"{self.folder}/conf",
            "--trust",
            "tests.support.stopping",
            *RUN,
            *many,
            f"loader.backend={self.backend}",
            *(
                [] if "-m" in self.more else [f"run_dir={self.run}"]
            ),  # jobs have folders of their own
            f"dataset.gate={self.gate}",
            f"cache_dir={self.folder}/cache",
            *self.more,
        ]

    def begin(self, *more):
        """Start; pids, of ranks as torchrun would start them."""
        self.log.write_text("")
        return port.ranks(self.ranks, [*self.arguments(), *more], self.log, before=os.setsid)

    def stall(self, place, row=0, after=0):
        """Let data stall from now on."""
        hidden = self.gate.with_name("beside")
        hidden.write_text(json.dumps({"place": place, "row": row, "after": after}))
        hidden.rename(self.gate)

    def flow(self):
        """Let data come again."""
        for name in ("gate", "stalled"):
            self.gate.with_name(name).unlink(missing_ok=True)

    def wait(self, condition, seconds=300.0):
        until = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < until, self.log.read_text()
            time.sleep(0.002)

    def wait_for_stall(self):
        self.wait(self.gate.with_name("stalled").exists)

    def steps(self):
        """How many the ledger has."""
        path = self.run / "ledger.jsonl"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def whole(self):
        """Run to the end."""
        codes, _ = ended(self.begin())
        assert set(codes) == {0}, self.log.read_text()

    def outcome(self):
        """The ledger, and the weights to the bit."""
        return (self.run / "ledger.jsonl").read_text(), port.weights_of(self.run).tolist()

    def manifest(self):
        return json.loads((self.run / "manifest.json").read_text())


def stop(pids, number=signal.SIGTERM, to=None):
    """Send a signal to some of the processes; exit codes, and seconds until the last has ended.

    Args:
        to: which of them; all when None.
    """
    for place, pid in enumerate(pids):
        if to is None or place in to:
            os.kill(pid, number)
    return ended(pids)


def ended(pids):
    began, codes = time.monotonic(), {}
    try:
        while len(codes) < len(pids):
            assert time.monotonic() - began < 600, "it does not end"
            for pid in pids:
                if pid not in codes and (found := os.waitpid(pid, os.WNOHANG))[0]:
                    codes[pid] = os.waitstatus_to_exitcode(found[1])
            time.sleep(0.002)
    finally:
        for pid in pids:
            if pid not in codes:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
    return [codes[pid] for pid in pids], time.monotonic() - began
