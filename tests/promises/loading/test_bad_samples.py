"""Bad samples: the same ones are left out everywhere, and nothing else changes."""

import errno
import pickle
import struct
import zlib

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch.utils.data import BatchSampler, IterableDataset, RandomSampler, SequentialSampler

from penstock.datasets.image_folder import ImageFolder
from penstock.datasets.reading.base import Shares
from penstock.datasets.reading.image import decode_image
from penstock.errors import ConfigError, DataError, PenstockError, UnreachableError
from penstock.loading.collate import Pad
from penstock.order.samplers import Bucket, Identity, Random, Sequential, Subset, Weighted
from tests import port
from tests.port import Options, SampleError, World, batch_hash, row_hashes
from tests.support import broken_images, toy

COUNT, SIZE, SEED = 36, 5, 3
BAD = (2, 3, 17, 30)

OPTIONS = {
    "main": Options(),
    "2 processes": Options("process", 2),
    "3 threads": Options("thread", 3),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The same images twice: undamaged, and with BAD broken."""
    whole, broken = (tmp_path_factory.mktemp(name) for name in ("whole", "broken"))
    broken_images.write_images(whole, COUNT)
    broken_images.damage(broken_images.write_images(broken, COUNT), BAD)
    return whole, broken


class Images(ImageFolder):
    """All images of a folder, of which every third is in the table's middle length."""

    def __init__(self, root):
        super().__init__(str(root), shares=Shares(0.01))
        self.names = np.array(sorted(str(p.relative_to(root)).encode() for p in root.rglob("*.*g")))
        self.labels = np.array(
            [broken_images.CLASSES.index(n.split(b"/")[0].decode()) for n in self.names]
        )


def table():
    rows = np.arange(COUNT)
    return pd.DataFrame({"label": rows % 3, "length": rows % 7, "who": rows // 4})


SAMPLERS = {
    "sequential": lambda: Sequential(COUNT),
    "random": lambda: Random(COUNT, SEED),
    "subset": lambda: Subset(COUNT, SEED, indices=range(1, 20)),
    "weighted": lambda: Weighted(COUNT, SEED, table()),
    "without replacement": lambda: Weighted(COUNT, SEED, table(), replacement=False),
    "bucket": lambda: Bucket(COUNT, SEED, table(), SIZE),
    "identity": lambda: Identity(COUNT, SEED, table(), "who", 2, 3),
    "torch": lambda: lambda: RandomSampler(range(COUNT)),
    "torch batches": lambda: lambda: BatchSampler(SequentialSampler(range(COUNT)), SIZE, False),
}


def loader_of(root, sampler, on_error, options=None, world=None, **more):
    return port.loader(
        Images(root),
        sampler,
        SIZE,
        transform=toy.Keyed(),
        seed=SEED,
        on_error=on_error,
        options=options,
        world=world,
        **more,
    )


def stream_of(root, on_error, options=None, world=None, buffer=0, size=SIZE):
    return port.loader(
        Records(root),
        size=size,
        transform=toy.Keyed(),
        seed=SEED,
        on_error=on_error,
        buffer=buffer,
        options=options,
        world=world,
    )


def first(dataset, size=8, on_error="skip", sampler=None, epoch=0, **more):
    """The first batch of an epoch, in the dataset's order by default."""
    sampler = sampler or Sequential(len(dataset))
    return next(port.loader(dataset, sampler, size, on_error=on_error, **more).epoch(epoch))


def epoch_of(loaders, epoch=1):
    """The shares of each step."""
    return list(zip(*(list(loader.epoch(epoch)) for loader in loaders), strict=True))


def rows_of(steps):
    """Hash of the sample by position."""
    return {
        position: digest
        for step in steps
        for share in step
        for position, digest in row_hashes(share)
    }


def told(steps):
    """What was left out, step by step, whoever tells it."""
    return [
        sorted((one for share in step for one in share.left_out), key=lambda o: o.position)
        for step in steps
    ]


@pytest.mark.one_in(9)
@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("on_error", ["substitute", "skip"])
def test_the_same_is_left_out_for_any_ranks_and_nothing_else_changes(folders, name, on_error):
    whole, broken = folders
    undamaged = epoch_of([loader_of(whole, SAMPLERS[name](), "raise")])
    alone = epoch_of([loader_of(broken, SAMPLERS[name](), on_error)])
    gone = {one.position: one for step in told(alone) for one in step}
    assert {one.index for one in gone.values()} <= set(BAD)
    assert len(gone) >= 2
    before, after = rows_of(undamaged), rows_of(alone)
    expected = {position: digest for position, digest in before.items() if position not in gone}
    assert {position: after[position] for position in after if position not in gone} == expected
    if on_error == "skip":
        assert after.keys().isdisjoint(gone)
    else:
        assert after.keys() == before.keys()
        assert all(before[position] != after[position] for position in gone)
    for ranks in (2, 3, 4):
        loaders = [
            loader_of(broken, SAMPLERS[name](), on_error, None, World(rank, ranks))
            for rank in range(ranks)
        ]
        shared = epoch_of(loaders)
        assert [batch_hash(step) for step in shared] == [batch_hash(step) for step in alone]
        assert told(shared) == told(alone)
        assert all(len(share.indices) >= 1 for step in shared for share in step)


@pytest.mark.one_in(9)
@pytest.mark.parametrize("options", ["2 processes", "3 threads"])
@pytest.mark.parametrize("name", ["random", "weighted", "identity", "torch"])
@pytest.mark.parametrize("on_error", ["substitute", "skip"])
def test_the_same_samples_are_left_out_by_any_worker(folders, name, on_error, options):
    main = epoch_of([loader_of(folders[1], SAMPLERS[name](), on_error)])
    with loader_of(folders[1], SAMPLERS[name](), on_error, OPTIONS[options]) as loader:
        steps = epoch_of([loader])
        assert [share.request.address for (share,) in epoch_of([loader])] == [
            share.request.address for (share,) in steps
        ]
        later = list(loader.epoch(1, start=3))
    assert [batch_hash(step) for step in steps] == [batch_hash(step) for step in main]
    assert told(steps) == told(main)
    assert [batch_hash([batch]) for batch in later] == [batch_hash(step) for step in main[3:]]


def test_what_is_reported_of_a_sample(folders):
    batches = list(loader_of(folders[1], Sequential(COUNT), "skip").epoch(4))
    left_out = [one for batch in batches for one in batch.left_out]
    assert [(one.index, one.position, one.epoch, one.step) for one in left_out] == [
        (row, row, 4, row // SIZE) for row in BAD
    ]
    assert not any(one.known for one in left_out)
    paths = sorted(folders[1].rglob("*.jpg"))
    assert [one.path for one in left_out] == [str(paths[row]) for row in BAD]
    for one, word in zip(left_out, ["truncated", "truncated", "empty", "web page"], strict=True):
        assert word in one.cause
        assert "\n" not in one.cause
        assert str(one).startswith(f"sample {one.index} (epoch 4, step {one.step}, position")
    assert pickle.loads(pickle.dumps(left_out)) == left_out


def test_what_stands_in_comes_from_the_samplers_own_order(folders):
    rows = set(range(1, 20))
    for step in epoch_of([loader_of(folders[1], SAMPLERS["subset"](), "substitute")]):
        assert set(step[0].indices.tolist()) <= rows - set(BAD)
    who = table()["who"].to_numpy()
    identities = 0
    for (batch,) in epoch_of([loader_of(folders[1], SAMPLERS["identity"](), "substitute")]):
        rows = dict(zip(batch.positions.tolist(), batch.indices.tolist(), strict=True))
        for one in batch.left_out:
            assert who[rows[one.position]] == who[one.index]
            identities += 1
    assert identities
    bucket = SAMPLERS["bucket"]()
    for (batch,) in epoch_of([loader_of(folders[1], bucket, "substitute")]):
        assert set(batch.indices.tolist()) <= set(bucket.batch(*batch.request.address)[1].tolist())


def test_what_stands_in_is_drawn_for_as_the_place_that_it_takes(folders):
    whole = loader_of(folders[0], Random(COUNT, 0), "raise").epoch(0)
    broken = loader_of(folders[1], Random(COUNT, 0), "substitute").epoch(0)
    for before, after in zip(whole, broken, strict=True):
        assert torch.equal(before["draws"], after["draws"])


def test_what_stands_in_differs_from_place_to_place_and_from_epoch_to_epoch(folders):
    loader = loader_of(folders[1], Sequential(COUNT), "substitute")
    chosen = [
        tuple(
            batch.indices[batch.positions == one.position].item()
            for batch in loader.epoch(epoch)
            for one in batch.left_out
        )
        for epoch in range(3)
    ]
    assert len(set(chosen)) == 3
    assert len(set(chosen[0])) > 1


@pytest.mark.one_in(4)
@pytest.mark.parametrize("on_error", ["substitute", "skip"])
@pytest.mark.parametrize("name", ["sequential", "torch batches"])
def test_a_batch_of_nothing_but_bad_samples_gives_every_rank_a_row(tmp_path, on_error, name):
    broken_images.damage(broken_images.write_images(tmp_path, COUNT), range(5, 10))
    for ranks in (1, 2, 4):
        loaders = [
            loader_of(tmp_path, SAMPLERS[name](), on_error, None, World(rank, ranks))
            for rank in range(ranks)
        ]
        shares = epoch_of(loaders)[1]
        assert sum(len(share.left_out) for share in shares) == 5
        for share in shares:
            assert len(share["image"]) == len(share.indices) >= 1
            assert set(share.indices.tolist()).isdisjoint(range(5, 10))
            if on_error == "skip":
                assert share.request.valid == 0
                assert not share.valid.any()
        counted = sum(
            len(share.indices) if share.valid is None else int(share.valid.sum())
            for share in shares
        )
        assert counted == (5 if on_error == "substitute" else 0)


@pytest.mark.parametrize("on_error", ["substitute", "skip"])
def test_a_large_batch_of_nothing_but_bad_samples_gets_rows_of_other_batches(on_error):
    loader = port.loader(
        Damaged(400, 40),
        lambda: BatchSampler(SequentialSampler(range(400)), 40, False),
        40,
        on_error=on_error,
    )
    batch = next(loader.epoch(0))
    assert len(batch.left_out) == 40
    assert len(batch.indices) == (40 if on_error == "substitute" else 1)
    assert batch.indices.min() >= 40


def test_padding_that_is_bad_is_not_reported(tmp_path):
    broken_images.damage(broken_images.write_images(tmp_path, COUNT), [35])
    for on_error in ("skip", "substitute"):
        loader = loader_of(tmp_path, Sequential(COUNT), on_error, tail="pad")
        batch = list(loader.epoch(0))[-1]
        assert len(batch.left_out) == 1
        rows = len(batch.indices)
        assert rows == (1 if on_error == "skip" else SIZE)
        counts = [False] * rows if on_error == "skip" else [True] + [False] * (rows - 1)
        assert batch.valid.tolist() == counts
        assert len(set(batch.indices.tolist())) == 1


def test_rows_of_sequences_stay_in_step_with_their_positions(tmp_path):
    class Short(toy.Sequences):
        def __getitem__(self, index):
            if index in (1, 4):
                raise OSError("gone")
            return super().__getitem__(index)

    batch = first(Short(), 10, collate=Pad())
    assert batch["label"].tolist() == batch.indices.tolist() == batch.positions.tolist()
    assert batch.places.tolist() == batch.positions.tolist()
    assert batch.indices.tolist() == [0, 2, 3, 5, 6, 7, 8, 9]
    assert batch["sequence_lengths"].tolist() == [1 + i % 7 for i in batch.indices]
    assert batch.request.valid == len(batch.hashes) == 8


class AtOnce(toy.Pictures):
    """Reads many rows at once, and loses them all to one that is bad."""

    def __init__(self, bad=()):
        super().__init__()
        self.bad, self.calls = set(bad), []

    def __getitem__(self, index):
        self.calls.append([index])
        if index in self.bad:
            raise OSError("no such block")
        return super().__getitem__(index)

    def __getitems__(self, indices):
        self.calls.append(list(indices))
        if self.bad.intersection(indices):
            raise OSError("no such block among these")
        return [super(AtOnce, self).__getitem__(index) for index in indices]


@pytest.mark.parametrize("on_error", ["substitute", "skip"])
def test_a_bad_row_among_many_does_not_lose_the_others(on_error):
    some = AtOnce({3, 4})
    whole, left_out = (
        port.loader(data, Random(40, 0), transform=toy.Everywhere(), on_error=rule)
        for data, rule in ((AtOnce(), "raise"), (some, on_error))
    )
    for left, full in zip(left_out.epoch(0), whole.epoch(0), strict=True):
        gone = {one.position for one in left.left_out}
        expected = dict(row for row in row_hashes(full) if row[0] not in gone)
        assert {p: h for p, h in row_hashes(left) if p not in gone} == expected
        assert {one.index for one in left.left_out} == {3, 4} & set(full.indices.tolist())
        assert {one.cause for one in left.left_out} <= {"OSError: no such block"}


def test_known_samples_are_not_read():
    for dataset in (AtOnce({3, 4}), toy.Pictures()):
        batch = first(dataset, on_error="raise", known={3: "x", 4: "y"})
        assert batch.indices.tolist() == [0, 1, 2, 5, 6, 7]
        told = [(one.index, one.cause, one.known) for one in batch.left_out]
        assert told == [(3, "x", True), (4, "y", True)]
        calls = getattr(dataset, "calls", [])
        assert not {3, 4} & {row for call in calls for row in call}


def test_a_known_sample_is_not_taken_for_another():
    class Two(toy.Pictures):
        def __getitem__(self, index):
            if index == 0:
                raise OSError("gone")
            return super().__getitem__(index)

    for epoch in range(5):
        batch = first(Two(3), 3, "substitute", known={1: "x"}, epoch=epoch)
        assert batch.indices.tolist() == [2, 2, 2]


class Gone(toy.Pictures):
    def __getitem__(self, index):
        raise OSError("the disk is gone")


def test_nothing_to_stand_in_ends_the_run():
    for on_error in ("skip", "substitute"):
        with pytest.raises(DataError, match=r"sample \d \(epoch 0.*disk is gone.*\d+ att"):
            first(Gone(), 4, on_error)


def unidentified(tmp_path):
    (tmp_path / "x.jpg").write_text("no image")
    with Image.open(tmp_path / "x.jpg"):
        pass


def cut_off(tmp_path):
    (path,) = broken_images.write_images(tmp_path, 1)
    broken_images.cut(path)
    with Image.open(path) as image:
        image.load()


def torchvision_decoder(tmp_path):
    from torchvision.io import decode_jpeg

    (path,) = broken_images.write_images(tmp_path, 1)
    broken_images.cut(path)
    decode_jpeg(torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8))


def raising(error):
    def fail(tmp_path):
        raise error

    return fail


EVERYWHERE = [
    unidentified, cut_off, lambda _: zlib.decompress(b"no"), lambda _: struct.unpack("<q", b"no"),
    lambda _: b"\xff".decode(), raising(DataError("bad")), raising(FileNotFoundError(2, "gone")),
    raising(EOFError("cut")), raising(OSError(errno.EIO, "unreadable block")),
    raising(Image.DecompressionBombError("big")),
]  # fmt: skip
READING = [
    torchvision_decoder, lambda _: np.frombuffer(b"abc").reshape(2, 2), lambda _: int("x"),
    raising(RuntimeError("png error")), raising(SyntaxError("broken PNG file")),
]  # fmt: skip
NEVER = [
    lambda _: [].append(1, 2), lambda _: undefined,  # noqa: F821
    lambda _: {}["k"], lambda _: [][1], lambda _: None.x, raising(NotImplementedError()),
    raising(RecursionError()), lambda _: 1 / 0, raising(ImportError("no")),
    raising(AssertionError("no")), raising(MemoryError()), raising(torch.OutOfMemoryError("no")),
    raising(OSError(errno.EMFILE, "too many open files")), raising(OSError(errno.ENOSPC, "full")),
    raising(ConnectionResetError(104, "reset")), raising(TimeoutError("slow")),
    raising(ConfigError("no")), raising(SampleError("no")),
    raising(UnreachableError("no answer")), lambda _: torch.empty(1 << 50),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning")
@pytest.mark.parametrize(
    ("fail", "reading", "transforming"),
    [(fail, True, True) for fail in EVERYWHERE]
    + [(fail, True, False) for fail in READING]
    + [(fail, False, False) for fail in NEVER],
)
def test_which_errors_are_a_samples(fail, reading, transforming, tmp_path):
    class Read(toy.Pictures):
        def __getitem__(self, index):
            return (fail(tmp_path) if index == 2 else None) or super().__getitem__(index)

    def transform(sample):
        if sample["image"][0, 0, 1] == 3:
            fail(tmp_path)
        return sample

    for data, change, left_out in (
        (Read(), None, reading),
        (toy.Pictures(), transform, transforming),
    ):
        if left_out:
            assert [one.index for one in first(data, transform=change).left_out] == [2]
        else:
            with pytest.raises(PenstockError):
                first(data, transform=change)


class Misspelt:
    def __call__(self, sample):
        return sample["imgae"] if sample["label"] == 2 else sample


@pytest.mark.parametrize("on_error", ["raise", "substitute", "skip"])
def test_a_mistake_in_code_is_never_left_out(on_error):
    with pytest.raises(
        SampleError, match=r"sample 2 .*transform failed with KeyError: 'imgae'"
    ) as e:
        first(toy.Pictures(), on_error=on_error, transform=Misspelt())
    assert "in __call__" in str(e.value)
    assert ("raise a penstock.errors.DataError" in str(e.value)) is (on_error != "raise")


# Streams


class Records(IterableDataset):
    """The files of a folder as raw records; decoded by whoever works on them."""

    def __init__(self, root):
        self.paths = sorted(root.rglob("*.jpg"))

    def __iter__(self):
        yield from ((path.read_bytes(), str(path)) for path in self.paths)

    def decode(self, record):
        return {"image": decode_image(*record)}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("buffer", [0, 8])
@pytest.mark.parametrize("on_error", ["substitute", "skip"])
def test_streams_leave_out_the_same_and_nothing_else_changes(folders, on_error, buffer):
    whole, broken = folders
    undamaged = rows_of(epoch_of([stream_of(whole, "raise", buffer=buffer)]))
    alone = epoch_of([stream_of(broken, on_error, buffer=buffer)])
    gone = {one.position: one for step in told(alone) for one in step}
    assert {one.index for one in gone.values()} == set(BAD)
    after = rows_of(alone)
    expected = {position: digest for position, digest in undamaged.items() if position not in gone}
    assert {p: digest for p, digest in after.items() if p not in gone} == expected
    assert (after.keys() == undamaged.keys()) is (on_error == "substitute")
    hashes = [batch_hash(step) for step in alone]
    for ranks in (2, 4):
        shared = epoch_of(
            [stream_of(broken, on_error, None, World(rank, ranks), buffer) for rank in range(ranks)]
        )
        assert [batch_hash(step) for step in shared] == hashes
        assert told(shared) == told(alone)
    for options in ("2 processes", "3 threads"):
        with stream_of(broken, on_error, OPTIONS[options], buffer=buffer) as loader:
            steps = epoch_of([loader])
        assert [batch_hash(step) for step in steps] == hashes
        assert told(steps) == told(alone)


def test_a_stream_of_nothing_but_bad_records_ends_the_run(tmp_path):
    broken_images.damage(broken_images.write_images(tmp_path, 6), range(6))
    with pytest.raises(DataError, match="Nothing could be read in its place"):
        list(stream_of(tmp_path, "skip").epoch(0))


# The budget


class Damaged(toy.Pictures):
    """The first rows are bad."""

    def __init__(self, length, bad):
        super().__init__(length)
        self.bad = bad

    def __getitem__(self, index):
        if index < self.bad:
            raise DataError("cut")
        return super().__getitem__(index)


@pytest.mark.parametrize(
    ("limit", "length", "allowed"),
    [(0, 100, 0), (3, 100, 3), (0.01, 100, 1), (0.01, 10, 1), (0.015, 100, 2), (1, 100, 1)],
)
def test_a_budget_is_a_count_or_a_share(limit, length, allowed):
    def load(bad, known=None):
        data = Damaged(length, bad)
        loader = port.loader(
            data, Sequential(length), on_error="skip", budget=limit, known=known or {}
        )
        for epoch in (0, 1):
            list(loader.epoch(epoch))

    load(allowed)
    with pytest.raises(DataError, match=rf"allows {allowed}"):
        load(allowed + 1)
    load(allowed + 1, {0: "known"})  # what is known is free


def test_a_budget_that_is_used_up_names_samples_and_says_what_to_do(folders):
    for options in OPTIONS.values():
        loader = loader_of(folders[1], Sequential(COUNT), "skip", options, budget=2)
        seen = []
        with pytest.raises(DataError) as caught:
            seen.extend(batch.request.step for batch in loader.epoch(0))
        assert seen == [0, 1, 2, 3]
        message = str(caught.value)
        assert "3 bad samples in epoch 0 of the train split (36 samples)" in message
        assert "budget=2 allows 2" in message
        assert all(f"sample {row} (epoch 0" in message for row in BAD[:3])
        assert "task=check" in message
        loader.close()
