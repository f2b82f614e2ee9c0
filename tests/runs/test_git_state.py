"""Which commit a run was started from, and that nothing in a checkout can have programs run for it.

A hostile checkout is one whose own configuration, hooks, attributes or index name a program. Where
plain git would run it, the test shows that first, so that it cannot pass for a wrong reason.
"""

import os
import shutil
import subprocess
import time
from itertools import pairwise
from pathlib import Path

import pytest

from penstock.runs import git_state as module
from penstock.runs.git_state import git_state

GIT = shutil.which("git")
pytestmark = pytest.mark.skipif(GIT is None, reason="no git on this machine")
PLAIN = {"PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}


def git(folder, *words):
    """What plain git prints, which follows whatever the checkout names."""
    settings = ("user.name=x", "user.email=x@example.org", "protocol.file.allow=always")
    named = [word for line in settings for word in ("-c", line)]
    command = [GIT, "-C", folder, *named, *words]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env=PLAIN, stdin=subprocess.DEVNULL
    )
    return done.stdout.strip()


def made(folder, *options):
    """A checkout with one commit."""
    folder.mkdir(parents=True)
    git(folder, "init", "--initial-branch=main", *options)
    (folder / "file").write_text("1\n")
    (folder / "sub").mkdir()
    (folder / "sub" / "other").write_text("2\n")
    git(folder, "add", ".")
    git(folder, "commit", "--message=first", "--no-verify")
    return folder


def test_a_commit_and_whether_files_differ(tmp_path):
    assert git_state(tmp_path) is None
    git(tmp_path, "init")
    assert git_state(tmp_path) is None  # no commit yet
    folder = made(tmp_path / "made")
    clean = {"commit": git(folder, "rev-parse", "HEAD"), "dirty": False}
    assert git_state(folder) == git_state(folder / "sub") == clean
    (folder / "file").touch()
    assert git_state(folder) == clean
    changes = {
        "changed": lambda: (folder / "file").write_text("3\n"),
        "staged": lambda: git(folder, "add", "."),
        "new": lambda: [git(folder, "reset", "--hard"), (folder / "new").touch()],
        "removed": lambda: [(folder / "new").unlink(), (folder / "file").unlink()],
    }
    for name, change in changes.items():
        change()
        assert git_state(folder) == {**clean, "dirty": True}, name


def test_files_are_ignored_as_the_checkout_says(tmp_path):
    folder = made(tmp_path / "made")
    (folder / "new").touch()
    assert git_state(folder)["dirty"]
    (folder / ".git" / "info" / "exclude").write_text("new\n")
    assert not git_state(folder)["dirty"]


# Commands that bring a checkout into a form, and the folder that is looked at then.
FORMS = {
    "packed references": ([["pack-refs", "--all"]], "made"),
    "packed objects": ([["gc"]], "made"),
    "detached": ([["checkout", "--detach"]], "made"),
    "branch with slashes": ([["checkout", "-b", "a/b-c.d"]], "made"),
    "linked worktree": ([["worktree", "add", "../linked"]], "linked"),
    "sparse": ([["sparse-checkout", "set", "nothing"]], "made"),
    "split index": ([["update-index", "--split-index"]], "made"),
    "line ends of Windows": (
        [["config", "core.autocrlf", "true"], ["rm", "-r", "."], ["reset", "--hard"]],
        "made",
    ),
    "modes that do not count": (
        [["config", "core.fileMode", "false"], ["update-index", "--chmod=+x", "file"]]
        + [["commit", "--message=second", "--no-verify"]],
        "made",
    ),
    "submodule": ([["clone", ".", "../outer"]], "outer/inner"),
}


