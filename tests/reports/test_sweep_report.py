"""The report of a sweep, from real sweeps and from what strangers may send."""

import io
import json
import shutil
import statistics
import time
from contextlib import redirect_stdout
from html import escape
from itertools import combinations
from pathlib import Path

import pytest

from penstock import command, seams
from penstock.addons.reports import sweep_report
from penstock.addons.reports.same_data import SameData
from penstock.addons.reports.sweep_data import SweepJob, SweepRecord, is_sweep
from penstock.addons.sweeps.job_result import JobResult
from penstock.runs.record import RunRecord
from tests import conftest
from tests.program import run
from tests.reports import browser as browsers
from tests.reports.many_jobs import multiply

SMALL = [
    "dataset.count=60",
    "dataset.size=48",
    "batch.size=8",
    "loader=debug",
    "tracker=none",
    "trainer.pictures=false",
    "trainer.device=cpu",
    "trainer.progress=none",
    "trainer.baseline=false",
    "trainer.max_epochs=2",
]


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
    ]
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as out:
        conftest.leave_reports(patch, "leave_of_sweep")
        assert command.main(words) == 0
    return folder, out.getvalue()


@pytest.fixture
def sweep(swept, tmp_path):
    """A copy of that folder, to change."""
    return Path(shutil.copytree(swept[0], tmp_path / "sweep"))


def page_of(folder):
    return sweep_report.write(folder).read_text()


def change(path, **facts):
    path.write_text(json.dumps(json.loads(path.read_text()) | facts))


@pytest.mark.thorough
def test_the_sweep_of_the_readme_ends_with_a_table_and_the_path_of_its_report(swept):
    folder, out = swept
    assert "4 jobs in" in out
    assert "best: nme 0." in out
    assert out.splitlines()[-1] == f"report       {folder / 'report.html'}"
    assert (folder / "report.html").read_text().startswith("<!doctype html>")


def test_seeds_are_folded_into_mean_and_spread(swept):
    folder, _ = swept
    values = [JobResult.read(folder / name / "result.json").value for name in "0123"]
    sweep = SweepRecord.read(folder)
    assert sweep.varying == ["sampler", "seed"]
    assert sweep.common["trainer.max_epochs"] == "2"
    groups = {one.settings["sampler"]: one for one in sweep.groups}
    page = page_of(folder)
    for name, own in (("random", values[:2]), ("weighted", values[2:])):
        assert groups[name].mean == pytest.approx(statistics.mean(own))
        assert groups[name].spread == pytest.approx(statistics.stdev(own))
        assert f'<td class="number">{statistics.mean(own):.5g}</td>' in page
    assert [one.mean for one in sweep.groups] == sorted(one.mean for one in sweep.groups)
    assert sweep.ranked[0].value == min(values)


def test_the_same_data_as_by_reading_all_ledgers(swept):
    """Against a comparison line by line."""
    folder, _ = swept
    found = SameData.of([RunRecord.read(folder / name) for name in "0123"])
    assert found.classes == [[0], [1], [2], [3]]
    texts = [(folder / name / "ledger.jsonl").read_text() for name in "0123"]
    lines = [[json.loads(line) for line in text.splitlines()] for text in texts]
    for first, second in combinations(range(4), 2):
        pairs = zip(lines[first], lines[second], strict=True)
        parted = next((a["epoch"], a["step"]) for a, b in pairs if a["order"] != b["order"])
        assert found.relation(first, second).address == parted


def test_what_is_missing_is_told_with_the_line_that_resumes(sweep):
    shutil.rmtree(sweep / "0")
    change(sweep / "1" / "result.json", status="failed", value=None, error="no <b>luck</b>")
    (sweep / "2" / "result.json").unlink()
    change(sweep / "2" / "manifest.json", status="running")
    (sweep / "3" / "result.json").unlink()
    for name in ("manifest.json", "config.yaml"):
        (sweep / "3" / name).unlink()
    states = {job.name: job.status for job in SweepRecord.read(sweep).jobs}
    assert states == {"0": "not started", "1": "failed", "2": "killed", "3": "not started"}
    page = page_of(sweep)
    assert "0 of 4 jobs are done; 1 failed, 1 killed, 2 not started" in page
    assert escape(f"-m resume={sweep}") in page
    assert "no &lt;b&gt;luck&lt;/b&gt;" in page


