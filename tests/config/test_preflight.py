"""From a command line to a configuration, or to everything that is wrong with it at once."""

import pytest

import penstock
from penstock import seams
from penstock.config import preflight
from penstock.config.composition import Composer
from penstock.errors import ConfigError, DataError
from tests.program import run


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
    assert "$" not in str(config.plain())


TYPOS = [
    (
        "sampler=wieghted",
        "sampler",
        "has no 'wieghted' (did you mean 'weighted'?); choose one of blocks, bucket",
    ),
    ("sampler=null", "sampler", "got null, expected one of blocks, bucket"),
    ("scheduler=null", "scheduler", "to choose nothing: scheduler=none"),
    ("samplr=weighted", "samplr", "unknown key (did you mean 'sampler'?)"),
    ("sampler@x=random", "", "Could not override 'sampler@x'; Did you mean to override sampler"),
    ("samplr@x=random", "samplr", "unknown key"),
    (
        "loader.num_worker=0",
        "loader.num_worker",
        "unknown key 'num_worker' (did you mean 'num_workers'?); loader has backend, num_workers",
    ),
    ("num_workers=0", "num_workers", "unknown key (did you mean loader.num_workers?)"),
    ("loader.num_workers.x=0", "loader.num_workers.x", "unknown key 'x'"),
    ("batch.siz=3", "batch.siz", "did you mean 'size'"),
    ("+batch.siz=3", "batch.siz", "did you mean 'size'"),
    ("step=3", "step", "is a key of task=replay, and not of task=digest"),
    ("~loader.num_worker", "loader.num_worker", "did you mean 'num_workers'"),
    ("~transform.train.flop", "transform.train.flop", "did you mean 'flip'"),
    ("model.widht=3", "model.widht", "unknown key 'widht' (did you mean 'width'?); model has"),
    (
        "+model.widht=3",
        "model.widht",
        "unknown argument of LandmarkNet 'widht' (did you mean "
        "'width'?); allowed: num_landmarks, width",
    ),
    (
        "model.sharpness=3",
        "model.sharpness",
        "is not in the YAML, but LandmarkNet takes it: add it with +model.sharpness=...",
    ),
    ("transform.train.resize.antialis=3", "transform.train.resize.antialis", "mean 'antialias'"),
    ("+transform.train.resize.antialis=3", "transform.train.resize.antialis", "Resize 'antialis'"),
    ("+objective.loss.betta=3", "objective.loss.betta", "argument of SmoothL1Loss 'betta'"),
    ("loader.num_workers=1.5", "loader.num_workers", "got 1.5, expected a whole number"),
    ("optimizer.weight_decay=abc", "optimizer.weight_decay", "got 'abc', expected a number"),
    ("model.width=wide", "model.width", "got 'wide', expected a whole number"),
    ("dataset.reader=opencv", "dataset.reader", "expected torchvision | pillow | skimage"),
    ("transform.train.flip.p=[1]", "transform.train.flip.p", "expected a number"),
    ("model=3", "model", "got 3, expected one of audio_net"),
    ("+model._recursive_=false", "model._recursive_", "is not for configurations"),
    ("+model._convert_=none", "model._convert_", "is not for configurations"),
    ("+model._partial_=1", "model._partial_", "got 1, expected true | false"),
    ("+model._args_=3", "model._args_", "got 3, expected a list"),
    ("+model._args_=[1,2,3,4]", "model._args_", "4 positional arguments, but LandmarkNet takes 3"),
    (
        "model._target_=penstock.training.models.LandmarkNte",
        "model._target_",
        "did you mean 'LandmarkNet'",
    ),
    ("model._target_=torch.load", "model._target_", "may not be called from a configuration"),
    ("+transform.train.x={scale:1}", "transform.train.x", "has no _target_, only scale"),
    ("dataset.root=???", "dataset.root", "has no value yet; give it with dataset.root=..."),
    ("dataset.root=${nothing.there}", "dataset.root", "${nothing.there} leads nowhere"),
    ("~transform.train.resize", "transform.val.resize.size", "leads nowhere"),
    ("dataset=face_landmarks", "dataset.root", "has no value yet"),
    ("seed=1,2", "seed", "add -m to sweep over them, or write a list as seed=[a,b]"),
    ("x=[", "x=[", "cannot be parsed as key=value"),
    ("sampler", "sampler", "cannot be parsed as key=value"),
    ("hydra.job.chdri=true", "hydra.job.chdri", "did you mean 'chdir'"),
    ("hydra.job.chdir=3.5", "hydra.job.chdir", "not a valid bool"),
]


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("override", "key", "message"), TYPOS, ids=[t[0] for t in TYPOS])
def test_a_slip_is_named_with_the_nearest_right_name(override, key, message):
    assert message in only(key, "task=digest", override)


