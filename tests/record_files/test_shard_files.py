"""Patterns that name many files."""

import pytest

from penstock.addons.record_files.shard_files import expand_braces
from penstock.errors import ConfigError


def test_a_pattern_that_stands_for_too_many_files():
    for pattern in ("x-{0..99999999999}.tar", "{0..9999}-{0..9999}.tar"):
        with pytest.raises(ConfigError, match="stands for more than 1000000 files"):
            expand_braces(pattern)
