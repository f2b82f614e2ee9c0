"""Tar shards: their samples, however they were made, and what is wrong with others."""

import gzip
import io
import json
import tarfile

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision import tv_tensors

from penstock import build_train_loader, compose
from penstock.addons.tars.index import read_samples
from penstock.addons.tars.tars import IndexedTars, TarShards
from penstock.datasets.reading.base import Shares
from penstock.errors import ConfigError, DataError
from penstock.files.limits import Limits
from penstock.loading import encoded
from tests.support.store_server import bucket


def picture(number):
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), (number % 256,) * 3).save(buffer, "PNG")
    return buffer.getvalue()


def array(values):
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(values))
    return buffer.getvalue()


def parts(number):
    """The files of one sample."""
    return {
        "png": picture(number),
        "cls": b"%d" % (number % 3),
        "txt": f"text {number} é".encode(),
        "json": json.dumps({"number": number}).encode(),
        "left.npy": array(np.full(number % 4 + 1, number, np.float64)),
    }


def archive(files, mode="w", kind=tarfile.PAX_FORMAT, **changes):
    """Bytes of an archive of (name, content), in order."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode, format=kind) as tar:
        for name, content in files:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for attribute, value in changes.items():
                setattr(info, attribute, value)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def samples(*numbers, folder="d/"):
    return [
        (f"{folder}{n:04d}.{ending}", content)
        for n in numbers
        for ending, content in parts(n).items()
    ]


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    """Indexes that are made lie in the default folder of the current one."""
    monkeypatch.chdir(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def root(tmp_path):
    """23 samples in three archives."""
    for number, rows in enumerate((range(10), range(10, 15), range(15, 23))):
        (tmp_path / f"s-{number}.tar").write_bytes(archive(samples(*rows)))
    return tmp_path


def everything(root, **arguments):
    return TarShards(str(root), shares=Shares(0.0), **arguments)


def decoded(data):
    return [data.decode(record)["json"]["number"] for record in data]


def test_a_sample(root):
    data = everything(root, classes=["a", "b", "c"])
    sample = data.decode(list(data)[17])
    assert list(sample) == ["image", "label", "text", "json", "left"]
    assert isinstance(sample["image"], tv_tensors.Image)
    assert torch.equal(sample["image"], torch.full((3, 8, 8), 17, dtype=torch.uint8))
    assert (sample["label"], sample["text"]) == (2, "text 17 é")
    assert sample["json"] == {"number": 17}
    assert torch.equal(sample["left"], torch.tensor([17.0, 17.0]))
    assert data.facts == {"num_classes": 3, "num_outputs": 3}
    assert everything(root).facts == {}


def test_fields_that_are_chosen(root):
    data = everything(root, fields={"picture": "jpg;png", "number": "cls", "json": None})
    sample = data.decode(next(iter(data)))
    assert list(sample) == ["picture", "number", "json"]


def pack(root):
    for path in root.glob("*.tar"):
        path.with_suffix(".tar.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()


def test_compressed_archives_hold_the_same(root):
    plain = [everything(root).decode(record) for record in everything(root)]
    splits = [decoded(TarShards(str(root), split)) for split in ("train", "val")]
    pack(root)
    data = everything(root)
    assert [str(data.decode(record)) for record in data] == [str(sample) for sample in plain]
    assert [decoded(TarShards(str(root), split)) for split in ("train", "val")] == splits


def test_samples_are_divided_once(root, tmp_path):
    train, val = (decoded(TarShards(str(root), split)) for split in ("train", "val"))
    assert sorted(train + val) == list(range(23))
    assert 1 <= len(val) <= 12
    assert decoded(TarShards(str(root), "val", shares=Shares(1.0))) == list(range(23))
    more = decoded(TarShards(str(root), "val", shares=Shares(0.5)))
    assert set(val) < set(more)
    assert decoded(TarShards(str(root), "val", shares=Shares(0.5, seed=1))) != more


def test_archives_that_are_divided_by_name(tmp_path):
    (tmp_path / "train-0.tar").write_bytes(archive(samples(1, 2, 3)))
    (tmp_path / "val").mkdir()
    (tmp_path / "val" / "0.tar").write_bytes(archive(samples(4)))
    (tmp_path / "test-0.tar").write_bytes(archive(samples(5)))
    assert decoded(TarShards(str(tmp_path))) == [1, 2, 3]
    assert decoded(TarShards(str(tmp_path), "val")) == [4]


def test_the_fingerprint(root, tmp_path):
    prints = {
        everything(root).fingerprint,
        TarShards(str(root)).fingerprint,
        TarShards(str(root), "val").fingerprint,
        everything(root, fields={"label": "cls"}).fingerprint,
    }
    assert len(prints) == 4
    moved = root.rename(tmp_path.parent / f"{tmp_path.name}-moved")
    assert everything(moved).fingerprint in prints
    (moved / "s-1.tar").write_bytes(archive(samples(*range(11, 16))))
    assert everything(moved).fingerprint not in prints


# The format


NAMES = st.from_regex(
    r"[a-zé][a-z0-9é_-]{0,120}(/[a-z0-9é_-]{1,120}){0,2}\.[a-z]{1,4}", fullmatch=True
)


@pytest.mark.stress
@given(
    st.dictionaries(NAMES, st.binary(max_size=1100), max_size=6),
    st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
    st.sampled_from([{}, {"mtime": 1.5}, {"uname": "é" * 20}]),
)
@settings(max_examples=80, deadline=None)
def test_parts_are_the_members_that_tarfile_finds(files, kind, changes):
    try:
        content = archive([*sorted(files.items())], kind=kind, **changes)
    except ValueError:  # too long a name for ustar
        return
    found = {
        f"{one.key}.{ending}": content[start:stop]
        for one in read_samples("x.tar", io.BytesIO(content), "last")
        for ending, (start, stop) in one.parts.items()
    }
    assert found == files


def test_folders_and_files_of_no_sample_are_passed_over():
    files = [
        ("d/.DS_Store", b"x"),
        *samples(1),
        ("d/._0001.png", b"x"),
        ("README", b"x"),
        ("d/0001.late", b"x"),
        *samples(2, folder="./e.f/"),
    ]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        folder = tarfile.TarInfo("d")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
    content = buffer.getvalue()[:512] + archive(files)
    found = list(read_samples("x.tar", io.BytesIO(content), "first"))
    assert [(one.number, one.key) for one in found] == [(0, "d/0001"), (1, "e.f/0002")]


# Bad data


def refused(tmp_path, content, match, name="x.tar", **arguments):
    """Building the dataset and reading it through tells what is wrong."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=match) as caught:
        read_through(tmp_path, **arguments)
    assert name in str(caught.value)


