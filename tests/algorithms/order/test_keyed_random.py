"""KeyedRandom: rows depend on their own keys, and the numbers are of the distribution asked for."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.order.keys import KeyedRandom

ROWS = 40_000

DRAWS = {
    "uniform": lambda r: r.uniform(-1, 3, (2,)),
    "normal": lambda r: r.normal(1, 2, (2, 3)),
    "integers": lambda r: r.integers(-3, 9, (4,)),
    "bernoulli": lambda r: r.bernoulli(0.3),
    "beta": lambda r: r.beta(0.2, 0.7, (2,)),
    "beta of larger shapes": lambda r: r.beta(2.0, 1.0, (2,)),
    "permutation": lambda r: r.permutation(5),
}


def many(purpose="test"):
    return KeyedRandom.of(0, 0, np.arange(ROWS), purpose)


def everything(positions, seed=0, epoch=0, purpose="test"):
    """All draws in a row: a list of tensors with a row a position."""
    random = KeyedRandom.of(seed, epoch, np.asarray(positions), purpose)
    return [draw(random) for draw in DRAWS.values()] + [random.child("x").uniform()]


@given(st.lists(st.integers(0, 2**62), min_size=1, max_size=12), st.randoms())
@settings(max_examples=15)
def test_a_row_depends_on_its_own_key_alone(positions, shuffler):
    whole = everything(positions)
    order = list(range(len(positions)))
    shuffler.shuffle(order)
    shuffled = everything([positions[row] for row in order])
    alone = [everything([position]) for position in positions]
    for number, values in enumerate(whole):
        assert torch.equal(values[order], shuffled[number])
        assert torch.equal(values, torch.cat([one[number] for one in alone]))


def test_seeds_epochs_purposes_calls_and_children_have_numbers_of_their_own():
    positions = np.arange(50)
    others = [
        everything(positions, **kind)
        for kind in ({}, {"seed": 1}, {"epoch": 1}, {"purpose": "other"}, {"purpose": 5})
    ]
    random = KeyedRandom.of(0, 0, positions, "test")
    calls = [random.uniform() for _ in range(3)] + [random.child(name).uniform() for name in "ab"]
    seen = torch.cat([*calls, *(values[0].flatten() for values in others)])
    assert len(seen.unique()) == len(seen)
    assert torch.equal(random.child("a").uniform(), calls[3]), "a child begins anew"


def test_what_a_key_means_is_pinned():
    random = KeyedRandom.of(7, 3, [0, 1], "pinned")
    assert random.keys.tolist() == PINNED_KEYS
    assert random.integers(0, 1_000_000).tolist() == PINNED_INTEGERS
    assert random.permutation(4).tolist() == PINNED_ORDERS


def test_what_each_distribution_makes_of_its_keys_is_pinned():
    for name, pinned in PINNED_DRAWS.items():
        drawn = DRAWS[name](KeyedRandom.of(7, 3, [0, 1], "pinned")).flatten()
        assert drawn.tolist() == pytest.approx(pinned, rel=1e-12), name


PINNED_DRAWS = {
    "uniform": [2.4223153273646414, 0.12420976688419305, -0.5694802438761828, 2.3752343554834288],
    "normal": [
        -2.6020373909045276, -0.08169522604709645, 3.5532687971427834, 2.571663117954268,
        -2.080422890038873, 1.8636103239363961, 0.1667100056251566, 2.1544810555566007,
        -1.4584287862800505, 0.6086418924921506, 1.7832173878401112, 1.5218787872147228,
    ],
    "bernoulli": [False, True],
    "beta": [0.0009617675253064635, 0.000287864117522508, 0.8394064041982432, 0.08288048160469895],
    "beta of larger shapes": [
        0.9504555704935429, 0.5545790031221511, 0.8295927426597751, 0.8637774794712161,
    ],
}  # fmt: skip
PINNED_KEYS = [17320533357629475981, 238674465162441772]
PINNED_INTEGERS = [855578, 107629]
PINNED_ORDERS = [[1, 0, 2, 3], [1, 3, 2, 0]]


def test_uniform_numbers_fill_their_interval_evenly():
    drawn = many().uniform(-1, 3)
    assert drawn.dtype == torch.float64
    assert -1 <= drawn.min() < drawn.max() < 3
    counts = torch.histc(drawn, 20, -1, 3)
    assert ((counts - ROWS / 20) ** 2 / (ROWS / 20)).sum() < 50  # chi squared, 19 degrees


def test_normal_numbers_have_their_moments():
    drawn = (many().normal(5, 2) - 5) / 2
    for power, expected, error in ((1, 0, 0.02), (2, 1, 0.03), (3, 0, 0.06), (4, 3, 0.2)):
        assert abs((drawn**power).mean() - expected) < error
    assert drawn.isfinite().all()


def test_integers_reach_both_ends_evenly():
    drawn = many().integers(-2, 4)
    assert drawn.dtype == torch.int64
    values, counts = drawn.unique(return_counts=True)
    assert values.tolist() == [-2, -1, 0, 1, 2, 3]
    assert ((counts - ROWS / 6) ** 2 / (ROWS / 6)).sum() < 25


def test_bounds_may_have_a_row_a_sample():
    low = torch.arange(10).double()
    random = KeyedRandom.of(0, 0, np.arange(10), "x")
    drawn = random.uniform(low, low + 1, (100,))
    assert torch.equal(drawn.floor(), low[:, None].expand(10, 100))
    assert random.bernoulli(torch.tensor([0.0, 1.0] * 5)).tolist() == [False, True] * 5
    with pytest.raises(ValueError, match=r"could not be broadcast"):
        random.uniform(torch.zeros(3))


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("a", "b"), [(0.2, 0.2), (1, 1), (2, 5), (0.5, 3), (40, 2), (1e-3, 1e-3)])
def test_beta_numbers_have_their_moments(a, b):
    drawn = many().beta(a, b)
    mean, variance = a / (a + b), a * b / ((a + b) ** 2 * (a + b + 1))
    assert ((drawn >= 0) & (drawn <= 1)).all()
    assert abs(drawn.mean() - mean) < 5 * (variance / ROWS) ** 0.5
    assert abs(drawn.var() / variance - 1) < 0.05


def test_permutations_are_all_as_likely():
    drawn = many().permutation(3)
    orders, counts = torch.unique(drawn, dim=0, return_counts=True)
    assert len(orders) == 6
    assert ((counts - ROWS / 6) ** 2 / (ROWS / 6)).sum() < 25
    assert many().permutation(100)[0].sort().values.tolist() == list(range(100))


def test_rows_and_columns_do_not_follow_each_other():
    drawn = many().uniform(size=(4,)) - 0.5
    columns = torch.corrcoef(drawn.T) - torch.eye(4)
    assert columns.abs().max() < 0.03
    assert abs((drawn[1:, 0] * drawn[:-1, 0]).mean() * 12) < 0.03
