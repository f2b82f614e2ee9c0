"""The report of a sweep, from real sweeps and from what strangers may send."""

import io
import shutil
import statistics
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from penstock import command, seams
from penstock.addons.reports import sweep_report
from penstock.addons.reports.sweep_report import is_sweep
from penstock.addons.sweeps.sweep import jobs_of, note
from tests import conftest
from tests.parts.reports.conftest import SMALL
from tests.support.program import run


@pytest.fixture(scope="module")
def swept(tmp_path_factory, faces_root):
    """The folder of the README's sweep, over a small dataset, and what it printed."""
    folder = tmp_path_factory.mktemp("multirun") / "sweep"
    words = [
        "-m",
        "sampler=random,weighted",
        "seed=1,2",
        f"hydra.sweep.dir={folder}",
        f"dataset.root={faces_root}",
        *SMALL,
        "trainer.baseline=false",
        "trainer.max_epochs=2",
    ]
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as out:
        conftest.leave_reports(patch, "of_sweep")
        assert command.main(words) == 0
    return folder, out.getvalue()


@pytest.fixture
def sweep(swept, tmp_path):
    """A copy of that folder, to change."""
    return Path(shutil.copytree(swept[0], tmp_path / "sweep"))


def page_of(folder):
    return sweep_report.write(folder).read_text()


def jobs(folder):
    """Those of the sampler "random" with the seeds 1 and 2, then those of "weighted"."""
    return [job.path for job in jobs_of(folder)]


@pytest.mark.thorough
def test_the_sweep_of_the_readme_ends_with_a_table_and_the_path_of_its_report(swept):
    folder, out = swept
    assert "4 of 4 jobs in" in out
    assert "best: mean nme 0." in out
    assert out.splitlines()[-1] == f"report       {folder / 'report.html'}"
    assert (folder / "report.html").read_text().startswith("<!doctype html>")


def test_seeds_are_folded_into_mean_and_spread(swept):
    folder, _ = swept
    values = [job.value for job in jobs_of(folder)]
    page = page_of(folder)
    for own in (values[:2], values[2:]):
        assert f"<td>{statistics.mean(own):.4g}</td>" in page
        assert f"<td>{statistics.stdev(own):.4g}</td>" in page
    best = min(statistics.mean(values[:2]), statistics.mean(values[2:]))
    assert f"Best mean nme {best:.4g} with sampler=" in page


def test_what_is_missing_is_told(sweep):
    first, second, third, _ = jobs(sweep)
    shutil.rmtree(first)
    note(second, status="failed", error="no <b>luck</b>")
    note(third, status="running")
    states = [job.status for job in jobs_of(sweep)]
    assert states == ["failed", "killed", "done"]
    page = page_of(sweep)
    assert "1 of 3 jobs done; 1 failed, 1 killed" in page
    assert "no &lt;b&gt;luck&lt;/b&gt;" in page


EVIL = "<script>alert(1)</script>"


def test_texts_of_strangers_stay_texts(sweep):
    named = f"\"'><img src=x onerror=alert(1)>{EVIL}\x1b[31m\u202e"
    first, _, third, _ = jobs(sweep)
    note(
        first,
        monitor=EVIL,
        error=named,
        status=EVIL,
        overrides=[f"sampler={EVIL}", f"{EVIL}=1", "seed=1"],
        best={f"val/{EVIL}": 1.0},
    )
    third.rename(sweep / "<b>2")
    page = page_of(sweep)
    assert "&lt;script&gt;alert(1)" in page
    for forbidden in (EVIL, "<img", "<b>", "\x1b", "\u202e"):
        assert forbidden not in page


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("manifest.json", "[]"),
        ("metrics.jsonl", '{"event": "epoch", "epoch": "x"}\n'),
        ("config.yaml", "["),
    ],
)
def test_a_damaged_file_costs_its_job_only(sweep, name, content):
    path = jobs(sweep)[1]
    (path / name).write_text(content)
    page = page_of(sweep)
    assert page.count(name) == 1
    done = f"{4 - (name == 'manifest.json')} of 4 jobs done"
    assert ("All 4 jobs are done" if name != "manifest.json" else done) in page


@pytest.mark.thorough
def test_what_is_no_sweep_is_said(tmp_path, capsys, faces, swept):
    assert not is_sweep(tmp_path)
    assert is_sweep(swept[0])
    assert not is_sweep(jobs(swept[0])[0])
    told = run(capsys, "task=report", f"runs=[{swept[0]}]")
    assert (told.code, told.out) == (0, f"{swept[0] / 'report.html'}\n")
    (tmp_path / "empty").mkdir()
    told = run(capsys, "task=report", f"runs=[{tmp_path / 'empty'}]")
    assert told.code == 2
    assert "is not a run's folder" in told.err


def test_a_sweep_that_is_left_has_a_report(tmp_path, monkeypatch, capsys, reports):
    def task(config):
        Path(config.run_dir).mkdir(parents=True, exist_ok=True)
        if config.seed == 2:
            raise KeyboardInterrupt
        return config.seed / 10

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(seams, "function", lambda name: task)
    told = run(capsys, "-m", "seed=1,2,3", "hydra.sweep.dir=sweep")
    assert told.code == 130
    assert "report       sweep/report.html" in told.out
    page = (tmp_path / "sweep" / "report.html").read_text()
    assert "The job is done" in page


def test_a_setting_that_lacks_a_fold_is_not_the_best_and_near_ones_are_named(tmp_path):
    values = [(1, 0, 0.5), (1, 1, 0.7), (2, 0, 0.1), (2, 1, None), (3, 0, 0.7), (3, 1, 0.6)]
    values += [(4, 0, 0.9), (4, 1, 0.9)]
    for number, (lr, fold, value) in enumerate(values):
        (tmp_path / str(number)).mkdir()
        note(
            tmp_path / str(number),
            overrides=[f"optimizer.lr={lr}", f"data.fold={fold}"],
            status="failed" if value is None else "done",
            monitor="loss",
            best={} if value is None else {"val/loss": value},
        )
    page = page_of(tmp_path)
    near = ", within its standard deviation (0.1414) of optimizer.lr=3."
    assert f"Best mean loss 0.6 with optimizer.lr=1{near}" in page
    assert "7 of 8 jobs done; 1 failed" in page
