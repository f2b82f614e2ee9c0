"""Kills of Ray actors and of whole nodes: every batch comes, unchanged, and each death is told of.

    pytest -m stress -n 0 -s tests/ray/test_ray_kills.py

Two Ray nodes on this machine, as `ray start` on two machines makes them. The loader attaches to the
first, and the second is the one that dies.
"""

import logging
import os
import random
import re
import signal
import time
from contextlib import closing

import pytest

from penstock.addons.ray.cluster import RayOptions
from penstock.loading.digests import batch_hash
from penstock.loading.workers.options import LoaderOptions
from tests import deaths, toy

pytestmark = pytest.mark.stress

ACTOR_KILLS, NODE_KILLS = 20, 3
SOON = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 4,
}
STEPS = 240


@pytest.fixture
def cluster():
    import ray
    from ray.cluster_utils import Cluster

    before = deaths.children()
    nodes = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 2, "include_dashboard": False, "_system_config": SOON},
    )
    nodes.add_node(num_cpus=2)
    yield nodes
    assert not ray.is_initialized()  # the loader has left it
    nodes.shutdown()
    assert deaths.until(lambda: deaths.children() <= before)


def loader(cluster=None):
    options = None
    if cluster is not None:
        options = LoaderOptions("ray", 4, max_deaths=8, own=RayOptions(cluster.address))
    return toy.loader(options, toy.Everywhere(), deaths.Files(STEPS * 2), size=2)


def kill_actor(pids, chance):
    pid = chance.choice(pids)
    os.kill(pid, signal.SIGKILL)
    return pid


def kill_node(cluster):
    """Kill the raylet of the second node, with which its actors go, and start another node."""
    node = next(one for one in cluster.list_all_nodes() if one is not cluster.head_node)
    node.all_processes["raylet"][0].process.kill()
    cluster.remove_node(node, allow_graceful=False)
    cluster.add_node(num_cpus=2)


def test_batches_are_those_of_an_undisturbed_run(cluster, caplog):
    caplog.set_level(logging.WARNING)
    with loader() as alone:
        expected = toy.hashes(alone)
    chance, killed = random.Random(17), set()
    moments = sorted(chance.sample(range(4, STEPS - 12), ACTOR_KILLS + NODE_KILLS))
    nodes = set(chance.sample(moments, NODE_KILLS))
    found = []
    with loader(cluster) as ours, closing(ours.epoch(0)) as batches:
        for step, batch in enumerate(batches):
            found.append(batch_hash([batch]))
            if step not in moments:
                continue
            # Those that were killed are on the list until somebody has waited.
            ready = [pid for pid in ours._backend.pids() if pid not in killed]
            if step in nodes:
                kill_node(cluster)
            elif ready:
                killed.add(kill_actor(ready, chance))
            elif step + 1 < STEPS:
                moments[moments.index(step)] = step + 1  # once an actor is there again
                moments.sort()
            time.sleep(0.1)
        died = ours.deaths
    assert found == expected
    said = [r.getMessage() for r in caplog.records if r.name.endswith("ray_pool")]
    told = [text for text in said if text.startswith("DataLoader worker")]
    print(f"{len(killed)} actors and {len(nodes)} nodes killed: {died} deaths, all told of")
    assert len(killed) == ACTOR_KILLS
    assert died >= ACTOR_KILLS
    assert len(told) == died
    assert sum(bool(re.search("died with its node", text)) for text in told) >= 1
