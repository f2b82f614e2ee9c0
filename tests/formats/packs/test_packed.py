"""Reading packed data: the samples of the dataset that was packed, to the bit."""

import os
import pickle

import numpy as np
import pytest
import torch
from torchvision import tv_tensors

from penstock.addons.packs.folder import Packed
from penstock.addons.packs.packing import Recipe, pack
from penstock.errors import DataError
from penstock.loading.batch import hash_sample
from penstock.loading.collate import Stack, kinds_of
from penstock.loading.fetch import Compose, Fetch
from penstock.loading.workers.executors import LoaderOptions
from penstock.order.plan import Request
from tests.support.pack_files import Everything, write_images
from tests.support.program import run

MAIN = LoaderOptions("process", 0)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Packs of pictures of unequal and of equal sizes."""
    cache = tmp_path_factory.mktemp("packs")
    return {
        even: str(pack(Everything(even=even), "train", Recipe(), cache)) for even in (False, True)
    }


def same(left, right):
    assert list(left) == list(right)
    for name, value in left.items():
        assert type(right[name]) is type(value), name
        if isinstance(value, tv_tensors.TVTensor):
            assert vars(right[name]) == vars(value), name
    assert hash_sample(left) == hash_sample(right)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("even", [False, True])
def test_samples_are_those_of_the_dataset(folders, even):
    dataset, packed = Everything(even=even), Packed(folders[even])
    assert len(packed) == len(dataset)
    for index in range(len(dataset)):
        same(dataset[index], packed[index])
    rows = [7, 3, 19, 3, 0]
    for index, sample in zip(rows, packed.__getitems__(rows), strict=True):
        same(dataset[index], sample)


def test_pictures_lie_in_memory_as_decoders_leave_them(folders):
    assert Packed(folders[False])[0]["image"].permute(1, 2, 0).is_contiguous()


def test_a_sample_may_be_changed_and_the_pack_stays(folders):
    packed = Packed(folders[True])
    before = hash_sample(packed[2])
    packed[2]["image"].fill_(0)
    packed.__getitems__([2])[0]["image"].fill_(0)
    packed.fetch_batch([2])["image"].fill_(0)
    assert hash_sample(packed[2]) == before


def test_a_copy_for_a_worker_takes_no_pixels_along(folders):
    packed = Packed(folders[True])
    packed[0]
    content = pickle.dumps(packed)
    assert len(content) < 10_000
    same(packed[3], pickle.loads(content)[3])


def fetched(dataset, batch_transform=None, transform=None):
    fetch = Fetch(dataset, transform, Stack(), 0, batch_transform=batch_transform)
    rows = np.array([5, 2, 9, 2])
    return fetch(Request(0, 0, np.arange(4), rows, 3))


def test_a_whole_batch_is_what_stacking_its_samples_gives(folders):
    packed, dataset = Packed(folders[True]), Everything(even=True)
    assert packed.fetches_batches
    whole, stacked = fetched(packed), fetched(dataset)
    assert list(whole) == list(stacked)
    for name, value in stacked.items():
        assert value.dtype == whole[name].dtype, name
        assert torch.equal(value, whole[name]), name
    assert whole.kinds == stacked.kinds == kinds_of(dataset[0])
    assert whole.valid.tolist() == stacked.valid.tolist()


def test_steps_for_single_samples_still_see_them(folders):
    packed = Packed(folders[True])
    mark = Compose({"mark": lambda sample: {**sample, "label": sample["label"] + 10}})
    assert fetched(packed, transform=mark)["label"].tolist() == [11, 10, 11, 10]
    assert fetched(packed, transform=Compose({}))["label"].tolist() == [1, 0, 1, 0]


def test_pictures_of_unequal_sizes_are_no_whole_batches(folders):
    assert not Packed(folders[False]).fetches_batches


def test_pictures_stay_in_place_where_there_are_some_and_no_points(tmp_path):
    class Some(Everything):
        def __getitem__(self, index):
            sample = super().__getitem__(index)
            return {name: sample[name] for name in names}

    possible = {}
    for names in (("image",), ("image", "label"), ("label",), ("image", "points")):
        folder = pack(Some(even=True), "train", Recipe(), tmp_path / "-".join(names), options=MAIN)
        possible[names] = Packed(str(folder)).fetches_pictures
    assert [*possible.values()] == [True, True, False, False]


def test_large_rows_are_gathered_in_any_order(tmp_path):
    class Big(Everything):
        def __getitem__(self, index):
            return {"x": torch.full((20_000,), float(index))}

    packed = Packed(str(pack(Big(), "train", Recipe(), tmp_path, options=MAIN)))
    rows = [19, 0, 7, 7, 3]
    assert packed.fetch_batch(rows)["x"][:, 0].tolist() == rows


def digest(capsys, tmp_path, *more):
    done = run(capsys, "task=digest", f"cache_dir={tmp_path / 'cache'}", "batch.size=4", *more)
    assert done.code == 0, done.err
    return done.out


@pytest.fixture
def images(tmp_path):
    root = write_images(tmp_path / "images")
    return [
        "dataset=image_folder",
        f"dataset.root={root}",
        "transform.train.crop.size=[24,24]",
        "loader=debug",
    ]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("format", ["pixels", "encoded"])
def test_the_digest_is_unchanged_by_packing_that_keeps_full_size(capsys, tmp_path, images, format):
    plain = digest(capsys, tmp_path, *images)
    packed = ["data.packed=auto", f"pack.format={format}"]
    assert digest(capsys, tmp_path, *images, *packed) == plain
    assert digest(capsys, tmp_path, *images, *packed, "loader.num_workers=2") == plain


@pytest.mark.thorough
def test_a_smaller_size_names_itself_in_the_fingerprint(capsys, tmp_path, images):
    import penstock
    from penstock.build.data import DataParts

    own = [*images, f"cache_dir={tmp_path / 'cache'}"]

    def of(*more):
        return DataParts(penstock.compose(*own, *more)).train.fingerprint["dataset"]

    sizes = [
        of(),
        of("data.packed=auto"),
        of("data.packed=auto", "pack.size=32"),
        of("data.packed=auto", "pack.size=16"),
    ]
    assert sizes[0] == sizes[1]
    assert len(set(sizes)) == 3
    small = digest(capsys, tmp_path, *images, "data.packed=auto", "pack.size=32")
    assert small != digest(capsys, tmp_path, *images)


def test_encoded_pictures_are_decoded_by_transforms_that_can(capsys, tmp_path, images):
    fast = [*images[:2], "transform=images_fast", "transform.train.decode.size=24", "loader=debug"]
    plain = digest(capsys, tmp_path, *fast)
    packed = ["data.packed=auto", "pack.format=encoded"]
    assert digest(capsys, tmp_path, *fast, *packed) == plain


def test_a_pack_is_a_dataset_by_itself(capsys, tmp_path, images):
    out = tmp_path / "out"
    done = run(capsys, "task=pack", f"pack.out={out}", "pack.size=32", *images)
    assert done.code == 0, done.err
    alone = ["dataset=packed", f"dataset.folder={out}", "transform.train.crop.size=[24,24]"]
    packed = digest(capsys, tmp_path, *alone, "loader=debug")
    named = digest(capsys, tmp_path, *images, f"data.packed={out}")
    auto = digest(capsys, tmp_path, *images, "data.packed=auto", "pack.size=32")
    assert packed == named == auto


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda folder: os.truncate(folder / "image.npy", 2000),
            "image.npy.*2000 bytes.*Delete",
        ),
        (lambda folder: (folder / "label.npy").unlink(), r"label\.npy.*No such file"),
        (lambda folder: (folder / "pack.json").write_text("{"), r"damaged.*pack\.json.*Delete"),
        (
            lambda folder: (folder / "label.npy").write_bytes(
                b"?" * (folder / "label.npy").stat().st_size
            ),
            r"damaged.*label\.npy.*Delete",
        ),
        (lambda folder: (folder / "pack.json").unlink(), "has no packed data.*task=pack"),
        (lambda folder: (folder / "pack.json").write_text("{}"), "version None, not 3"),
    ],
)
def test_a_damaged_pack_is_refused(tmp_path, change, message):
    folder = pack(Everything(even=True), "train", Recipe(), tmp_path)
    change(folder)
    with pytest.raises(DataError, match=message):
        Packed(str(folder))[0]


def test_the_other_split_is_refused(folders):
    with pytest.raises(DataError, match="holds the split 'train', not 'val'"):
        Packed(folders[False], "val")
