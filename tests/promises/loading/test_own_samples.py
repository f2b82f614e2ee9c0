"""Samples that are no dicts: named once, and every part of a run takes them."""

import shutil
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import tv_tensors

import penstock
from penstock.build.data import DataParts
from penstock.build.training import TrainingParts
from penstock.errors import ConfigError, DataError
from penstock.loading.facts import Fields, restorer
from penstock.tasks.digest import lines
from penstock.transforms.statistics import statistics_of
from tests.support import peoples_data
from tests.support.peoples_data import Point
from tests.support.program import run


@pytest.fixture
def people(tmp_path, monkeypatch):
    """The overrides of a run on a package of a person's own, in an empty folder."""
    (tmp_path / "package" / "people").mkdir(parents=True)
    shutil.copy(peoples_data.__file__, tmp_path / "package" / "people" / "__init__.py")
    monkeypatch.syspath_prepend(str(tmp_path / "package"))
    monkeypatch.setenv("PENSTOCK_TRUST", "people")
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("people", None)


def own(name, *more, objective="classification"):
    """Overrides for a dataset of that package, by a linear model."""
    facts = "data.facts={num_features: 4, num_classes: 3, num_outputs: 3}"
    return [
        "~dataset",
        f"+dataset={{_target_: people.{name}}}",
        facts,
        "transform=none",
        "model=linear",
        f"objective={objective}",
        "objective.inputs=[input]",
        "batch.size=8",
        "loader=debug",
        "scheduler=none",
        "tracker=none",
        "trainer.progress=none",
        "trainer.pictures=false",
        *more,
    ]


def batches(*overrides):
    with DataParts(penstock.compose(*overrides)).train.loader() as loader:
        return list(loader)


# One sample


@pytest.mark.parametrize(
    ("sample", "fields", "expected"),
    [
        ((1, 2), None, {"input": 1, "target": 2}),
        ([1, 2], ["a", "b"], {"a": 1, "b": 2}),
        ((1, 2, 3, 4), None, {"input": 1, "target": 2, "field_2": 3, "field_3": 4}),
        (7, None, {"input": 7}),
        ("seven", ["text"], {"text": "seven"}),
        ((1, 2, 3), ["tokens"], {"tokens": (1, 2, 3)}),
        ((1,), ["x"], {"x": 1}),
        (Point(1, 2), None, {"input": 1, "label": 2}),
        ({"x": 1}, ["a"], {"x": 1}),
    ],
)
def test_a_sample_becomes_named_fields(sample, fields, expected):
    assert Fields(fields).named(sample) == expected


def test_a_list_with_one_name_is_given_back_whole():
    tokens = [5, 6, 7]
    named = Fields(["tokens"]).named(tokens)
    assert restorer(tokens)(named) == tokens


def test_what_transforms_have_added_comes_after_it():
    assert restorer((1, 2))({"input": 1, "target": 2, "tokens": 3}) == (1, 2, 3)
    assert restorer(7)({"input": 7, "tokens": 3}) == (7, 3)
    assert restorer(Point(1, 2))({"input": 1, "x": 3}) == {"input": 1, "x": 3}


def test_another_number_of_positions_than_names_is_refused():
    with pytest.raises(DataError, match=r"3 positions, and data.fields .* names 2 \(a, b\)"):
        Fields(["a", "b"]).named((1, 2, 3))
    with pytest.raises(DataError, match="the sample is None; a dataset gives a dict, a tuple"):
        Fields().named(None)


@pytest.mark.parametrize(
    ("mode", "channels"), [("L", 1), ("RGB", 3), ("P", 3), ("RGBA", 3), ("CMYK", 3), ("1", 3)]
)
def test_a_picture_becomes_pixels(mode, channels):
    picture = Image.fromarray(np.full((5, 7, 3), 200, dtype=np.uint8)).convert(mode)
    found = Fields().named((picture, 1))["input"]
    assert isinstance(found, tv_tensors.Image)
    assert (found.dtype, found.shape) == (torch.uint8, (channels, 5, 7))


# In a configured run


def test_names_come_from_the_objective_or_from_the_dataset(people):
    assert list(batches(*own("Rows"))[0]) == ["input", "label"]
    assert list(batches(*own("Rows", "objective.inputs=[image]"))[0]) == ["image", "label"]
    named = own("Rows", "data.fields=[x, y]", "objective.inputs=[x]", "objective.target=y")
    first = batches(*named)[0]
    assert list(first) == ["x", "y"]
    assert first["x"].shape == (8, 4)


@pytest.mark.one_in(9)
@pytest.mark.parametrize("name", ["Rows", "Labelled", "Lists", "Named", "AtOnce"])
@pytest.mark.parametrize(
    "loader", ["loader=debug", "loader.num_workers=2", "loader=threads"], ids=lambda one: one
)
def test_every_backend_gives_the_same_batches(people, name, loader):
    if loader != "loader=debug" and name not in ("Rows", "AtOnce"):
        loader = "loader.backend=thread"
    config = penstock.compose(*own(name, "task=digest", loader), *_two(loader))
    expected = penstock.compose(*own("Rows", "task=digest"))
    assert list(lines(config)) == list(lines(expected))


def _two(loader):
    return ["loader.num_workers=2"] if loader == "loader.backend=thread" else []


