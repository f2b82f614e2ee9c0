"""Detection and segmentation: objectives, models, boxes and masks that move together."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from pycocotools import mask as coco_masks
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from torch import nn
from torchvision import models, tv_tensors
from torchvision.transforms import v2

from penstock import build_train_loader, command, compose
from penstock.addons.vision.detection import Detection, ListSome, SanitizeBoxes, SmallDetector
from penstock.addons.vision.drawn_shapes import DrawnShapes
from penstock.addons.vision.mean_average_precision import MeanAveragePrecision
from penstock.addons.vision.segmentation import Segmentation, run_lengths
from penstock.distributed.group import Group
from penstock.errors import ConfigError, DataError
from penstock.loading.batch import Batch
from penstock.order.plan import Request
from penstock.training.adapter import Objective
from penstock.training.step import TrainOptions, TrainStep
from tests.support.program import run

CLASSES = ["background", "circle", "square", "triangle"]


def batch(fields):
    rows = np.arange(len(fields["image"]))
    return Batch(fields, Request(0, 0, rows, rows, len(rows), total=len(rows)), rows)


def test_what_is_cut_away_is_left_out_with_all_that_is_known_of_it():
    sample = {
        "image": tv_tensors.Image(torch.zeros(3, 40, 40, dtype=torch.uint8)),
        "boxes": tv_tensors.BoundingBoxes(
            [[2.0, 2, 9, 9], [30, 30, 39, 39]], format="XYXY", canvas_size=(40, 40)
        ),
        "labels": torch.tensor([1, 2]),
        "masks": tv_tensors.Mask(torch.ones(2, 40, 40, dtype=torch.bool)),
        "keypoints": tv_tensors.KeyPoints(torch.ones(2, 1, 2), canvas_size=(40, 40)),
        "crowd": torch.tensor([0, 1]),
    }
    kept = SanitizeBoxes()(v2.CenterCrop(28)(sample))
    assert kept["labels"].tolist() == [1, 2]
    assert kept["boxes"].tolist() == [[0, 0, 3, 3], [24, 24, 28, 28]]
    kept = SanitizeBoxes(min_size=3.5)(v2.CenterCrop(28)(sample))
    assert (kept["labels"].tolist(), kept["crowd"].tolist()) == ([2], [1])
    assert (kept["masks"].shape, kept["keypoints"].shape) == ((1, 28, 28), (1, 1, 2))
    assert type(kept["masks"]) is tv_tensors.Mask


def predictions(random, samples):
    """Boxes near the true ones, some of the wrong class, and some that are nothing."""
    outputs = []
    for sample in samples:
        boxes = sample["boxes"].as_subclass(torch.Tensor)
        near = boxes + torch.from_numpy(random.normal(0, 2, boxes.shape)).float()
        far = torch.tensor([[1.0, 1, 9, 9]])
        labels = torch.cat([sample["labels"], torch.tensor([1])])
        labels[0] = labels[0] % 3 + 1 if random.random() < 0.3 else labels[0]
        outputs.append(
            {
                "boxes": torch.cat([near, far]),
                "labels": labels,
                "scores": torch.from_numpy(random.random(len(labels))).float(),
            }
        )
    return outputs


def reference(samples, outputs):
    """The mAP that pycocotools gives for the same predictions."""
    images, truth, guesses = [], [], []

    def flat(box):
        left, top, right, bottom = box.tolist()
        return [left, top, right - left, bottom - top]

    for number, (sample, output) in enumerate(zip(samples, outputs, strict=True), start=1):
        images.append({"id": number, "width": 96, "height": 96})
        for box, label in zip(sample["boxes"], sample["labels"].tolist(), strict=True):
            own = {"image_id": number, "category_id": label, "bbox": flat(box), "iscrowd": 0}
            area = own["bbox"][2] * own["bbox"][3]
            truth.append({**own, "id": len(truth) + 1, "area": area})
        for row, box in enumerate(output["boxes"]):
            own = {"image_id": number, "category_id": int(output["labels"][row])}
            guesses.append({**own, "bbox": flat(box), "score": float(output["scores"][row])})
    coco = COCO()
    categories = [{"id": number, "name": name} for number, name in enumerate(CLASSES)][1:]
    coco.dataset = {"images": images, "annotations": truth, "categories": categories, "info": {}}
    coco.createIndex()
    measured = COCOeval(coco, coco.loadRes(guesses), "bbox")
    measured.evaluate()
    measured.accumulate()
    measured.summarize()
    return measured.stats


def test_mean_average_precision_is_the_references():
    random = np.random.default_rng(0)
    data = DrawnShapes()
    samples = [data[row] for row in range(30)]
    outputs = predictions(random, samples)
    objective = Objective(Detection({"map": MeanAveragePrecision()}, CLASSES))
    for rows in (slice(0, 16), slice(16, 30)):
        objective.update(outputs[rows], batch(ListSome()(samples[rows])))
    values, stats = objective.compute(), reference(samples, outputs)
    for name, place in (("map", 0), ("map_50", 1), ("map_75", 2), ("mar_100", 8)):
        assert values[f"map/{name}"] == pytest.approx(stats[place], abs=1e-6)
    assert 0.1 < values["map/map"] < 0.9
    with pytest.raises(ConfigError, match=r"metrics\.map\.shown: Input should be 'map'"):
        build_train_loader(compose("experiment=detection", "objective.metrics.map.shown=[map_1]"))


def test_mean_iou_is_that_of_all_pixels():
    from torchmetrics.classification import MulticlassJaccardIndex

    torch.manual_seed(0)
    target, logits = torch.randint(0, 3, (4, 8, 8)), torch.randn(4, 3, 8, 8)
    logits.scatter_add_(1, target[:, None], torch.ones(4, 1, 8, 8))
    target[:, :2] = 255
    metrics = {"miou": MulticlassJaccardIndex(3, ignore_index=255)}
    objective = Objective(Segmentation(metrics, ["image"], "mask", 3, classes=CLASSES[:3]))
    for rows in (slice(0, 1), slice(1, 4)):
        data = batch({"image": logits[rows], "mask": target[rows]})
        losses, outputs = objective.measure(nn.Identity(), data)
        assert losses.shape == (len(outputs),)
        objective.update(outputs, data)
    known, guess = target != 255, logits.argmax(1)
    pairs = [((guess == c) & known, (target == c)) for c in range(3)]
    expected = np.mean([float((g & t).sum() / (g | t).sum()) for g, t in pairs])
    assert objective.compute()["miou"] == pytest.approx(expected, abs=1e-6)
    loss = nn.functional.cross_entropy(logits[1:], target[1:], ignore_index=255)
    assert losses.mean() == pytest.approx(float(loss), abs=1e-6)  # as many pixels count in each
    with pytest.raises(DataError, match="a mask has the class 7"):
        objective.measure(
            nn.Identity(), batch({"image": logits, "mask": target.where(target < 3, 7)})
        )


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("share", [0, 0.3, 1])
def test_run_lengths_are_those_that_coco_reads(share):
    mask = torch.rand(9, 13, generator=torch.Generator().manual_seed(0)) < share
    made = run_lengths(mask)
    read = coco_masks.decode(coco_masks.frPyObjects(made, *made["size"]))
    assert (read == mask.numpy()).all()


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["detection", "segmentation"])
def test_new_pictures_are_predicted(kind, monkeypatch, tmp_path):
    """Boxes and masks, a row a picture that has neither."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos" / "masks").mkdir(parents=True)
    (tmp_path / "photos" / "images").mkdir()
    boxes = [{"id": n, "image_id": n, "category_id": 7, "bbox": [4, 4, 20, 20]} for n in range(6)]
    files = [{"id": n, "file_name": f"{n}.png", "width": 48, "height": 48} for n in range(6)]
    for row in boxes:
        row |= {"area": 400, "iscrowd": 0}
    for n in range(6):
        Image.new("RGB", (48, 48), (0, 0, 40 * n)).save(f"photos/images/{n}.png")
        Image.new("L", (48, 48), n % 2).save(f"photos/masks/{n}.png")
    whole = {"images": files, "annotations": boxes, "categories": [{"id": 7, "name": "cat"}]}
    Path("photos/annotations.json").write_text(json.dumps(whole))
    words = ["dataset=coco", "model.width=8"]
    if kind == "segmentation":
        words = ["dataset=image_masks", "dataset.classes=[nothing,cat]", "model.width=4"]
    small = ["dataset.root=photos", "transform.train.resize.size=[32,32]", "batch.size=2"]
    few = ["loader=debug", "trainer.max_steps=1", "trainer.pictures=false", "run_dir=run"]
    assert command.main([f"experiment={kind}", *words, *small, *few]) == 0
    words = ["task=predict", "run=run", "dataset.root=photos/images", "out=new.jsonl"]
    assert command.main([*words, "loader=debug"]) == 0
    rows = [json.loads(line) for line in Path("new.jsonl").read_text().splitlines()]
    assert [row["path"] for row in rows] == [f"photos/images/{n}.png" for n in range(6)]
    for row in rows:
        if kind == "detection":
            assert len(row["boxes"]) == len(row["labels"]) == len(row["scores"])
            assert set(row["labels"]) <= {"cat"}
        else:
            assert row["share/nothing"] + row["share/cat"] == pytest.approx(1)
            assert row["mask/cat"]["size"] == [32, 32]
            assert sum(row["mask/cat"]["counts"]) == 32 * 32


