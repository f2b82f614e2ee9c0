"""From a command line to a configuration, or to everything that is wrong with it at once."""

import subprocess
import threading
from pathlib import Path

import pytest
from omegaconf import Container, OmegaConf

import penstock
from penstock.config import compose
from penstock.errors import ConfigError

ROOT = Path(__file__).parents[3]


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder of groups of a person's own, for --config-dir, and their package trusted."""
    monkeypatch.setenv("PENSTOCK_TRUST", "tests")

    def write(name, text):
        path = tmp_path / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return str(tmp_path)

    return write


def refusals(*overrides, **options):
    with pytest.raises(ConfigError) as caught:
        penstock.compose(*overrides, **options)
    return {problem.key: problem.message for problem in caught.value.problems}


def only(key, *overrides, **options):
    found = refusals(*overrides, **options)
    assert list(found) == [key], found
    return found[key]


def test_the_default_composes_to_plain_values():
    config = penstock.compose("seed=3", "task=digest", "steps=2")
    assert (config.seed, config.task, config.steps) == (3, "digest", 2)
    assert config.transform.val["resize"]["size"] == [64, 64]
    assert type(config.transform.val["resize"]) is dict
    assert "$" not in str(config.model_dump())


TYPOS = [
    (
        "sampler=wieghted",
        "sampler",
        "Could not find 'sampler/wieghted' Available options in 'sampler': blocks bucket",
    ),
    ("sampler=wieghted", "sampler", "did you mean 'weighted'"),
    ("sampler=null", "sampler", "got null"),
    ("samplr=weighted", "samplr", "did you mean 'sampler'"),
    ("sampler@x=random", "", "Did you mean to override sampler"),
    ("samplr@x=random", "samplr", "unknown key"),
    ("sampler={fraction: 0.5}", "sampler.fraction", "fraction"),
    (
        "loader.num_worker=0",
        "loader.num_worker",
        "(did you mean 'loader.num_workers'?); to add one: '+loader.num_worker=0'",
    ),
    ("num_workers=0", "num_workers", "did you mean 'loader.num_workers'"),
    ("loader.num_workers.x=0", "loader.num_workers.x", "unknown key"),
    ("batch.siz=3", "batch.siz", "did you mean 'batch.size'"),
    ("+batch.siz=3", "batch.siz", "did you mean 'size'"),
    ("trainr.max_epochs=3", "trainr.max_epochs", "did you mean 'trainer.max_epochs'"),
    ("~loader.num_worker", "loader.num_worker", "did you mean 'loader.num_workers'"),
    ("~transform.train.flop", "transform.train.flop", "mean 'transform.train.flip'"),
    ("model.widht=3", "model.widht", "unknown key (did you mean 'model.width'?)"),
    (
        "+model.widht=3",
        "model.widht",
        "unknown argument of LandmarkNet 'widht' (did you mean "
        "'width'?); allowed: num_landmarks, width",
    ),
    ("model.sharpness=3", "model.sharpness", "to add one: '+model.sharpness=3'"),
    ("transform.train.resize.siz=3", "transform.train.resize.siz", "resize.size'?"),
    ("+transform.train.resize.siz=3", "transform.train.resize.siz", "Resize 'siz'"),
    ("+objective.loss.betta=3", "objective.loss.betta", "argument of SmoothL1Loss 'betta'"),
    ("+dataset.shares={val:0.1}", "dataset.shares", "unknown argument of SyntheticFaces 'shares'"),
    ("loader.num_workers=1.5", "loader.num_workers", "valid integer"),
    ("model.width=wide", "model.width", "a valid integer, got 'wide'"),
    ("optimizer.lr=fast", "optimizer.lr", "got 'fast', and not a value like 0.001"),
    ("scheduler=cosine scheduler.eta_min=x", "scheduler.eta_min", "not a value like 0.0"),
    ("dataset.reader=opencv", "dataset.reader", "'torchvision', 'pillow', 'skimage'"),
    ("model=3", "model", "got 3"),
    ("+model._recursive_=false", "model._recursive_", "parts get plain values"),
    ("+model._convert_=none", "model._convert_", "parts get plain values"),
    ("+model._partial_=1", "model._partial_", "a valid boolean, got 1"),
    ("+model._args_=3", "model._args_", "got 3"),
    (
        "model._target_=penstock.training.models.LandmarkNte",
        "model._target_",
        "did you mean 'LandmarkNet'",
    ),
    ("model._target_=torch.load", "model._target_", "may not be called from a configuration"),
    ("+transform.train.x={scale:1}", "transform.train.x", "has no _target_, only scale"),
    ("dataset.root=???", "dataset.root", "has no value yet; give it with dataset.root=..."),
    ("dataset.root=${nothing.there}", "dataset.root", "'nothing.there' not found"),
    (
        "~transform.train.resize",
        "transform.val.resize.size",
        "'transform.train.resize.size' not found",
    ),
    ("dataset=face_landmarks", "dataset.root", "has no value yet"),
    ("seed=1,2", "seed", "add -m to sweep over them, or write a list as seed=[a,b]"),
    ("x=[", "x=[", "cannot be parsed as key=value"),
    ("train", "train", "is no key=value, like batch.size=32"),
    ("train", "train", "; here that is task=fit"),
    ("hydra.job.chdri=true", "hydra.job.chdri", "did you mean 'hydra.job.chdir'"),
    ("hydra.job.chdir=3.5", "hydra.job.chdir", "not a valid bool"),
]


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("override", "key", "message"), TYPOS, ids=[t[0] for t in TYPOS])
def test_a_slip_is_named_with_the_nearest_right_name(override, key, message):
    assert message in only(key, "task=digest", override)


