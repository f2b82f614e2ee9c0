"""The bound of a batch's memory: what counts, what is left out of it, and what is said."""

import pickle
import weakref

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

import penstock
from penstock.addons.dataloader.dataloader import DataLoader
from penstock.config.loader_options import batch_bytes
from penstock.errors import DataError
from penstock.files.batch_bytes import (
    BatchBytes,
    BatchTooLargeError,
    bounded,
    discarded,
    is_too_large,
    reserve,
    temporary,
)
from penstock.files.limits import Limits
from penstock.loading import memory, sample_reader
from penstock.loading.bad_samples import rule
from penstock.loading.collate import List, Stack
from penstock.loading.fetch import Fetch
from penstock.loading.loader import Loader
from penstock.loading.workers.options import LoaderOptions
from penstock.order.plan import Plan
from penstock.order.samplers import Sequential
from tests.program import run

KIB = 1024


class Rows(Dataset):
    """Rows of `size` KiB, which are reserved before they are made."""

    def __init__(self, sizes, announces=True):
        self.sizes, self.announces = sizes, announces

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, index):
        size = self.sizes[index] * KIB
        if self.announces:
            reserve(size, f"row {index}")
        return {"x": torch.full((size,), 1, dtype=torch.uint8)}


class Wrapping(Rows):
    """Code that says in other words what went wrong."""

    def __getitem__(self, index):
        try:
            return super().__getitem__(index)
        except DataError as error:
            raise DataError(f"my row {index}: {error}") from None


def made(dataset, most, collate=None, rows=None, **more):
    plan = Plan(Sequential(len(dataset)), rows or len(dataset))
    fetch = Fetch(dataset, None, collate or Stack(), 0, batch_bytes=most, **more)
    return fetch(plan.request(0, 0))


@pytest.mark.parametrize("announces", [True, False])
def test_samples_may_take_as_much_as_the_limit_and_so_may_the_batch(announces):
    rows = Rows([100] * 8, announces)
    room = 8 * 100 * KIB + 8 * KIB  # with what dicts take
    assert made(rows, room)["x"].shape == (8, 100 * KIB)
    with pytest.raises(BatchTooLargeError, match=rf"limits\.batch_bytes={room // 2} allows"):
        made(rows, room // 2)


def test_the_message_names_the_sample_the_bytes_and_the_way_out():
    with pytest.raises(
        BatchTooLargeError,
        match=(
            r"^sample 2 \(epoch 0, step 0, position 2\): row 2 would take 102400 bytes beside the "
            r"2\d{5} bytes of the batch so far, more than limits\.batch_bytes=256000 allows for "
            r"one batch; reduce batch\.size, or, if the data is sound, raise limits\.batch_bytes$"
        ),
    ):
        made(Rows([100] * 8), 250 * 1024)


@pytest.mark.parametrize("on_error", ["skip", "substitute", "raise"])
@pytest.mark.parametrize("kind", [Rows, Wrapping])
def test_no_sample_is_left_out_for_it(kind, on_error):
    """Or the machine's memory would decide what a batch holds."""
    bad = rule(on_error, {}, Sequential(8), 8, 0)
    with pytest.raises(BatchTooLargeError, match=r"sample 2.*row 2 would take") as caught:
        made(kind([100] * 8), 250 * KIB, bad=bad)
    told = "depend on the machine's memory" in str(caught.value)
    assert told == (on_error != "raise")
    assert caught.value.exit_code == 3


def _in_other_words(error, cause):
    try:
        raise error
    except DataError:
        raise ValueError("damaged") from cause


def test_errors_that_say_it_in_other_words():
    error = BatchTooLargeError("too large")
    for cause in (None, error):
        with pytest.raises(ValueError, match="damaged") as caught:
            _in_other_words(error, cause)
        assert is_too_large(caught.value)
    assert not is_too_large(DataError("damaged"))
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.place) == (BatchTooLargeError, "too large", None)


@pytest.mark.parametrize("backend", ["main", "thread", "process"])
def test_every_backend_says_the_same(backend):
    rows = Rows([100] * 8)
    options = LoaderOptions(backend, 0 if backend == "main" else 1)
    fetch = Fetch(rows, None, Stack(), 0, batch_bytes=250 * KIB)
    with (
        Loader(Plan(Sequential(8), 8), fetch, options) as loader,
        pytest.raises(BatchTooLargeError, match=r"^sample 2 \(epoch 0, step 0, position 2\): row"),
    ):
        list(loader)


