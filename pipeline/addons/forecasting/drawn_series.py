"""Drawn sales of shops, a row a day: a week's pattern, a slow drift, days of promotion, noise.

The first use writes `sales.csv` (day, shop, sold, promotion) into a folder of `root` that is named
by its arguments. Cost: 5 us a row, once.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from penstock.addons.forecasting.windows import Scale, Windows
from penstock.datasets.files import generated_data
from penstock.datasets.reading.base import Shares, Split
from penstock.files.limits import Count, Index, Seed
from penstock.order.keys import hash64

FILE = "sales.csv"


class DrawnSeries(Windows):
    """Sales of shops by day; samples as in `Windows`, with promotions as what is known.

    Args:
        root: folder that the data is written to, in one subfolder for each set of arguments; None:
            in the user's cache (see `penstock.datasets.files.generated_data`).
        split: "train", "val" or "test".
        count: number of shops.
        days: number of days.
        seed: other sales for another seed.
        past, horizon, stride, season, shares, gap, scale: as in `Windows`.

    Raises:
        ConfigError: no window fits.
        DataError: the data cannot be written.
    """

    def __init__(
        self,
        root: str | None = None,
        split: Split = "train",
        count: Count = 6,
        days: Count = 900,
        seed: Seed = 0,
        past: Count = 56,
        horizon: Count = 14,
        stride: Count = 1,
        season: Count = 7,
        shares: Shares = Shares(),
        gap: Index = 0,
        scale: Scale = "series",
    ) -> None:
        name = f"{count}x{days}-seed{seed}-v1"  # raise it when the sales change
        with generated_data(
            root, "drawn_series", name, lambda folder: _write(folder, count, days, seed)
        ) as made:
            super().__init__(
                made,
                "day",
                "sold",
                split,
                FILE,
                "shop",
                ["promotion"],
                past,
                horizon,
                stride,
                season,
                shares,
                gap,
                scale,
            )


def _write(folder: Path, count: int, days: int, seed: int) -> None:
    random, shops = np.random.default_rng(hash64(seed, "sales")), []
    day = np.datetime64("2023-01-01") + np.arange(days)
    for shop in range(count):
        size = float(np.exp(random.normal(4.5, 0.8)))
        week = 1 + 0.35 * random.normal(size=7)
        promotion = random.random(days) < 0.12
        # Levels that wander and years that shift: a constant forecast is a poor one.
        drift = np.cumsum(random.normal(0, 0.006, days))
        year = 0.15 * np.sin(2 * np.pi * (np.arange(days) / 365 + random.random()))
        level = week[np.arange(days) % 7].clip(0.2) * np.exp(drift + year)
        sold = size * (level + 0.6 * promotion + random.normal(0, 0.12, days))
        shops.append(
            pd.DataFrame(
                {
                    "day": day,
                    "shop": f"shop {shop + 1}",
                    "sold": sold.clip(0),
                    "promotion": promotion.astype(int),
                }
            )
        )
    pd.concat(shops).to_csv(folder / FILE, index=False, float_format="%.1f", lineterminator="\n")