@pytest.mark.stress
def test_a_sweep_of_64_jobs_in_five_seconds_and_4_mib(swept, tmp_path):
    folder = multiply(swept[0] / "0", tmp_path / "many")
    began = time.process_time()
    path = sweep_report.write(folder)
    assert time.process_time() - began < 5
    assert path.stat().st_size < 4 << 20
    sweep = SweepRecord.read(folder)
    found = SameData.of([job.run for job in sweep.jobs])
    assert [len(one) for one in found.classes] == [16, 16, 16, 16], "samplers times seeds"
    assert found.relation(0, 2).address == (1, 3)
    assert {found.relation(0, place).address for place in (1, 3)} == {(0, 0)}
    assert "62 of 64 jobs are done; 1 failed, 1 killed" in path.read_text()


EVIL = "<script>alert(1)</script>"


def test_texts_of_strangers_stay_texts(sweep):
    named = f"\"'><img src=x onerror=alert(1)>{EVIL}\x1b[31m\u202e"
    change(
        sweep / "0" / "result.json",
        metric=EVIL,
        error=named,
        status=EVIL,
        value=None,
        overrides=[f"sampler={EVIL}", f"{EVIL}=1", "seed=1"],
        others={EVIL: 1.0},
    )
    change(
        sweep / "1" / "manifest.json",
        command=EVIL,
        platform=EVIL,
        order=EVIL,
        data={"fingerprint": EVIL, "train": EVIL},
        fingerprint={EVIL: EVIL},
        code={EVIL: {EVIL: EVIL}},
        sessions=[{"world": EVIL}],
    )
    (sweep / "2").rename(sweep / "<b>2")
    page = page_of(sweep)
    assert "&lt;script&gt;alert(1)" in page
    for forbidden in (EVIL, "<img", "<b>", "\x1b", "\u202e"):
        assert forbidden not in page


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "text",
    [r"$\frac{$", "$" + "{" * 50 + "}" * 50 + "$", "\uffff", "\ud800", "&#x0;]]>", "a\0b"],
    ids=ascii,
)
def test_keys_and_values_are_no_tex_and_break_no_svg(text, tmp_path):
    for number in range(6):
        (tmp_path / str(number)).mkdir()
        overrides = [f"model.x={text}{number}", f"{text}={number}.5"]
        JobResult(overrides, "done", f"val/{text}", "min", float(number), 1.0, None, 0, 0.0).write(
            tmp_path / str(number)
        )
    assert sweep_report.write(tmp_path).read_text().count("<svg") >= 2


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("result.json", "[" * 1000),
        ("result.json", "{}"),
        ("result.json", "\x00"),
        ("manifest.json", "[]"),
        ("manifest.json", '{"sessions": 3}'),
        ("metrics.jsonl", '{"event": "epoch", "epoch": "x"}\n'),
        ("config.yaml", "a: &a [1]\nb: *a\n"),
        ("ledger.jsonl", "{}\n"),
    ],
)
def test_a_damaged_file_costs_its_job_only(sweep, name, content):
    (sweep / "1" / name).write_text(content)
    record = SweepRecord.read(sweep)
    if name != "ledger.jsonl":
        assert f"{name}" in record.jobs[1].trouble
    page = page_of(sweep)
    assert name in page
    assert sum(job.value is not None for job in record.jobs) == 4 - (name == "result.json")


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "facts",
    [
        {"value": 10**90, "seconds": 1e308, "started": 1e300, "cpu_seconds": 1e308},
        {"value": -1e308, "overrides": []},
        {"value": None, "status": "done"},
        {"overrides": ["seed=nan", "optimizer.lr=inf", "x=" + "y" * 60_000]},
        {"overrides": [f"k{n}={n}" for n in range(1000)]},
    ],
)
def test_numbers_and_lengths_that_nobody_would_have(sweep, facts):
    change(sweep / "1" / "result.json", **facts)
    assert len(page_of(sweep)) < 4 << 20


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "facts",
    [
        {"best": {}, "last": 3, "order": 5, "data": [], "fingerprint": 1, "code": None},
        {"sessions": [{}, {"world": {}}], "fingerprint": {"seed": [1]}, "last": {"step": "x"}},
        {"status": None, "platform": [], "cpus": {}, "command": 7, "data": {"train": {}}},
    ],
)
def test_manifests_of_other_shapes(sweep, facts):
    for name in "0123":
        change(sweep / name / "manifest.json", **facts)
    assert page_of(sweep)


