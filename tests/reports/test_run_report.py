"""What a run's report says, that it is safe whoever wrote the folder, and that it costs little."""

import base64
import csv
import hashlib
import json
import re
import shutil
import subprocess
import sys
from dataclasses import astuple
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from penstock.addons.reports import curves, run_report, settings, spikes, values, verdict
from penstock.addons.reports.charts import MOST_POINTS, Curve, thinned
from penstock.runs.left_out import COLUMNS, Entry
from penstock.runs.measurements import Series
from penstock.runs.record import Ledger, RunRecord
from tests.program import ROOT, run
from tests.reports.conftest import SMALL

HOSTILE = "<script>alert(1)</script>"


class Read(HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.attributes, self.text, self.scripts = [], [], [], []
        self._in = ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *one) for one in attrs]
        self._in = tag
        if tag == "script":
            self.scripts.append((dict(attrs).get("type"), ""))

    def handle_data(self, data):
        if self._in == "script":
            kind, text = self.scripts[-1]
            self.scripts[-1] = kind, text + data
        else:
            self.text.append(data)

    def handle_endtag(self, tag):
        self._in = ""


def copied(folder, to, **changes):
    """A copy of a run's folder with other values in its manifest."""
    shutil.copytree(folder, to)
    manifest = json.loads((to / "manifest.json").read_text())
    (to / "manifest.json").write_text(json.dumps({**manifest, **changes}))
    return to


def test_a_fit_leaves_its_report_and_the_task_makes_the_same_again(
    faces, tmp_path, capsys, reports
):
    done = run(capsys, *faces, *SMALL[3:], "trainer.max_epochs=1", "run_dir=run")
    assert done.code == 0, done.err
    assert done.out.splitlines()[-1] == "report       run/report.html"
    html = (tmp_path / "run/report.html").read_text()
    assert '<span class="state done">' in html
    again = run(capsys, "task=report", "runs=[run]")
    assert (again.code, again.out) == (0, "run/report.html\n"), again.err
    assert (tmp_path / "run/report.html").read_text() == html


@pytest.mark.stress
def test_the_rows_of_spikes_are_those_that_replay_makes_again(faces, tmp_path, capsys, reports):
    done = run(capsys, *faces, *SMALL[3:], "trainer.max_epochs=2", "run_dir=run")
    assert done.code == 0, done.err
    spike = json.loads((tmp_path / "run/report/spikes.json").read_text())["spikes"][0]
    words = ["task=replay", f"epoch={spike['epoch']}", f"step={spike['step']}", "run_dir=again"]
    again = run(capsys, *faces, *SMALL[3:], *words)
    assert again.code == 0, again.err
    rows = [int(line.split()[1]) for line in again.out.splitlines()[1:9]]
    assert rows == spike["rows"]
    html = (tmp_path / "run/report.html").read_text()
    assert f"<td>{', '.join(map(str, rows))}</td>" in html

    (tmp_path / "run/report/spikes.json").write_text('{"spikes": [{"epoch": "x"}, 3]}')
    assert "task=replay tells" in run_report.make(RunRecord.read(tmp_path / "run"))


@pytest.mark.stress
def test_a_report_that_fails_costs_a_warning(faces, tmp_path, capsys, reports):
    (tmp_path / "run").mkdir()
    assert run(capsys, *faces, *SMALL[3:], "trainer.max_epochs=1", "run_dir=run").code == 0
    (tmp_path / "run/report.html").unlink()
    (tmp_path / "run/report.html").mkdir()
    more = run(capsys, *faces, *SMALL[3:], "resume=run", "trainer.max_epochs=2")
    assert more.code == 0
    assert "WARNING: the report is missing: run/report.html" in more.err
    assert RunRecord.read(tmp_path / "run").state == "done"


@pytest.mark.thorough
def test_a_run_that_is_switched_off_leaves_none(faces, tmp_path, capsys, reports):
    words = ["trainer.max_epochs=1", "run_dir=run", "trainer.report=false"]
    assert run(capsys, *faces, *SMALL[3:], *words).code == 0
    assert not (tmp_path / "run/report.html").exists()


@pytest.mark.thorough
def test_a_run_that_was_stopped_says_how_to_go_on(preempted):
    folder, code, _, err = preempted
    assert code == 75, err
    assert f"report       {folder}/report.html" in err
    text = " ".join(Read((folder / "report.html").read_text()).text)
    assert "It was asked to stop" in text
    assert f"python run.py resume={folder}" in text
    assert "stopped before epoch" in text


