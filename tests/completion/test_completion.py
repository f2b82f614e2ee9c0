"""Completion by Tab: no name is ever expanded, and what is completed arrives as that very name.

Shells are driven as a person drives them, by keys that they read from a terminal. The program that
they then start notes its words.
"""

import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from penstock import command
from penstock.addons.completion import shells
from tests.program import ROOT

SHELLS = {
    "bash": ["--norc", "--noprofile", "-i"],
    "zsh": ["-f", "-i"],
    "fish": ["--no-config", "-i"],
}
RUN = str(ROOT / "run.py")
SECONDS = 100  # for a shell to do what it was told

# What a file may be called; CANARY stands for a file that must not appear.
NAMES = [
    "zz$(touch CANARY)",
    "zz`touch CANARY`",
    "zz;touch CANARY",
    "zz&&touch CANARY",
    "zz|x",
    "zz<x>",
    "zz a b",
    "zz ",
    "zz'q",
    'zz"d',
    "zz\\b",
    "zz\\'b",
    "zz\\",
    "zz$'a'",
    "zz*",
    "zz?[a]",
    "zz{a,b}",
    "zz(x)",
    "zz~",
    "~zz",
    "zz#c",
    "#zz",
    "zz!x",
    "zz^",
    "zz%d",
    "zz$HOME",
    "zz${HOME}",
    "-zz",
    "zz=x",
    "zz:y",
    "zz,z",
    "zz@x",
    "zz \N{LATIN SMALL LETTER E WITH ACUTE}",
    "zz\N{GRINNING FACE}",
]
# These cannot be shown as they are, and are not offered.
UNSEEN = [
    "zz\nb",
    "zz\tb",
    "zz\x1b]0;EVIL\x07",
    "zz\x7f",
    "zz\N{RIGHT-TO-LEFT OVERRIDE}x",
    "zz\udcff",
    "zz\N{ZERO WIDTH SPACE}",
]


def script(capsys, shell, program=RUN):
    """What `-sc install=SHELL` prints."""
    capsys.readouterr()
    assert command.main(["-sc", f"install={shell}"], script=program) == 0
    return capsys.readouterr().out


def asked(capsys, shell, *words, code=0, options=()):
    """What the program answers when the last of these words is to be completed."""
    *before, last = words
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMP_WORDS", "\n".join(["penstock", *before]))
        patch.setenv("COMP_LINE", " ".join(["penstock", *words]))
        patch.setenv("COMP_WORD", last if shell != "bash" else last.rpartition("=")[2])
        capsys.readouterr()
        assert command.main(["-sc", f"query={shell}", *options], script=RUN) == code
    return capsys.readouterr().out.splitlines()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder to work in, with programs that note their words, and a shell's settings."""
    for name in ("bin", "data", "home"):
        (tmp_path / name).mkdir()
    for name in ("python", "penstock"):
        noted = tmp_path / "bin" / name
        noted.write_text('#!/bin/sh\nprintf "%s\\0" "$@" >"$OUT.part"; mv "$OUT.part" "$OUT"\n')
        noted.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    assert not list(tmp_path.rglob("canary")), "a name was expanded"


def typed(shell, folder, keys, done):
    """What a shell shows while keys are typed, until `done()`."""
    variables = {
        "PATH": f"{folder / 'bin'}:/usr/bin:/bin",
        "HOME": str(folder / "home"),
        "TERM": "xterm",
        "LC_ALL": "C.UTF-8",
        "OUT": str(folder / "out"),
    }
    program = shutil.which(shell)
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(folder)
        os.execve(program, [program, *SHELLS[shell]], variables)
    shown, until = b"", time.monotonic() + SECONDS
    try:
        os.write(terminal, keys.encode())
        while not done(shown):
            assert time.monotonic() < until, shown
            if select.select([terminal], [], [], 0.05)[0]:
                shown += os.read(terminal, 1 << 16)
    finally:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        os.close(terminal)
        os.waitpid(process, 0)
    return shown


