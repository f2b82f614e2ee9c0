"""Token files, written here byte by byte, and read as they were written."""

import json
import pickle
import re
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock.addons.tokens.flatten import Flatten
from penstock.addons.tokens.token_files import TokenFiles
from penstock.build.data import DataParts
from penstock.datasets.reading.base import Shares
from penstock.errors import ConfigError, DataError, PenstockError
from tests.support.program import ROOT, run
from tests.support.token_pairs import CODES, DOCUMENTS, write_pair


def rows_of(data):
    return [data[index]["tokens"].tolist() for index in range(len(data))]


def read(folder, **options):
    return TokenFiles(str(folder), **{"shares": Shares(0.0), **options})


@pytest.mark.parametrize("kind", CODES)
@pytest.mark.parametrize("modes", [False, True])
def test_megatron_files_are_read_as_they_were_written(tmp_path, kind, modes):
    draw = np.random.default_rng(ord(kind[1]))
    limits = np.iinfo(kind)
    top = min(limits.max, 2**62)
    sequences = [draw.integers(limits.min, top, int(n)).tolist() for n in draw.integers(0, 40, 30)]
    data = read(write_pair(tmp_path / "a", "web", sequences, [0, 30], kind, modes))
    assert rows_of(data) == sequences
    assert data[0]["tokens"].dtype == torch.int64
    assert np.asarray(data.lengths).tolist() == [len(one) for one in sequences]
    chosen = [29, 3, 3, 0]
    many = [one["tokens"].tolist() for one in data.__getitems__(chosen)]
    assert many == [sequences[row] for row in chosen]


def test_several_files_are_one_dataset_and_travel_to_workers(tmp_path):
    folder = write_pair(tmp_path / "a")
    write_pair(folder, "books", [[4, 4], [6]], [0, 1, 2], "i4")
    np.save(folder / "code.npy", np.array([1, 2, 3, 0, 4, 0, 5], np.uint32))
    np.save(folder / "code.offsets.npy", np.array([0, 4, 6, 7]))
    (folder / "more.bin").write_bytes(np.array([8, 8, 70000], "<u4").tobytes())
    np.save(folder / "more.offsets.npy", np.array([0, 1, 3]))
    data = read(folder, dtype="uint32")
    rows = [[4, 4], [6], [1, 2, 3, 0], [4, 0], [5], [8], [8, 70000], *DOCUMENTS]
    assert rows_of(data) == rows
    assert [data.path(row).rpartition("/")[2] for row in (0, 2, 6, 12)] == [
        "books.bin",
        "code.npy",
        "more.bin",
        "web.bin",
    ]
    copy = pickle.loads(pickle.dumps(data))
    assert rows_of(copy) == rows
    assert len(pickle.dumps(data)) < 5000
    assert copy.fingerprint == data.fingerprint
    only = read(folder, tokens="*o*.bin", dtype="uint32")
    assert rows_of(only) == [*rows[:2], [8], [8, 70000]]
    assert only.fingerprint != data.fingerprint
    assert only.names_fingerprint() != data.names_fingerprint()
    assert len(list(data.data_files())) == 8
    assert rows_of(read(folder, tokens=["web.bin", "books.bin"])) == [*DOCUMENTS, *rows[:2]]


def test_offsets_say_where_documents_lie(tmp_path):
    tokens = np.arange(10, dtype=np.uint16)
    np.save(tmp_path / "a.npy", tokens)
    np.save(tmp_path / "a.offsets.npy", np.array([0, 3, 3, 10], np.uint64))
    data = read(tmp_path)
    assert rows_of(data) == [[0, 1, 2], [], [3, 4, 5, 6, 7, 8, 9]]
    into = np.full(9, -1)
    three = [np.array(one) for one in ([0, 4, 7], [2, 0, 1], [4, 1, 0], [7, 3, 0])]
    assert data.read_tokens(into, *three).tolist() == [7, 3, 0]  # tokens of the whole rows
    assert into.tolist() == [7, 8, 9, -1, 1, 2, -1, -1, -1]
    assert read(tmp_path, vocab_size=100).facts == {"vocab_size": 100}