@pytest.mark.stress
def test_reports_need_no_torch(runs, tmp_path):
    code = (
        "import sys; from penstock import command; code = command.main(sys.argv[1:]); "
        "print('torch' in sys.modules, code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "task=report", f"runs=[{runs / 'done'},{runs / 'failed'}]"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "False 0", done.stderr
    missing = run_missing(tmp_path)
    assert missing.returncode == 2
    assert "is not a run's folder" in missing.stderr


def run_missing(folder):
    words = [sys.executable, "run.py", "task=report", f"runs=[{folder}]"]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.stress
def test_the_verdict_and_what_comes_next(runs):
    done = RunRecord.read(runs / "done")
    best, baseline = done.manifest["best"]["val/nme"], done.manifest["baseline"]["nme"]
    said = verdict.sentence(done)
    assert f"nme reached {best:.4g} in epoch {done.manifest['best']['epoch']}" in said
    assert f"the best constant prediction has {baseline:.4g}" in said
    assert "is the bottleneck" in said
    failed = RunRecord.read(runs / "failed")
    assert verdict.sentence(failed).startswith("It failed: the loss is nan at epoch 0, step 1.")
    lead = verdict.lead(failed)
    assert "task=replay epoch=0 step=1" in lead
    assert f"resume={runs / 'failed'}" in lead


@pytest.mark.parametrize(
    ("waited", "work", "workers", "said"),
    [
        (0.05, 30.0, 2, "Training is the bottleneck: 5%"),
        (0.11, 8.0, 2, "Training is the bottleneck: 11%"),
        (0.12, 1.2, 0, "Training is the bottleneck: 12%"),
        (
            0.11,
            19.0,
            2,
            "Loading is the bottleneck: 11% of the time went into waiting for data. A sample "
            "takes 19 ms, most of it for read.",
        ),
        (0.7, 7.0, 0, "Loading is the bottleneck: 70%"),
        (0.3, 4.0, 2, "30% of the time went into waiting for data, though workers had"),
        (0.3, 4.0, "auto", "30% of the time went into waiting for data; task=profile finds"),
    ],
)
def test_a_bound_is_named_where_it_is_one(waited, work, workers, said, tmp_path):
    """By the rule of task=profile: 100 samples a second, 10 ms each."""
    run = RunRecord(tmp_path, {"loader": {"num_workers": workers}}, {"sessions": [{"world": 1}]})
    epoch = {
        "event": "epoch",
        "epoch": 0,
        "step": 9,
        "seconds": 5.0,
        "wait_share": waited,
        "samples_per_second": 100.0,
        "ms/read": work,
    }
    line = {"train/loss": 1.0, "lr": 0.1, "worker_deaths": 0, **epoch}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    assert verdict._bound(run).startswith(said)


@pytest.mark.thorough
def test_settings_are_a_difference_from_the_defaults(runs, tmp_path):
    html = settings.section(RunRecord.read(runs / "done")).body
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in html.split("<tr>")[1:]]
    assert ["loader", "default", "debug"] in rows
    assert ["tracker", "tensorboard", "none"] in rows
    keys = {row[0]: row[1:] for row in rows}
    assert keys["batch.size"] == ["32", "8"]
    assert keys["trainer.max_epochs"] == ["20", "3"]
    assert "loader.num_workers" not in keys, "the option gives that"
    assert "optimizer.lr" not in keys


@pytest.mark.thorough
def test_curves_have_marks_and_addresses(runs):
    resumed = RunRecord.read(runs / "resumed")
    steps = values.Steps(resumed)
    marks, said = curves.events(resumed, steps)
    assert [(one.x, one.label) for one in marks if one.label == "resumed"] == [(6.0, "resumed")]
    assert "resumed at epoch 1, step 0" in said
    assert steps.at(2, 1) == 14
    notes = [steps.note(one) for one in resumed.logs]
    assert notes[:3] == [f"epoch 0, step {step} · {step + 1} optimizer steps" for step in (1, 3, 5)]
    assert notes[3] == "epoch 1, step 1 · 8 optimizer steps"
    fine = curves.of_ledger(resumed.ledger, steps)
    assert fine.notes[7] == "epoch 1, step 1"
    assert fine.x[7] == 8
    assert fine.y[7] == resumed.ledger.loss[7]


def test_a_long_curve_keeps_its_extremes():
    numbers = np.random.default_rng(0).normal(size=50_000)
    numbers[31_234], numbers[777] = 99.0, -99.0
    kept = thinned(Curve("", range(50_000), [*numbers[:10], None, *numbers[11:]]), "")
    assert len(kept.x) <= MOST_POINTS + 2
    assert (max(kept.y), min(kept.y)) == (99.0, -99.0)
    assert kept.x[kept.y.index(99.0)] == 31_234
    assert list(kept.x) == sorted(kept.x)
    assert (kept.x[0], kept.x[-1]) == (0, 49_999)


