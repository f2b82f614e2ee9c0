"""A few damaged files of each format; `make fuzz` takes 10,000 of each."""

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("zstandard")

from tests.fuzz_files import fuzz


@pytest.mark.parametrize("name", ["arrow", "parquet", "csv", "tar"])
def test_damaged_files_are_refused_or_read(name, tmp_path):
    report = fuzz(name, 60, seed=1, keep=tmp_path)
    assert not report.failures, "\n".join(report.failures)
    assert report.read + report.refused == 60
    assert min(report.read, report.refused) > 5, "these mutations get nowhere"
