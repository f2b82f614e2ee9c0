"""Trainings with objectives of a person's own, on as many ranks as there are."""

import json
import sys
from itertools import product
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassJaccardIndex,
    MulticlassRecall,
)

from penstock.addons.vision.detection import Detection, ListSome
from penstock.addons.vision.mean_average_precision import MeanAveragePrecision
from penstock.addons.vision.segmentation import Segmentation
from penstock.distributed.group import join
from penstock.distributed.parallel import Parallel, gathered, prepare
from penstock.distributed.world import from_environment, is_launched
from penstock.loading.batch import Batch
from penstock.order.plan import Plan
from penstock.order.samplers import Random, Sequential
from penstock.training.adapter import Objective
from penstock.training.objective import Classification
from penstock.training.step import Optimizers, TrainOptions, TrainStep
from tests import port

LENGTH, SIZE, STEPS = 20, 9, 6  # the last batch has 2 rows: a rank of three has none
ROWS = torch.arange(LENGTH * 4.0).reshape(LENGTH, 4).sin()


class Contrastive:
    """NT-Xent: two views of a row are told from those of all other rows of the global batch."""

    accumulate = 2

    def loss(self, model, batch):
        views = (model.encoder(batch[name]) for name in "ab")
        first, second = (gathered(nn.functional.normalize(view)) for view in views)
        likeness = torch.cat([first @ second.T, second @ first.T]) / 0.2
        goals = torch.arange(len(first)).repeat(2)
        return nn.functional.cross_entropy(likeness, goals)


class Adversaries:
    """Two optimizers, of which each step leaves the other's weights alone."""

    accumulate = 1

    def step(self, model, batch, update):
        hidden = model.encoder(batch["a"])
        telling = (model.head(hidden.detach()).squeeze(1) - batch["b"].sum(1)).square()
        update(telling, "head")
        fooling = -(model.head(hidden).squeeze(1) - batch["b"].sum(1)).square().mean()
        update(fooling, "encoder")
        return {"telling": telling, "fooling": fooling}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        self.head = nn.Linear(3, 1)


def trained(own, group):
    """Losses of each global batch, and the weights at the end."""
    torch.manual_seed(0)
    strategy = "none" if group.alone else "ddp"
    parallel = Parallel(strategy, find_unused_parameters=True)
    model = prepare(Model(), parallel, group)
    optimizers = {
        name: torch.optim.SGD(part.parameters(), 0.2, momentum=0.9)
        for name, part in model.named_children()
    }
    options = TrainOptions(accumulate=own.accumulate, clip_norm=1.0)
    step = TrainStep(
        model, Objective(own), Optimizers(optimizers), None, options, group, 0, parallel
    )
    plan, losses = Plan(Random(LENGTH, 0), SIZE), []
    for number in range(STEPS):
        address = divmod(number, plan.steps(0))
        request = plan.request(*address, group.world.rank, group.world.size)
        rows = ROWS[torch.from_numpy(request.indices)]
        batch = Batch({"a": rows, "b": rows.flip(1)}, request, np.arange(len(request)))
        losses.append(group.sum(step.learn(batch).double().sum()).item())
        if (number + 1) % own.accumulate == 0:
            step.update()
    return {"losses": losses, "weights": [weight.tolist() for weight in model.parameters()]}


class Pictures(Dataset):
    """Pictures with a class, a mask and a box each."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, row):
        image = torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(row))
        boxes = torch.tensor([[1.0, 1.0, 5.0, 5.0], [2.0, 2.0, 7.0, 7.0]])[: 1 + row % 2]
        labels = torch.arange(1, 1 + len(boxes))
        mask = (image.mean(0) > 0.5).long()
        return {
            **{"image": image, "label": row % 3, "mask": mask.where(image[0] < 0.9, 255)},
            **{"boxes": boxes, "labels": labels},
        }


class Detector(nn.Module):
    """A box where the first pixels say, with a score of how bright the picture is."""

    def forward(self, images):
        corners = [2 * image[0, 0, :2] for image in images]
        return [
            {
                "boxes": torch.cat([corner, corner + 4])[None],
                "labels": torch.tensor([1]),
                "scores": image.mean()[None],
            }
            for image, corner in zip(images, corners, strict=True)
        ]


def measured(group):
    """Loss and metrics by task, length of the split and batch size, with and without padding."""
    torch.manual_seed(0)
    accuracy = {"accuracy": MulticlassAccuracy(3), "recall": MulticlassRecall(3, average="none")}
    loss = nn.CrossEntropyLoss(reduction="none")
    iou = {"iou": MulticlassJaccardIndex(2, ignore_index=255)}
    tasks = {
        "classification": (
            nn.Sequential(nn.Flatten(), nn.Linear(192, 3)),
            Classification(loss, accuracy, ["image"], "label", 3),
        ),
        "segmentation": (nn.Conv2d(3, 2, 3, padding=1), Segmentation(iou, ["image"], "mask", 2)),
        "detection": (Detector(), Detection({"map": MeanAveragePrecision()})),
    }
    found = {}
    for length, size, tail in product((1, 2, 7), (3, 64), ("keep", "pad")):
        for name, (model, objective) in tasks.items():
            data, order, collate = Pictures(length), Sequential(length), ListSome()
            options = {"collate": collate, "tail": tail, "world": group.world}
            with port.loader(data, order, size, **options) as loader:
                values = port.validate(model, objective, loader, group)
            found[f"{name}, {length} by {size}, {tail}"] = values
    return found


def main(folder):
    torch.set_num_threads(1)
    with join(from_environment("cpu"), together=is_launched(), timeout=120) as group:
        found = {type(own).__name__: trained(own, group) for own in (Contrastive(), Adversaries())}
        found["measured"] = measured(group)
        if group.is_first:
            (folder / f"{group.world.size}.json").write_text(json.dumps(found))
        group.agree(False)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
