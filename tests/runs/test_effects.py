"""Every key of a configuration has one effect: on batches, only on weights, or on neither."""

import pytest
import yaml

from pipeline.config.preflight import compose
from pipeline.config.schema import Config, TrainerSection
from pipeline.runs import resumption
from pipeline.runs.identity.effects import RULES, Effect, effect_of, rule_of
from pipeline.runs.left_out import COLUMNS
from pipeline.runs.record import RunRecord
from tests.config.test_conf import FILES

BATCHES, WEIGHTS, NEITHER = Effect
# What a resumed run may change, though its weights may change with it.
NOT_OF_THE_FINGERPRINT = {
    *resumption.LENGTH, "trainer.limit_batches.train", "trainer.fast_dev_run", "trainer.compile",
    "trainer.channels_last", "trainer.device", "transform.batch_on", "loader.in_order",
    "loader.worker_init_fn", "distributed", "resume_despite",
    # Under a patience; what a resumed run validates is its own affair.
    "batch.val_size", "trainer.val_every", "trainer.limit_batches.val", "transform.val",
    "transform.val_batch",
}  # fmt: skip
# What the data's own fingerprint stands for.
OF_THE_DATA = {"dataset", "dataset.packed", "dataset.fields", "dataset.facts", "pack",
               "bad_samples.on_error", "bad_samples.quarantine", "limits"}  # fmt: skip


def record(tmp_path, config=None, **manifest):
    data = {"fingerprint": "sizes", "train": "ab" * 16, "val": "cd" * 16}
    known = {"device": "cpu", "data": data, "sessions": [{"world": 1}], **manifest}
    return RunRecord(tmp_path, config or {}, known)


def left_out(folder, *splits):
    lines = [",".join(COLUMNS), *(f"{split},0,a.jpg,0,0,0,broken,x" for split in splits)]
    (folder / "quarantine.csv").write_text("\n".join([*lines, ""]))


def keys_of(config):
    return {key for key, _ in resumption.leaves(config)}


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_key_of_every_option_has_one_effect(path, tmp_path):
    tree = yaml.safe_load(path.read_text())
    whole = "# @package _global_" in path.read_text()
    tree = {name: value for name, value in tree.items() if name != "defaults"}
    run = record(tmp_path)
    keys = keys_of(tree if whole else {path.parent.name: tree})
    assert keys
    for key in keys:
        assert rule_of(key) is not None, f"{key} has no rule in pipeline/runs/identity/effects.py"
        effect, why = effect_of(key, run, run)
        assert effect in Effect
        assert why != "unknown to this version"


def test_every_key_of_the_default_run_has_one_effect(tmp_path):
    config = compose().written()
    run = record(tmp_path, config)
    keys = [key for key, _ in resumption.leaves(config)]
    assert len(keys) > 100
    assert {effect_of(key, run, run)[0] for key in keys} == set(Effect)
    assert all(rule_of(key) for key in keys)


def test_every_key_of_the_schema_has_a_rule():
    """Also those that no option sets; a section without fields, such as a part, has one itself."""

    def fields(section, key=""):
        for name, field in section.model_fields.items():
            own = f"{key}.{name}" if key else name
            kinds = [one for one in (field.annotation, *getattr(field.annotation, "__args__", ()))
                     if hasattr(one, "model_fields")]  # fmt: skip
            if kinds:
                yield from fields(kinds[0], own)
            else:
                yield own

    names = list(fields(Config))
    assert len(names) > 80
    assert "trainer.checkpoint.keep_last" in names
    for name in names:
        assert rule_of(name) is not None, f"{name} has no rule in pipeline/runs/identity/effects.py"


def test_a_new_key_of_the_trainer_is_not_placed_by_chance():
    assert rule_of("trainer") is None
    assert rule_of("batch") is None
    assert rule_of("transform") is None
    assert all(rule_of(f"trainer.{name}") != "trainer" for name in TrainerSection.model_fields)


def test_a_key_of_another_version_is_not_called_harmless(tmp_path):
    run = record(tmp_path)
    assert effect_of("trainer.of_later", run, run) == (BATCHES, "unknown to this version")
    assert effect_of("later", run, run) == (BATCHES, "unknown to this version")


def test_rules_are_of_keys_that_exist():
    known = keys_of(compose("distributed=ddp").plain())
    known |= {"dataset.fields", "dataset.facts", "dataset.fingerprint", "dataset.packed"}
    for rule in RULES:
        assert any(f"{key}.".startswith(f"{rule}.") for key in known), rule


