"""Machines that come and go under torchrun, in namespaces (tests/nodes.py): nothing of it shows in
the order of samples, in the ledger or in the digests. How long runs take to go on is printed.
"""

import os
import random
import subprocess
import sys

import pytest

from tests.nodes import Cluster, can_be_made, data_of, weights_of, words
from tests.program import ROOT

pytestmark = [
    pytest.mark.stress,
    pytest.mark.skipif(not can_be_made(), reason="no namespaces can be made here"),
]
LOSSES = int(os.environ.get("PENSTOCK_TEST_LOSSES", "5"))


def undisturbed(folder, *more):
    """A run on this machine."""
    Cluster(folder)
    done = subprocess.run(
        [sys.executable, "run.py", *words(folder, "whole", 0), *more],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder / "whole"


def test_a_lost_node_that_comes_back_leaves_the_same_bits(tmp_path):
    whole = undisturbed(tmp_path, "distributed=ddp", "distributed.nproc=2")
    with Cluster(
        tmp_path, sizes=(2, 2), seconds=0.05, more=["trainer.checkpoint.every_steps=2"]
    ) as cluster:
        cluster.add("a")
        cluster.add("b")
        for lost in "ab":
            at = cluster.steps()
            cluster.wait(lambda at=at: cluster.steps() >= at + 7)
            starts = cluster.starts()
            cluster.lose(lost)
            cluster.add(lost)
            started, passed = cluster.goes_on(starts)
            print(
                f"\nlost {lost}, came back: {started:.1f} s to the start, {passed:.1f} s to a step"
            )
            session = cluster.sessions()[-1]
            assert session.get("repeated", 0) <= 3
        cluster.finish()
        assert (cluster.run / "ledger.jsonl").read_text() == (whole / "ledger.jsonl").read_text()
        assert data_of(cluster.run) == data_of(whole)
        assert (weights_of(cluster.run) == weights_of(whole)).all()


def test_random_losses_of_three_nodes(tmp_path):
    longer = "trainer.max_epochs=12"
    whole = undisturbed(tmp_path, longer)
    draw = random.Random(os.environ.get("PENSTOCK_TEST_SEED", "1"))
    kinds, times = ["hard", "soft", "hard", "hard", "soft"], {"hard": [], "soft": [], "joined": []}
    with Cluster(tmp_path, sizes=(1, 3), seconds=0.12, more=[longer]) as cluster:
        for name in "abc":
            cluster.add(name)
        cluster.wait(lambda: cluster.steps() >= 2)
        for number in range(LOSSES):
            at, gone = cluster.steps(), draw.choice("abc")
            cluster.wait(lambda at=at: cluster.steps() >= at + 2)
            kind, starts = kinds[number % 5], cluster.starts()
            cluster.lose(gone) if kind == "hard" else cluster.leave(gone)
            times[kind].append(cluster.goes_on(starts)[1])
            starts = cluster.starts()
            cluster.add(gone)
            times["joined"].append(cluster.goes_on(starts)[1])
        cluster.finish()
        assert data_of(cluster.run) == data_of(whole)
        repeated = [one.get("repeated", 0) for one in cluster.sessions()]
        print(f"\nload {os.getloadavg()[0]:.1f}; steps repeated {repeated}; seconds to a new step:")
        for kind, seconds in times.items():
            print(f"  {kind}: {', '.join(f'{one:.1f}' for one in seconds)}")


def test_a_node_whose_network_is_cut(tmp_path):
    whole = undisturbed(tmp_path)
    with Cluster(tmp_path, seconds=0.05, more=["distributed.timeout=15"]) as cluster:
        for name in "abc":
            cluster.add(name)
        cluster.wait(lambda: cluster.steps() >= 4)
        starts = cluster.starts()
        cluster.lose("a", silently=True)  # it had rank 0
        print(f"\ncut: {cluster.goes_on(starts)} s, of which 15 are distributed.timeout")
        cluster.finish()
        assert data_of(cluster.run) == data_of(whole)
