"""Windows of series: which steps they hold, what is learnt of training, and what is refused."""

import numpy as np
import pandas as pd
import pytest
import torch

from penstock.addons.forecasting.objective import DLinear, Mase, SeasonalNaive
from penstock.addons.forecasting.windows import Windows
from penstock.datasets.reading.base import Shares
from penstock.errors import ConfigError, DataError

DAYS = 100
SIZES = {"past": 10, "horizon": 4, "season": 7}


def frame(days=DAYS, shops=("north", "south")):
    random = np.random.default_rng(0)
    parts = []
    for number, shop in enumerate(shops):
        day = np.datetime64("2025-01-01") + np.arange(days)
        sold = (100 * number + random.normal(50, 9, days)).round(2)
        parts.append(pd.DataFrame({"day": day, "shop": shop, "sold": sold}))
    data = pd.concat(parts, ignore_index=True)
    return data.assign(promotion=random.integers(0, 2, len(data)))


def windows(data, split="train", **options):
    return Windows(data, "day", "sold", split, series="shop", **{**SIZES, **options})


def test_a_window_is_so_many_steps_and_those_after_them():
    data = frame()
    train = windows(data, known=["promotion"], stride=3)
    assert len(train) == 2 * len(range(0, 80 - 14 + 1, 3))
    sample, meta = train[25], train.metadata.iloc[25]
    own = data[data["shop"] == "south"].reset_index(drop=True)
    start = int(np.flatnonzero(own["day"] == meta["time"])[0]) - 10
    assert (meta["series"], start % 3, data["day"][meta["row"]]) == ("south", 0, meta["time"])
    part = own[:80]
    mean, deviation = part["sold"].mean(), part["sold"].std(ddof=0)
    expected = (own["sold"][start : start + 10] - mean) / deviation
    assert sample["past"][:, 0].numpy() == pytest.approx(expected.to_numpy(), abs=1e-5)
    assert sample["target"][:, 0].tolist() == pytest.approx(own["sold"][start + 10 : start + 14])
    known = data["promotion"]
    trained = pd.concat([known[:80], known[100:180]])
    future = (own["promotion"][start + 10 : start + 14] - trained.mean()) / trained.std(ddof=0)
    assert sample["future"][:, 0].numpy() == pytest.approx(future.to_numpy(), abs=1e-5)
    naive = (part["sold"] - part["sold"].shift(7)).abs().mean()
    assert float(sample["naive_error"]) == pytest.approx(naive, rel=1e-6)
    assert train.facts == {
        **{"past": 10, "horizon": 4, "season": 7},
        **{"num_values": 1, "num_known": 1},
    }


@pytest.mark.parametrize("gap", [0, 5])
def test_no_step_of_training_stands_in_a_window_of_validation(gap):
    data = frame()

    def days(dataset):
        """The rows of all steps of all windows."""
        steps = dataset.starts[:, None] + np.arange(14)
        return dataset.times[steps]

    train, val = (windows(data, split, gap=gap) for split in ("train", "val"))
    distance = (days(val).min() - days(train).max()) / np.timedelta64(1, "D")
    assert distance == gap + 1
    assert days(val).max() == data["day"].max()
    assert (len(train), len(val)) == (2 * (80 - gap - 13), 2 * (20 - 13))


