"""How fetch makes one batch: what it draws, hashes, counts and makes again."""

import hashlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from penstock.errors import DataError
from penstock.files.batch_bytes import BatchTooLargeError, reserve
from penstock.loading import stage_timer
from penstock.loading.bad_samples import FromDataset, SampleError, rule
from penstock.loading.batch import Batch
from penstock.loading.collate import Stack
from penstock.loading.compose import Compose
from penstock.loading.encoded import EncodedImage
from penstock.loading.fetch import Fetch, batch_hash, hash_of_rows, hash_sample, row_hashes
from penstock.loading.sampled_rows import SampleRequest
from penstock.loading.sizes import nbytes
from penstock.order.generator_states import moved, take
from penstock.order.plan import Plan, Request
from penstock.order.randomness import GLOBAL, sample_keys
from penstock.order.samplers import Sequential
from penstock.order.seeding import UNSEEDED
from tests.loading.rows import Rows


def request(rows, epoch=0, step=0, **more):
    rows = np.array(rows)
    return Request(epoch, step, np.arange(len(rows)) + 10, rows, len(rows), **more)


def fetch(dataset, transform=None, collate=None, **more):
    return Fetch(dataset, transform, collate or Stack(), 0, **more)


class Quiet(Rows):
    draws = False


class Whole(Quiet):
    """Gives batches itself."""

    fetches_batches, kinds = True, {"x": "mask"}

    def fetch_batch(self, indices, in_place=False):
        return {"x": torch.from_numpy(indices.copy())}


class WholeDraws(Whole):
    draws = True


def keep(batch):
    return batch


@pytest.mark.parametrize(
    ("dataset", "more", "draws_nothing", "gathers"),
    [
        (Whole, {}, True, True),
        (Whole, {"batch_transform": keep}, False, False),
        (Whole, {"hashed": True}, True, False),
        (WholeDraws, {}, False, True),
        (Quiet, {}, False, False),
        (Rows, {}, False, False),
    ],
)
def test_a_fetch_knows_whether_it_draws_and_gathers(dataset, more, draws_nothing, gathers):
    made = fetch(dataset(), **more)
    assert (made.draws_nothing, made.leaves_generators) == (draws_nothing,) * 2
    assert bool(made.gathers) == gathers
    batch = made(request([4, 7]))
    whole = issubclass(dataset, Whole) and not made.hashed
    assert batch["x"].tolist() == ([4, 7] if whole else [[4.0], [7.0]])
    assert dict(batch.kinds) == ({"x": "mask"} if whole else {})
    assert made._seeding.names == (None if whole or made._keyed else frozenset())


class Drawing(Rows):
    """Gives what torch draws."""

    def __getitem__(self, row):
        super().__getitem__(row)
        return {"x": torch.rand(2)}


class DrawingMany(Drawing):
    def __getitems__(self, rows):
        return [self[row] for row in rows]


@pytest.mark.parametrize("kind", [Drawing, DrawingMany])
def test_marks_are_drawn_by_the_place_of_a_row_alone(kind):
    asked = SampleRequest.of(3)
    before = take()
    seen = fetch(kind())(asked)["seen"]
    assert moved(before) == []  # the training loop draws from them
    expected = []
    for row, key in enumerate(sample_keys(0, 0, asked.positions).tolist()):
        GLOBAL.seed(key)
        expected.append(f"{row}:{hash_sample({'x': torch.rand(2)}).hex()[:16]}")
    assert seen["rows"] == " ".join(expected)
    before = take()
    assert fetch(kind()).sample(asked, UNSEEDED)["seen"].get("rows", "") != seen["rows"]
    assert moved(before) != []  # whoever brings generators keeps them
    known = rule("skip", {1: "bad"}, Sequential(3), 3, 0)
    seen = fetch(kind(), bad=known)(asked)["seen"]
    assert seen["rows"] == " ".join(expected[::2])