def completed(shell, folder, keys, capsys):
    """The words that the program is started with when these keys are typed, and Enter."""
    (folder / "script").write_text(script(capsys, shell))
    load = "source ./script" if shell == "fish" else ". ./script"
    out = folder / "out"
    typed(shell, folder, f"{load}\rpython {RUN} {keys}\r", lambda shown: out.exists())
    words = out.read_bytes().split(b"\0")[:-1]
    return [os.fsdecode(word) for word in words][1:]


def value_of(word):
    """What hydra makes of the value of an override."""
    given = OverridesParser.create().parse_override(word).value()
    return OmegaConf.create({"value": given}).value


MATRIX = [(name, shell) for name in NAMES for shell in SHELLS]


@pytest.mark.one_in(26)
@pytest.mark.parametrize(("name", "shell"), MATRIX)
def test_a_completed_name_arrives_as_it_is(name, shell, folder, capsys):
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} on this machine")
    name = name.replace("CANARY", "canary")
    (folder / "data" / name).touch()
    for unseen in UNSEEN:
        (folder / "data" / unseen).touch()
    begin = "zz" if name.startswith("zz") else name[:1]
    begin = f"\\{begin}" if begin in "~#" else begin
    (word,) = completed(shell, folder, f"dataset.root=data/{begin}\t", capsys)
    assert value_of(word) == f"data/{name}"


@pytest.mark.stress
@pytest.mark.parametrize("shell", SHELLS)
def test_folders_of_any_name_are_gone_through(shell, folder, capsys):
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} on this machine")
    # fish replaces no word with `$(` in it, and puts a space behind a quote.
    name, last = (
        ("zz ;touch canary", "\x1b[D\t") if shell == "fish" else ("zz $(touch canary)", "\t")
    )
    inner = folder / "data" / name
    inner.mkdir()
    (inner / "a'b;touch canary").touch()
    (folder / "data" / "zz2").touch()
    # Two begin alike; then comes a letter that only one of them has, and what lies in that.
    keys = f"dataset.root=data/zz\t\\ \t{last}"
    (word,) = completed(shell, folder, keys, capsys)
    assert value_of(word) == f"data/{name}/a'b;touch canary"


@pytest.mark.stress
@pytest.mark.parametrize("shell", SHELLS)
def test_a_list_of_names_does_nothing_to_the_terminal(shell, folder, capsys):
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} on this machine")
    for name in [*UNSEEN, "zzone", "zztwo", "zz$(touch canary)"]:
        (folder / "data" / name).touch()
    (folder / "script").write_text(script(capsys, shell))
    load = "source ./script" if shell == "fish" else ". ./script"
    keys = f"{load}\rpython {RUN} dataset.root=data/zz\t\t\t"
    shown = typed(shell, folder, keys, lambda shown: b"zztwo" in shown and b"canary" in shown)
    assert b"EVIL" not in shown
    assert "\N{RIGHT-TO-LEFT OVERRIDE}".encode() not in shown


@pytest.mark.thorough
def test_every_name_comes_out_of_bash_as_it_is(folder, capsys):
    """Without a terminal: all names at once, by calling the function."""
    names = [name.replace("CANARY", "canary") for name in NAMES]
    lines = []
    for number, name in enumerate(names):
        place = folder / f"n{number}"
        place.mkdir()
        (place / name).touch()
        begin = f"dataset.root=n{number}/"
        answers = asked(capsys, "bash", begin)
        assert len(answers) == 1
        (folder / f"answer{number}").write_text(answers[0] + "\n")
        lines.append(
            f"COMP_LINE='python {RUN} {begin}'\nCOMP_POINT=${{#COMP_LINE}} ANSWER=answer{number}\n"
            f"COMP_WORDS=(python {RUN} dataset.root = n{number}/)\n"
            f"_penstock_completion python n{number}/ =\n"
            "eval \"printf '%s\\0' dataset.root=${COMPREPLY[0]}\"\n"
        )
    text = script(capsys, "bash").replace(f"{sys.executable} {RUN} -sc query=bash", 'cat "$ANSWER"')
    assert "cat" in text
    done = subprocess.run(["bash", "-c", text + "".join(lines)], capture_output=True, check=True)
    assert done.stderr == b""
    words = [os.fsdecode(word) for word in done.stdout.split(b"\0")[:-1]]
    assert [value_of(word) for word in words] == [
        f"n{number}/{name}" for number, name in enumerate(names)
    ]