@pytest.mark.parametrize("name", FORMS)
def test_each_form_of_a_checkout_is_read_as_git_reads_it(name, tmp_path):
    commands, place = FORMS[name]
    folder = made(tmp_path / "made")
    for words in commands:
        git(folder, *words)
    if name == "submodule":
        git(tmp_path / "outer", "submodule", "add", str(folder), "inner")
    folder = tmp_path / place
    assert git(folder, "status", "--porcelain") == ""
    assert git_state(folder) == {"commit": git(folder, "rev-parse", "HEAD"), "dirty": False}
    (folder / "new").touch()
    assert git_state(folder)["dirty"]


def test_longer_hashes(tmp_path):
    folder = made(tmp_path / "made", "--object-format=sha256")
    state = git_state(folder)
    assert state == {"commit": git(folder, "rev-parse", "HEAD"), "dirty": False}
    assert len(state["commit"]) == 64


def test_without_git_there_is_no_state(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert git_state(Path(__file__).parent) is None


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives away")
def test_a_checkout_of_another_user_has_no_state(tmp_path):
    folder = made(tmp_path / "made")
    os.chown(folder / ".git", 12345, -1)
    assert git_state(folder) is None


def keys(*lines):
    """An attack by keys of .git/config, whose values are the program where none are given."""

    def attack(folder, program):
        for line in lines:
            name, _, value = line.partition("=")
            git(folder, "config", name, value.replace("PROGRAM", program) or program)

    return attack


def filters(driver, key="clean", where=".gitattributes"):
    def attack(folder, program):
        (folder / where).write_text(f"* filter={driver}\n")
        git(folder, "config", f"filter.{driver}.{key}", program)

    return attack


def monitored(folder, program):
    """An index that says that a monitor of files has been asked before."""
    git(folder, "-c", "core.fsmonitor=true", "update-index", "--fsmonitor")
    git(folder, "config", "core.fsmonitor", program)


def hooked(place):
    def attack(folder, program):
        (folder / place).mkdir(parents=True, exist_ok=True)
        for name in (
            "post-index-change",
            "fsmonitor-watchman",
            "pre-commit",
            "reference-transaction",
        ):
            shutil.copy(program, folder / place / name)
        if place != ".git/hooks":
            git(folder, "config", "core.hooksPath", str(folder / place))
        (folder / "sub" / "other").touch()

    return attack


def included(folder, program):
    (folder / ".git" / "more").write_text(f"[core]\n\tfsmonitor = {program}\n")
    git(folder, "config", "include.path", "more")


def submodule(folder, program):
    inner = made(folder.parent / "inner")
    git(folder, "submodule", "add", str(inner), "inner")
    git(folder, "commit", "--message=second", "--no-verify")
    git(folder / "inner", "config", "core.fsmonitor", program)
    git(folder, "config", "submodule.inner.ignore", "none")
    (folder / "inner" / "file").write_text("changed\n")


def nested(folder, program):
    """A checkout that is not part of the outer one."""
    git(made(folder / "nested"), "config", "core.fsmonitor", program)


def promised(transport):
    """A partial clone: a tree is missing, and a program is named that would get it."""

    def attack(folder, program):
        tree = git(folder, "rev-parse", "HEAD:sub")
        git(folder, "rm", "--cached", "-r", "sub")
        (folder / ".git" / "objects" / tree[:2] / tree[2:]).unlink()
        keys = {
            "core.repositoryFormatVersion": "1",
            "extensions.partialClone": "origin",
            "remote.origin.promisor": "true",
            "remote.origin.url": transport.format(program),
            "remote.origin.uploadpack": program,
            "protocol.allow": "always",
            "protocol.ext.allow": "always",
            "core.sshCommand": program,
        }
        for key, value in keys.items():
            git(folder, "config", key, value)

    return attack


def borrowed(folder, program):
    """Objects of another repository, which it is said to be asked for."""
    other = made(folder.parent / "other")
    (folder / ".git/objects/info/alternates").write_text(f"{other}/.git/objects\n")
    git(folder, "config", "core.alternateRefsCommand", program)


def elsewhere(folder, program):
    """A checkout whose files are said to lie in a folder with a filter of its own."""
    other = folder.parent / "files"
    other.mkdir()
    (other / ".gitattributes").write_text("* filter=x\n")
    (other / "file").write_text("3\n")
    git(folder, "config", "filter.x.clean", program)
    git(folder, "config", "core.worktree", str(other))


def behind_a_file(folder, program):
    """A `.git` that is a file, and leads to a repository with a filter."""
    (folder / ".git").rename(folder.parent / "hidden")
    (folder / ".git").write_text(f"gitdir: {folder.parent / 'hidden'}\n")
    filters("x")(folder, program)


# Whether plain `git status` runs the program is shown where it says True.
ATTACKS = {
    "filter": (True, filters("x")),
    "filter that goes on": (True, filters("x", "process")),
    "filter, smudging": (False, filters("x", "smudge")),
    "filter with = in its name": (True, filters("a=b")),
    "filter with dots in its name": (True, filters("a.clean=.b")),
    "filter in the attributes of the checkout": (True, filters("x", where=".git/info/attributes")),
    "monitor of files": (True, keys("core.fsmonitor")),
    "monitor of files, noted in the index": (True, monitored),
    "monitor in an included file": (True, included),
    "hooks": (True, hooked(".git/hooks")),
    "hooks elsewhere": (True, hooked("hooks")),
    "hooks of the configuration": (False, keys("hook.x.command", "hook.x.event=post-index-change")),
    "differences": (False, keys("diff.x.textconv", "diff.x.command", "diff.external")),
    "pagers": (False, keys("core.pager", "pager.status")),
    "editors": (False, keys("core.editor", "sequence.editor")),
    "network": (False, keys("core.sshCommand", "core.gitProxy")),
    "passwords": (False, keys("core.askPass", "credential.helper")),
    "signatures": (False, keys("gpg.program", "gpg.ssh.program", "log.showSignature=true")),
    "aliases": (False, keys("alias.status=!PROGRAM", "alias.config=!PROGRAM")),
    "submodule": (True, submodule),
    "summary of submodules": (False, keys("status.submoduleSummary=true")),
    "checkout inside": (False, nested),
    "missing object, by a program": (True, promised("ext::{}")),
    "missing object, by ssh": (True, promised("ssh://stranger.example/x")),
    "missing object, by a path": (True, promised("/{}")),
    "borrowed objects": (False, borrowed),
    "files elsewhere": (True, elsewhere),
    "repository elsewhere": (True, behind_a_file),
}


@pytest.mark.parametrize("name", ["HEAD", "config", "index", "packed-refs", "info/exclude"])
def test_a_pipe_keeps_nobody_waiting(name, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_SECONDS", 60)
    folder = made(tmp_path / "made")
    git(folder, "pack-refs", "--all")
    (folder / ".git" / name).unlink()
    os.mkfifo(folder / ".git" / name)
    began = time.monotonic()
    state = git_state(folder)
    assert state is None or name == "info/exclude"
    assert time.monotonic() - began < 60, "git was left waiting"


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", ATTACKS)
def test_no_program_of_a_checkouts_is_run(name, tmp_path):
    runs, attack = ATTACKS[name]
    canary, program = tmp_path / "canary", tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {canary}\n")
    program.chmod(0o755)
    folder = made(tmp_path / "made")
    attack(folder, str(program))
    (folder / "file").write_text("3\n")
    canary.unlink(missing_ok=True)  # preparing it may have run the program
    state = git_state(folder)
    assert not canary.exists(), "the checkout's program ran"
    if "missing" in name:  # what cannot be got is not known
        assert state is None
    else:
        assert state == {"commit": git(folder, "rev-parse", "HEAD"), "dirty": True}
    if runs:
        command = [GIT, "-C", folder, "status"]
        subprocess.run(command, capture_output=True, check=False, env=PLAIN, timeout=60)
        assert canary.exists(), "plain git does not run it either"


HASH = "c0" * 20


@pytest.fixture
def bare(tmp_path):
    """The folders of a checkout, which no git has made."""
    (tmp_path / "own").mkdir()
    (tmp_path / "common" / "refs" / "heads").mkdir(parents=True)
    return module._Checkout(tmp_path, tmp_path / "own", tmp_path / "common")


@pytest.mark.parametrize(
    ("head", "commit"),
    [
        (HASH, HASH),
        (HASH[:-1], None),
        ("C0" * 20, None),
        ("ref: refs/heads/main", HASH),
        ("ref: refs/heads/one", HASH),  # by way of main
        ("ref: refs/heads/none", None),
        ("ref: refs/heads/round", None),
        ("ref: refs/heads/../heads/main", None),
        ("ref: heads/main", None),
        ("ref: refs/heads/ma in", None),
        ("ref: refs/heads/packed", "ab" * 20),
        ("ref: refs/packed", None),
    ],
)
def test_references_are_followed(head, commit, bare):
    (bare.own / "HEAD").write_text(f"{head}\n")
    for name in ("refs/heads/ma in", "heads/main"):
        (bare.common / name).parent.mkdir(exist_ok=True)
        (bare.common / name).write_text(HASH)
    (bare.common / "refs/heads/main").write_text(HASH + "\nmore\n")
    (bare.common / "refs/heads/one").write_text("ref: refs/heads/main\n")
    (bare.common / "refs/heads/round").write_text("ref: refs/heads/round\n")
    (bare.common / "packed-refs").write_text(f"# pack-refs\n{'ab' * 20} refs/heads/packed\n")
    assert module._commit(bare) == commit


def test_how_many_references_may_name_each_other(bare):
    names = [f"refs/heads/{number}" for number in range(6)]
    for name, after in pairwise(names):
        (bare.common / name).write_text(f"ref: {after}")
    (bare.common / names[-1]).write_text(HASH)
    for first, commit in ((1, HASH), (0, None)):
        (bare.own / "HEAD").write_text(f"ref: {names[first]}")
        assert module._commit(bare) == commit


@pytest.mark.parametrize(
    ("value", "is_one"), [(HASH, True), (3, False), (None, False), ("-x", False)]
)
def test_the_hash_of_a_commit(value, is_one):
    assert module.is_commit(value) is is_one


def test_a_configuration_has_a_bound(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_LARGEST", 5)
    (tmp_path / "config").write_text("12345")
    assert module._content(tmp_path / "config") == b"12345"
    (tmp_path / "config").write_text("123456")
    with pytest.raises(ValueError, match="config is larger than 5 bytes"):
        module._content(tmp_path / "config")


@pytest.mark.parametrize(
    ("text", "own"),
    [("gitdir: ../other\n", "other"), ("other: ../other\n", None), ("gitdir: \n", None)],
)
def test_folders_of_a_checkout(text, own, tmp_path):
    top = tmp_path / "top"
    top.mkdir()
    (tmp_path / "other" / "common").mkdir(parents=True)
    (tmp_path / "other" / "HEAD").touch()
    (top / ".git").write_text(text)
    checkouts = [one for one in module._checkouts(top / "sub") if tmp_path in one.top.parents]
    assert [(one.top, one.own.resolve()) for one in checkouts] == (
        [(top, tmp_path / own)] if own else []
    )
    if own:
        assert checkouts[0].common == checkouts[0].own
        (tmp_path / "other" / "commondir").write_text("common\n")
        assert next(module._checkouts(top)).common.resolve() == tmp_path / "other" / "common"


def test_systems_without_users(bare, monkeypatch):
    (bare.top / ".git").touch()
    assert module._is_own(bare)
    monkeypatch.setattr(module.os, "geteuid", lambda: os.getuid() + 1)
    assert not module._is_own(bare)
    monkeypatch.delattr(module.os, "geteuid")
    assert module._is_own(bare)
