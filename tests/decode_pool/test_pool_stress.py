"""Four runs with one decode, as benchmarks/share.py has them: their cost, and their ledgers."""

from pathlib import Path

import pytest

from benchmarks.share import Bench, draw

pytestmark = pytest.mark.stress


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """Runs on 300 JPEG files; `cost` is CPU seconds of workers by case."""
    folder = tmp_path_factory.mktemp("share").resolve()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        draw(Path("pictures"), 300, 500, 375)
        made = Bench(folder, ["trainer.max_epochs=2", "batch.size=32"], 0.5)
        made.ended("warm", made.start("warm", "0.1", False))
        made.cost = {}
        for case in ("four", "one"):
            made.cost[case], _, made.runs = made.case(case)
        yield made


@pytest.mark.parametrize("case", ["shared", "turn", "jobs"])
def test_four_runs_make_their_batches_once(bench, case):
    cost, _, runs = bench.case(case)
    assert bench.compare(runs) == "equal"
    assert bench.cost["four"] > 3 * bench.cost["one"]
    # 1.15 where runs are longer (benchmarks/share.py): each starts worker processes of its own.
    assert cost < 1.3 * bench.cost["one"]


def test_one_is_killed_one_comes_late_and_one_is_slow(bench):
    cost, _, runs = bench.case("hard")
    assert bench.compare(runs) == "3 of 4 whole"
    assert cost < 1.4 * bench.cost["one"]
    _, _, late, slow = runs
    assert bench.shared(late) > 0
    assert bench.shared(slow) > 0
    assert not list(Path("/dev/shm").glob(f"penstock-*/{bench.name}"))
