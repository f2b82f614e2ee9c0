"""A row's label, an augmentation, the order of a sum: `task=diff` names the step at which each
was changed, on any number of ranks.
"""

import numpy as np
import pytest
from PIL import Image

from penstock.addons.lanes.lane_step import LaneSum
from tests.lanes.worlds import QUIET, on_ranks, verify
from tests.program import run

ROWS, ROW = 60, 23  # whose label is changed
FIT = (
    "dataset=image_table",
    "dataset.table=rows.csv",
    "dataset.split_column=split",
    "transform.train.crop.size=[16,16]",
    "model.width=4",
    "batch.size=9",
    "trainer.max_epochs=2",
    "trainer.digest=true",
    "scheduler=none",
    "distributed.lanes=4",
    *QUIET,
)


def table(folder, of_row="b"):
    """Sixty pictures with a label; names the folder."""
    folder.mkdir()
    lines = ["path,label,split"]
    for number in range(ROWS):
        pixels = np.random.default_rng(number).integers(0, 255, (16, 16, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
        label = of_row if number == ROW else "ab"[number % 2]
        lines.append(f"{number}.png,{label},{'train' if number < 54 else 'val'}")
    (folder / "rows.csv").write_text("\n".join(lines))
    return f"dataset.root={folder}"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run on one rank, and what names its data."""
    from penstock import command

    folder = tmp_path_factory.mktemp("whole")
    root = table(folder / "data")
    assert command.main([*FIT, root, f"run_dir={folder / 'run'}"]) == 0
    return folder / "run", root


def findings(capsys, first, second):
    """What verify finds in two runs that differ, by its subject."""
    done = verify(capsys, first, second)
    assert done.code == 1
    return {
        line.split()[0]: line.partition(" ")[2].strip() for line in done.out.splitlines() if line
    }


def test_one_label(whole, tmp_path, capsys):
    where = run(capsys, "task=where", f"sample={ROW}.png", "epochs=0:1", f"run={whole[0]}")
    step = int(where.out.splitlines()[-1].split()[2])
    assert 0 < step < 5
    on_ranks(tmp_path, 2, *FIT, table(tmp_path / "data", "a"), f"run_dir={tmp_path / 'run'}")
    found = findings(capsys, whole[0], tmp_path / "run")
    assert found["losses"].startswith(f"first differ at epoch 0, step {step}:")
    assert found["digests"].startswith(f"first differ at epoch 0, step {step}:")
    assert found["rows"].startswith("the same rows at 12 steps; ")


def test_one_augmentation(whole, tmp_path, capsys):
    run_, root = whole
    more = ("transform.train.flip.p=0.47", f"run_dir={tmp_path / 'run'}")
    assert run(capsys, *FIT, root, *more).code == 0
    found = findings(capsys, run_, tmp_path / "run")
    # The first draws between 0.47 and 0.5 are those of a later batch.
    for what in ("digests", "losses"):
        assert found[what].startswith("first differ at epoch 1, step 2:")
    assert found["samples"] == "the same at 12 steps"


def test_another_order_of_two_lanes_sums(whole, tmp_path, capsys, monkeypatch):
    """In one step, (0+2)+(1+3) for (0+1)+(2+3): the next step's loss is of other weights."""
    run_, root = whole
    add, calls = LaneSum.__call__, []

    def in_another_order(self, of_lane, counts):
        calls.append(1)
        if len(calls) != 2:
            return add(self, of_lane, counts)
        items = [of_lane(lane) for lane in range(4)]
        return add(self, lambda lane: items[(0, 2, 1, 3)[lane]], counts)

    monkeypatch.setattr(LaneSum, "__call__", in_another_order)
    assert run(capsys, *FIT, root, f"run_dir={tmp_path / 'run'}").code == 0
    assert len(calls) == 12
    found = findings(capsys, run_, tmp_path / "run")
    assert found["losses"].startswith("first differ at epoch 0, step 2:")
    assert found["digests"] == "the same at 12 steps"
    assert "weights" in found
