"""Stopped and resumed in the loops of other frameworks: batches, their order and weights.

Each is stopped 40 times: killed, by SIGTERM, or left by an exception, some with a worker killed
before. It takes minutes.
"""

import importlib.util
import random

import pytest

from tests.promises.frameworks import loops
from tests.support.ports import free_port

NEEDED = {
    "accelerate": "accelerate", "transformers": "accelerate", "lightning": "pytorch_lightning",
    "fabric": "lightning_fabric",
}  # fmt: skip

pytestmark = pytest.mark.stress


@pytest.fixture(params=sorted(loops.LOOPS))
def framework(request):
    for name in (NEEDED[request.param], request.param):
        if name != "lightning" and name != "fabric" and importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    return request.param


@pytest.mark.parametrize("kind", ["dropin", "configured"])
def test_forty_stops(framework, kind, tmp_path):
    (tmp_path / "whole").mkdir()
    assert loops.in_processes(framework, kind, tmp_path / "whole") == [0]
    batches = loops.noted(tmp_path / "whole")
    assert batches == loops.batches_of(kind)
    weights = (tmp_path / "whole" / "weights.0").read_text()
    chance, stops, number = random.Random(f"{framework} {kind}"), 0, 0
    while stops < 40:
        number += 1
        folder = tmp_path / str(number)
        folder.mkdir()
        step = 0
        while True:
            step += chance.randint(1, 6)
            stop = step, chance.choice(["kill", "term", "leave"]), chance.random() < 0.3
            workers = chance.randint(0, 2)
            (code,) = loops.in_processes(framework, kind, folder, workers, stop)
            if code == 0:
                break
            assert step <= len(batches), (folder / "output.0").read_text()
            stops += 1
        assert loops.noted(folder) == batches
        assert (folder / "weights.0").read_text() == weights
    print(framework, kind, stops, "stops", number, "runs")


@pytest.mark.parametrize("kind", ["dropin", "configured"])
def test_two_ranks(framework, kind, tmp_path):
    (tmp_path / "whole").mkdir()
    run = {"ranks": 2, "port": free_port()}
    codes = loops.in_processes(framework, kind, tmp_path / "whole", **run)
    assert codes == [0, 0], (tmp_path / "whole" / "output.0").read_text()
    shares = [loops.noted(tmp_path / "whole", rank) for rank in range(2)]
    assert shares[0] != shares[1]
    weights = (tmp_path / "whole" / "weights.0").read_text()
    assert weights == (tmp_path / "whole" / "weights.1").read_text()
    (tmp_path / "left").mkdir()
    steps = len(shares[0])
    for step in (2, steps // 3, steps // 3 + 1, steps - 1, steps + 1):
        stop = step, "kill", False
        run["port"] = free_port()
        codes = loops.in_processes(framework, kind, tmp_path / "left", 1, stop, **run)
        assert (codes == [0, 0]) == (step > steps), (tmp_path / "left" / "output.0").read_text()
    assert [loops.noted(tmp_path / "left", rank) for rank in range(2)] == shares
    assert (tmp_path / "left" / "weights.0").read_text() == weights