def test_the_page_makes_offsets_of_tokens_that_end_documents(tmp_path, monkeypatch):
    (lines,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/text.md").read_text(), re.S)
    monkeypatch.chdir(tmp_path)
    np.array([7, 7, 50256, 50256, 7, 50256, 8], np.uint16).tofile("a.bin")
    exec(lines, {"np": np})
    assert rows_of(read(tmp_path, dtype="uint16")) == [[7, 7, 50256], [50256], [7, 50256], [8]]


def test_splits_are_chosen_or_lie_in_files_of_their_own(tmp_path):
    folder = write_pair(tmp_path / "a", "web", [[n] for n in range(50)], [0, 50])
    train, val = (read(folder, split=split, shares=Shares(0.1)) for split in ("train", "val"))
    assert (len(train), len(val)) == (45, 5)
    assert sorted(rows_of(train) + rows_of(val)) == [[n] for n in range(50)]
    assert np.asarray(val.lengths).tolist() == [1] * 5
    write_pair(folder, "books", [[1, 2]], [0, 1])
    own = {"tokens": "web.bin", "val_tokens": "books.bin", "shares": Shares(0.1)}
    assert rows_of(read(folder, split="val", **own)) == [[1, 2]]
    assert len(read(folder, split="train", **own)) == 50


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        ((0, 1), b"X", "begins with b'XMIDIDX"),
        ((9, 17), struct.pack("<Q", 2), "its version is 2"),
        ((17, 18), b"\x07", "type of its tokens 7"),
        ((18, 26), struct.pack("<Q", 2**63), "9223372036854775808 sequences"),
        ((26, 34), struct.pack("<Q", 9), "9 entries of documents"),
        ((34, 38), struct.pack("<i", -3), r"web\.bin', row 0 of the file: .* tokens 0 to -3"),
        ((38, 42), struct.pack("<i", 2**31 - 1), r"row 1 of the file: .* the file has 11"),
        ((58, 66), struct.pack("<q", 2**62), "row 0 of the file"),
        ((58, 66), struct.pack("<q", 1), "row 0 of the file"),  # inside of a token
        ((58, 66), struct.pack("<q", -8), "row 0 of the file"),
    ],
)
def test_damaged_indexes_are_refused(tmp_path, where, value, message):
    index = write_pair(tmp_path / "a") / "web.idx"
    content = bytearray(index.read_bytes())
    content[slice(*where)] = value
    index.write_bytes(content)
    with pytest.raises(DataError, match=message):
        rows_of(read(tmp_path / "a"))


def test_what_is_missing_or_wrong_is_named(tmp_path):
    folder = tmp_path / "a"
    folder.mkdir()
    with pytest.raises(DataError, match=r"dataset\.tokens: there is no \.bin or \.npy file"):
        read(folder)
    (folder / "x.bin").write_bytes(b"12345")
    with pytest.raises(ConfigError, match=r"dataset\.dtype: None is no .*has no header"):
        read(folder)
    with pytest.raises(ConfigError, match=r"dataset\.dtype: 'float32' is no type of tokens"):
        read(folder, dtype="float32")
    with pytest.raises(DataError, match="has 5 bytes, no multiple of the 2 bytes"):
        read(folder, dtype="uint16")
    with pytest.raises(DataError, match=r"nothing says where documents end"):
        read(folder, dtype="uint8")
    np.save(folder / "x.offsets.npy", np.array([0, 6]))
    with pytest.raises(DataError, match=r"bounds \[0, 6\], and '.*x\.bin' 5 tokens"):
        read(folder, dtype="uint8")
    np.save(folder / "x.offsets.npy", np.array([0, 4, 2, 5]))
    with pytest.raises(DataError, match="row 1 of the file: its index places it at tokens 4 to 2"):
        rows_of(read(folder, dtype="uint8"))
    np.save(folder / "x.offsets.npy", np.array([0, 5]))
    with pytest.raises(DataError, match=r"has the token 53, and dataset\.vocab_size=53"):
        rows_of(read(folder, dtype="uint8", vocab_size=53))
    np.save(folder / "x.offsets.npy", np.array([0.0, 5.0]))
    with pytest.raises(DataError, match=r"x\.offsets\.npy' cannot be read: it is float64"):
        read(folder, dtype="uint8")


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_no_damage_does_more_than_a_message(tmp_path_factory, data):
    folder = write_pair(tmp_path_factory.mktemp("hurt"), modes=data.draw(st.booleans()))
    victim = folder / data.draw(st.sampled_from(["web.idx", "web.idx", "web.bin"]))
    content = bytearray(victim.read_bytes())
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content)))]
    else:
        for _ in range(data.draw(st.integers(1, 3))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    victim.write_bytes(content)
    try:
        found = rows_of(read(folder))
    except PenstockError:
        return
    assert sum(map(len, found)) <= 20 * 11  # nothing that the file does not have


def batches_of(folder, *overrides, hashed=False):
    config = penstock.compose(
        "dataset=token_files",
        f"dataset.root={folder}",
        "data.split.val=0.0",
        "sampler.tokens=12",
        "sampler.window=8",
        "batch.size=2",
        "loader=debug",
        f"cache_dir={folder.parent / 'cache'}",
        *overrides,
    )
    with DataParts(config).train.loader(hashed) as loader:
        return [dict(batch.items()) for batch in loader]


def test_a_model_is_trained_on_tokens_without_a_text(tmp_path, capsys):
    draw = np.random.default_rng(2)
    sequences = [draw.integers(0, 99, int(n)).tolist() for n in draw.integers(8, 40, 60)]
    write_pair(tmp_path / "a", "web", sequences, [0, 60])
    words = ["dataset=token_files", f"dataset.root={tmp_path / 'a'}", "dataset.vocab_size=99"]
    words += ["model=language_model", "model.width=16", "model.layers=1", "model.heads=2"]
    words += ["objective=language_modeling", "objective.metrics={}", "sampler.tokens=32"]
    words += ["collate.labels=true", "batch.size=2", "trainer.max_epochs=1", "loader=debug"]
    words += ["tracker=none", f"run_dir={tmp_path / 'run'}"]
    assert run(capsys, *words).code == 0
    last = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[-1])
    assert 0 < last["val/loss"] < 10