@pytest.mark.thorough
def test_what_is_no_sweep_is_said(tmp_path, capsys, faces, swept):
    assert not is_sweep(tmp_path)
    assert is_sweep(swept[0])
    assert not is_sweep(swept[0] / "0")
    told = run(capsys, "task=report", f"runs=[{swept[0]}]")
    assert (told.code, told.out) == (0, f"{swept[0] / 'report.html'}\n")
    (tmp_path / "empty").mkdir()
    told = run(capsys, "task=report", f"runs=[{tmp_path / 'empty'}]")
    assert told.code == 2
    assert "is not a run's folder" in told.err


def little(monkeypatch, then=lambda config: None):
    """A sweep of three jobs without training; what is to happen in each."""

    def task(config):
        Path(config.run_dir).mkdir(parents=True, exist_ok=True)
        then(config)
        return config.seed / 10

    monkeypatch.setattr(seams, "runner", lambda name: task)
    return ["-m", "seed=1,2,3", "hydra.sweep.dir=sweep"]


@pytest.mark.stress
def test_the_report_grows_with_the_sweep(tmp_path, monkeypatch, capsys, reports):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sweep_report, "_EVERY", 0.0)
    monkeypatch.setattr(sweep_report, "_SHARE", 1e9)
    seen = []

    def look(config):
        path = tmp_path / "sweep" / "report.html"
        seen.append(path.read_text().count(">done<") if path.exists() else None)

    assert run(capsys, *little(monkeypatch, look)).code == 0
    assert seen == [None, 1, 2]
    assert not sweep_report.is_due(tmp_path), "there is nothing"
    monkeypatch.setattr(sweep_report, "_EVERY", 10.0)
    assert not sweep_report.is_due(tmp_path / "sweep"), "it is a second old"


def test_a_sweep_that_is_left_has_a_report(tmp_path, monkeypatch, capsys, reports):
    monkeypatch.chdir(tmp_path)

    def stop(config):
        if config.seed == 2:
            raise KeyboardInterrupt

    told = run(capsys, *little(monkeypatch, stop))
    assert told.code == 130
    assert "report       sweep/report.html" in told.out
    page = (tmp_path / "sweep" / "report.html").read_text()
    assert "1 of 3 jobs are done; 1 interrupted, 1 not started" in page
    assert "-m resume=sweep" in page


@pytest.mark.thorough
def test_a_report_that_fails_costs_a_warning(tmp_path, monkeypatch, capsys, reports):
    monkeypatch.chdir(tmp_path)
    words = little(monkeypatch)

    def broken(folder, key="runs"):
        raise ZeroDivisionError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(sweep_report, "write", broken)
        told = run(capsys, "-m", "seed=1", words[-1])
    assert told.code == 0
    assert "WARNING: the sweep's report is missing: " in told.err
    told = run(capsys, "-m", "seed=1", "hydra.sweep.dir=other", "trainer.report=false")
    assert "report.html" not in told.out
    assert not (tmp_path / "other" / "report.html").exists()


@pytest.mark.one_in(3)
@browsers.needed
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light")])
def test_a_report_in_a_browser(browser, swept, width, scheme):
    browsers.check(browser, swept[0] / "report.html", 4, width=width, scheme=scheme)


@pytest.mark.stress
@browsers.needed
def test_a_report_of_64_jobs_in_a_browser(browser, swept, tmp_path):
    folder = multiply(swept[0] / "0", tmp_path / "many", epochs=20)
    browsers.check(browser, sweep_report.write(folder), 7)


def test_a_setting_that_lacks_a_fold_stands_behind_those_that_have_all(tmp_path):
    def job(name, lr, fold, value):
        status = "failed" if value is None else "done"
        result = JobResult([], status, "loss", "min", value, 1.0, None, 0, 0.0)
        settings = {"optimizer.lr": lr, "dataset.fold": fold}
        return SweepJob(name, settings, status, result)

    jobs = (job("0", "1", "0", 0.5), job("1", "1", "1", 0.7))
    jobs += (job("2", "2", "0", 0.1), job("3", "2", "1", None))  # of the easy fold alone
    groups = SweepRecord(tmp_path, True, jobs).groups
    assert [group.settings["optimizer.lr"] for group in groups] == ["1", "2"]