@pytest.mark.thorough
def test_the_small_detector_learns_where_and_what():
    data = DrawnShapes(size=64, most=2)
    samples = ListSome()([data[row] for row in range(8)])
    images = [image.float() / 255 for image in samples["image"]]
    targets = [
        {"boxes": boxes, "labels": labels}
        for boxes, labels in zip(samples["boxes"], samples["labels"], strict=True)
    ]
    torch.manual_seed(0)
    model = SmallDetector(4, width=8)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    first = None
    for _ in range(60):
        loss = sum(model(images, targets).values())
        first = loss.item() if first is None else first
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.25 * first
    empty = [{"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)}] * 8
    assert torch.isfinite(sum(model(images, empty).values()))


@pytest.mark.parametrize(
    ("kind", "model"), [("detection", "detector"), ("segmentation", "segmenter")]
)
def test_networks_of_torchvision_are_trained_and_measured(kind, model, capsys, tmp_path):
    words = [
        f"experiment={kind}", f"model=torchvision_{model}", "dataset.count=20", "batch.size=2",
        "loader=debug", "trainer.report=false", "trainer.max_steps=1", f"run_dir={tmp_path / 'a'}",
    ]  # fmt: skip
    done = run(capsys, *words)
    assert done.code == 0, done.err
    done = run(capsys, *words, "model._target_=torchvision.models.detection.retinanet_resnet50_fp")
    assert done.code == 2
    assert "did you mean 'retinanet_resnet50_fpn'" in done.err
    assert "Traceback" not in done.err


def detector():
    torch.manual_seed(0)
    return models.detection.ssdlite320_mobilenet_v3_large(num_classes=4, weights_backbone=None)


def test_a_detector_of_torchvision_is_trained_as_by_a_plain_loop_to_the_bit():
    data = DrawnShapes(size=64)
    rows = [ListSome()([data[row] for row in range(start, start + 2)]) for start in (0, 2)]
    for fields in rows:
        fields["image"] = fields["image"].float() / 255
    mine, theirs = detector(), detector()
    before = [value.clone() for value in mine.state_dict().values()]
    objective = Objective(Detection({}, CLASSES))
    optimizer = torch.optim.SGD(mine.parameters(), 0.01, momentum=0.9)
    options = TrainOptions(clip_norm=None)
    step = TrainStep(mine, objective, optimizer, None, options, Group(), 0)
    plain = torch.optim.SGD(theirs.parameters(), 0.01, momentum=0.9)
    for fields in rows:
        step.learn(batch(fields))
        step.update()
        pairs = zip(fields["boxes"], fields["labels"], strict=True)
        targets = [{"boxes": boxes, "labels": labels} for boxes, labels in pairs]
        plain.zero_grad()
        sum(theirs(list(fields["image"]), targets).values()).backward()
        plain.step()
    pairs = list(zip(mine.state_dict().items(), theirs.state_dict().values(), strict=True))
    assert all(torch.equal(own, other) for (_, own), other in pairs)
    assert not torch.equal(pairs[0][1], before[0])


@pytest.mark.thorough
def test_reports_show_what_was_predicted_and_say_how(monkeypatch, tmp_path, capfd, reports):
    monkeypatch.chdir(tmp_path)
    few = ["loader=debug", "dataset.count=20", "batch.size=4", "trainer.max_steps=1"]
    for experiment, said in (
        ("detection", "Evenly spaced samples, because this objective has no per-sample loss."),
        ("detection", "Truth that is drawn is green, and predictions are orange"),
        ("segmentation", "Chosen by their loss in the validation of epoch 0"),
    ):
        if not (tmp_path / experiment).exists():
            words = [*few, f"run_dir={experiment}", "trainer.baseline=false"]
            assert command.main([f"experiment={experiment}", *words]) == 0
        page = (tmp_path / experiment / "report.html").read_text()
        shown = page.partition("Predictions of validation")[2]
        assert said in shown
        assert shown.count("data:image/") >= 4