def test_hashes_are_those_of_all_times():
    """A digest of old must stay what it was."""
    for sample, digest in (
        ({"x": 1}, "c9422f36"),
        ({"a": torch.ones(2), "b": [1.5, "é", None]}, "6fbdaed0"),
    ):
        assert len(hash_sample(sample)) == 16
        assert hash_sample(sample).hex()[:8] == digest
    assert (
        hash_of_rows([(2, b"b"), (1, b"a")]) == hashlib.blake2b(b"ab", digest_size=16).hexdigest()
    )


class Bytes:
    """Bytes, and no picture."""

    def tobytes(self):
        return b"abc"


class Mode:
    mode = "L"


def test_pictures_that_are_no_tensors_yet_have_hashes():
    picture = Image.new("RGB", (2, 3), (1, 2, 3))
    pixels = f"{picture.mode}{picture.size}".encode() + picture.tobytes()
    digest = hashlib.blake2b(digest_size=16)
    digest.update(b"Image:%d:" % len(pixels) + pixels)
    assert hash_sample(picture) == digest.digest()
    file = EncodedImage(b"content", "a.jpg", None, 9)
    assert hash_sample(file) == hash_sample(EncodedImage(b"content", "b.jpg", None, 9))
    assert hash_sample(file) != hash_sample(EncodedImage(b"Content", "a.jpg", None, 9))
    for value in (Bytes(), Mode()):
        with pytest.raises(DataError, match=f"type {type(value).__name__} cannot be hashed"):
            hash_sample(value)


def test_rows_that_count_are_hashed_with_their_parts():
    parts = np.array([[0, 2, 4, 0], [2, 4, 4, 1]])

    def packs(samples, parts):
        return {"x": torch.stack([sample["x"] for sample in samples]), "parts": parts}

    made = fetch(Quiet(), collate=packs, hashed=True)
    one, other = made(request([4, 5], parts=parts)), made(request([4, 5], parts=parts[::-1]))
    assert row_hashes(one) != row_hashes(other)
    assert one.hashes[0] == hash_sample([hash_sample({"x": torch.tensor([4.0])}), parts[0]])
    plain = fetch(Quiet(), hashed=True)(request([4, 5]))
    assert plain.hashes[0] == hash_sample({"x": torch.tensor([4.0])})
    assert batch_hash([plain]) == hash_of_rows(zip((10, 11), plain.hashes, strict=True))


class Counts:
    """A transform that no key decides."""

    calls = 0

    def __call__(self, sample):
        self.calls += 1
        return {**sample, "calls": self.calls}


class CountsRows(Rows):
    def __getitem__(self, row):
        sample = super().__getitem__(row)
        return {**sample, "calls": len(self.read)}


@pytest.mark.parametrize(("dataset", "transform"), [(CountsRows, None), (Rows, Counts())])
def test_samples_of_the_first_batch_are_made_again_where_code_is_somebodys(dataset, transform):
    made = fetch(dataset(), transform)
    first, second = made(request([4, 5, 6, 7])), made(request([8, 9], step=1))
    assert "has another 'calls' when it is made again" in first.warnings["unrepeatable"]
    assert made.dataset.read[:4] == [4, 5, 6, 7]
    assert set(made.dataset.read[4:-2]) == {4}  # again, and to find the step
    assert made.dataset.read[-2:] == [8, 9]
    assert dict(second.warnings) == {}
    assert made.repeat_checked
    with pytest.raises(SampleError, match=r"A hash of it would say nothing$"):
        fetch(dataset(), transform, hashed=True)(request([4, 5]))


def test_samples_that_are_the_same_again_are_delivered():
    for hashed in (False, True):
        made = fetch(Rows(), hashed=hashed)
        assert made(request([4, 5, 6]))["x"].tolist() == [[4.0], [5.0], [6.0]]
        assert made.dataset.read == [4, 5, 6, 4, 5]
        made(request([7, 8], step=1))
        assert made.dataset.read[5:] == [7, 8]
    plain = fetch([{"x": 1.0}, {"x": 2.0}])
    plain(request([0, 1]))
    assert not plain.repeat_checked  # no code that could give others


