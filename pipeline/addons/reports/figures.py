r"""matplotlib, with texts that are only texts, and with nobody's settings.

Names of classes, keys and metrics, which may come from anybody, become titles and labels.
matplotlib takes what stands between two dollars for TeX: `$\frac{$` ends the program that draws it.
It also reads a file `matplotlibrc` in the working folder, which may turn on TeX itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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


def label_powers(axis: Axis) -> None:
    """Numbers on a logarithmic axis without TeX, which is matplotlib's way."""
    from matplotlib.ticker import LogFormatter

    axis.set_major_formatter(LogFormatter())
    axis.set_minor_formatter(LogFormatter(labelOnlyBase=False))