def read_through(root, **arguments):
    data = everything(root, **arguments)
    return [data.decode(record) for record in data]


@given(st.integers(0, 10_000), st.booleans())
@settings(max_examples=60, deadline=None)
def test_wherever_an_archive_is_cut(tmp_path_factory, place, packed):
    content = archive(samples(1, 2))
    end = len(content.rstrip(b"\0")) // 512 * 512 + 512
    content = gzip.compress(content) if packed else content
    cut = content[: place % (len(content) - 1 if packed else end)]
    path = tmp_path_factory.mktemp("cut")
    match = r"it was cut off"
    refused(path, cut, match, "x.tar.gz" if packed else "x.tar")


def test_an_archive_cut_in_half_names_the_member(tmp_path):
    content = archive(samples(*range(4)))
    with tarfile.open(fileobj=io.BytesIO(content)) as opened:
        member = opened.getmembers()[7]
    match = rf"x\.tar', member 7 \('{member.name}'\): unexpected end of data: .*was cut off"
    refused(tmp_path, content[: member.offset_data + 3], match)


def test_damage(tmp_path):
    content = bytearray(archive(samples(1, 2)))
    with tarfile.open(fileobj=io.BytesIO(content)) as opened:
        place = opened.getmembers()[3].offset
    content[place + 130] ^= 1
    refused(tmp_path, content, rf"member 3: at byte {place} is neither the header of a file nor")
    refused(tmp_path, b"hello" * 500, r"x\.tar': .*it is no tar archive")
    (tmp_path / "x.tar").unlink()
    refused(tmp_path, b"no gzip" * 100, r"not a gzip file", "x.tar.gz")


