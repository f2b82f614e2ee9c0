r"""matplotlib, with texts that are only texts, and with nobody's settings.

Names of classes, keys and metrics, which may come from anybody, become titles and labels.
matplotlib takes what stands between two dollars for TeX: `$\frac{$` ends the program that draws it.
It also reads a file `matplotlibrc` in the working folder, which may turn on TeX itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

# Of the process, not of a figure.
_KEPT = (
    "backend",
    "date.epoch",
    "docstring.hardcopy",
    "figure.hooks",
    "interactive",
    "savefig.directory",
    "timezone",
    "tk.",
    "toolbar",
    "webagg.",
)


@contextmanager
def drawing(**settings: object) -> Iterator[None]:
    """Draw and save with matplotlib's own settings, no TeX, and these; 1 ms.

    Also a decorator: a text is what the settings were when it was made.
    """
    import matplotlib

    with matplotlib.rc_context():
        usual = matplotlib.rcParamsDefault.items()
        chosen: Any = {name: value for name, value in usual if not name.startswith(_KEPT)}
        chosen |= {"text.parse_math": False, **settings}
        matplotlib.rcParams.update(chosen)
        yield


def new_figure(width: float, height: float, **options: Any) -> Figure:
    """A figure of a size in inches.

    Raises:
        RuntimeError: outside of `drawing`, where texts would be taken for TeX.
    """
    import matplotlib
    from matplotlib.figure import Figure

    if matplotlib.rcParams["text.parse_math"]:
        raise RuntimeError("figures are drawn inside of `with drawing():`")
    return Figure(figsize=(width, height), **options)


_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_PLAIN = (1e-4, 1e7)  # numbers of other sizes are written with a power of ten


def numeral(value: float, digits: int = 4) -> str:
    """A number as a person writes it, with at most so many digits: 1,300; 0.00105; 2 × 10⁻⁸."""
    if not math.isfinite(value):
        return str(value)
    size = abs(float(f"{value:.{digits - 1}e}"))
    if size and not _PLAIN[0] <= size < _PLAIN[1]:
        return _with_power(value, math.floor(math.log10(size)), digits - 1)
    decimals = digits - 1 - math.floor(math.log10(size)) if size else 0
    return _without_zeros(f"{value:,.{max(decimals, 0)}f}")


def _with_power(value: float, power: int, decimals: int) -> str:
    mantissa = _without_zeros(f"{value / 10.0**power:.{decimals}f}")
    ten = f"10{str(power).translate(_SUPERSCRIPTS)}"
    return {"1": ten, "-1": f"\N{MINUS SIGN}{ten}"}.get(mantissa, f"{mantissa} × {ten}")


def _without_zeros(text: str) -> str:
    short = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if short == "-0" else short.replace("-", "\N{MINUS SIGN}")


def axis_labels(values: Sequence[float]) -> list[str]:
    """Labels for the ticks of an even axis: as many decimals in each as tell the closest apart.

    Very small and very large numbers have the same power of ten.
    """
    size = max(map(abs, values), default=0.0)
    steps = [b - a for a, b in pairwise(sorted(values)) if b > a]
    if not size or not math.isfinite(size) or not steps:
        return [numeral(value) for value in values]
    power = 0 if _PLAIN[0] <= size < _PLAIN[1] else math.floor(math.log10(size))
    scaled = [value / 10.0**power for value in values]
    close = 1e-3 * min(steps) / 10.0**power
    fits = (n for n in range(12) if all(abs(round(value, n) - value) <= close for value in scaled))
    decimals = next(fits, 12)
    texts = [f"{value:,.{decimals}f}".replace("-", "\N{MINUS SIGN}") for value in scaled]
    if power:
        ten = f"10{str(power).translate(_SUPERSCRIPTS)}"
        texts = [f"{text} × {ten}" for text in texts]
    nothing = [not round(value, decimals) for value in scaled]
    return ["0" if zero else text for text, zero in zip(texts, nothing, strict=True)]


def label_numbers(axis: Axis) -> None:
    """Numbers on an even axis, by `axis_labels`."""
    from matplotlib.ticker import Formatter

    class Labels(Formatter):
        def __call__(self, value: float, position: int | None = None) -> str:
            return numeral(value)

        def format_ticks(self, values: Any) -> list[str]:
            return axis_labels([float(value) for value in values])

    axis.set_major_formatter(Labels())


def label_powers(axis: Axis) -> None:
    """Numbers on a logarithmic axis: some between the powers of ten too, where it has few."""
    from matplotlib.ticker import LogLocator, NullLocator

    low, high = axis.get_view_interval()
    few = high < 1000 * low
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, position: numeral(value))
