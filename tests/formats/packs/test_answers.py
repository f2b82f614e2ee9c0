"""A pack answers as its dataset: every optional member, and every order of its rows."""

import numpy as np
import pandas as pd
import pytest

import penstock
from penstock.addons.packs.folder import Packed
from penstock.addons.packs.packing import Recipe, pack
from penstock.build.data import DataParts
from penstock.errors import PenstockError
from penstock.loading.bad_samples import path_of
from penstock.loading.batch import batch_hash
from penstock.loading.facts import (
    classes_of,
    columns_of,
    facts_of,
    table_of,
)
from penstock.loading.workers.executors import LoaderOptions
from tests.support.face_folder import write_faces
from tests.support.pack_files import write_images
from tests.support.program import run
from tests.support.token_pairs import write_pair

TEXTS = ["transform.train.tokenize.kind=bytes", "transform.train.tokenize.size=258"]


class Told:
    """Rows of a person's own, with members that no dataset of ours has together."""

    draws = False

    def __init__(self, split="train"):
        self.fingerprint = f"told {split}"
        self.targets = [row % 3 for row in range(30)]
        self.num_classes = 5
        self.lengths = np.arange(30, dtype=np.uint16)[::-1]

    def __len__(self):
        return 30

    def __getitem__(self, row):
        return {"text": "b" * (row % 7), "label": row % 3}

    def path(self, row):
        return f"shelf/{row // 2}.txt"

    def text_lengths(self, length, name):
        return np.array([length(self[row]["text"]) for row in range(30)], np.int32)


def write_messages(root):
    root.mkdir()
    rows = [f"{('ham', 'spam')[row % 3 == 0]}\t{'a b' * (row * 7 % 11)}é" for row in range(40)]
    (root / "messages.tsv").write_text("label\ttext\n" + "\n".join(rows) + "\n")
    return [f"dataset.root={root}/messages.tsv", *TEXTS]


def write_texts(root):
    root.mkdir()
    for number in range(12):
        (root / f"{number}.txt").write_text("é\n\f".join("word " * n for n in range(1, 6)))
    return [f"dataset.root={root}", "data.split.val=0.3", "transform=text", *TEXTS]


def write_arrays(root):
    root.mkdir()
    np.save(root / "inputs.npy", np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32))
    np.save(root / "targets.npy", np.arange(40) % 4)
    return [f"dataset.root={root}"]


def write_tokens(root):
    draw = np.random.default_rng(0)
    sequences = [draw.integers(0, 50, size).tolist() for size in draw.integers(1, 30, 40)]
    write_pair(root, sequences=sequences, documents=[0, 40])
    return [f"dataset.root={root}", "data.split.val=0.2", "dataset.vocab_size=50"]


def write_sequences(root):
    root.mkdir()
    sizes = 1 + np.arange(40) * 5 % 9
    np.save(root / "values.npy", np.zeros((sizes.sum(), 2), np.float32))
    np.save(root / "offsets.npy", np.concatenate([[0], np.cumsum(sizes)]))
    np.save(root / "labels.npy", np.arange(40) % 3)
    return [f"dataset.root={root}"]


def write_recordings(root):
    soundfile = pytest.importorskip("soundfile")
    (root / "recordings").mkdir(parents=True)
    for number in range(24):
        path = root / "recordings" / f"{number % 3}_bob_{number // 3}.wav"
        soundfile.write(path, np.sin(np.arange(400 + 40 * number)) / 2, 8000)
    return [f"dataset.root={root}", "dataset.val_takes=2"]


def write_table(root):
    pytest.importorskip("pyarrow")
    from tests.support.table_files import make, write

    write(root / "rows.parquet", make(40))
    return [
        f"dataset.root={root}",
        "dataset.fields={image: null, label: null, text: null}",
        "transform.train={}",
        "transform.val={}",
        "collate=list",
    ]


