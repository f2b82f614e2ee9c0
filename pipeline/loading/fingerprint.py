"""What two fingerprints differ in. It imports no torch: the command line compares manifests."""

from __future__ import annotations

from collections.abc import Mapping

PLACE = "(a file or folder)"  # an argument of a dataset for which the data's fingerprint stands


def differing(first: Mapping[str, object], second: Mapping[str, object]) -> list[str]:
    """The keys under which they differ; a file or folder may have moved, or come to be since."""
    return sorted(
        key
        for key in {**first, **second}
        if first.get(key) != second.get(key) and PLACE not in (first.get(key), second.get(key))
    )
