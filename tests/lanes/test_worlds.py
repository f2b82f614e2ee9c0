"""The recipes in four lanes on one rank, two and four: equal to the bit, also where the number of
ranks changes at every stop. Minutes.

PENSTOCK_TEST_STEPS is the number of global batches of a run (200, or a little more, for whole
optimizer steps), PENSTOCK_TEST_STOPS how often one is stopped (20). A line a run is printed.
"""

import os
import random
import signal
import time

import pytest

from tests.lanes.worlds import QUIET, World, differences, steps_of

pytestmark = pytest.mark.stress
STEPS = int(os.environ.get("PENSTOCK_TEST_STEPS", "200"))
STOPS = int(os.environ.get("PENSTOCK_TEST_STOPS", "20"))

SIZE = "transform.train.resize.size=[16,16]"
RECIPES = {
    "faces": (
        "dataset.count=200",
        "dataset.size=32",
        "transform.train.resize.size=[32,32]",
        "model.width=4",
        "batch.size=9",
    ),
    "images": (  # batch norm and dropout
        "dataset=drawn_scenes",
        "dataset.count=200",
        "dataset.size=32",
        SIZE,
        "model.width=4",
        "model.dropout=0.2",
        "transform.train.colors=null",
        "batch.size=9",
    ),
    "sequences": (
        "experiment=sequences",
        "dataset.count=300",
        "dataset.longest=20",
        "model.hidden=8",
        "batch.size=9",
    ),
    "tiny_lm": (
        "experiment=tiny_lm",
        "dataset.root=docs",
        "transform.train.tokenize.size=300",
        "sampler.tokens=32",
        "model.width=16",
        "model.heads=2",
        "model.layers=1",
        "model.dropout=0.1",
        "batch.size=6",
        "batch.val_size=8",
    ),
    "segmentation": (
        "experiment=segmentation",
        "dataset.count=200",
        "dataset.size=32",
        SIZE,
        "model.width=2",
        "batch.size=9",
    ),
    "two_views": (
        "experiment=two_views",
        "dataset.count=200",
        "dataset.size=32",
        "transform.train.crop.size=[16,16]",
        "model.width=8",
        "transform.train.colors=null",
        "batch.size=9",
    ),
}
COMMON = (
    "distributed.lanes=4",
    "trainer.max_epochs=1000",
    "trainer.limit_batches={train: 15, val: 3}",  # 15: whole steps of three batches
    "trainer.val_every=3",
    "trainer.ema=0.9",
    "trainer.clip_norm=1.0",
    *QUIET,
)
# Each is tried with both precisions, and both numbers of batches before a step.
WAYS = [
    (name, precision, accumulate)
    for precision, accumulate in (("fp32", 1), ("bf16", 3), ("bf16", 1), ("fp32", 3))
    for name in RECIPES
]


def words_of(name, precision, accumulate, batches=STEPS):
    """The command line of a run, and how many batches it learns from."""
    steps = -(-batches // accumulate)
    ways = (f"trainer.precision={precision}", f"trainer.accumulate={accumulate}")
    return (*RECIPES[name], *COMMON, *ways, f"trainer.max_steps={steps}"), steps * accumulate


@pytest.mark.parametrize(("name", "precision", "accumulate"), WAYS)
def test_any_number_of_ranks_learns_the_same(name, precision, accumulate, tmp_path):
    words, total = words_of(name, precision, accumulate)
    for count in (1, 2, 4):
        run, began = tmp_path / str(count), time.monotonic()
        world = World(tmp_path / f"{count}.log", count, *words, f"run_dir={run}")
        assert set(world.wait()) == {0}, world.log.read_text()
        seconds = time.monotonic() - began
        steps, tensors, found = steps_of(run), *differences(tmp_path / "1", run)
        print(
            f"\n{name:12} {precision} accumulate={accumulate} ranks={count} steps={steps:3} "
            f"tensors={tensors} differ={len(found)} {seconds:.0f}s",
            end="",
        )
        assert steps == total
        assert not found


@pytest.mark.parametrize(("name", "precision", "accumulate"), [WAYS[1], ("tiny_lm", "bf16", 3)])
def test_twenty_stops_on_other_ranks_each(name, precision, accumulate, tmp_path):
    words, total = words_of(name, precision, accumulate, 3 * STEPS)  # some pass before it stops
    words += ("trainer.checkpoint.every_steps=4",)
    world = World(tmp_path / "whole.log", 1, *words, f"run_dir={tmp_path / 'whole'}")
    assert world.wait() == [0], world.log.read_text()
    run, draw, count, stops = tmp_path / "run", random.Random(name), 1, []
    while True:
        count = draw.choice([ranks for ranks in (1, 2, 4) if ranks != count])
        number = draw.choice([signal.SIGTERM, signal.SIGKILL])
        at = steps_of(run)
        # A rank that is stopped alone before the others have met it would keep them waiting.
        until = at + draw.randint(1, max(1, (total - at) // (STOPS + 1 - len(stops))))
        assert len(stops) == STOPS or until < total, "it was too quick to be stopped"
        world = World(tmp_path / "run.log", count, *words, f"run_dir={run}", "resume=auto")
        if len(stops) < STOPS:
            while steps_of(run) < until and world.runs():
                time.sleep(0.01)
            time.sleep(draw.random() / 10)
            # The end of a machine, or a signal that only some ranks get.
            ends = number == signal.SIGKILL
            world.signal(number, range(count) if ends else [draw.randrange(count)])
        codes = set(world.wait())
        if codes == {0}:
            break
        assert codes == ({-number} if number == signal.SIGKILL else {75}), world.log.read_text()
        stops.append((number.name, count, steps_of(run)))
    tensors, found = differences(tmp_path / "whole", run)
    print(f"\n{name} {precision} accumulate={accumulate}: {len(stops)} stops (signal, ranks, step)")
    print(*stops, f"last on {count}; tensors={tensors} differ={len(found)}")
    assert not found
    assert len(stops) == STOPS