RANGES = [
    ("sampler=weighted sampler.num_samples=0", "a whole number of at least 1 or null"),
    ("sampler=weighted sampler.num_samples=-3", "a whole number of at least 1 or null"),
    ("sampler=bucket dataset=sequences sampler.num_buckets=0", "of at least 1 or null"),
    ("sampler=identity sampler.identities=0", "a whole number of at least 1"),
    ("sampler=identity sampler.batches=-1", "a whole number of at least 1 or null"),
    ("sampler=identity sampler.samples=true", "got true, expected a whole number of at least 1"),
    ("sampler=subset sampler.fraction=2", "a number of at least 0 and of at most 1 or null"),
    ("sampler=subset sampler.indices=[1.5]", "a list, each entry a whole number of at least 0"),
    ("sampler=subset sampler.indices=[3,true]", "a list, each entry a whole number of at least 0"),
    ("sampler=subset sampler.indices=[100000000000000000000]", "a list, each entry a whole"),
    ("dataset.split_seed=18446744073709551616", "of at least 0 that fits into 64 bits"),
    ("dataset.count=9223372036854775808", "of at least 1 that fits into 64 bits"),
    ("dataset.val_fraction=1.01", "a number of at least 0 and of at most 1"),
    ("seed=18446744073709551616", "a whole number of at least 0 that fits into 64 bits"),
    ("task=digest epoch=100000000000000000000000", "of at least 0 that fits into 64 bits"),
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("overrides", "message"), RANGES, ids=[words for words, _ in RANGES])
def test_a_number_outside_of_its_range_is_refused_with_the_range(overrides, message):
    *others, last = overrides.split()
    if last.startswith("dataset.split_seed"):
        last = f"+{last}"
    key = last.partition("=")[0].lstrip("+")
    assert message in only(key, "task=digest", *others, last)


def test_everything_wrong_comes_at_once():
    found = refusals(
        "sampler=wieghted",
        "x=[",
        "lodaer=fast",
        "loader.num_workers=1.5",
        "batch.size=0",
        "+model.foo=1",
        "optimizer._target_=os.system",
        "loader.prefetch_factor=0",
        "seed=1,2",
        "dataset.root=???",
        "scheduler.warmup=3",
    )
    assert set(found) == {
        "sampler",
        "x=[",
        "lodaer",
        "loader.num_workers",
        "batch.size",
        "model.foo",
        "optimizer._target_",
        "loader.prefetch_factor",
        "seed",
        "dataset.root",
        "scheduler.warmup",
    }


