"""A Ray that comes later than it waits for itself, as on a busy machine."""

import sys

import pytest

from tests import warm
from tests.program import ROOT

pytest.importorskip("ray")

CODE = """
import ray._private.services as services
from penstock.addons.ray import cluster
from tests import deaths
before, found, asked = deaths.children(), services.get_node, []
def late(*words, **more):
    asked.append(words)
    if len(asked) == 1:
        started.extend(deaths.children() - before)
        raise ValueError("The current node timed out during startup.")
    return found(*words, **more)
started = []
services.get_node = late
cluster.connect(cluster.RayOptions(window=0.05))
assert started and not set(started) & deaths.children(), "what came late is still there"
cluster.disconnect()
assert deaths.children() <= before, deaths.children()
print("started once more")
"""


@pytest.mark.thorough
def test_it_is_started_once_more_and_leaves_no_process():
    done = warm.run(
        [sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.endswith("started once more\n")
