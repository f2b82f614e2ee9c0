"""Machines that come and go under torchrun, in namespaces (tests/nodes.py), with six lanes: weights
are those of one rank, to the bit.
"""

import pytest
from torch import nn

from tests.lanes.worlds import differences
from tests.nodes import Cluster, can_be_made
from tests.stress.test_nodes import undisturbed

pytestmark = [
    pytest.mark.stress,
    pytest.mark.skipif(not can_be_made(), reason="no namespaces can be made here"),
]
IN_LANES = (
    "--trust",
    "tests.lanes.test_elastic",
    "model._target_=tests.lanes.test_elastic.Net",
    "distributed.lanes=6",
    "batch.size=12",
    "trainer.max_epochs=6",
    "trainer.ema=0.9",
    "trainer.accumulate=2",
    "loader.num_workers=0",
)


class Net(nn.Sequential):
    """With batch norm and dropout, which depend on the ranks without lanes."""

    def __init__(self, num_features: int, num_outputs: int):
        super().__init__(
            nn.Linear(num_features, 16),
            nn.BatchNorm1d(16),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(16, num_outputs),
        )


def test_two_nodes_of_three_are_lost_and_one_comes_back(tmp_path):
    whole = undisturbed(tmp_path, *IN_LANES)
    with Cluster(tmp_path, sizes=(1, 3), seconds=0.1, more=IN_LANES, limits=(5, 20)) as cluster:
        for name in "abc":
            cluster.add(name)
        cluster.wait(lambda: len(cluster.sessions()) and cluster.sessions()[-1].get("world") == 3)
        cluster.wait(lambda: cluster.steps() >= 4)
        starts = cluster.starts()
        cluster.lose("a")  # it had rank 0
        cluster.lose("c")
        cluster.goes_on(starts)
        at, starts = cluster.steps(), cluster.starts()
        cluster.wait(lambda: cluster.steps() >= at + 4)
        cluster.add("c")
        cluster.goes_on(starts)
        cluster.finish()
        worlds = [session.get("world", 1) for session in cluster.sessions()]
        tensors, found = differences(whole, cluster.run)
        print(f"\nranks of each start: {worlds}; {tensors} tensors, differ: {found}")
        assert not found
        assert {3, 1, 2} <= set(worlds)
        assert worlds[-1] == 2