def test_archives_joined_by_cat(tmp_path):
    joined = archive(samples(1)) + archive(samples(2))
    refused(tmp_path, joined, r"or archives were joined by cat")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE])
def test_members_that_are_no_plain_files(tmp_path, kind):
    content = archive([("d/x.txt", b"")], type=kind, linkname="y")
    refused(tmp_path, content, r"member 0 \('d/x\.txt'\) is a link, a device or a sparse file")


@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz"])
def test_a_member_beyond_the_limit_is_named_before_it_is_read(tmp_path, name):
    content = archive([*samples(1), ("d/0002.txt", b"x" * 2000)])
    content = gzip.compress(content) if name == "x.tar.gz" else content
    match = r"member 5 \('d/0002\.txt'\) has 2000 bytes, more than limits\.record_bytes=1999"
    more = {"fields": {"text": "txt"}, "limits": Limits(record_bytes=1999)}
    refused(tmp_path, content, match, name, **more)
    assert len(read_through(tmp_path, fields=more["fields"])) == 2
    if name == "x.tar":
        with pytest.raises(DataError, match=match):
            IndexedTars(str(tmp_path), cache_dir=str(tmp_path / "cache"), **more)


def without(number, ending):
    return [(name, content) for name, content in samples(number) if not name.endswith(ending)]