DATASETS = {
    "sequences": lambda root: [],
    "synthetic_faces": lambda root: ["dataset.count=30"],
    "arrays": write_arrays,
    "image_folder": lambda root: [f"dataset.root={write_images(root)}"],
    "face_landmarks": lambda root: [f"dataset.root={write_faces(root)}"],
    "delimited_text": write_messages,
    "plain_text": write_texts,
    "token_files": write_tokens,
    "sequence_files": write_sequences,
    "spoken_digits": write_recordings,
    "parquet": write_table,
}
SAMPLERS = {
    "random": [],
    "sequential": [],
    "subset": [],
    "weighted": [],
    "repeated": [],
    "bucket": [],
    "curriculum": [],
    "identity": ["sampler.identities=2", "sampler.samples=2"],
    "packed": ["collate=packed", "sampler.tokens=40"],
}


@pytest.fixture(scope="module", params=DATASETS)
def words(request, tmp_path_factory):
    """What names one of our datasets on a command line."""
    folder = tmp_path_factory.mktemp("answers")
    return [
        f"dataset={request.param}",
        "loader=debug",
        f"cache_dir={folder}/cache",
        *DATASETS[request.param](folder / "data"),
    ]


def of(words, *more):
    return DataParts(penstock.compose(*words, *more))


def same_answers(dataset, packed):
    assert (facts_of(packed), classes_of(packed)) == (facts_of(dataset), classes_of(dataset))
    assert packed.fingerprint == dataset.fingerprint
    tables = table_of(dataset), table_of(packed)
    if tables[0] is not None:
        pd.testing.assert_frame_equal(tables[1][[*tables[0]]], tables[0])
    lengths = columns_of(dataset).get("length")
    if lengths is not None:
        assert np.array_equal(tables[1]["length"], lengths)
    if callable(getattr(dataset, "text_lengths", None)):
        assert [*map(len, tables[1]["text"])] == dataset.text_lengths(len, "characters").tolist()
    assert [path_of(packed, row) for row in range(9)] == [path_of(dataset, row) for row in range(9)]


@pytest.mark.one_in(13)
@pytest.mark.parametrize("split", ["train", "val"])
def test_a_pack_answers_as_its_dataset(words, split):
    dataset, packed = (getattr(of(words, *more), split).dataset for more in ([], [AUTO]))
    assert type(packed).__name__ == "Packed"
    same_answers(dataset, packed)


AUTO = "data.packed=auto"


def order(words, *more):
    """Positions and rows of two epochs, and hashes of the first batches; or the refusal."""
    try:
        split = of(words, *more).train
        plan, fetch = split.plan, split.fetch(hashed=True)
        requests = [plan.request(e, s) for e in range(2) for s in range(plan.steps(e))]
        rows = [(one.positions.tolist(), one.indices.tolist()) for one in requests]
        return rows, [batch_hash([fetch(one)]) for one in requests[:2]]
    except PenstockError as error:
        return str(error)


@pytest.mark.one_in(53)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_sampler_reads_the_same_rows_of_it(words, sampler):
    more = [f"sampler={sampler}", "batch.size=4", *SAMPLERS[sampler]]
    assert order(words, *more, AUTO) == order(words, *more)


def packed(dataset, tmp_path):
    folder = pack(dataset, "train", Recipe(), tmp_path, options=LoaderOptions())
    return Packed(str(folder))


def test_so_does_that_of_a_persons_own_dataset(tmp_path):
    same_answers(Told(), packed(Told(), tmp_path))


@pytest.mark.thorough
def test_a_filter_of_a_pack_answers_as_that_of_the_dataset(tmp_path):
    words = ["dataset=delimited_text", f"cache_dir={tmp_path}/cache", "loader=debug"]
    words += ["data.filter=length > 20", *write_messages(tmp_path / "data")]
    dataset, packed = (of(words, *more).train.dataset for more in ([], [AUTO]))
    assert len(packed) < 32
    same_answers(dataset, packed)


def test_a_pack_is_checked(tmp_path, capsys):
    images = "dataset=image_folder", f"dataset.root={write_images(tmp_path / 'data')}"
    done = run(capsys, *images, "task=check", AUTO, f"cache_dir={tmp_path}/cache")
    assert (done.code, done.out.splitlines()[0]) == (0, "12 samples, nothing wrong with them")