def test_what_was_needed_meanwhile_is_free_again():
    with bounded(100) as account:
        with temporary(60, "first"):
            reserve(30)
        with discarded():
            reserve(70)
        assert account.taken == 30
        with pytest.raises(BatchTooLargeError, match="second would take 71 bytes beside the 30"):
            temporary(71, "second").__enter__()
        with bounded(10), pytest.raises(BatchTooLargeError):
            reserve(11)
        reserve(70)
    reserve(10**18)  # no batch is being made
    assert BatchBytes(5).refusal(6, "it").place is None


class Cropping:
    """A view of a picture that was reserved keeps all of it; a copy does not."""

    def __init__(self, copies):
        self.copies = copies

    def __call__(self, sample):
        part = sample["x"][:10]
        return {"x": part.clone() if self.copies else part}


def test_a_part_keeps_its_whole_unless_it_is_copied():
    rows, most = Rows([100] * 8), 350 * KIB
    plan = Plan(Sequential(8), 8)
    fetch = Fetch(rows, Cropping(True), List(), 0, batch_bytes=most)
    assert len(fetch(plan.request(0, 0))["x"]) == 8
    with pytest.raises(BatchTooLargeError, match="sample 3"):
        Fetch(rows, Cropping(False), List(), 0, batch_bytes=most)(plan.request(0, 0))


class InMemory(Dataset):
    """Rows of what the dataset holds all the while take nothing."""

    def __init__(self):
        self.all = torch.zeros(64, 1 << 20, dtype=torch.uint8)

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return {"x": self.all[index]}


def test_rows_that_are_there_already_take_nothing_until_they_are_stacked(monkeypatch):
    monkeypatch.setattr(sample_reader, "FASTEST", 1e-9)  # they come in no time

    def first(samples):
        return {"x": samples[0]["x"]}

    assert made(InMemory(), 8 << 20, first)["x"].shape == (1 << 20,)
    with pytest.raises(BatchTooLargeError, match="field 'x' would take 67108864 bytes"):
        made(InMemory(), 8 << 20)


def test_samples_are_gone_when_the_batch_is_transformed():
    class Seen(Rows):
        alive = 0

        def __getitem__(self, index):
            sample = super().__getitem__(index)
            Seen.alive += 1
            weakref.finalize(sample["x"], self.gone)
            return sample

        @staticmethod
        def gone():
            Seen.alive -= 1

    counted = []

    def count(batch):
        counted.append(Seen.alive)
        return batch

    made(Seen([1] * 8), 1 << 20, batch_transform=count)
    assert counted == [0]


@pytest.mark.parametrize("workers", [0, 1])
def test_our_datasets_in_a_loader_like_torchs(workers):
    def loader(**how):
        return DataLoader(Rows([100] * 8), batch_size=8, num_workers=workers, **how)

    assert next(iter(loader()))["x"].shape == (8, 100 * KIB)
    with pytest.raises(
        DataError, match=r"row 2 would take .*batch_bytes=256000.*reduce batch_size"
    ):
        next(iter(loader(batch_bytes=250 * KIB)))


def test_the_default_is_a_part_of_the_memory(monkeypatch):
    monkeypatch.setattr(memory, "limit", lambda: (100 << 30, "tests"))
    assert memory.of_a_batch(0, 2) == (100 << 30) // (2 * 3)
    assert memory.of_a_batch(4, 2) == (100 << 30) // (2 * 13)
    assert memory.of_a_batch(4, 2, ranks=8) == 512 << 20  # at least
    section = penstock.compose("loader.num_workers=4", "loader.prefetch_factor=3").loader
    assert batch_bytes(section, 1) == (100 << 30) // (2 * 17)
    here = section.model_copy(update={"backend": "main"})
    assert batch_bytes(here, 1) == (100 << 30) // (2 * 3)


def test_sizes_in_words():
    assert Limits(batch_bytes="1.5 MiB").batch_bytes == 3 << 19
    assert Limits(batch_bytes="2GiB").batch_bytes == 2 << 30
    for wrong in ("2 GB", "many", "-1 GiB", "0 KiB", True, 0, 1.5):
        with pytest.raises(ValueError, match="batch_bytes"):
            Limits(batch_bytes=wrong)


def test_a_run_ends_with_exit_code_3(tmp_path, capsys):
    np.save(tmp_path / "inputs.npy", np.zeros((64, 1 << 16), np.float32))
    np.save(tmp_path / "targets.npy", np.zeros(64, np.int64))
    options = ["dataset=arrays", f"dataset.root={tmp_path}", "transform=none", "batch.size=51"]
    limits = ["limits.batch_bytes=1 MiB", "bad_samples.on_error=skip", "model=linear"]
    outcome = run(capsys, "task=digest", "steps=1", *options, *limits)
    assert outcome.code == 3, outcome.err
    assert "limits.batch_bytes=1048576 allows for one batch" in outcome.err
    assert "Traceback" not in outcome.err
