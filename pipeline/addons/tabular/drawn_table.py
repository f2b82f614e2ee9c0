"""A drawn table of customers, made on this machine: numbers, categories, dates, missing values.

    age         a whole number
    income      a number, which one in ten does not say
    plan        basic, family or plus
    city        one of 30, some of them rare; one in twenty does not say
    since       a date
    calls       a whole number: how often the customer has complained
    left        yes or no: likelier after complaints, for new customers, by plan and city
    spent       a number: by income, age, plan and season of the first day

The first use writes `customers.csv` into a folder of `root` that is named by its arguments. Cost:
15 us a row, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from penstock.addons.tabular.table import Table
from penstock.datasets.files import generated_data
from penstock.datasets.reading.base import Split
from penstock.files.limits import Count, Fraction, Seed
from penstock.order.keys import hash64

VERSION = 1  # raise it when the rows change
FILE = "customers.csv"
PLANS = ("basic", "family", "plus")
CITIES = 30


class DrawnTable(Table):
    """Customers; samples as in `Table`: whether they left (a class), or what they spent (a number).

    Args:
        root: folder that the data is written to, in one subfolder for each set of arguments; None:
            in the user's cache (see `penstock.datasets.files.generated_data`).
        split: "train", "val" or "test".
        target: "left" or "spent".
        count: number of rows of all splits.
        seed: other rows for another seed.
        columns, exclude, rare, val_fraction, split_seed, test_fraction: as in `Table`.

    Raises:
        DataError: the data cannot be written.
    """

    def __init__(
        self,
        root: str | None = None,
        split: Split = "train",
        target: Literal["left", "spent"] = "left",
        count: Count = 4000,
        seed: Seed = 0,
        columns: Sequence[str] | None = None,
        exclude: Sequence[str] = (),
        rare: Count = 1,
        val_fraction: Fraction = 0.2,
        split_seed: Seed = 0,
        test_fraction: Fraction = 0.0,
    ) -> None:
        name = f"{count}-seed{seed}-v{VERSION}"
        with generated_data(
            root, "drawn_table", name, lambda folder: _write(folder, count, seed)
        ) as made:
            super().__init__(
                made,
                target,
                split,
                FILE,
                columns=columns,
                exclude=[*exclude, "spent" if target == "left" else "left"],
                rare=rare,
                val_fraction=val_fraction,
                split_seed=split_seed,
                test_fraction=test_fraction,
            )


def _write(folder: Path, count: int, seed: int) -> None:
    import pandas as pd

    random = np.random.default_rng(hash64(seed, "customers"))
    age = random.integers(18, 90, count)
    income = np.exp(random.normal(10.5, 0.5, count)) * (0.7 + 0.6 * (age > 30))
    plan = random.choice(3, count, p=[0.5, 0.3, 0.2])
    shares = 1.0 / np.arange(2, CITIES + 2)
    city = random.choice(CITIES, count, p=shares / shares.sum())
    days = random.integers(0, 3000, count)
    since = np.datetime64("2018-01-01") + days
    calls = random.poisson(0.6 + 0.5 * (plan == 0), count)
    # Interactions that a linear model misses: complaints count for new customers, and a season that
    # only the cycle of the year shows.
    of_city = random.normal(0, 0.8, CITIES)[city]
    new = days > 2000
    logit = 1.6 * calls * new - 2.6 + of_city + np.array([0.8, 0.0, -0.6])[plan] * (1 + new)
    logit += 0.03 * (age - 50) * np.where(plan == 1, 1, -1)
    left = random.random(count) < 1 / (1 + np.exp(-logit))
    season = np.sin(2 * np.pi * days / 365.2425)
    spent = 0.02 * income * (1 + 0.5 * (plan == 2)) * (1 + 0.3 * season) + 4.0 * age + 20 * of_city
    spent += random.normal(0, 40, count)
    silent, nowhere = random.random(count) < 0.1, random.random(count) < 0.05
    customers = {
        "age": age,
        "income": np.where(silent, "", [f"{number:.0f}" for number in income]),
        "plan": np.array(PLANS)[plan],
        "city": np.where(nowhere, "", [f"city {number + 1}" for number in city]),
        "since": since,
        "calls": calls,
        "left": np.where(left, "yes", "no"),
        "spent": [f"{number:.2f}" for number in spent],
    }
    pd.DataFrame(customers).to_csv(folder / FILE, index=False, lineterminator="\n")