class Late(Rows):
    """Makes its generator with its first sample."""

    generator = None

    def __getitem__(self, row):
        super().__getitem__(row)
        if self.generator is None:
            self.generator = np.random.default_rng()
        return {"x": torch.tensor(self.generator.random(2))}


def test_a_generator_that_is_made_with_the_first_sample_has_keys_from_the_first_batch_on():
    first = fetch(Late())
    batches = [first(request([4, 5, 6], step=step)) for step in (0, 1)]
    assert dict(batches[0].warnings) == {}
    assert first.dataset.read[-8:] == [4, 5, 6, 4, 5, 4, 5, 6]  # the first once more, with keys
    warm = Late()
    assert warm[0]
    again = fetch(warm)
    for step, batch in enumerate(batches):
        assert torch.equal(again(request([4, 5, 6], step=step))["x"], batch["x"])
        assert torch.equal(fetch(Late())(request([4, 5, 6], step=step))["x"], batch["x"])


def test_a_substitute_moves_no_generator_where_nothing_draws():
    bad = rule("substitute", {}, Sequential(100), 100, 0)
    before = take()
    batch = fetch(Quiet(bad=(5,)), bad=bad)(request([4, 5]))
    assert moved(before) == []
    assert batch.left_out[0].index == 5
    assert isinstance(rule("skip", {}, Sequential(9), 9, 0).substitutes, FromDataset)


class Reserves(Quiet):
    """Each row reserves so many bytes."""

    def __init__(self, size):
        super().__init__()
        self.size = size

    def __getitem__(self, row):
        reserve(self.size, f"row {row}")
        return super().__getitem__(row)


def test_a_sample_may_take_all_of_the_room():
    made = fetch(Reserves(5000), batch_bytes=5000)
    assert made(request([4]))["x"].tolist() == [[4.0]]
    with pytest.raises(BatchTooLargeError, match=r"row 4 would take 5001 bytes, more than"):
        fetch(Reserves(5001), batch_bytes=5000)(request([4]))


class Slow(Quiet):
    """Rows of 1000 bytes that nobody reserves; each takes so many seconds."""

    def __init__(self, clock, seconds):
        super().__init__()
        self.clock, self.seconds = clock, seconds

    def __getitem__(self, row):
        self.clock.now += self.seconds
        super().__getitem__(row)
        return {"x": torch.zeros(1000, dtype=torch.uint8)}


@pytest.mark.parametrize(("seconds", "read"), [(1.0, 3), (0.0, 5)])
def test_samples_that_nobody_reserves_are_counted_as_they_come(monkeypatch, seconds, read):
    clock = SimpleNamespace(now=100.0)
    timed = SimpleNamespace(perf_counter=lambda: clock.now, thread_time=lambda: 0.0)
    monkeypatch.setattr(stage_timer, "time", timed)
    dataset = Slow(clock, seconds)
    made = fetch(dataset, collate=lambda samples: {"count": len(samples)}, batch_bytes=3000)
    if seconds:
        with pytest.raises(BatchTooLargeError, match=r"sample 6 .*the batch up to this sample"):
            made(request([4, 5, 6, 7, 8]))
    else:  # in no time no memory is filled
        assert made(request([4, 5, 6, 7, 8]))["count"] == 5
    assert len(dataset.read) == read


def test_what_samples_are_put_together_into_has_the_same_room():
    def doubles(samples):
        return {"x": torch.zeros(5000, dtype=torch.uint8)}

    size = nbytes(doubles(()))
    assert fetch(Quiet(), collate=doubles, batch_bytes=size)(request([4]))["x"].shape == (5000,)
    with pytest.raises(
        BatchTooLargeError,
        match=rf"^batch \(epoch 0, step 0\): what its samples were put together into would take "
        rf"{size} bytes, more",
    ):
        fetch(Quiet(), collate=doubles, batch_bytes=size - 1)(request([4]))