def test_spikes_stand_out_from_the_steps_around():
    count = 400
    losses = 3 * np.exp(-np.arange(count) / 60) + 0.5
    losses[[150, 390]] *= (4.0, 2.0)
    steps = np.arange(count)
    ledger = Ledger(steps // 100, steps % 100, np.full(count, 8), steps.astype(np.uint64), losses)
    found = spikes.find(ledger)
    assert [(one.epoch, one.step) for one in found[:2]] == [(1, 50), (3, 90)]
    assert found[0].times == pytest.approx(4.0, rel=0.05)
    assert all(one.times < 1.1 for one in found[2:]), "a falling loss has none"

    count = 60_001
    losses = np.random.default_rng(0).uniform(1, 1.1, count)
    losses[41_234] = 9.0
    steps = np.arange(count)
    ledger = Ledger(steps * 0, steps, steps * 0 + 8, steps.astype(np.uint64), losses)
    assert spikes.find(ledger)[0].step == 41_234
    curve = curves.of_ledger(
        ledger, values.Steps(SimpleNamespace(config={}, epochs=Series("epoch"), sessions=[]))
    )
    assert len(curve.x) <= 10_000
    assert curve.notes[curve.y.index(9.0)] == "epoch 0, step 41234"


@pytest.mark.thorough
def test_starts_tell_what_is_repeated(runs, tmp_path, capsys):
    folder = tmp_path / "run"
    shutil.copytree(runs / "done", folder)
    last = sorted((folder / "checkpoints").glob("*.safetensors"))
    manifest = json.loads((folder / "manifest.json").read_text())
    ledger = (folder / "ledger.jsonl").read_text().splitlines()
    extra = [json.dumps({**json.loads(ledger[-1]), "epoch": 3, "step": step}) for step in (0, 1)]
    with (folder / "ledger.jsonl").open("a") as file:  # as a run that was killed leaves it
        file.write("\n".join(extra) + "\n")
    (folder / "manifest.json").write_text(json.dumps({**manifest, "status": "running"}))
    assert last
    assert RunRecord.read(folder).state == "killed"
    assert "killed" in run_report.make(RunRecord.read(folder))
    done = run(capsys, f"resume={folder}", "trainer.max_epochs=4")
    assert done.code == 0, done.err
    again = RunRecord.read(folder)
    assert again.sessions[-1]["repeated"] == 2
    assert ">2</td>" in run_report.make(again)


@pytest.mark.thorough
def test_deaths_and_left_out_samples_are_shown(runs, tmp_path):
    folder = copied(runs / "done", tmp_path / "run")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line["worker_deaths"] = 3 if line["epoch"] == 1 else 0
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    bad = [
        Entry("train", 5, "a.jpg", 0, 2, 17, "cut off", "d"),
        Entry("train", 6, "b.jpg", 2, 4, 36, "cut off", "d"),
        Entry("val", 7, "c.jpg", 0, 0, 1, "cut off", "d"),
    ]
    with (folder / "quarantine.csv").open("w") as file:
        csv.writer(file).writerows([COLUMNS, *map(astuple, bad)])
    record = RunRecord.read(folder)
    marks, said = curves.events(record, values.Steps(record))
    assert [one.x for one in marks if not one.label] == [3, 17]
    assert any("epoch 0, step 2, epoch 2, step 4" in one for one in said)
    html = run_report.make(record)
    row = html[html.index("Workers that died and") :].split("<tr>")[2]
    assert re.findall(r">(\d+)</t[hd]>", row)[:2] == ["1", "3"]


def hostile(folder):
    """Write what somebody might into every text of a run's folder."""
    manifest = json.loads((folder / "manifest.json").read_text())
    text = f"{HOSTILE}\x1b]0;t\x07\"'>\u202e<img src=x onerror=alert(1)>"
    manifest |= {
        "command": text,
        "monitor": HOSTILE,
        "platform": text,
        "git": {"commit": text},
        "packages": {text: text},
        "gpus": [text],
        "overrides": [f"seed={text}", f"{text}=1"],
        "best": {**manifest["best"], f"val/{HOSTILE}": 0.5},
        "sessions": [{**one, "reason": text, "status": text} for one in manifest["sessions"]],
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["dataset"] = {"_target_": f"a.{HOSTILE}", text: text}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        if line["event"] == "epoch":
            line |= {f"val/recall/{HOSTILE}": 0.5, f"val/{text}": 1.0, f"ms/{HOSTILE}": 1.0}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_whatever_a_folder_says_comes_out_as_text(runs, tmp_path):
    folder = tmp_path / 'it\'s "quoted" <b>'
    shutil.copytree(runs / "resumed", folder)
    hostile(folder)
    html = run_report.write(folder).read_text()
    page = Read(html)
    (script,) = [text for kind, text in page.scripts if kind is None]
    assert "alert" not in script
    assert {kind for kind, _ in page.scripts} == {None, "application/json"}
    assert all(json.loads(text) for kind, text in page.scripts if kind)
    assert "img" not in page.tags
    assert "b" not in page.tags
    assert not [one for one in page.attributes if one[1].startswith("on")]
    text = " ".join(page.text)
    assert HOSTILE in text
    assert str(folder) in text
    assert "\\x1b]0;t\\x07" in text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", html)


def test_the_policy_lets_our_script_run_and_nothing_else(runs):
    page = Read(run_report.make(RunRecord.read(runs / "failed")))
    (policy,) = [
        dict_of(page, "meta", "content")
        for one in page.attributes
        if one == ("meta", "http-equiv", "Content-Security-Policy")
    ]
    (script,) = [text for kind, text in page.scripts if kind is None]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (content,) = [one for one in policy if one.startswith("default-src 'none';")]
    assert f"script-src 'sha256-{digest}'" in content
    addresses = [one[2] for one in page.attributes if one[1] in ("src", "href", "action", "srcset")]
    assert all(one.startswith(("#", "data:")) for one in addresses)


def dict_of(page, tag, name):
    return [one[2] for one in page.attributes if one[:2] == (tag, name)]


JUNK = [None, [], {}, "x", -1, True, [[1]], {"a": [None]}, 1e300]


@pytest.mark.one_in(5)
@pytest.mark.parametrize("junk", JUNK, ids=map(str, JUNK))
def test_a_manifest_and_a_configuration_of_any_values_give_a_report(runs, tmp_path, junk):
    kept = ("overrides", "sessions", "best")  # which the manifest's reader checks
    manifest = json.loads((runs / "failed/manifest.json").read_text())
    changes = {name: junk for name in manifest if name not in kept}
    started = dict.fromkeys((*manifest["sessions"][0], "at", "reason", "repeated"), junk)
    folder = copied(runs / "failed", tmp_path / "run", **changes, sessions=[started, started])
    (folder / "metrics.jsonl").write_text(
        '{"event": "epoch", "epoch": 0, "step": 3, "val/x": 1, "seconds": 0}\n'
    )
    assert run_report.make(RunRecord.read(folder)).startswith("<!doctype html>")
    config = dict.fromkeys(yaml.safe_load((folder / "config.yaml").read_text()), junk)
    (folder / "config.yaml").write_text(json.dumps(config))
    assert run_report.make(RunRecord.read(folder)).startswith("<!doctype html>")


def big(folder, epochs=100, metrics=40, steps=200):
    """A folder of a long run with many metrics."""
    lines, rows = [], []
    numbers = np.random.default_rng(0)
    for epoch in range(epochs):
        for part in range(5):
            lines.append(
                {
                    "event": "log",
                    "epoch": epoch,
                    "step": epoch * steps + 40 * (part + 1),
                    "train/loss": numbers.random(),
                    "lr": 0.1,
                    "wait_share": 0.1,
                    "samples_per_second": 1000.0,
                    "ms/read": 1.0,
                }
            )
        lines.append(
            {
                "event": "epoch",
                "epoch": epoch,
                "step": (epoch + 1) * steps,
                "seconds": 9.0,
                "train/loss": numbers.random(),
                "lr": 0.1,
                "wait_share": 0.1,
                "ms/read": 1.0,
                "samples_per_second": 1000.0,
                "worker_deaths": epoch % 2,
                **{
                    f"val/metric{i}/{c}": numbers.random() for i in range(metrics) for c in range(5)
                },
            }
        )
        rows += [
            {
                "epoch": epoch,
                "step": step,
                "samples": 8,
                "order": f"{step:016x}",
                "loss": float(numbers.random()).hex(),
            }
            for step in range(steps)
        ]
    for name, some in (("metrics.jsonl", lines), ("ledger.jsonl", rows)):
        (folder / name).write_text("".join(json.dumps(one) + "\n" for one in some))


@pytest.mark.stress
def test_a_long_run_with_many_metrics_fits_into_two_mebibytes(runs, tmp_path):
    folder = copied(runs / "done", tmp_path / "run")
    big(folder)
    path = run_report.write(folder)
    assert 200_000 < path.stat().st_size <= 2 << 20


def test_settings_of_a_resumed_run_are_those_of_its_last_start(runs):
    run = RunRecord.read(runs / "resumed")
    run.manifest["sessions"][-1]["command"] = "python /a/run.py resume=faces"
    shown = str(settings.section(run).body)
    rows = re.findall(r"<th[^>]*>(?:<[^>]+>)*trainer\.max_epochs.*?</tr>", shown, re.DOTALL)
    assert re.findall(r"<td[^>]*>(?:<[^>]+>)*(\d+)", rows[0]) == ["20", "3"]
    assert "<dt>last resumed by</dt><dd>python run.py resume=faces</dd>" in shown
    assert "last resumed by" not in str(settings.section(RunRecord.read(runs / "done")).body)