def test_nothing_is_written_or_built(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    penstock.compose()
    refusals("batch.size=0")
    assert list(tmp_path.iterdir()) == []


UNTRUSTED = [
    ("+model.inner={_target_:torch.hub.load,_args_:[x]}", "model.inner._target_"),
    ("+model.inner=[{a:{_target_:numpy.load}}]", "model.inner[0].a._target_"),
    ("+transform.train.x={_target_:os.system,_partial_:true}", "transform.train.x._target_"),
    ("+model._args_=[{_target_:builtins.open,file:x}]", "model._args_[0]._target_"),
    ("model._target_=${oc.decode:torch.load}", "model._target_"),
    ("model._target_=${oc.env:PENSTOCK_TEST_TARGET}", "model._target_"),
    ("sampler._target_=hydra.utils.call", "sampler._target_"),
    ("dataset._target_=pandas.read_pickle", "dataset._target_"),
    ("optimizer._target_=tests.own_parts.Holder", "optimizer._target_"),
    ("objective.loss._target_=torch.nn.functional.torch.load", "objective.loss._target_"),
    (
        "+objective.metrics.x={_target_:torchmetrics.functional.accuracy}",
        "objective.metrics.x._target_",
    ),
]


@pytest.mark.parametrize(("override", "key"), UNTRUSTED)
def test_a_target_is_refused_wherever_it_hides(override, key, monkeypatch):
    monkeypatch.setenv("PENSTOCK_TEST_TARGET", "torch.load")
    assert key in refusals(override)


def test_metrics_are_refused_by_name_also_where_nothing_is_measured():
    override = "+objective.metrics.x={_target_:torchmetrics.text.BERTScore}"
    assert "objective.metrics.x._target_" in refusals("task=fit", override)
    name = "+objective.metrics.x={_target_:torchmetrics._hidden}"
    assert "objective.metrics.x._target_" in refusals("task=digest", name)


HYDRAS_OWN = [
    ("hydra.callbacks.table._target_=os.system", "hydra.callbacks.table._target_"),
    ("+hydra.callbacks.more={_target_:penstock.build.data.make}", "hydra.callbacks.more._target_"),
    (
        "+hydra.callbacks.more={_target_:tests.own_parts.Holder,y:{_target_:os.system}}",
        "hydra.callbacks.more.y._target_",
    ),
    ("hydra.launcher._target_=os.system", "hydra.launcher._target_"),
    ("hydra.sweeper._target_=mypkg.Sweeper", "hydra.sweeper._target_"),
    ("+hydra.job_logging.handlers={x:{class:mypkg.Handler}}", "hydra.job_logging.handlers.x.class"),
    (
        "+hydra.job_logging.handlers={x:{class:logging.StreamHandler,stream:'ext://os.environ'}}",
        "hydra.job_logging.handlers.x.stream",
    ),
    ("+hydra.job.env_set.PENSTOCK_TRUST=mypkg", "hydra.job.env_set.PENSTOCK_TRUST"),
    ("+hydra.job.env_set.PYTHONPATH=/x", "hydra.job.env_set.PYTHONPATH"),
    ("+hydra.job.env_set.LD_PRELOAD=/x", "hydra.job.env_set.LD_PRELOAD"),
    ("hydra.searchpath=[pkg://mypkg.conf]", "hydra.searchpath"),
]


@pytest.mark.parametrize(("override", "key"), HYDRAS_OWN, ids=[key for _, key in HYDRAS_OWN])
def test_hydras_own_node_may_not_call_or_trust_anything(override, key):
    assert key in refusals(override)


def test_a_target_is_refused_that_only_an_interpolation_makes(own):
    text = """_target_: tests.own_parts.Holder\ninner: '${oc.create:"{_target_: os.system}"}'\n"""
    only("model.inner._target_", "model=mine", config_dir=own("model/mine", text))


def test_a_factory_for_logging_is_refused(own):
    text = "# @package _global_\nhydra: {job_logging: {formatters: {x: {'()': os.system}}}}\n"
    folder = own("experiment/mine", text)
    only("hydra.job_logging.formatters.x.()", "experiment=mine", config_dir=folder)


def test_hydras_own_node_may_be_used():
    penstock.compose("hydra/job_logging=stdout", "+hydra.job.env_set.OMP_NUM_THREADS=1")
    penstock.compose("hydra/hydra_logging=default", "hydra.verbose=[penstock]", "hydra.job.name=x")


def test_an_override_in_the_yaml_of_a_search_path_is_found_before_it_is_followed(own):
    folder = own("bad", "defaults: [config]\nhydra: {searchpath: ['pkg://mypkg.conf']}\n")
    with pytest.raises(ConfigError, match=r"hydra.searchpath: pkg://mypkg.conf imports mypkg.conf"):
        preflight.run(Composer(config_name="bad", config_dir=folder), [])


def test_a_part_of_a_persons_own_by_config_dir(own):
    folder = own(
        "dataset/mine",
        "# @package _global_\n"
        "defaults:\n  - override /transform: none\n  - override /model: linear\n"
        "  - override /objective: classification\n"
        "dataset: {_target_: tests.own_parts.Numbers, size: 20}\n"
        "objective: {inputs: [x]}\n",
    )
    config = penstock.compose("dataset=mine", config_dir=folder)
    assert config.dataset == {"_target_": "tests.own_parts.Numbers", "size": 20}
    assert config.objective["inputs"] == ["x"]
    assert config.transform.train == {}
    assert config.model["_target_"] == "torch.nn.Linear"
    found = only("dataset", "dataset=mien", config_dir=folder)
    assert "did you mean 'mine'" in found


def test_a_persons_own_arguments_are_checked_too(own):
    folder = own("model/mine", "_target_: tests.own_parts.Numbers\nsise: 3\nscale: [1]\n")
    found = refusals("model=mine", config_dir=folder)
    assert "did you mean 'size'" in found["model.sise"]
    assert found["model.scale"] == "got [1], expected a number"


def test_yaml_that_is_no_yaml(own):
    folder = own("model/mine", "_target_: [\n")
    with pytest.raises(ConfigError, match=r"mine.yaml"):
        penstock.compose("model=mine", config_dir=folder)


def test_a_dataset_for_each_split(own):
    node = "{_target_: tests.own_parts.Numbers, size: 4}"
    two = f"train: {node}\nval: {node}\n"
    penstock.compose("dataset=two", config_dir=own("dataset/two", two))
    three = own("dataset/three", two + f"spare: {node}\n")
    assert "unknown key 'spare'" in only("dataset.spare", "dataset=three", config_dir=three)


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


def test_missing_folders_are_named():
    for option in ("config_dir", "config_path"):
        with pytest.raises(ConfigError, match=rf"--{option.replace('_', '-')}: there is no folder"):
            Composer(**{option: "nowhere"})
    with pytest.raises(ConfigError, match=r"--config-path: pkg://x imports x, which is not trust"):
        Composer(config_path="pkg://x")


def sweep(*lines, **options):
    with pytest.raises(ConfigError) as caught:
        preflight.run(Composer(**options), lines, multirun=True)
    return {problem.key: problem.message for problem in caught.value.problems}


def test_a_sweep_is_checked_job_by_job():
    assert preflight.run(Composer(), ["sampler=random,sequential", "seed=1,2"], True) is None
    found = sweep("dataset=sequences", "sampler=random,identity", "batch.tail=keep,pad", "sede=1")
    assert found["batch.tail"].endswith("(in the job sampler=identity batch.tail=pad)")
    assert "did you mean 'seed'" in found["sede"]
    assert "(in the job" not in found["sede"]
    assert "(in the job seed=-1)" in sweep("seed=range(-1,2)")["seed"]
    assert "(in the job sampler=bucket)" in sweep("sampler=glob([b*,r*])")["sampler.column"]


def test_what_a_sweeper_is_given_in_yaml_is_checked(own):
    text = "# @package _global_\nhydra: {sweeper: {params: {batch.size: '8,0'}}}\n"
    found = sweep("experiment=mine", config_dir=own("experiment/mine", text))
    assert found["batch.size"].startswith("got 0, expected a whole number of at least 1")


def test_late_errors_are_of_the_same_kind():
    assert ConfigError("x").exit_code == 2
    assert DataError("x").exit_code == 3


def test_a_mapping_that_cannot_be_merged_into_what_is_there():
    found = refusals("task=digest", "sampler={fraction: 0.5}")
    assert list(found) == ["sampler.fraction"]
    assert "add it with +sampler.fraction=..." in found["sampler.fraction"]
    assert "'~sampler' '+sampler={...}'" in found["sampler.fraction"]


def test_a_configuration_is_examined_once_if_nothing_changed(capsys, tmp_path, monkeypatch):
    """What was checked is what runs: what comes out other than it was checked, is checked again."""
    examine, seen, configs = preflight.examine, [], []

    def counted(container, *args, **options):
        seen.append(container)
        return examine(container, *args, **options)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(preflight, "examine", counted)
    monkeypatch.setattr(seams, "runner", lambda name: configs.append)
    assert run(capsys, "task=digest", "seed=3").code == 0
    assert len(seen) == 1
    assert configs[0].seed == 3
    # Preflight has placeholders for what only a running job knows.
    assert run(capsys, "task=digest", "run_dir=x/${hydra:runtime.output_dir}").code == 0
    assert len(seen) == 3
    assert seen[1]["run_dir"] != seen[2]["run_dir"] == configs[1].run_dir
    assert run(capsys, "task=digest", "seed=4", "batch.size=true").code == 2


def test_equal_values_of_other_types_are_other_values():
    composer = Composer()
    assert preflight.run(composer, ["seed=1"]) is not None
    values, config = composer.examined
    with preflight.carried(composer):
        assert preflight.accept(values) is config
        for seed in (True, 1.0):
            other = type(values)({**values, "seed": seed})
            with pytest.raises(ConfigError, match=r"^seed: got"):
                preflight.accept(other)
    assert preflight.accept(values) is not config
