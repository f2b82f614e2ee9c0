"""Swaps by name: every dataset with every collate function, transform and sampler."""

from pathlib import Path

import numpy as np
import pytest
import yaml

import penstock
from penstock.addons.packs.packing import pack_of
from penstock.build.data import DataParts
from tests.config.test_conf import CONF
from tests.datasets import test_peoples_datasets as people
from tests.face_folder import write_faces
from tests.tokens.test_token_files import write_pair

GROUPS = ("collate", "transform", "sampler")
ONE = ["loader=debug", "batch.size=4", "task=digest"]
NAMED = {"identity": {"identities": 2, "samples": 2}, "subset": {"fraction": 1.0}}


def audio_pairs(folder):
    import soundfile

    for row in range(10):
        values = np.random.default_rng(row).uniform(-0.5, 0.5, (1, 800 + 50 * row))
        soundfile.write(folder / f"{row}.wav", values[0], 8000)
        np.save(folder / f"{row}.npy", values.astype(np.float32))
    return [f"dataset.root={folder}"]


def faces(folder):
    return [f"dataset.root={folder}", "dataset.count=12", "dataset.size=32"]


def landmarks(folder):
    return [f"dataset.root={write_faces(folder)}"]


def mixture(folder):
    drawn = [
        f"dataset.sources.drawn.root={folder}/drawn",
        "+dataset.sources.drawn.count=12",
        "+dataset.sources.drawn.size=32",
    ]
    return [*drawn, f"dataset.sources.photographs.root={write_faces(folder / 'photographs')}"]


def packed(folder):
    found = run_pack(folder)
    return [f"dataset.folder={found}"]


def run_pack(folder):
    (folder / "images").mkdir()
    (folder / "images" / "x").mkdir()
    people.classes(folder / "images")
    (folder / "images" / "x").rmdir()
    common = ["dataset=image_folder", f"dataset.root={folder}/images", f"cache_dir={folder}/cache"]
    for split in ("train", "val"):
        config = penstock.compose(*common, "pack.size=20", f"pack.out={folder}/packs", *ONE)
        pack_of(getattr(DataParts(config), split))
    return folder / "packs"


def texts(folder):
    for row in range(20):
        (folder / f"{row}.txt").write_text(f"the text number {row} " * (1 + row))
    return [f"dataset.root={folder}", "transform.train.tokenize.size=300"]


def tokens(folder):
    write_pair(folder)
    return [f"dataset.root={folder}", "dataset.val_fraction=0.5"]


def stream(folder):
    people.csv(folder)
    return [f"dataset.root={folder}/texts.csv", "dataset.classes=[a,b]"]


def of(make):
    """The overrides of a dataset's files without its company."""
    return lambda folder: [one for one in make(folder) if one.startswith("dataset.")]


def saved(folder):
    """A folder of Hugging Face's `datasets`."""
    made = of(people.parquet)(folder)
    root = next(one.partition("=")[2] for one in made if one.startswith("dataset.root="))
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_parquet([*map(str, Path(root).rglob("*.parquet"))]).save_to_disk(
        f"{folder}/saved"
    )
    return [one for one in made if "root=" not in one] + [f"dataset.root={folder}/saved"]


MAKERS = {
    "arrays": of(people.npy),
    "audio_pairs": audio_pairs,
    "delimited_stream": stream,
    "delimited_text": of(people.csv),
    "face_landmarks": landmarks,
    "huggingface": saved,
    "image_folder": of(people.image_folder),
    "indexed_tars": of(people.web_dataset),
    "mixture": mixture,
    "packed": packed,
    "parquet": of(people.parquet),
    "parquet_stream": of(people.parquet),
    "plain_text": texts,
    "sequence_files": of(people.sequences),
    "sequences": lambda folder: [f"dataset.root={folder}", "dataset.count=20"],
    "spoken_digits": of(people.audio),
    "synthetic_faces": faces,
    "tar_shards": of(people.web_dataset),
    "token_files": tokens,
    "torchvision": lambda folder: people.mnist(folder)[1:],
}
# Whose own tests read them with workers and threads, with the company that they bring.
OF_ADD_ONS = {
    "clip_table",
    "coco",
    "drawn_captions",
    "drawn_labels",
    "drawn_masks",
    "drawn_motions",
    "drawn_scenes",
    "drawn_series",
    "drawn_shapes",
    "drawn_table",
    "image_masks",
    "image_table",
    "table",
    "video_clips",
    "windows",
}


def test_no_dataset_is_forgotten():
    names = {path.stem for path in (CONF / "dataset").glob("*.yaml")}
    assert names - OF_ADD_ONS == set(MAKERS)


@pytest.fixture(scope="module")
def choices():
    """Group, name and section of every choice, as hydra composes it."""
    found = []
    for group in GROUPS:
        for path in sorted((CONF / group).glob("*.yaml")):
            section = yaml.safe_load(path.read_text())
            if group == "transform":
                section = vars(penstock.compose("task=digest", f"transform={path.stem}").transform)
            found.append((group, path.stem, section | NAMED.get(path.stem, {})))
    return found


@pytest.mark.parametrize("options", [["collate=list"], ["transform=none"], ["collate=pad"]])
def test_texts_can_be_swapped(options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = penstock.compose("dataset=delimited_text", *of(people.csv)(tmp_path), *ONE, *options)
    with DataParts(config).train.loader() as loader:
        batch = next(iter(loader))
    assert isinstance(batch["text"], list)
    assert isinstance(batch["label"], list) == (options == ["collate=list"])


def test_a_file_of_another_collate_function_never_remains():
    """A dataset sets no argument of a group that somebody may swap."""
    for path in (CONF / "dataset").glob("*.yaml"):
        tree = yaml.safe_load(path.read_text())
        assert not {"collate", "sampler", "model"} & set(tree), path.name


# hydra's name for the folder of a run


def test_hydras_folder_in_a_file_is_the_runs(tmp_path):
    (tmp_path / "experiment").mkdir()
    text = "# @package _global_\nhydra: {run: {dir: 'filed/${hydra.job.name}'}}\n"
    (tmp_path / "experiment/filed.yaml").write_text(text)
    words = ["experiment=filed", "hydra.job.name=mine"]
    assert penstock.compose(*words, config_dir=str(tmp_path)).run_dir == "filed/mine"
    assert penstock.compose(*words, "run_dir=x", config_dir=str(tmp_path)).run_dir == "x"
