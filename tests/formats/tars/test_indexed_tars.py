"""Samples of tar archives in any order, by an index of each: here and at addresses."""

import io
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image

import penstock
from penstock.addons.tars import index
from penstock.addons.tars.tars import IndexedTars, TarShards
from penstock.datasets.files import Files
from penstock.errors import ConfigError, DataError
from penstock.loading.encoded import EncodedImage
from tests.support import epochs

EACH = 30  # samples of an archive


def write_archive(path, samples):
    with tarfile.open(path, "w") as archive:
        for key, parts in samples:
            for ending, content in parts.items():
                member = tarfile.TarInfo(f"{key}.{ending}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "tars"
    made.mkdir()
    for number, name in enumerate(("train-0", "train-1", "val-0")):
        draws = np.random.default_rng(number)
        samples = [
            (
                f"{name}/{row:04}",
                {
                    "raw": draws.bytes(int(draws.integers(0, 6000))),
                    "cls": b"%d" % (row % 3),
                    "txt": b"text %d" % row,
                },
            )
            for row in range(EACH)
        ]
        write_archive(made / f"{name}.tar", samples)
    return made


def opened(root, cache, files=None, **options):
    given = {"timeout": 1, **(files or {})}  # what ends too soon is waited for as long
    files = Files(cache_dir=str(cache), retries=8, first_wait=0.01, **given)
    return IndexedTars(str(root), cache_dir=f"{cache}-indexes", files=files, **options)


def saved(*array, **arrays):
    file = io.BytesIO()
    np.save(file, *array) if array else np.savez(file, **arrays)
    return file.getvalue()


def digests(data, **workers):
    return epochs.digests(data, 8, 4, **workers)


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("split", ["train", "val"])
def test_samples_are_those_of_the_stream(folder, tmp_path, written, split):
    if written:
        assert index.write(str(folder)) == 3
    data = opened(folder, tmp_path / "cache", split=split)
    stream = TarShards(str(folder), split=split)
    assert [data[row] for row in range(len(data))] == [stream.decode(each) for each in stream]
    assert data.metadata["label"].tolist() == [row % 3 for row in range(EACH)] * (len(data) // EACH)
    assert data.path(len(data) - 1).endswith("train-1.tar" if split == "train" else "val-0.tar")
    assert (tmp_path / "cache-indexes").exists() is not written


def test_a_wrong_index_is_refused(folder, tmp_path):
    index.write(str(folder))
    path = folder / "train-1.tar.index"
    right = dict(np.load(path))
    other = {**right, "spans": right["spans"] + 512}  # of samples in another order, say
    wrong = [path.read_bytes()[:-5], b"x", b"", saved(right["spans"])]
    wrong += [saved(**{**right, "size": [7]}), saved(**{**right, "counts": right["counts"][:-1]})]
    for content in wrong:
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"train-1\.tar\.index' is not the index of that"):
            opened(folder, tmp_path / "cache")
    path.write_bytes(saved(**{**other, "size": right["size"]}))
    with pytest.raises(DataError, match=r"train-1\.tar"):
        [*opened(folder, tmp_path / "cache")]


def test_what_is_no_archive_and_what_has_no_samples(folder, tmp_path):
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match=r"not a folder with \.tar files"):
        index.write(str(tmp_path / "none"))
    write_archive(folder / "train-0.tar", [])
    write_archive(folder / "train-1.tar", [])
    with pytest.raises(DataError, match="has no sample"):
        opened(folder, tmp_path / "cache")
    (folder / "train-0.tar").write_bytes(b"<html>" * 200)
    with pytest.raises(DataError, match="is no tar archive"):
        opened(folder, tmp_path / "cache")
    write_archive(folder / "train-0.tar", [("a", {"pkl": b"x"})])
    with pytest.raises(ConfigError, match="pickle"):
        opened(folder, tmp_path / "cache")


def test_crops_are_decoded_as_those_of_files(tmp_path):
    """The transform decodes them, not the dataset, which would decode all of each picture."""
    samples = []
    for row in range(12):
        pixels = np.random.default_rng(row).integers(0, 255, (40 + row, 60, 3), dtype=np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).resize((160, 120 + row)).save(file, "JPEG")
        path = tmp_path / f"files/{'ab'[row // 6]}/{row:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.getvalue())
        samples.append((f"{row:02}", {"jpg": file.getvalue(), "cls": b"%d" % (row // 6)}))
    (tmp_path / "tars").mkdir()
    write_archive(tmp_path / "tars/all.tar", samples)

    def batches(dataset, root, *more):
        config = penstock.compose(
            f"dataset={dataset}",
            f"dataset.root={tmp_path / root}",
            "data.split.val=0",
            "transform=images_fast",
            "transform.train.decode.size=32",
            "batch.size=4",
            "loader=debug",
            f"cache_dir={tmp_path / 'cache'}",
            *more,
        )
        with penstock.build_train_loader(config) as loader:
            return [{**batch} for batch in loader]

    tars = "dataset.classes=[a,b]"
    files = batches("image_folder", "files")
    assert len(files) == 3
    for file, tar in zip(files, batches("indexed_tars", "tars", tars), strict=True):
        assert torch.equal(file["image"], tar["image"])
        assert torch.equal(file["label"], tar["label"])
    (streamed, *_) = batches("tar_shards", "tars", tars)
    assert streamed["image"].shape == (4, 3, 32, 32)
    stream = TarShards(str(tmp_path / "tars"), lazy=True)
    assert isinstance(stream.decode(next(iter(stream)))["image"], EncodedImage)