def test_names_that_cannot_be_shown_are_not_offered(folder, capsys):
    for name in UNSEEN:
        (folder / "data" / name).touch()
    for shell in SHELLS:
        assert asked(capsys, shell, "dataset.root=data/zz") == []


def test_keys_groups_and_options_are_completed(capsys):
    assert asked(capsys, "zsh", "samp") == ["sampler.", "sampler="]
    assert asked(capsys, "bash", "samp") == ["sampler.", "sampler="]
    assert "sampler=weighted" in asked(capsys, "fish", "sampler=w")
    assert asked(capsys, "bash", "sampler=w") == ["weighted"], "what stands after the ="
    assert asked(capsys, "zsh", "+experiment=o") == []
    assert "dataset.reader=" in asked(capsys, "zsh", "dataset=image_folder", "dataset.r")
    assert asked(capsys, "zsh", "trainer.max_ep") == ["trainer.max_epochs="]
    assert asked(capsys, "zsh", "trainer.max_epochs=") == ["trainer.max_epochs=20"]
    assert "hydra/launcher=" in asked(capsys, "zsh", "hydra/l")
    assert asked(capsys, "zsh", "nonsense") == []
    assert asked(capsys, "zsh", "seed=1,2", "-m", "see") == ["seed="]


def test_quotes_that_are_open_are_kept(folder, capsys, monkeypatch):
    for name in ("plain", "with space"):
        (folder / "data" / name).touch()
    assert asked(capsys, "zsh", "run_dir=data/p") == ["run_dir=data/plain"]
    both = ["run_dir='data/plain'", "run_dir='data/with space'"]
    assert asked(capsys, "zsh", "run_dir=data/") == asked(capsys, "zsh", "run_dir='data/") == both
    assert asked(capsys, "zsh", "run_dir='data/w") == both[1:]
    lines = {
        r"penstock run_dir=\'data/w": ("'data/w", r"\'data/with\ space\'"),
        "penstock 'run_dir=data/p": ("run_dir=data/p", "run_dir=data/plain"),
        "penstock 'run_dir=data/w": ("run_dir=data/w", None),
        'penstock "run_dir=data/p': ("run_dir=data/p", "run_dir=data/plain"),
        "penstock run_dir=$HOME/": ("$HOME/", None),
        "penstock run_dir=`x": ("`x", None),
    }
    for line, (word, answer) in lines.items():
        word = word if line.endswith(word) else line.partition("=")[2]
        monkeypatch.setenv("COMP_LINE", line)
        monkeypatch.setenv("COMP_WORD", word)
        capsys.readouterr()
        assert command.main(["-sc", "query=bash"], script=RUN) == 0
        assert capsys.readouterr().out.splitlines() == ([answer] if answer else []), line


def test_folders_of_configurations_are_text_too(folder, capsys):
    conf = folder / "my conf"
    (conf / "dataset").mkdir(parents=True)
    (conf / "dataset" / "zz$(touch canary).yaml").write_text("{}")
    (conf / "dataset" / "zz\x1b[2J.yaml").write_text("{}")
    typed_so_far = ("--config-dir", str(conf), "dataset=zz")
    assert asked(capsys, "zsh", *typed_so_far) == ["dataset=zz$(touch canary)"]
    monkey = ["--config-dir", str(conf)]
    assert asked(capsys, "bash", "dataset=zz", options=monkey) == [r"zz\$\(touch\ canary\)"]
    assert asked(capsys, "zsh", "--config-dir", "my") == ["my conf/"]