def test_rows_that_a_filter_keeps_are_packed(tmp_path):
    sequences = [[number] * (number % 7 + 3) for number in range(40)]
    folder = write_pair(tmp_path / "a", "web", sequences, [0, 40])
    packed = ["transform=none", "sampler=packed", "collate=packed"]
    batches = batches_of(folder, *packed, 'data.filter="length < 6"')
    kept = {number for number in range(40) if number % 7 + 3 < 6}
    assert set(np.concatenate([batch["tokens"].flatten() for batch in batches]).tolist()) == kept


def same(ours, theirs):
    assert len(ours) == len(theirs) > 2
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.keys() == other.keys()
        for name, value in mine.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(other[name])), name


@pytest.mark.one_in(4)
@pytest.mark.parametrize("split", ["never", "tail"])
@pytest.mark.parametrize("padding", [["collate.pad_to=12", "collate.value=7"], []])
def test_batches_read_into_place_are_those_of_their_samples(tmp_path, split, padding):
    draw = np.random.default_rng(1)
    sequences = [draw.integers(0, 99, int(n)).tolist() for n in draw.integers(0, 20, 40)]
    folder = write_pair(tmp_path / "a", "web", sequences[:25], [0, 25])
    write_pair(folder, "books", sequences[25:], [0, 15], "i4")
    options = [f"sampler.split={split}", "collate.labels=true", *padding]
    options += ["dataset.vocab_size=99"] if split == "never" else []
    placed = batches_of(folder, *options)
    read = sum(int((batch["document_ids"] >= 0).sum()) for batch in placed)
    assert read == sum(map(len, sequences))
    same(placed, batches_of(folder, *options, "loader=threads"))
    same(placed, batches_of(folder, *options, hashed=True))  # which reads sample by sample


def test_a_row_that_cannot_be_read_into_place_is_named_or_left_out(tmp_path):
    folder = write_pair(tmp_path / "a", "web", [[n] * 5 for n in range(8)], [0, 8])
    with pytest.raises(DataError, match=r"sample 7.*has the token 7, and dataset\.vocab_size=7"):
        batches_of(folder, "dataset.vocab_size=7")
    (whole,) = batches_of(folder, "batch.size=8")
    (left,) = batches_of(
        folder, "batch.size=8", "dataset.vocab_size=7", "bad_samples.on_error=skip"
    )
    assert sorted(set(whole["tokens"].tolist()) - set(left["tokens"].tolist())) == [7]


def test_generators_stand_where_they_stood(tmp_path):
    folder = write_pair(tmp_path / "a")
    torch.manual_seed(3)
    before = torch.get_rng_state()
    batches_of(folder)
    assert torch.equal(before, torch.get_rng_state())


def test_numbers_that_are_not_aligned_are_read(tmp_path):
    """A header may have any length."""
    content = np.arange(10, dtype="<u2").tobytes()
    words = b"{'descr': '<u2', 'fortran_order': False, 'shape': (10,)}\n"
    header = b"\x93NUMPY\x01\x00" + len(words).to_bytes(2, "little") + words
    (tmp_path / "a").mkdir()
    (tmp_path / "a/x.npy").write_bytes(header + content)
    np.save(tmp_path / "a/x.offsets.npy", [0, 4, 10])
    data = read(tmp_path / "a")
    assert rows_of(data) == [[0, 1, 2, 3], [4, 5, 6, 7, 8, 9]]
    assert Flatten().read(data, np.arange(2), None)["tokens"].tolist() == list(range(10))
