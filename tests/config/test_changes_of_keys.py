"""The answers to each question of `config/changes.py`, by what is known of two runs."""

import pytest

import penstock
from penstock.config import changes
from penstock.config.changes import QUESTIONS, Known, recorded, value_in
from penstock.config.sections import Changes

NOTHING, RESULTS, WEIGHTS, BATCHES = Changes
DATA = {"fingerprint": "sizes", "train": "ab" * 16, "val": "cd" * 16}
OTHER = {**DATA, "train": "ef" * 16}
VALIDATED = {**DATA, "val": "ef" * 16}
OTHERWISE = {**DATA, "fingerprint": "content"}
SKIP, RAISE = {"bad_samples.on_error": "skip"}, {"bad_samples.on_error": "raise"}
MIXES = {"transform.train_batch.mix.alpha": "1"}
PATIENT = {"trainer.patience": "3"}
PLATEAU = {"scheduler._target_": "torch.optim.lr_scheduler.ReduceLROnPlateau"}
COSINE = {"scheduler._target_": "torch.optim.lr_scheduler.CosineAnnealingLR"}
OURS = {"scheduler._target_": "penstock.training.schedules.Anything"}
MINE = {"scheduler._target_": "mine.Schedule"}
LANES, MORE_LANES = {"distributed.lanes": "4"}, {"distributed.lanes": "8"}
BAD = {("train", 1)}


def known(config=None, data=DATA, device="cpu", alone=True, decoder=False, left_out=frozenset()):
    return Known(config or {}, data, device, alone, decoder, left_out)


@pytest.mark.parametrize(
    ("question", "first", "second", "answer"),
    [
        ("data", known(), known(), NOTHING),
        ("data", known(data=None), known(), BATCHES),
        ("data", known(), known(data=OTHER), BATCHES),
        ("data", known(), known(data=OTHERWISE), BATCHES),
        ("data", known(), known(data=VALIDATED), RESULTS),
        ("data", known(PATIENT), known(PATIENT, data=VALIDATED), WEIGHTS),
        (
            "data",
            known(data={"fingerprint": "sizes"}),
            known(data={"fingerprint": "sizes"}),
            BATCHES,
        ),
        ("packed", known(), known(), NOTHING),
        ("packed", known(decoder=True), known(), BATCHES),
        ("packed", known(), known(decoder=True), BATCHES),
        ("pack", known({"dataset.packed": "a"}), known({"dataset.packed": "b"}, OTHER), NOTHING),
        ("pack", known({"dataset.packed": "auto"}), known({"dataset.packed": "b"}, OTHER), BATCHES),
        ("pack", known({"dataset.packed": "auto"}), known({"dataset.packed": "auto"}), NOTHING),
        ("facts", known(), known(), WEIGHTS),
        ("facts", known(), known(data=VALIDATED), WEIGHTS),
        ("facts", known(), known(data=OTHER), BATCHES),
        ("validation", known(), known(), RESULTS),
        ("validation", known(COSINE), known(OURS), RESULTS),
        ("validation", known(PATIENT), known(), WEIGHTS),
        ("validation", known(), known(PATIENT), WEIGHTS),
        ("validation", known(PLATEAU), known(), WEIGHTS),
        ("validation", known(), known(MINE), WEIGHTS),
        ("limits", known(RAISE), known(RAISE), NOTHING),
        ("limits", known(RAISE, left_out=None), known(RAISE, left_out=None), NOTHING),
        ("limits", known(SKIP), known(RAISE), NOTHING),
        ("limits", known(SKIP, left_out=BAD), known(RAISE), BATCHES),
        ("limits", known(SKIP, left_out=None), known(SKIP), BATCHES),
        ("which_left_out", known(left_out=BAD), known(left_out=BAD), NOTHING),
        ("which_left_out", known(left_out=BAD), known(left_out={("train", 2)}), BATCHES),
        ("which_left_out", known(left_out={("val", 1)}), known(left_out={("val", 2)}), RESULTS),
        ("which_left_out", known(left_out=None), known(left_out=None), BATCHES),
        ("which_left_out", known(), known(), NOTHING),
        ("left_out", known(), known(), NOTHING),
        ("left_out", known(left_out=BAD), known(left_out=BAD), BATCHES),
        ("left_out", known(), known(left_out={("val", 1)}), RESULTS),
        ("left_out", known(PATIENT), known(left_out={("val", 1)}), WEIGHTS),
        ("left_out", known(), known(left_out=None), BATCHES),
        ("device", known(), known(), NOTHING),
        ("device", known(device=None), known(device=None), WEIGHTS),
        ("device", known(), known(device="cuda"), WEIGHTS),
        ("device", known(MIXES), known(device="cuda"), BATCHES),
        ("device", known(), known(MIXES, device="cuda"), BATCHES),
        ("device", known(), known({"transform.train_batch.m": "None"}, device="cuda"), WEIGHTS),
        ("device", known(), known({"transform.train_batches.m": "x"}, device="cuda"), WEIGHTS),
        ("batch_on", known(MIXES), known(MIXES), NOTHING),
        ("batch_on", known(device="cuda"), known(device="cuda"), RESULTS),
        ("batch_on", known(device="cuda"), known(), RESULTS),
        ("batch_on", known(MIXES), known(device="cuda"), BATCHES),
        ("batch_on", known(device="cuda"), known(MIXES), BATCHES),
        ("ranks", known(), known(), NOTHING),
        ("ranks", known(LANES, alone=False), known(LANES, alone=False), NOTHING),
        ("ranks", known(LANES), known(MORE_LANES), WEIGHTS),
        ("ranks", known(), known(LANES), WEIGHTS),
        ("ranks", known(alone=False), known(alone=False), WEIGHTS),
        ("balance", known(), known(), NOTHING),
        ("balance", known(alone=False), known(), WEIGHTS),
        ("balance", known(), known(alone=None), WEIGHTS),
        ("balance", known(LANES), known(LANES), WEIGHTS),
        ("balance", known(), known(LANES), WEIGHTS),
        ("balance", known({"distributed.strategy": "fsdp"}), known(), WEIGHTS),
        ("balance", known(), known({"distributed.strategy": "fsdp"}), WEIGHTS),
    ],
)
def test_answers(question, first, second, answer):
    assert QUESTIONS[question](first, second)[0] == answer


