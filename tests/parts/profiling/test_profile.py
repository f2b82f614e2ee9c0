"""What `task=profile` sees and says, on runs that are built to be bound by something."""

import json
import re

import pytest

from tests.support import built_cases, toy
from tests.support.program import run


@pytest.fixture
def case(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)

    def profile(name, *overrides):
        given = built_cases.overrides(name, "tests.support.built_cases")
        return run(capsys, "--trust", "tests", *given, "run_dir=here", *overrides)

    return profile


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("name", "overrides", "bound"),
    [
        ("training", ["loader=threads", "model.milliseconds=40"], "training"),
        ("decoding", ["dataset.burn=8", "loader.num_workers=1"], "read"),
        ("latency", ["loader.num_workers=1"], "read"),
    ],
)
def test_the_verdict_on_a_built_case_is_right(case, name, overrides, bound, tmp_path):
    done = case(name, "task=profile", "steps=8", "trainer.checkpoint=null", *overrides)
    assert done.code == 0, done.err
    manifest = json.loads((tmp_path / "here" / "manifest.json").read_text())
    # Where others take the cores from the loader, the loop waits for it in any case.
    waited = int(re.search(r"waits for data (\d+)%", done.out)[1])
    expected = {bound} if waited < 10 else {"read"} if waited > 10 else {bound, "read"}
    assert manifest["bound"] in expected, done.out
    assert bound == "training" or waited > 10, done.out
    assert f"bound by     {manifest['bound']}: " in done.out
    if manifest["overrides"]:
        assert f"to paste     {' '.join(manifest['overrides'])}\n" in done.out


def test_what_it_leaves_behind(case, tmp_path):
    done = case("latency", "task=profile", "steps=6", "loader=threads", "loader.num_workers=2")
    assert done.code == 0, done.err
    left = {path.name for path in (tmp_path / "here").iterdir()}
    assert {"manifest.json", "config.yaml"} <= left
    assert not [name for name in left if "checkpoint" in name or name.startswith(".")]
    for word in (
        "read",
        "collate",
        "time waited",
        "samples/s",
        "cached batch",
        "0 workers",
        "2 workers",
    ):
        assert word in done.out


def test_a_batch_knows_its_seconds_by_stage():
    with toy.loader() as loader:
        batch = next(loader.epoch(0))
    assert {"read", "collate"} <= set(batch.timing)
