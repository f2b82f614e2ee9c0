"""Mosaics and means of pictures with boxes: right, and alike however a batch is dealt out."""

import numpy as np
import pytest
import torch

from penstock import command
from penstock.addons.vision.drawn_shapes import DrawnShapes
from penstock.addons.vision.mosaic import ListSome, Mosaic
from penstock.errors import DataError
from penstock.loading.batch import Batch
from penstock.loading.collate import kinds_of
from penstock.order.keys import KeyedRandom
from penstock.order.plan import Request

FIELDS = ["boxes", "labels", "masks"]


def made(step, rows, valid=None, fields=FIELDS, collate=None, epoch=0):
    """Rows of drawn shapes, put together and transformed."""
    data = DrawnShapes(fields, count=40)
    samples = [data[row] for row in rows]
    rows = np.array(rows)
    request = Request(epoch, 0, rows, rows, len(rows) if valid is None else valid, total=len(rows))
    fields = (collate or ListSome())(samples)
    batch = Batch(fields, request, kinds=kinds_of(samples[0]))
    return step(batch, KeyedRandom.of(0, epoch, batch.positions, "batch/mosaic"))


def test_boxes_and_masks_of_a_mosaic_go_with_their_pictures():
    batch = made(Mosaic(p=1.0, visible=0.5), range(8))
    plain = made(lambda batch, random: batch, range(8))
    assert batch["image"].shape == plain["image"].shape
    assert (batch["image"] != plain["image"]).flatten(1).any(1).all()
    count = 0
    for boxes, labels, masks in zip(*(batch[name] for name in FIELDS), strict=True):
        assert len(boxes) == len(labels) == len(masks)
        count += len(boxes)
        assert (boxes >= 0).all()
        assert (boxes <= 96).all()
        for box, mask in zip(boxes, masks, strict=True):
            rows, columns = mask.any(1).nonzero().flatten(), mask.any(0).nonzero().flatten()
            seen = torch.stack([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1])
            assert (seen - box).abs().max() < 2.5  # masks are reduced to whole pixels
    assert count > sum(map(len, plain["boxes"]))
    for mask, image in zip(batch["masks"], batch["image"], strict=True):
        colours = image.float().std(0)  # of shapes, which the grey ground has little of
        assert colours[mask.any(0)].mean() > 4 * colours[~mask.any(0)].mean()


def test_a_mosaic_follows_from_the_address():
    """Of a batch on one rank or on two, and of one whose last group is not whole."""
    whole = made(Mosaic(p=0.7), range(8))
    for start in (0, 4):
        share = made(Mosaic(p=0.7), range(start, start + 4))
        assert torch.equal(share["image"], whole["image"][start : start + 4])
        for row in range(4):
            assert torch.equal(share["boxes"][row], whole["boxes"][start + row])
    plain = made(lambda batch, random: batch, range(8))
    for rows, valid in ((7, 7), (8, 7)):  # a smaller batch; one with padding
        short = made(Mosaic(p=1.0), range(rows), valid)
        assert torch.equal(short["image"][4:], plain["image"][4:rows])
        assert not torch.equal(short["image"][:4], plain["image"][:4])
    late = made(Mosaic(p=1.0, epochs=3), range(8), epoch=3)
    assert torch.equal(late["image"], plain["image"])
    assert not torch.equal(
        made(Mosaic(p=1.0, epochs=3), range(8), epoch=2)["image"], plain["image"]
    )


def test_what_cannot_be_put_together_is_reported():
    from penstock.loading.collate import List

    with pytest.raises(DataError, match=r"cannot do so with mask \(field 'mask'\)"):
        made(Mosaic(), range(4), fields=["boxes", "labels", "mask"])
    with pytest.raises(DataError, match=r"needs stacks of pictures .*choose collate=stack"):
        made(Mosaic(), range(4), collate=List())
    with pytest.raises(DataError, match=r"a field 'boxes' of BoundingBoxes .*collate=boxes"):
        made(Mosaic(), range(4), fields=["labels"])


@pytest.mark.thorough
def test_digests_are_equal_for_all_readers(capsys):
    """Of detection with a mosaic; by two workers, too."""
    common = ["task=digest", "experiment=detection", "dataset.count=50", "trainer.max_epochs=1"]
    common += ["transform.train_batch.mosaic={_target_: penstock.addons.vision.mosaic.Mosaic}"]
    totals = []
    for words in (["loader.num_workers=0"], ["loader.num_workers=2"]):
        assert command.main([*common, *words]) == 0
        totals.append(capsys.readouterr().out)
    assert command.main(common[:4] + ["loader.num_workers=0"]) == 0
    plain = capsys.readouterr().out
    assert totals[0] == totals[1] == totals[2] != plain