def test_a_key_that_was_not_set_has_its_default():
    assert known()["bad_samples.on_error"] == "raise"
    assert known(SKIP)["bad_samples.on_error"] == "skip"
    assert known()["no.such.key"] == "None"


@pytest.mark.parametrize(
    ("facts", "key", "value"),
    [
        ({"seed": "1"}, "seed", "1"),
        ({}, "bad_samples.on_error", "raise"),
        ({}, "seed", None),  # it has no default
        ({}, "loader.num_workers", changes.NOT_SET),  # no fingerprint has it
        ({"optimizer.lr": "1"}, "optimizer.momentum", changes.NOT_SET),
        ({"optimizers.lr": "1"}, "optimizer.momentum", None),
        ({}, "lengths", changes.NOT_SET),
    ],
)
def test_what_a_fingerprint_says_of_a_key(facts, key, value):
    assert value_in(facts, key) == value


def test_the_balance_of_ranks_is_recorded_with_lanes_alone():
    balanced = ["batch.balance=length", "distributed=ddp"]
    key = "batch.balance"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.config.preflight.raise_if", lambda problems: None)
        plain = penstock.compose(*balanced)
        lanes = penstock.compose(*balanced, "+distributed.lanes=4")
        without = penstock.compose("distributed=ddp", "+distributed.lanes=4")
    assert key not in recorded(plain)
    assert recorded(lanes)[key] == "length"
    assert key not in recorded(without), "it is at its default"
    assert "optimizer.lr" in recorded(plain)
    assert "optimizer.lr" not in recorded(plain, "train")


def test_keys_below_fields_and_sections():
    names = [
        changes.field_of(key) and changes.field_of(key).key for key in ("optimizer.a.b", "x.y")
    ]
    assert names == ["optimizer", None]
    assert changes.effect_of("distributed").changes == WEIGHTS, "the strongest of its keys"
    assert changes.effect_of("trainer.checkpoint").changes == NOTHING
    assert dict(changes.leaves({"a": {"b": 1, "c": {}}, "d": [2]})) == {
        "a.b": 1,
        "a.c": {},
        "d": [2],
    }