def test_a_transformed_batch_has_the_same_room():
    def grows(batch):
        return batch.replace({"x": torch.zeros(5000, dtype=torch.uint8)})

    size = nbytes(grows(Batch({}, request([4]), np.arange(1))))
    made = fetch(Quiet(), batch_transform=grows, batch_bytes=size)(request([4]))
    assert made["x"].shape == (5000,)
    assert set(made.timing) == {"read", "transform", "collate", "batch"}
    with pytest.raises(
        BatchTooLargeError,
        match=rf"batch \(epoch 0, step 0\): the transformed batch would take {size} bytes, more",
    ):
        fetch(Quiet(), batch_transform=grows, batch_bytes=size - 1)(request([4]))


def test_a_collate_function_that_fails_is_explained_by_its_first_sample():
    def fails(samples):
        raise ValueError("no")

    with pytest.raises(SampleError, match=r"^sample 4 .*: collate failed with ValueError: no"):
        fetch(Quiet(), collate=fails)(request([4, 5]))


def test_a_traced_fetch_gives_a_trace():
    plan = Plan(Sequential(10), 2)
    for transform in (None, keep):
        for traced in (False, True):
            made = fetch(Quiet(), batch_transform=transform)
            made.traced = traced
            batch = made(plan.request(0, 1))
            assert (batch.trace is not None) == traced
            assert batch.indices.tolist() == [2, 3]


class Reads(Stack):
    """Reads rows itself, where it can."""

    def __init__(self, fails=False):
        self.fails = fails

    def reads(self, dataset):
        return True

    def read(self, rows, indices, parts):
        if self.fails:
            raise DataError("not at once")
        return {"x": torch.from_numpy(indices * 10), "parts": parts}


def test_a_collate_function_may_read_the_rows_itself():
    made, parts = fetch(Quiet(), collate=Reads()), np.array([[0, 1, 1, 0]] * 2)
    batch = made(request([4, 5], parts=parts))
    assert batch["x"].tolist() == [40, 50]
    assert batch["parts"] is parts
    assert made.dataset.read == []
    assert "read" in batch.timing
    made = fetch(Quiet(), collate=Reads(fails=True))
    batch = made(request([4, 5]))  # sample by sample
    assert batch["x"].tolist() == [[4.0], [5.0]]
    assert dict(batch.warnings) == {}


class Gathered(Stack):
    takes_gathered = True

    def together(self, columns):
        return {**columns, "told": "alone"}


class Packs(Gathered):
    takes_gathered = True
    packs = True

    def together(self, columns, parts):
        return {**columns, "told": parts}


@pytest.mark.parametrize(("collate", "told"), [(Gathered, False), (Packs, True)])
def test_a_collate_function_puts_gathered_rows_together(collate, told):
    parts = np.array([[0, 1, 1, 0]] * 2)
    batch = fetch(Whole(), collate=collate())(request([4, 7], parts=parts))
    assert batch["x"].tolist() == [4, 7]
    assert batch["told"] is (parts if told else "alone")


class Files(Quiet):
    """Rows of image files."""

    def __getitem__(self, row):
        self.read.append(row)
        return {"x": EncodedImage(bytes([row]), "a.jpg", None, 9), "y": row}


class Decodes:
    """Works on the first content of a file; not on any two together."""

    takes_batches = keyed = True

    def __init__(self, together):
        self.together = together

    def __call__(self, sample):
        return {**sample, "x": torch.tensor(sample["x"].content[0])}

    def decode_batch(self, files, keys):
        return torch.tensor([file.content[0] for file in files]) if self.together else None


@pytest.mark.parametrize("together", [True, False])
def test_pictures_that_cannot_be_worked_on_together_are_one_by_one(together):
    made = fetch(Files(), Compose({"decode": Decodes(together)}))
    batch = made(request([4, 5]))
    assert (batch["x"].tolist(), batch["y"].tolist()) == ([4, 5], [4, 5])
    assert made.dataset.read == ([4, 5] if together else [4, 5, 4, 5])
    told = "batch (0, 0) is made sample by sample, which takes longer: the pictures 'x' cannot be "
    assert dict(batch.warnings) == ({} if together else {"slow": f"{told}worked on together"})