SAMPLES = {
    "a part is missing": (
        without(2, ".cls"),
        r"sample 1 \('d/0002'\) has no part 'cls', unlike .*sample 0",
    ),
    "a part too many": (
        [*samples(2), ("d/0002.seg", b"")],
        r"has 'seg', unlike .*sample 0 ",
    ),
    "a part twice": ([*samples(2), ("d/0002.cls", b"1")], r"'d/0002\.cls'\) occurs twice"),
    "not together": (
        [*without(2, ".cls"), *samples(3), ("d/0002.cls", b"1")],
        r"no part 'cls', unlike .*stand together",
    ),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_that_differ(tmp_path, name):
    files, match = SAMPLES[name]
    refused(tmp_path, archive([*samples(1), *files]), match)


def dotted(root, *names, **arguments):
    """The labels that each reader finds in an archive of pictures and classes of these names."""
    files = [(f"{n}.{end}", parts(i)[end]) for i, n in enumerate(names) for end in ("png", "cls")]
    (root / "a.tar").write_bytes(archive(files))
    common = {"shares": Shares(0.0), "classes": ["a", "b", "c"], **arguments}
    stream = TarShards(str(root), **common)
    rows = IndexedTars(str(root), cache_dir=str(root / "cache"), **common)
    assert [stream.decode(one)["label"] for one in stream] == [row["label"] for row in rows]
    return [row["label"] for row in rows]


@pytest.mark.parametrize("name", ["day_1.{}", "0.{}5", "at 10.{}.30", "v.1/a.{}"])
def test_dots_in_names_of_samples_are_refused_until_somebody_says_where_names_end(tmp_path, name):
    names = [name.format(number) for number in range(8)]
    with pytest.raises(ConfigError, match=r"dataset\.dots: .*after the first dot.*dots=last"):
        dotted(tmp_path, *names)
    assert dotted(tmp_path, *names, dots="last") == [number % 3 for number in range(8)]
    fields = {"label": "cls"}
    first, last = (everything(tmp_path, fields=fields, dots=dots) for dots in ("first", "last"))
    assert first.fingerprint != last.fingerprint


CONTENTS = {
    "cls": (b"one", r"part 'cls' \(3 bytes\) is not a whole number: invalid literal"),
    "txt": (b"\xff\xfe", r"part 'txt' \(2 bytes\) is not UTF-8 text: .*position 0"),
    "json": (b"{", r"part 'json' \(1 bytes\) is not JSON: Expecting"),
    "left.npy": (array(np.array([{}])), r"part 'left\.npy' .*Object arrays cannot be loaded"),
    "png": (b"<html>", r"part 'png'.* is not an image: it is a web page"),
}


@pytest.mark.parametrize("ending", CONTENTS)
def test_a_bad_part_costs_its_own_sample_only(tmp_path, ending):
    content, match = CONTENTS[ending]
    files = [
        (name, content if name == f"d/0002.{ending}" else good) for name, good in samples(1, 2, 3)
    ]
    refused(tmp_path, archive(files), r"x\.tar', sample 1 \('d/0002'\), " + match)
    data = everything(tmp_path)
    records = list(data)
    assert [data.decode(records[place])["json"]["number"] for place in (0, 2)] == [1, 3]


def test_an_array_that_is_not_finite(tmp_path):
    refused(tmp_path, archive([("a.npy", array([1.0, np.nan]))]), r"value 1 is nan, which is not")


def test_labels_beyond_the_classes(root):
    data = everything(root, classes=["a", "b"])
    with pytest.raises(DataError, match=r"sample 2 \('d/0002'\): label 2 is none of the 2 classes"):
        data.decode(list(data)[2])


@pytest.mark.parametrize("ending", ["pyd", "pickle", "seg.pkl", "pth"])
def test_pickles_are_never_opened(tmp_path, ending):
    (tmp_path / "x.tar").write_bytes(archive([("a.cls", b"1"), (f"a.{ending}", b"cos\nsystem\n")]))
    with pytest.raises(ConfigError, match=rf"'{ending}', which is a pickle and may run any"):
        everything(tmp_path)
    data = everything(tmp_path, fields={"label": "cls"})
    assert data.decode(next(iter(data))) == {"label": 1}


def test_two_parts_for_one_field(tmp_path):
    assert dotted(tmp_path, "anna.smith", "ben.jones", dots="last") == [0, 1]
    with pytest.raises(ConfigError, match=r"the same field.*dots=last"):
        dotted(tmp_path, "anna.smith", "ben.jones")
    (tmp_path / "a.tar").unlink()
    files = [("a.png", picture(1)), ("a.jpg", picture(1))]
    (tmp_path / "x.tar").write_bytes(archive(files))
    with pytest.raises(ConfigError, match=r"'png' and 'jpg', which would be the same field; name"):
        everything(tmp_path)


def test_roots_without_archives(tmp_path):
    with pytest.raises(DataError, match=r"has no file that ends in \.tar, \.tar\.gz, \.tgz"):
        everything(tmp_path)
    (tmp_path / "x.tar").write_bytes(archive([]))
    with pytest.raises(DataError, match="has no sample of the split 'train'"):
        everything(tmp_path)


def test_archives_at_an_address(root, tmp_path):
    here = everything(root).fingerprint
    with bucket(root, tmp_path / "cache") as (_, files):
        data = everything("s3://data", files=files)
        assert decoded(data) == list(range(23))
        assert data.fingerprint == here
        some = everything("s3://data/s-{1..1}.tar", files=files)
        assert decoded(some) == list(range(10, 15))


@pytest.mark.parametrize("kind", ["tar_shards", "indexed_tars"])
@pytest.mark.parametrize("has_boxes", [True, False])
def test_boxes_of_pictures_that_exif_turns_are_said_once(tmp_path, kind, has_boxes, caplog):
    exif, files = Image.Exif(), {}
    exif[0x0112] = 6
    for number in range(4):
        photo = io.BytesIO()
        Image.new("RGB", (8, 6)).save(photo, "JPEG", exif=exif)
        files |= {f"{number}.jpg": photo.getvalue(), f"{number}.cls": b"0"}
        if has_boxes:
            files[f"{number}.npy"] = array([[0.0, 0.0, 2.0, 3.0]])
    (tmp_path / "a.tar").write_bytes(archive(files.items()))
    words = [f"dataset={kind}", f"dataset.root={tmp_path}", "dataset.classes=[]", "transform=none"]
    words += ["loader.num_workers=0"]
    for reader, said in (("torchvision", has_boxes), ("pillow as stored", False)):
        caplog.clear()
        encoded.notices.clear()
        config = compose(
            *words, "batch.size=2", "loader.num_workers=0", f"dataset.reader='{reader}'"
        )
        with build_train_loader(config) as loader:
            list(loader)
        assert caplog.text.count("is turned as its EXIF says") == said