def test_the_last_steps_are_kept_for_a_test():
    splits = {"shares": Shares(0.3, 0.2), "gap": 2}
    train, val, test = (windows(frame(), split, **splits) for split in ("train", "val", "test"))
    assert [len(part) // 2 for part in (train, val, test)] == [48 - 13, 28 - 13, 20 - 13]
    ends = [part.times[part.starts.max() + 13] for part in (train, val)]
    starts = [part.times[part.starts.min()] for part in (val, test)]
    distances = (np.array(starts) - np.array(ends)) / np.timedelta64(1, "D")
    assert distances.tolist() == [3, 3]
    assert train.location.tolist() == test.location.tolist()


def test_validation_says_nothing_to_training():
    data = frame()
    train = windows(data)
    changed = data.copy()
    changed.loc[changed["day"] >= np.datetime64("2025-03-22"), "sold"] *= 1000
    other = windows(changed)
    for row in (0, len(train) - 1):
        for name, value in train[row].items():
            torch.testing.assert_close(value, other[row][name], rtol=0, atol=0)
    assert windows(data, "val").location.tolist() == train.location.tolist()
    assert windows(changed, "val").fingerprint != windows(data, "val").fingerprint
    both = windows(data, scale="global")
    assert both.location[0] == both.location[1]
    assert windows(data, scale="none")[0]["past"][:, 0].tolist() == pytest.approx(
        data["sold"][:10].tolist()
    )


def test_missing_values_are_carried_on_and_do_not_count():
    data = frame()
    data.loc[[3, 12, 13], "sold"] = np.nan
    with pytest.raises(DataError, match=r"row 3, column 'sold': a missing value.*fill=carry"):
        windows(data)
    sample = windows(data, fill="carry", scale="none")[0]
    assert sample["past"][3, 0] == sample["past"][2, 0]
    assert sample["target"].isnan().flatten().tolist() == [False, False, True, True]


def test_files_and_months(tmp_path):
    month = pd.date_range("2010-01-31", periods=60, freq="ME")
    data = pd.DataFrame({"m": month, "y": np.arange(60.0)})
    data.to_csv(tmp_path / "s.csv", index=False)
    data.to_parquet(tmp_path / "s.parquet")
    samples = []
    for name in ("s.csv", "s.parquet"):
        samples.append(Windows(str(tmp_path / name), "m", "y", past=6, horizon=2, season=3)[5])
    for name, value in samples[0].items():
        assert torch.equal(value, samples[1][name])
    counted = data.assign(m=np.arange(60) * 10)
    assert len(Windows(counted, "m", "y", past=6, horizon=2)) == 48 - 7


def test_what_is_wrong_with_times_is_reported_with_the_row(tmp_path):
    data = frame()
    path = tmp_path / "s.csv"

    def refused(changed, match, **options):
        changed.to_csv(path, index=False)
        with pytest.raises(DataError, match=match):
            windows(str(path), **options)

    step = "does not come one step after"
    refused(data.drop(index=110), rf"row 110.*'south' {step} 2025-01-10.*row 109")
    swapped = data.copy()
    swapped.loc[[4, 5], "day"] = data["day"][[5, 4]].to_numpy()
    refused(swapped, rf"row 4.*2025-01-06' of series 'north' {step} 2025-01-04.*Sort")
    twice = pd.concat([data[:5], data[4:]])
    refused(twice, rf"row 5.*{step}.*row 4.*remove times that occur twice")
    refused(data.assign(day=data["day"].astype(str).where(data.index != 2)), "row 2.*is no time")
    refused(data.assign(day=["monday"] * len(data)), "row 0.*'monday' is no date")
    refused(
        data.assign(shop=data["shop"].where(data.index != 2)), "row 2.*a missing value is refused"
    )
    refused(data.assign(sold="x"), "row 0, column 'sold': 'x' is not a number")


def test_what_is_wrong_with_options_is_reported_with_the_key():
    data = frame()
    for options, message in (
        ({"past": 90}, r"dataset\.past: a window has 94 steps.* the longest series 80"),
        ({"known": ["promotions"]}, r"dataset\.known: .*did you mean 'promotion'"),
        ({"known": ["sold"]}, r"dataset\.known: column 'sold' is also dataset\.values"),
        ({"season": 11}, r"dataset\.season: 11, more than dataset\.past=10"),
        ({"gap": 90}, r"dataset\.past: .* the longest series 0 in the part for train"),
    ):
        with pytest.raises(ConfigError, match=message):
            windows(data, **options)
    with pytest.raises(ConfigError, match=r"dataset\.past: .*the part for val:"):
        windows(data, "val", shares=Shares(0.1))


def test_mase_is_that_of_its_definition():
    """Error over the error of the seasonal naive forecast in the training part, by series."""
    val, metric = windows(frame(), "val"), Mase()
    data, random = frame(), np.random.default_rng(1)
    ratios = []
    for first in range(0, len(val), 4):
        samples = [val[row] for row in range(first, min(first + 4, len(val)))]
        target = torch.stack([sample["target"] for sample in samples])
        guess = target + torch.from_numpy(random.normal(0, 5, target.shape)).float()
        metric.update(guess, target, torch.stack([sample["naive_error"] for sample in samples]))
        for row, sample in enumerate(samples):
            shop = val.metadata["series"].iloc[first + row]
            past = data["sold"][data["shop"] == shop].to_numpy()[:80]
            naive = np.abs(past[7:] - past[:-7]).mean()
            error = np.abs(guess[row].double().numpy() - sample["target"].double().numpy()).mean()
            ratios.append(error / naive)
    assert float(metric.compute()) == pytest.approx(np.mean(ratios), abs=1e-6)


def test_the_naive_forecast_repeats_the_last_season():
    past = torch.arange(10.0)[None, :, None]
    assert SeasonalNaive(3, 5, 1)(past)[0, :, 0].tolist() == [7, 8, 9, 7, 8]
    assert SeasonalNaive(1, 3, 1)(past)[0, :, 0].tolist() == [9, 9, 9]


def test_the_model_forecasts_a_line():
    model = DLinear(10, 4, num_values=2, num_known=3, kernel=5)
    assert model(torch.rand(6, 10, 5), torch.rand(6, 4, 3)).shape == (6, 4, 2)
    constant = torch.full((1, 10, 5), 2.0)
    assert model(constant, torch.zeros(1, 4, 3)).flatten().tolist() == pytest.approx([2.0] * 8)
    assert DLinear(10, 4, 2, 3, kernel=4)(constant, torch.zeros(1, 4, 3)).shape == (1, 4, 2)


def test_series_that_are_constant_but_for_rounding_have_no_mase():
    data = frame(shops=("flat", "north"))
    flat = data["shop"] == "flat"
    data.loc[flat, "sold"] = np.resize([0.3, 0.1 + 0.2], flat.sum())
    made = windows(data)
    samples = [made[index] for index in range(len(made))]
    assert max(float(sample["past"].abs().max()) for sample in samples) < 100
    assert any(sample["naive_error"].isnan().all() for sample in samples)
    seasons = frame(shops=("north",)).assign(sold=np.arange(DAYS) % 7.0)
    assert windows(seasons)[0]["naive_error"].isnan().all()


def test_a_series_may_be_called_na():
    assert windows(frame(shops=("NA", "null"))).names == ["NA", "null"]
