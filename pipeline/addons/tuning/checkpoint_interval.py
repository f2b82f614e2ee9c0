"""How often to save a checkpoint: often enough for failures, and rarely enough for what it costs.

All times are in seconds, of training and of failures that come at random (exponentially).
"""

from __future__ import annotations

import math


def young(cost: float, between: float) -> float:
    """Training between two saves, to first order: sqrt(2 C M).

    J. W. Young, "A first order approximation to the optimum checkpoint interval", Communications
    of the ACM 17 (9), 1974.

    Args:
        cost: C, for which a save stops the training.
        between: M, the mean time between failures of any of the machines.
    """
    return math.sqrt(2 * cost * between)


def daly(cost: float, between: float) -> float:
    """The same to higher order; M where a save costs twice that or more.

    J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps",
    Future Generation Computer Systems 22 (3), 2006, equation 37.
    """
    if cost >= 2 * between:
        return between
    part = cost / (2 * between)
    return young(cost, between) * (1 + math.sqrt(part) / 3 + part / 9) - cost


def useful_share(interval: float, cost: float, restart: float, between: float) -> float:
    """Expected share of the time in which training comes forward, in (0, 1).

    The rest goes into saves, restarts and training that is done again. Daly's complete model, of
    the same paper (equation 20): failures may come in saves and in restarts, too.

    Args:
        interval: training between two saves.
        restart: from a failure until training goes on.
    """
    exponent = (interval + cost) / between
    if exponent + restart / between > 700:  # no float holds more, and nothing would be left
        return 0.0
    return interval / (between * math.exp(restart / between) * math.expm1(exponent))