def test_secrets_and_variables_are_not_offered(folder, capsys, monkeypatch):
    monkeypatch.setenv("MINE", "hunter2")
    conf = folder / "conf"
    (conf / "experiment").mkdir(parents=True)
    text = "# @package _global_\ncache_dir: ${oc.env:MINE}\n"
    (conf / "experiment" / "x.yaml").write_text(text)
    before = ("--config-dir", str(conf), "experiment=x")
    assert asked(capsys, "zsh", *before, "cache_d") == ["cache_dir="]
    assert asked(capsys, "zsh", *before, "cache_dir=") == []


def test_only_the_program_that_was_installed_is_asked(folder, capsys):
    """Not what lies in a stranger's folder under its name."""
    evil = f"import pathlib\n# @hydra.main\npathlib.Path({str(folder / 'canary')!r}).touch()\n"
    (folder / "run.py").write_text(evil)
    (folder / "penstock").write_text(f"#!/bin/sh\ntouch {folder / 'canary'}\n")
    (folder / "penstock").chmod(0o755)
    (folder / "bin" / "installed").mkdir()
    installed = folder / "bin" / "installed" / "penstock"
    installed.write_text(f"print('seed=', file=open({str(folder / 'told')!r}, 'w'))\n")
    for text, words, tells in (
        (script(capsys, "bash"), "python run.py see", False),
        (script(capsys, "bash", str(installed)), "./penstock see", True),
    ):
        assert str(folder / "penstock") not in text
        line = f"COMP_LINE='{words}'; COMP_WORDS=({words}); COMP_POINT=${{#COMP_LINE}}\n"
        line += "_penstock_completion x see x; true\n"
        subprocess.run(["bash", "-c", text + line], check=True, capture_output=True)
        assert not (folder / "canary").exists()
        assert (folder / "told").exists() is tells


def test_tab_runs_no_code_of_the_folder_that_one_stands_in(folder, capsys):
    """Even where its pyproject.toml has the person's trust: Tab is not Enter."""
    (folder / "stranger.py").write_text(f"open({str(folder / 'canary')!r}, 'w')\n")
    (folder / "conf" / "dataset").mkdir(parents=True)
    (folder / "conf" / "dataset" / "mine.yaml").write_text("{}")
    project = '[tool.penstock]\ntrust = ["stranger"]\nconfig_dir = "conf"\n'
    (folder / "pyproject.toml").write_text(project)
    folder.chmod(0o700)
    assert "dataset=mine" in asked(capsys, "zsh", "dataset=mi")
    text = "defaults: [config]\nhydra: {searchpath: ['pkg://stranger']}\n"
    (folder / "conf" / "evil.yaml").write_text(text)
    assert asked(capsys, "zsh", "see", options=["--config-name=evil"], code=2) == []
    assert asked(capsys, "zsh", "--config-name=evil", "see", code=2) == []
    assert asked(capsys, "zsh", "hydra.searchpath=[pkg://stranger]", "see", code=2) == []


@pytest.mark.parametrize("shell", SHELLS)
def test_scripts_can_be_read_and_removed_by_their_shell(shell, capsys, tmp_path):
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} on this machine")
    program = tmp_path / "it's a place" / "penstock"
    text = script(capsys, shell, str(program))
    assert command.main(["-sc", f"uninstall={shell}"], script=str(program)) == 0
    text += capsys.readouterr().out
    variables = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    done = subprocess.run(
        [shell, "-c", text], capture_output=True, text=True, check=False, env=variables
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_anything_else_is_one_message(capsys):
    for words in (["install=tcsh"], ["instal=bash"], [], ["query=bash", "seed=1"]):
        assert command.main(["-sc", *words]) == 2
        assert "-sc: got" in capsys.readouterr().err
    assert tuple(SHELLS) == shells.SHELLS


def test_completion_can_be_installed_as_help_says():
    script = 'eval "$(python run.py -sc install=bash)"; complete -p'
    folder = Path(sys.executable).parent
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
    )
    assert "_penstock_completion" in done.stdout, done.stderr
