"""A few damaged folders for each reader; `make fuzz` takes 10,000 of each."""

import pytest

pytest.importorskip("av")
pytest.importorskip("pyarrow")
pytest.importorskip("skimage")
pytest.importorskip("soundfile")
pytest.importorskip("tokenizers")
pytest.importorskip("zstandard")

from tests.fuzz_readers import fuzz
from tests.fuzz_task_folders import READERS


@pytest.mark.thorough
def test_damaged_folders_are_refused_or_read(tmp_path):
    """A few of some readers; all are read under stress."""
    for name in ("tokens", "parquet", "tar", "pack", "text", "table", "coco", "image-masks"):
        report = fuzz(name, range(6), seed=1, keep=tmp_path)
        assert not report.findings, "\n".join(report.findings)
        assert report.read + report.refused == 6


@pytest.mark.stress
@pytest.mark.parametrize("name", READERS)
def test_many_damaged_folders_are_refused_or_read(name, tmp_path):
    report = fuzz(name, range(200), seed=1, keep=tmp_path)
    assert not report.findings, "\n".join(report.findings)
    assert report.read + report.refused == 200
    assert min(report.read, report.refused) > 5, "these mutations get nowhere"