_stream = ["sampler=stream", "sampler.buffer=4"]


def test_a_function_that_gives_a_generator_is_called_in_every_epoch(people):
    words = ["task=digest", "epoch=1", *_stream]
    expected = list(lines(penstock.compose(*own("generated", *words))))
    assert list(lines(penstock.compose(*own("made", *words)))) == expected


def test_a_none_is_reported_with_its_row(people, capsys):
    found = run(capsys, *own("WithNone", "sampler=sequential"))
    assert found.code == 3
    assert "sample 0 (epoch 0, step 0, position 0): the sample is None" in found.err
    assert "Traceback" not in found.err


def test_fields_stays_an_argument_where_a_dataset_takes_it():
    config = penstock.compose("dataset=parquet", "dataset.root=x", "dataset.fields={x: a}")
    assert config.dataset["fields"] == {"x": "a"}


# Everything that stands behind


@pytest.mark.one_in(4)
@pytest.mark.parametrize("sampler", ["weighted", "identity"])
@pytest.mark.parametrize("name", ["Labelled", "tensors"])
def test_samplers_read_labels(people, name, sampler):
    more = ["sampler.identities=3", "sampler.samples=2"] if sampler == "identity" else []
    labels = batches(*own(name, f"sampler={sampler}", *more))[0]["label"]
    assert set(labels.tolist()) == {0, 1, 2}


def test_a_dataset_without_labels_learns_how_to_say_them(people):
    with pytest.raises(ConfigError, match="has no column 'label'; it has no metadata") as refused:
        batches(*own("Rows", "sampler=weighted"))
    assert "`targets`" in str(refused.value)


class Pictures:
    """Pillow pictures with labels."""

    def __len__(self):
        return 4

    def __getitem__(self, row):
        return Image.new("RGB", (6, 5), (row * 10, 100, 0)), row % 2


def test_statistics_of_pictures(tmp_path):
    found = statistics_of(Pictures(), tmp_path)
    assert found["mean"] == pytest.approx([15 / 255, 100 / 255, 0])
    assert not list(tmp_path.iterdir())  # nobody could tell whose they are


def test_a_metric_that_is_null_is_left_out(faces):
    config = penstock.compose("objective.metrics.nme=null", *faces)
    assert TrainingParts(config).objective().metrics == {}
    with pytest.raises(ConfigError, match="the objective measures no 'nme'; it has loss"):
        penstock.compose("objective.metrics.nme=null", "trainer.monitor=nme")


# What torch's datasets tell


@pytest.mark.parametrize(
    ("told", "outputs"),
    [("num_classes: 3", 3), ("num_classes: 5", 5), ("num_classes: 3, num_outputs: 7", 7)],
)
def test_the_number_of_classes_is_that_of_outputs_unless_it_is_given(people, told, outputs):
    """Of data that tells nothing, and of some whose classes were counted."""
    for name in ("Rows", "tensors"):
        bare = [one for one in own(name) if "facts" not in one]
        config = penstock.compose(*bare, f"data.facts={{{told}, num_features: 4}}")
        assert DataParts(config).facts["num_outputs"] == outputs


def test_facts_of_a_configured_tensor_dataset_reach_the_model(people):
    bare = [one for one in own("tensors") if "facts" not in one]
    model = TrainingParts(penstock.compose(*bare)).model()
    assert (model.in_features, model.out_features) == (4, 3)


# A person's collate function


@pytest.mark.parametrize("name", ["as_tuple", "as_dict", "collating, kind: dict"])
def test_a_collate_function_gets_samples_as_they_are(people, name):
    expected = batches(*own("Rows"))
    for ours, theirs in zip(
        expected, batches(*own("Rows", f"collate={{_target_: people.{name}}}")), strict=True
    ):
        assert torch.equal(ours["input"], theirs["input"])
        assert torch.equal(ours["label"], theirs["label"])
        assert ours.positions.tolist() == theirs.positions.tolist()


def test_what_it_returns_is_named_by_position(people, capsys):
    rest = [one for one in own("Uneven") if "model" not in one and "inputs" not in one]
    rest.append("collate={_target_: people.padded}")
    named = [*rest, "data.batch_fields=[input, lengths, label]"]
    named += ["~model", "+model={_target_: people.Summed}", "objective.inputs=[input, lengths]"]
    assert list(batches(*named)[0]) == ["input", "lengths", "label"]
    found = run(capsys, *named, "trainer.max_steps=1")
    assert found.code == 0, found.err
    found = run(capsys, *rest, "data.batch_fields=[input, lengths]", "task=digest")
    assert found.code == 3, found.err
    assert "has 3 positions, and data.fields or data.batch_fields names 2 (input, le" in found.err


# Without automatic batching


def test_a_sample_is_a_batch_of_one(people, capsys):
    first = batches(*own("Rows", "batch.size=null"))[0]
    assert first["input"].shape == (1, 4)
    found = run(capsys, *own("Rows", "batch.size=null", "trainer.max_steps=2", "run_dir=one"))
    assert found.code == 0, found.err


def test_and_a_collate_function_gets_the_sample_itself(people, capsys):
    common = own("Rows", "batch.size=null", "collate={_target_: people.one}")
    assert len(batches(*common)) == 24
    found = run(capsys, *common, "trainer.max_steps=2", "run_dir=one")
    assert found.code == 0, found.err
