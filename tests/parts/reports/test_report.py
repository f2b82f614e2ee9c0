"""What a run's report says, and that whatever its folder holds comes out as text."""

import base64
import csv
import hashlib
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
import yaml

from penstock.addons.reports import report, verdict
from penstock.addons.reports.page import chart, curve
from penstock.addons.reports.values import numeral
from penstock.runs.quarantine import Entry
from penstock.runs.run import Run
from tests.parts.reports.conftest import SMALL
from tests.support.program import ROOT, run

HOSTILE = "<script>alert(1)</script>"


class Read(HTMLParser):
    """Tags, attributes, text and scripts of a page."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.attributes, self.text, self.scripts = [], [], [], []
        self._in = ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]
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


def text_of(folder):
    return " ".join(Read(report.make(Run(folder))).text)


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
    (style,) = re.findall("<style>(.*?)</style>", html, re.S)
    for opening, closing in ("()", "{}"):  # one that stays open swallows all rules behind it
        assert style.count(opening) == style.count(closing) > 0
    again = run(capsys, "task=report", "runs=[run]")
    assert (again.code, again.out) == (0, "run/report.html\n"), again.err
    assert (tmp_path / "run/report.html").read_text() == html
    missing = run(capsys, "task=report", "runs=[nowhere]")
    assert (missing.code, "is not a run's folder" in missing.err) == (2, True)
    words = ["trainer.max_epochs=1", "run_dir=none", "trainer.report=false"]
    assert run(capsys, *faces, *SMALL[3:], *words).code == 0
    assert not (tmp_path / "none/report.html").exists()


def test_a_report_that_fails_costs_a_warning(faces, tmp_path, capsys, reports):
    assert run(capsys, *faces, *SMALL[3:], "trainer.max_epochs=1", "run_dir=run").code == 0
    (tmp_path / "run/report.html").unlink()
    (tmp_path / "run/report.html").mkdir()
    more = run(capsys, *faces, *SMALL[3:], "resume=run", "trainer.max_epochs=2")
    assert more.code == 0
    assert "WARNING: the report is missing: run/report.html" in more.err
    assert Run(tmp_path / "run").state == "done"


def test_a_section_that_cannot_be_made_says_so_in_its_place(runs, tmp_path, capsys):
    folder = copied(runs / "done", tmp_path / "run", packages=3)
    html = report.make(Run(folder))
    assert "WARNING: the report lacks a section (Settings): " in capsys.readouterr().err
    assert "This section could not be made: " in html
    assert "Curves" in html


def test_a_run_that_was_stopped_says_how_to_go_on(preempted):
    folder, code, _, err = preempted
    assert code == 75, err
    assert f"report       {folder}/report.html" in err
    text = " ".join(Read((folder / "report.html").read_text()).text)
    assert "It was asked to stop" in text
    assert f"python run.py resume={folder}" in text


@pytest.mark.parametrize("task", ["report", "runs"])
def test_reports_and_lists_need_no_torch(task, runs):
    code = (
        "import sys; from penstock import command; code = command.main(sys.argv[1:]); "
        "print('torch' in sys.modules, code)"
    )
    words = [sys.executable, "-c", code, f"task={task}", f"runs=[{runs / 'done'}]"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False 0", done.stderr


def made_up(folder, values, mode="min", **manifest):
    """A run that is done, whose metric had these values, an epoch each."""
    (folder / "checkpoints").mkdir(parents=True)
    best = (max if mode == "max" else min)(range(len(values)), key=lambda at: values[at])
    lines = [
        {
            "event": "epoch",
            "epoch": epoch,
            "step": 9 * epoch + 9,
            "seconds": 5.0,
            "val/x": value,
            "wait_share": manifest.get("waited", 0.0),
            "samples_per_second": 100.0,
            "ms/read": manifest.get("work", 1.0),
            **{name: column[epoch] for name, column in manifest.get("losses", {}).items()},
        }
        for epoch, value in enumerate(values)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    loader = {"num_workers": manifest.get("workers", 2)}
    facts = {
        "status": "done",
        "monitor": "x",
        "mode": mode,
        "reason": "max_epochs",
        "overrides": [],
    }
    facts |= {
        "best": {"epoch": best, "val/x": values[best]},
        "sessions": [{"world": 1}],
        **manifest,
    }
    config = {"loader": loader, "optimizer": {"lr": 0.005}}
    (folder / "config.yaml").write_text(json.dumps(config))
    (folder / "manifest.json").write_text(json.dumps(facts))
    return Run(folder)


@pytest.mark.parametrize(
    ("values", "mode", "constant", "said"),
    [
        ([0.5, 0.4], "min", 0.8, "x reached 0.4 in epoch 1, better than 0.8 (mean target)."),
        ([0.9], "min", 0.8, "worse than 0.8 (mean target)."),
        ([0.9], "max", 0.8, "better than 0.8 (mean target)."),
        ([0.1], "max", 0.0, "better than 0 (mean target)."),
        ([0.5], "max", 0.5, "no better than 0.5 (mean target)."),
        ([0.5], "max", None, "x reached 0.5 in epoch 0."),
    ],
)  # fmt: skip
def test_a_result_is_told_beside_a_constant(values, mode, constant, said, tmp_path):
    baseline = {} if constant is None else {"x": constant}
    found = made_up(tmp_path, values, mode, baseline=baseline, baseline_name="mean target")
    assert said in verdict.sentence(found)
    names = [name for name, *_ in verdict.figures(found)]
    assert ("mean target" in names) == (constant is not None)


RATE = " A smaller learning rate may help: optimizer.lr=0.0005."
NONE = "Neither the training loss, 1.3, nor the validation loss, 0.7 at best, is better than 0.69"


@pytest.mark.parametrize(
    ("train", "val", "said"),
    [
        ([0.7, 0.5], [0.6, 0.5], ""),
        ([1.3, 3.8], [0.7, 18.0], f"Training diverged: its loss rose from 1.3 to 3.8.{RATE}"),
        ([1.3, 3.8], None, ""),
        ([1.3, 1.3], [18.0, 0.7], f"{NONE} (chance).{RATE}"),
        ([3.8, 1.3], [18.0, 0.7], f"{NONE} (chance). More epochs may help"),
        ([0.69, 0.69, 0.689], [0.68] * 3, "The training loss stayed at 0.689: a larger"),
        ([0.6, 0.4, 0.1], [0.5, 0.6, 0.9], "It overfits: after epoch 0 the validation loss rose"),
        ([0.6, 0.5], [9.0, 0.8], "The validation loss, 0.8 at best, is worse than 0.69 (ch"),
        ([0.6, 0.5], [0.6, None], "The validation loss was not a number in the last epoch."),
        ([0.8], [0.9], ""),
    ],
)
def test_losses_that_went_wrong_are_told(train, val, said, tmp_path):
    """Also where the monitored metric is the best so far; then nobody is told to train longer. Of a
    GAN, without a validation loss, the metric alone tells.
    """
    values = [0.1 * (epoch + 1) for epoch in range(len(train))]
    losses = {"train/loss": train} | ({"val/loss": val} if val else {})
    levels = {"comparisons": {"chance": {"x": 0.0, "loss": 0.69}}}
    found = made_up(tmp_path, values, "max", **levels, losses=losses)
    assert verdict.concern(found).startswith(said)
    assert bool(verdict.concern(found)) == bool(said)
    longer = [what for _, what in verdict.to_type(found) if "still getting better" in what]
    assert bool(longer) == (len(train) > 1 and not said)


def test_a_result_at_chance_is_not_getting_better_and_none_is_not_measured_again(tmp_path):
    found = made_up(tmp_path / "a", [0.4, 0.5], "max", baseline={"x": 0.5})
    assert not [what for _, what in verdict.to_type(found) if "still getting better" in what]
    assert verdict.to_type(made_up(tmp_path / "b", [0.5], best=None, monitor=None)) == []


@pytest.mark.parametrize(
    ("waited", "work", "workers", "said"),
    [
        (0.05, 30.0, 2, "Training is the bottleneck: 5% of the time went into waiting for data."),
        (0.46, 5.0, 0, "46% of the time went into waiting for data: training makes"),
        (0.3, 4.0, "auto", "Loading is the bottleneck: 30% of the time went into waiting"),
        (
            0.11,
            19.0,
            2,
            "Loading is the bottleneck: 11% of the time went into waiting for data. A sample "
            "takes 19 ms; its slowest stage is read.",
        ),
    ],
)  # fmt: skip
def test_a_bottleneck_is_named_where_it_is_one(waited, work, workers, said, tmp_path):
    """100 samples a second, 10 ms each."""
    found = made_up(tmp_path, [1.0], waited=waited, work=work, workers=workers)
    assert said in verdict.sentence(found)


@pytest.mark.parametrize(
    ("values", "mode", "said"),
    [
        ([0.5], "min", "To measure its best weights again:"),
        ([0.5, 0.4], "min", "It was still getting better. To train longer:"),
        ([0.1, 0.5, 0.4, 0.7], "max", "To measure its best weights again:"),
        ([0.1, 0.5, 0.4, 0.3, 0.2], "max", "To measure its best weights again:"),
    ],
)
def test_what_to_type_next(values, mode, said, tmp_path):
    assert [what for _, what in verdict.to_type(made_up(tmp_path, values, mode))] == [said]


def test_a_run_that_failed_names_its_batch(runs):
    failed = Run(runs / "failed")
    text = "It failed: the loss is nan at epoch 0, step 1. A smaller learning rate may help"
    assert verdict.sentence(failed).startswith(text)
    lead = verdict.lead(failed)
    assert "task=replay epoch=0 step=1" in lead
    assert f"resume={runs / 'failed'}" in lead


def test_curves_tell_where_a_run_was_resumed_and_what_it_had(runs):
    assert "epoch 1, step 0" in text_of(runs / "resumed"), "the table of starts"
    (loss,) = re.findall(r'<figcaption>Loss.*?"application/json">(.*?)</script>', report.make(
        Run(runs / "resumed")), re.DOTALL)  # fmt: skip
    fine = json.loads(loss)["curves"][0]
    ledger = Run(runs / "resumed").ledger
    assert fine["notes"][0] == "epoch 0, step 0"
    assert fine["y"] == ledger["loss"].tolist()
    assert fine["x"] == [*range(1, len(ledger) + 1)]


def test_a_long_curve_keeps_its_extremes():
    numbers = np.random.default_rng(0).normal(size=50_000)
    numbers[31_234], numbers[777], numbers[10] = 99.0, -99.0, np.nan
    html = chart("A", [curve("a", range(50_000), numbers)], marks=[(40, "<b>")])
    (data,) = re.findall(r"application/json.>(.*?)</script>", html)
    made = json.loads(data)["curves"][0]
    assert len(made["x"]) == len(made["y"]) <= 402
    assert {99.0, -99.0} <= set(made["y"])
    assert made["x"] == sorted(made["x"])
    assert "<b>" not in html
    assert chart("B", [curve("b", [1, 2], [np.nan, np.inf])]) == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1300, "1,300"), (0.00105, "0.00105"), (2e-8, "2e-08"), (123456, "123,456")]
    + [(-0.25, "-0.25"), (float("nan"), "nan"), (99.9999, "100"), (None, "")],
)
def test_numbers_as_people_write_them(value, text):
    assert numeral(value) == text


def test_starts_tell_from_where(runs, tmp_path, capsys):
    folder = copied(runs / "done", tmp_path / "run", status="running")
    ledger = (folder / "ledger.jsonl").read_text().splitlines()
    extra = [json.dumps({**json.loads(ledger[-1]), "epoch": 3, "step": step}) for step in (0, 1)]
    with (folder / "ledger.jsonl").open("a") as file:  # as a run that was killed leaves it
        file.write("\n".join(extra) + "\n")
    assert "Its process was killed" in text_of(folder)
    done = run(capsys, f"resume={folder}", "trainer.max_epochs=4")
    assert done.code == 0, done.err
    assert "epoch 3, step 0" in report.make(Run(folder))
    assert Run(folder).ledger.groupby(["epoch", "step"]).size().max() == 1


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
        csv.writer(file).writerows([Entry._fields, *bad])
    text = text_of(folder)
    assert "Left out, as they could not be read: 3 samples" in text
    assert "3 workers died and were replaced" in text


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
        "sessions": [{**start, "reason": text, "status": text} for start in manifest["sessions"]],
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
    sample = {"row": 1, "path": text, "truth": text, "predicted": HOSTILE, "words": text}
    facts = {"mode": text, "splits": [], "batches": [], "losses": None, "notes": [text]}
    facts["predictions"] = [{**sample, "group": text, "loss": 0.5, "wrong": True}]
    (folder / "report").mkdir(exist_ok=True)
    (folder / "report" / "facts.json").write_text(json.dumps(facts))


def test_whatever_a_folder_says_comes_out_as_text(runs, tmp_path):
    folder = tmp_path / 'it\'s "quoted" <b>'
    shutil.copytree(runs / "resumed", folder)
    hostile(folder)
    html = report.save(Run(folder)).read_text()
    page = Read(html)
    (script,) = [text for kind, text in page.scripts if kind is None]
    assert "alert" not in script
    assert {kind for kind, _ in page.scripts} == {None, "application/json"}
    assert all(json.loads(text) for kind, text in page.scripts if kind)
    assert "img" not in page.tags
    assert "b" not in page.tags
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    text = " ".join(page.text)
    assert "could not be made" not in text
    assert HOSTILE in text
    assert str(folder) in text
    assert "\\x1b]0;t\\x07" in text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", html)


def test_the_policy_lets_our_script_run_and_nothing_else(runs):
    page = Read(report.make(Run(runs / "failed")))
    (policy,) = [value for *_, value in page.attributes if str(value).startswith("default-src")]
    (script,) = [text for kind, text in page.scripts if kind is None]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.startswith("default-src 'none';")
    assert f"script-src 'sha256-{digest}'" in policy
    addresses = [value for _, name, value in page.attributes if name in ("src", "href", "action")]
    assert all(address.startswith(("#", "data:")) for address in addresses)
