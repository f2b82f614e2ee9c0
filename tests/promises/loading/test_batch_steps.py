"""`transform.train_batch`, `val_batch` and `batch_on` through the program."""

import numpy as np
import pytest
import torch
from PIL import Image

import penstock
from penstock.build.data import DataParts
from penstock.errors import ConfigError
from penstock.loading.bad_samples import BadSamples
from penstock.loading.batch import batch_hash
from penstock.loading.collate import Stack
from penstock.loading.fetch import Fetch
from penstock.order.plan import Plan
from penstock.order.samplers import Random
from penstock.training.objective import Classification
from penstock.transforms.batch import BatchCompose
from penstock.transforms.mixing import MixUp
from tests.support.photos import Photos, batch_of

IN_MAIN = ["loader.backend=main", "loader.num_workers=0"]


@pytest.fixture(scope="session")
def pets_root(tmp_path_factory):
    """Forty photographs of cats, which are red, and dogs, which are blue."""
    root = tmp_path_factory.mktemp("pets")
    random = np.random.default_rng(0)
    for number in range(40):
        pixels = random.integers(0, 120, (40, 50, 3), dtype=np.uint8)
        pixels[..., 2 * (number % 2)] += 120
        path = root / ("cat", "dog")[number % 2] / f"{number:02d}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(path)
    return root


@pytest.fixture
def pets(pets_root, tmp_path, monkeypatch):
    """Overrides for small photographs; the working folder is a new, empty one."""
    monkeypatch.chdir(tmp_path)
    return [
        "dataset=image_folder",
        f"dataset.root={pets_root}",
        "transform=images_batch",
        "batch.size=6",
        "transform.train.resize.size=[36,36]",
        "transform.train_batch.crop.size=[32,32]",
    ]


def test_validation_sees_its_own_steps_only(pets):
    parts = DataParts(penstock.compose(*pets, *IN_MAIN))
    with parts.val.loader() as loader:
        batch = next(iter(loader))
    assert "label_soft" not in batch
    assert batch["image"].dtype == torch.float32
    assert set(batch.timing) == {"read", "transform", "collate", "batch"}


@pytest.mark.parametrize("place", ["loader", "device"])
def test_batches_are_transformed_once_and_where_they_should_be(pets, place):
    parts = DataParts(penstock.compose(*pets, *IN_MAIN, f"transform.batch_on={place}"))
    with parts.train.loader() as loader:
        assert (loader.fetch.batch_transform is None) == (place == "device")
        assert (loader.batch_transform is None) == (place == "loader")
        batch = next(iter(loader))
    whole = parts.train.fetch()(parts.train.plan.request(0, 0))
    assert torch.equal(batch["image"], whole["image"])
    assert torch.equal(batch["label_soft"], whole["label_soft"])


def test_the_loss_takes_soft_targets_where_there_are_some():
    loss = torch.nn.CrossEntropyLoss(reduction="none")
    objective = Classification(loss, {}, ["image"], "label", num_classes=5)
    outputs = torch.randn(8, 5)
    batch = batch_of()
    hard = objective.loss(lambda image: outputs, batch)
    batch["label_soft"] = torch.nn.functional.one_hot(batch["label"], 5).float()
    soft = objective.loss(lambda image: outputs, batch)
    torch.testing.assert_close(soft, hard)
    batch["label_soft"] = batch["label_soft"] * 0.5 + 0.1
    mixed = objective.loss(lambda image: outputs, batch)
    torch.testing.assert_close(mixed, -(outputs.log_softmax(-1) * batch["label_soft"]).sum(1))
    assert torch.equal(objective.targets(batch), batch["label"])


MIXUP = "{_target_: penstock.transforms.mixing.MixUp}"
REFUSED = [
    (["batch.size=null"], "transform.train_batch", "set batch.size"),
    (["collate=list"], "transform.train_batch", "set collate=stack"),
    ([f"+transform.val_batch.mixup={MIXUP}"], "transform.val_batch.mixup", "mixes samples of val"),
    (
        ["+transform.train.normalize={_target_: penstock.transforms.image.Normalize}"],
        "transform.train_batch.normalize",
        "normalises what transform.train.normalize has",
    ),
    (["transform.batch_on=gpu"], "transform.batch_on", "'auto', 'loader' or 'device'"),
    (["transform.train_batch.crop.sice=3"], "transform.train_batch.crop.sice", "size"),
    (
        ["+transform.train_batch.own={_target_: os.system}"],
        "transform.train_batch.own._target_",
        "may not be called",
    ),
]


@pytest.mark.parametrize(("overrides", "key", "message"), REFUSED)
def test_what_cannot_be_meant_together_is_refused(pets, overrides, key, message):
    with pytest.raises(ConfigError, match=message) as caught:
        DataParts(penstock.compose(*pets, *overrides)).train.loader()
    assert key in [problem.key for problem in caught.value.problems]


def test_classes_that_a_dataset_does_not_tell(faces):
    with pytest.raises(ConfigError, match=r"num_classes"):
        DataParts(penstock.compose(*faces, f"+transform.train_batch.mixup={MIXUP}")).train.loader()


@pytest.mark.parametrize("way", ["skip", "substitute"])
def test_bad_samples_leave_a_batch_alike_however_it_was_shared_out(way):
    class Damaged(Photos):
        def __getitem__(self, index):
            if index % 5 == 0:
                raise OSError("cut off")
            return super().__getitem__(index)

    compose, hashes = BatchCompose({"mixup": MixUp(5)}, 0), set()
    for world in (1, 2, 3, 4):
        sampler = Random(40, 0)
        plan = Plan(sampler, 14, together=compose.together)
        bad = BadSamples(way, {}, sampler, 0)
        fetch = Fetch(Damaged(), None, Stack(), 0, True, compose, bad)
        hashes.add(batch_hash([fetch(plan.request(0, 1, rank, world)) for rank in range(world)]))
    assert len(hashes) == 1