@pytest.mark.parametrize(
    "overrides",
    [[], ["dataset=sequences", "sampler=weighted", "scheduler=none"],
     ["trainer.overfit_batches=2", "trainer.ema=0.9", "trainer.patience=3",
      "trainer.skip=[[3,1200],[3,1210]]"]],
)  # fmt: skip
def test_whatever_a_checkpoint_is_refused_for_has_an_effect(overrides, tmp_path):
    """And what has one is refused, but for what is listed above: rules and fingerprint agree."""
    config = compose(*overrides)
    fingerprint = resumption.fingerprint(config, {"dataset": "ab" * 16, "seed": "0"}, 10)
    run = record(tmp_path, config.written(), fingerprint=fingerprint, device="other")
    steered = record(tmp_path, {"trainer": {"patience": 1}}, device="cpu", data={},
                     fingerprint={"decoder": "native"}, sessions=[{"world": 2}])  # fmt: skip
    left_out(tmp_path, "train")
    covered = {rule_of(key) for key in fingerprint if key != resumption.SCHEDULES}
    for key in fingerprint:
        if key != resumption.SCHEDULES:
            assert effect_of(key, steered, run)[0] != NEITHER, key
    changing = {rule_of(key) for key, _ in resumption.leaves(config.written())
                if effect_of(key, run, run)[0] != NEITHER}  # fmt: skip
    where_set = {
        "trainer.ema",
        "trainer.overfit_batches",
        "trainer.skip",
    }  # in a fingerprint if they are not null
    assert changing - covered - OF_THE_DATA <= NOT_OF_THE_FINGERPRINT | where_set


def test_arguments_of_the_dataset_follow_its_fingerprint(tmp_path):
    same = record(tmp_path)
    data = dict(same.manifest["data"])
    other = record(tmp_path, data={**data, "train": "ef" * 16})
    counted = record(tmp_path, data={**data, "train": "1000"})
    validated = record(tmp_path, data={**data, "val": "ef" * 16})
    stopped = record(tmp_path, {"trainer": {"patience": 2}}, data={**data, "val": "ef" * 16})
    otherwise = record(tmp_path, data={**data, "fingerprint": "content"})
    odd = record(tmp_path, data=["x"])
    assert effect_of("dataset.root", same, same)[0] == NEITHER
    assert effect_of("dataset.root", same, other)[0] == BATCHES
    assert effect_of("dataset.root", counted, counted)[0] == BATCHES
    assert effect_of("dataset.root", same, validated)[0] == NEITHER
    assert effect_of("dataset.root", same, stopped)[0] == WEIGHTS
    assert effect_of("dataset.root", same, otherwise)[0] == BATCHES
    assert effect_of("dataset.root", odd, odd)[0] == BATCHES
    assert effect_of("dataset.fingerprint", same, otherwise)[0] == NEITHER
    assert effect_of("dataset.facts.num_classes", same, same)[0] == WEIGHTS
    assert effect_of("pack.size", same, other)[0] == NEITHER
    packed = record(tmp_path, {"dataset": {"packed": "auto"}}, data={**data, "train": "ef" * 16})
    assert effect_of("pack.size", same, packed)[0] == BATCHES


@pytest.mark.parametrize(
    ("scheduler", "effect"),
    [(None, NEITHER), ("torch.optim.lr_scheduler.OneCycleLR", NEITHER),
     ("torch.optim.lr_scheduler.ReduceLROnPlateau", WEIGHTS), ("mine.Schedule", WEIGHTS)],
)  # fmt: skip
def test_validation_counts_where_it_steers(scheduler, effect, tmp_path):
    node = None if scheduler is None else {"_target_": scheduler}
    run = record(tmp_path, {"scheduler": node, "trainer": {"patience": None}})
    for key in ("batch.val_size", "transform.val.resize.size", "trainer.monitor",
                "objective.metrics.nme._target_"):  # fmt: skip
        assert effect_of(key, run, run)[0] == effect


def test_what_the_runs_say_decides_for_machines_and_bad_samples(tmp_path):
    here, there = record(tmp_path), record(tmp_path, device="cuda")
    assert effect_of("trainer.device", here, here)[0] == NEITHER
    assert effect_of("trainer.device", here, there)[0] == WEIGHTS
    mixing = record(tmp_path, {"transform": {"train_batch": {"mix": {}}}}, device="cuda")
    assert effect_of("trainer.device", here, mixing)[0] == BATCHES
    assert effect_of("transform.batch_on", here, here)[0] == NEITHER
    assert effect_of("transform.batch_on", there, there)[0] == NEITHER
    assert effect_of("transform.batch_on", mixing, mixing)[0] == BATCHES
    assert effect_of("distributed.strategy", here, here)[0] == NEITHER
    two = record(tmp_path, sessions=[{"world": 2}])
    assert effect_of("distributed.nproc", here, two)[0] == WEIGHTS
    assert effect_of("distributed.timeout", here, two)[0] == NEITHER
    assert effect_of("limits.pixels", here, here)[0] == NEITHER
    (tmp_path / "other").mkdir()
    other = record(tmp_path / "other")
    for key in ("limits.pixels", "bad_samples.on_error"):
        left_out(tmp_path, "val")
        assert effect_of(key, here, other)[0] == NEITHER
        left_out(tmp_path, "val", "train")
        assert effect_of(key, here, other)[0] == BATCHES
    assert effect_of("limits.pixels", here, here)[0] == NEITHER
    assert effect_of("bad_samples.on_error", here, here)[0] == BATCHES
    (tmp_path / "quarantine.csv").write_text("x\n")
    assert effect_of("limits.pixels", here, here)[0] == BATCHES
    assert effect_of("bad_samples.budget", here, here)[0] == NEITHER
