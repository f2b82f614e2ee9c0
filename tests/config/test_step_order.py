"""`_after_` and `_before_`: where a step of a transform goes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.config import step_order
from penstock.errors import ConfigError

GRAY = "_target_: torchvision.transforms.v2.Grayscale, num_output_channels: 3"


def train(*words, **options):
    return list(penstock.compose("task=digest", *words, **options).transform.train)


def settled(steps):
    problems = []
    return list(step_order.settle({"train": steps}, problems)["train"]), problems


@pytest.mark.parametrize(
    ("words", "order"),
    [
        ([f"+transform.train.gray={{{GRAY}, _after_: resize}}"], "crop resize gray flip normalize"),
        ([f"+transform.train.gray={{{GRAY}, _before_: crop}}"], "gray crop resize flip normalize"),
        (["+transform.train.flip._after_=normalize"], "crop resize normalize flip"),
        (
            [
                f"+transform.train.a={{{GRAY}, _after_: resize}}",
                f"+transform.train.b={{{GRAY}, _after_: a}}",
                f"+transform.train.c={{{GRAY}, _after_: resize}}",
            ],
            "crop resize a b c flip normalize",
        ),
    ],
)
def test_a_step_goes_where_it_says(words, order):
    assert train(*words) == order.split()


def test_an_experiment_says_it_too_and_the_words_are_gone(tmp_path):
    path = tmp_path / "experiment" / "mine.yaml"
    path.parent.mkdir()
    path.write_text(
        f"# @package _global_\ntransform: {{train: {{gray: {{{GRAY}, _before_: normalize}}}}}}\n"
    )
    config = penstock.compose("experiment=mine", config_dir=str(tmp_path))
    assert list(config.transform.train) == ["crop", "resize", "flip", "gray", "normalize"]
    assert "_before_" not in config.transform.train["gray"]
    other = penstock.compose(
        "experiment=mine",
        "~transform.train.gray._before_",
        "+transform.train.gray._after_=crop",
        config_dir=str(tmp_path),
    )
    assert list(other.transform.train)[:2] == ["crop", "gray"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            [f"+transform.train.gray={{{GRAY}, _after_: resise}}"],
            r"transform.train.gray: _after_: resise names no step \(did you mean 'resize'\?\); "
            "there is crop, resize, flip, normalize",
        ),
        (
            [f"+transform.train.gray={{{GRAY}, _after_: crop, _before_: flip}}"],
            "transform.train.gray: has both",
        ),
        ([f"+transform.train.gray={{{GRAY}, _after_: gray}}"], "leads back to gray itself"),
        (
            ["+transform.train.flip._after_=normalize", "+transform.train.normalize._before_=flip"],
            "leads back to normalize itself",
        ),
        (["+model._after_=x"], "_after_"),
    ],
)
def test_a_place_that_cannot_be_is_refused(words, message):
    with pytest.raises(ConfigError, match=message):
        train(*words)


NAMES = st.sampled_from("abcdef")


@given(
    names=st.lists(NAMES, unique=True, min_size=1),
    wishes=st.dictionaries(NAMES, st.tuples(st.sampled_from(["_after_", "_before_"]), NAMES)),
)
def test_every_step_has_one_place_and_wishes_that_can_be_met_are(names, wishes):
    steps = {
        name: {"_target_": name, **dict([wishes[name]] if name in wishes else [])} for name in names
    }
    order, problems = settled(steps)
    assert sorted(order) == sorted(names)
    refused = {problem.key.rpartition(".")[2] for problem in problems}
    for name in set(names) & set(wishes) - refused:
        word, other = wishes[name]
        assert (order.index(name) > order.index(other)) == (word == "_after_")
    unmoved = [name for name in names if name not in wishes]
    assert [name for name in order if name in unmoved] == unmoved
