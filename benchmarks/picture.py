"""Draws docs/pictures/images.png from the tables of docs/benchmarks.md, so that both say the same.

python benchmarks/picture.py
"""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

DOCS = Path(__file__).resolve().parent.parent / "docs"
HEADING = re.compile(r"^### (\d+ ?x ?\d+)", re.MULTILINE)
OURS, PEER, FLOOR = "#1b6ca8", "#b8bfc6", "#5b6570"


def tables() -> dict[str, dict[str, float]]:
    """CPU milliseconds an image by loader, for each set of pictures."""
    page = (DOCS / "benchmarks.md").read_text()
    found = {}
    for heading in HEADING.finditer(page):
        lines = page[heading.end() :].split("\n\n")[1].splitlines()[2:]
        cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        found[heading[1]] = {row[0]: float(row[1]) for row in cells}
    return found


def main() -> None:
    sets = tables()
    figure, axes = plt.subplots(1, len(sets), figsize=(11, 4.2), layout="constrained")
    for axis, (size, figures) in zip(axes, sets.items(), strict=True):
        shown = dict(sorted(figures.items(), key=lambda item: -item[1]))
        colors = [
            OURS if "Penstock" in name else FLOOR if "floor" in name else PEER for name in shown
        ]
        axis.scatter(list(shown.values()), list(shown), c=colors, s=45, zorder=3)
        for name, value in shown.items():
            axis.annotate(
                f"{value:.2f}", (value, name), (8, -3), textcoords="offset points", fontsize=8
            )
        axis.set_xscale("log")  # the slowest is fifteen times the fastest
        axis.set_xlim(min(shown.values()) / 1.3, max(shown.values()) * 1.8)
        axis.xaxis.set_major_formatter("{x:g}")
        axis.grid(axis="both", alpha=0.3)
        axis.set_title(f"{size} pixels to 224 x 224", fontsize=10)
        axis.set_xlabel("CPU milliseconds an image (logarithmic)", fontsize=9)
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(DOCS / "pictures" / "images.png", dpi=130)


if __name__ == "__main__":
    main()