RANGES = [
    ("sampler=weighted sampler.num_samples=0", "greater than or equal to 1"),
    ("model.width=-3", "greater than or equal to 1"),
    ("sampler=bucket dataset=sequences sampler.num_buckets=0", "greater than or equal to 1"),
    ("sampler=identity sampler.identities=0", "greater than or equal to 1"),
    ("sampler=identity sampler.batches=-1", "greater than or equal to 1"),
    ("sampler=identity sampler.samples=true", "a valid integer, got true"),
    ("sampler=subset sampler.fraction=2", "less than or equal to 1"),
    ("sampler=subset sampler.indices=[1.5]", "a valid integer"),
    ("sampler=subset sampler.indices=[3,true]", "a valid integer"),
    ("sampler=subset sampler.indices=[100000000000000000000]", "less than or equal to 92233720"),
    ("data.split.seed=18446744073709551616", "less than or equal to 18446744073709551615"),
    ("dataset.count=9223372036854775808", "less than or equal to 9223372036854775807"),
    ("data.split.val=1.01", "less than or equal to 1"),
    ("seed=18446744073709551616", "less than or equal"),
    ("task=digest epoch=100000000000000000000000", "less than or equal"),
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("overrides", "message"), RANGES, ids=[words for words, _ in RANGES])
def test_a_number_outside_of_its_range_is_refused_with_the_range(overrides, message):
    *others, last = overrides.split()
    key = last.partition("=")[0].lstrip("+")
    assert message in only(key, "task=digest", *others, last)


def test_everything_wrong_of_a_phase_comes_at_once():
    words = ["sampler=wieghted", "x=[", "lodaer=fast", "loader.num_workers=1.5", "batch.size=0"]
    words += ["loader.prefetch_factor=0", "seed=1,2", "dataset.root=???", "trainer.mode=${no}"]
    keys = {word.partition("=")[0] for word in words} - {"x"} | {"x=["}
    assert set(refusals(*words)) == keys
    found = refusals("+model.foo=1", "optimizer._target_=os.system")
    assert {"model.foo", "optimizer._target_"} <= set(found)


