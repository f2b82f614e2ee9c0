"""Machines for torchrun: each in namespaces of its own, with its own name, network and memory.

A hub has the network's bridge, and the store at which torch's launchers meet. What a node runs
ends with it, as does its /dev/shm; nothing is changed outside of the namespaces.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import Dataset

from penstock.runs import checkpoint
from tests.program import ROOT

PORT = 29400
ROWS, BATCH, EPOCHS = 96, 6, 3
DATASET = f"""# @package _global_
defaults: [override /transform: none, override /model: linear, override /objective: regression]
dataset: {{_target_: tests.nodes.SlowRows, rows: {ROWS}, seconds: '???'}}
objective: {{inputs: [x], target: y}}
"""
RUN = (
    "dataset=slow_rows",
    f"batch.size={BATCH}",
    f"trainer.max_epochs={EPOCHS}",
    "tracker=none",
    "trainer.digest=true",
    "trainer.baseline=false",
    "trainer.pictures=false",
    "trainer.report=false",
    "trainer.progress=none",
    "trainer.log_every=1",
    "loader=debug",
    "trainer.device=cpu",
    "resume=auto",
)
NAMESPACES = (
    "unshare",
    "--net",
    "--mount",
    "--uts",
    "--pid",
    "--ipc",
    "--fork",
    "--kill-child",
    "--mount-proc",
)
HUB = f"""
import time
from torch.distributed import TCPStore
store = TCPStore("0.0.0.0", {PORT}, is_master=True, wait_for_workers=False)
print("ready", flush=True)
time.sleep(3600)
"""
# With an address of its own, as otherwise it has that of one of the nodes, and changes with them.
BRIDGE = """
ip link set lo up
ip link add bridge address 02:00:00:00:00:01 type bridge
ip link set bridge up
ip address add 10.77.0.1/24 dev bridge
exec "$@"
"""
NODE = """
hostname {name}
mount -t tmpfs -o size=64m none /dev/shm
mount --bind {hosts} /etc/hosts
mount --bind /dev/null /etc/resolv.conf
ip link set lo up
until ip link set eth0 up 2> /dev/null; do sleep 0.02; done
ip address add {address}/24 dev eth0
exec "$@"
"""


class SlowRows(Dataset):
    """Rows of numbers; a training row takes its time."""

    def __init__(self, rows: int, seconds: float, split: str = "train"):
        self.rows, self.seconds = rows, seconds if split == "train" else 0.0

    def __len__(self):
        return self.rows

    def __getitem__(self, index):
        time.sleep(self.seconds)
        x = torch.tensor([index % 3, index % 5, index % 7], dtype=torch.float32)
        return {"x": x, "y": x.sum(0, keepdim=True)}

    @property
    def facts(self):
        return {"num_features": 3, "num_outputs": 1}

    @property
    def fingerprint(self):
        return f"slow-rows-{self.rows}"


def can_be_made():
    """Whether this process may make namespaces with a network."""
    if not all(shutil.which(name) for name in ("unshare", "nsenter", "ip")):
        return False
    tried = "mount -t tmpfs none /dev/shm && ip link add here type veth peer name there"
    return subprocess.run([*NAMESPACES, "sh", "-c", tried], capture_output=True).returncode == 0


def words(folder, run, seconds):
    return [
        "--config-dir",
        f"{folder}/conf",
        "--trust",
        "tests.nodes",
        *RUN,
        f"run_dir={folder}/{run}",
        f"dataset.seconds={seconds}",
        f"cache_dir={folder}/cache",
    ]


class Cluster:
    """Up to four nodes that run one command line.

    Args:
        sizes: least and most nodes.
        ranks: on each node.
        limits: seconds for torch's rendezvous: between signs of life, and for late nodes.
    """

    def __init__(
        self,
        folder,
        run="run",
        sizes=(1, 4),
        ranks=1,
        seconds=0.02,
        more=(),
        limits=(1, 3),
        restarts=20,
    ):
        self.folder, self.run = Path(folder), Path(folder) / run
        self.sizes, self.ranks, self.seconds, self.more = sizes, ranks, seconds, tuple(more)
        self.limits, self.restarts = limits, restarts
        self.nodes, self.plugs, self.added = {}, {}, 0
        (self.folder / "conf" / "dataset").mkdir(parents=True, exist_ok=True)
        (self.folder / "conf" / "dataset" / "slow_rows.yaml").write_text(DATASET)
        (self.folder / "hosts").write_text(
            "127.0.0.1 localhost\n10.77.0.1 hub\n"
            + "".join(f"10.77.0.{2 + place} {name}\n" for place, name in enumerate("abcd"))
        )

    def __enter__(self):
        self.hub = subprocess.Popen(
            [*NAMESPACES, "sh", "-c", BRIDGE, "sh", sys.executable, "-c", HUB],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert self.hub.stdout.readline() == "ready\n"
        return self

    def __exit__(self, *_):
        for process in [*self.nodes.values(), self.hub]:
            process.kill()
            process.wait()
        self.hub.stdout.close()

    def _in_hub(self, *command):
        subprocess.run(["nsenter", "--target", str(self.hub.pid), "--net", *command], check=True)

    def add(self, name):
        """Start a node: "a" to "d"."""
        self.added += 1
        log = self.folder / f"{self.added}-{name}.log"
        alive, late = self.limits
        environment = os.environ | {
            "GLOO_SOCKET_IFNAME": "eth0",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
        }
        address = f"10.77.0.{2 + 'abcd'.index(name)}"
        script = NODE.format(name=name, hosts=self.folder / "hosts", address=address)
        torchrun = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nnodes",
            ":".join(map(str, self.sizes)),
            "--nproc-per-node",
            str(self.ranks),
            "--max-restarts",
            str(self.restarts),
            "--rdzv-backend",
            "c10d",
            "--rdzv-endpoint",
            f"10.77.0.1:{PORT}",
            "--rdzv-id",
            "test",
            "--local-addr",
            address,
            "--rdzv-conf",
            f"keep_alive_interval={alive},keep_alive_max_attempt=3,last_call_timeout={late}",
            "--monitor-interval",
            "0.1",
            str(ROOT / "run.py"),
            "distributed=ddp",
            *words(self.folder, self.run.name, self.seconds),
            *self.more,
        ]
        with log.open("w") as file:
            node = subprocess.Popen(
                [*NAMESPACES, "sh", "-c", script, "sh", *torchrun],
                stdout=file,
                stderr=file,
                env=environment,
                cwd=ROOT,
            )
        plug = f"{name}{self.added}"
        # The node's namespaces are made by the process itself, a moment after its start.
        net = Path(f"/proc/{node.pid}/ns/net")
        while net.readlink() == Path("/proc/self/ns/net").readlink():
            time.sleep(0.01)
        self._in_hub(
            "ip", "link", "add", plug, "type", "veth", "peer", "name", "eth0", "netns", str(net)
        )
        self._in_hub("ip", "link", "set", plug, "master", "bridge", "up")
        self.nodes[name], self.plugs[name] = node, plug

    def lose(self, name, silently=False):
        """End a node at once: all its processes, and what was in its memory.

        Args:
            silently: cut its network first, so that nobody is told.
        """
        if silently:
            self._in_hub("ip", "link", "set", self.plugs[name], "down")
        node = self.nodes.pop(name)
        node.kill()
        node.wait()

    def leave(self, name):
        """Ask a node's launcher to end; waits for that."""
        node = self.nodes.pop(name)
        first = Path(f"/proc/{node.pid}/task/{node.pid}/children").read_text().split()[0]
        os.kill(int(first), signal.SIGTERM)
        return node.wait(timeout=60)

    def steps(self):
        """How many the ledger has."""
        path = self.run / "ledger.jsonl"
        return path.read_text().count("\n") if path.exists() else 0

    def wait(self, condition, seconds=600.0):
        began = time.monotonic()
        while not condition():
            assert time.monotonic() - began < seconds, self.text()
            time.sleep(0.01)
        return time.monotonic() - began

    def starts(self):
        """How often it was resumed."""
        return self.text().count(f"resuming {self.run} at ")

    def goes_on(self, starts):
        """Wait for another start than those, and for a step; seconds from now until each."""
        began = time.monotonic()
        self.wait(lambda: self.starts() > starts)
        started = time.monotonic() - began
        at = self.sessions()[-1]["at"]
        self.wait(lambda: self.last() >= at)
        return started, time.monotonic() - began

    def last(self):
        """The address of the last step in the ledger."""
        lines = (self.run / "ledger.jsonl").read_text().splitlines()
        last = json.loads(lines[-1]) if lines else {"epoch": -1, "step": -1}
        return [last["epoch"], last["step"]]

    def finish(self, seconds=600):
        for name, node in self.nodes.items():
            assert node.wait(timeout=seconds) == 0, (name, self.text())

    def text(self):
        return "\n".join(
            f"--- {log.name}\n{log.read_text()}" for log in sorted(self.folder.glob("*.log"))
        )

    def sessions(self):
        path = self.run / "manifest.json"
        text = path.read_text() if path.exists() else ""
        return json.loads(text)["sessions"] if text else []


def data_of(run):
    """What must not depend on ranks: the ledger without losses, and the digests."""
    ledger = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
    return (
        [[one[key] for key in ("epoch", "step", "samples", "order")] for one in ledger],
        (run / "digests.jsonl").read_text(),
    )


def weights_of(run):
    state = checkpoint.find_newest(run).state["model"]
    return torch.cat([value.flatten() for value in state.values()])