def test_nothing_is_written_or_built(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    penstock.compose()
    refusals("batch.size=0")
    assert list(tmp_path.iterdir()) == []


def test_metrics_are_refused_by_name_also_where_nothing_is_measured():
    override = "+objective.metrics.x={_target_:torchmetrics.text.BERTScore}"
    assert "objective.metrics.x._target_" in refusals("task=fit", override)
    name = "+objective.metrics.x={_target_:torchmetric.Accuracy}"
    assert "objective.metrics.x._target_" in refusals("task=digest", name)


def test_a_part_of_a_persons_own_by_config_dir(own):
    folder = own(
        "dataset/mine",
        "# @package _global_\n"
        "defaults:\n  - override /transform: none\n  - override /model: linear\n"
        "  - override /objective: classification\n"
        "dataset: {_target_: tests.support.own_parts.Numbers, size: 20}\n"
        "objective: {inputs: [x]}\n",
    )
    config = penstock.compose("dataset=mine", config_dir=folder)
    assert config.dataset == {"_target_": "tests.support.own_parts.Numbers", "size": 20}
    assert config.objective["inputs"] == ["x"]
    assert config.transform.train == {}
    assert config.model["_target_"] == "torch.nn.Linear"
    found = only("dataset", "dataset=mien", config_dir=folder)
    assert "did you mean 'mine'" in found


def test_a_persons_own_arguments_are_checked_too(own):
    folder = own("model/mine", "_target_: tests.support.own_parts.Numbers\nsise: 3\n")
    found = refusals("model=mine", config_dir=folder)
    assert "did you mean 'size'" in found["model.sise"]


def test_the_order_of_defaults(own):
    """The command line beats an experiment, which beats a dataset, which beats config.yaml."""
    folder = own(
        "experiment/mine",
        "# @package _global_\n"
        "defaults:\n  - override /dataset: sequences\n  - override /model: linear\n"
        "seed: 7\ntrainer: {max_epochs: 2}\n",
    )
    config = penstock.compose("experiment=mine", config_dir=folder)
    assert config.collate["_target_"] == "penstock.loading.collate.Pad"
    assert config.model["_target_"] == "torch.nn.Linear"
    assert (config.seed, config.trainer.max_epochs) == (7, 2)
    config = penstock.compose("experiment=mine", "model=sequence_net", "seed=8", config_dir=folder)
    assert config.model["_target_"] == "penstock.training.models.SequenceNet"
    assert (config.seed, config.trainer.max_epochs) == (8, 2)


def test_a_second_tracker_that_would_replace_the_first_is_refused(own):
    text = "_target_: tests.support.own_parts.Holder\n"
    folder = own("tracker/mine", text)
    own(
        "experiment/both",
        "# @package _global_\ndefaults: [override /tracker: [tensorboard, mine]]\n",
    )
    for words in (["experiment=both"], ["tracker=[tensorboard,mine]"]):
        assert "begin each with # @package tracker." in only("tracker", *words, config_dir=folder)
    own("tracker/mine", f"# @package tracker.mine\n{text}")
    found = penstock.compose("experiment=both", config_dir=folder).tracker
    assert list(found) == ["tensorboard", "mine"]


def test_a_secret_of_the_environment_is_read_by_nobody_but_others(monkeypatch):
    monkeypatch.setenv("MY_API_KEY", "x")
    monkeypatch.setenv("DATA_ROOT", "data")
    assert "secret" in only("dataset.root", "dataset.root=${oc.env:MY_API_KEY}")
    assert penstock.compose("dataset.root=${oc.env:DATA_ROOT}").dataset["root"] == "data"
    other = OmegaConf.create({"a": "${oc.env:MY_API_KEY}"})
    assert other.a == "x", "OmegaConf is as it was for everybody else"
    found = only("dataset.trian", "dataset.root=${oc.env:DATA_ROOT}", "+dataset.trian=")
    assert "${" not in found


def test_a_search_path_and_a_group_in_another_package(own):
    folder = own("model/mine", "_target_: tests.support.own_parts.Holder\nscale: 3\n")
    words = [f"hydra.searchpath=[file://{folder}]", "model=mine"]
    assert penstock.compose(*words).model["scale"] == 3
    words += ["+model@model.inner=linear"]
    assert compose.load(words)[0].model.inner["_target_"] == "torch.nn.Linear"


def test_signs_before_keys():
    config = penstock.compose("+optimizer.eps=0.1", "++batch.size=8", "++dataset.count=40")
    assert (config.optimizer["eps"], config.batch.size, config.dataset["count"]) == (0.1, 8, 40)
    config = penstock.compose("~dataset.root", "~transform.train.flip", "task=digest")
    assert "root" not in config.dataset, "also what is null"
    assert "flip" not in config.transform.train
    assert "already" in only("batch.size", "+batch.size=8")


@pytest.mark.parametrize(("value", "count"), [("true", 1), ("3", 3)])
def test_a_trial_run_has_a_few_batches_and_no_checkpoint(value, count):
    words = [f"trainer.fast_dev_run={value}", "trainer.overfit_batches=2"]
    trainer = penstock.compose(*words).trainer
    assert (trainer.max_epochs, trainer.checkpoint, trainer.overfit_batches) == (1, None, None)
    assert trainer.limit_batches == {"train": count, "val": count}
    assert "-1" in only("trainer.fast_dev_run", "trainer.fast_dev_run=-1")


def pasted(message):
    """The word that bash makes of what a message suggests."""
    split = ["bash", "-c", f"printf '%s' {message.partition('quotes: ')[2]}"]
    return subprocess.run(split, capture_output=True, text=True, check=True).stdout


ODD = [
    "runs/lr=0.1,wd=0",
    "runs/epoch=3-step=100.ckpt",
    "my run (1)",
    "a[1]",
    "it's",
    "a#b",
    "!a=b",
]
ODD += ["runs/$HOME{x", "rüns/é", "a;b", 'a"b', "a`b=c", "C:\\a=b", "~x", "a&b", "length > 500"]


@pytest.mark.parametrize("text", ODD)
def test_text_that_is_not_of_hydras_grammar_is_text(text):
    assert penstock.compose(f"run_dir={text}", "task=digest").run_dir == text


@pytest.mark.parametrize("text", ["1e5", "null", ".5", "1_000", "12", "true", "-1"])
def test_a_text_that_hydra_reads_as_something_else_is_shown_in_quotes(text):
    message = only("run_dir", f"run_dir={text}")
    assert penstock.compose(pasted(message), "task=digest").run_dir == text


@pytest.mark.parametrize(
    "written",
    ["[no, yes]", "{0: on, 1: off}", "[~, 012, .5, 1_000, 1e5]", "\n    - no\n    - 2001-01-01"],
)
def test_a_text_that_yaml_reads_as_something_else_is_shown_as_written(written, own):
    lines = "# @package _global_\ndefaults: [image_masks, _self_]\ndataset:\n  root: x\n"
    folder = own("dataset/tissue", f"{lines}  classes: {written}\n")
    found = only("dataset.classes", "dataset=tissue", config_dir=folder)
    assert f"if it is text, it needs quotes: classes: {written}" in found


def test_threads_compose_side_by_side_and_omegaconf_stays_as_it_is():
    before = {owner: dict(vars(owner)) for owner in (OmegaConf, Container, type(OmegaConf))}
    words, found = [[f"seed={n}", f"model.width={4 + n}"] for n in range(3)], {}

    def work(n):
        found[n] = [penstock.compose(*words[n]) for _ in range(4)]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {n: {(c.seed, c.model["width"]) for c in made} for n, made in found.items()} == {
        n: {(n, 4 + n)} for n in range(3)
    }
    assert {owner: dict(vars(owner)) for owner in before} == before
