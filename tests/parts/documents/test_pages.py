"""README and docs: blocks of YAML and Python are valid, and commands name keys that there are."""

import os
import re
import shlex
import tomllib
from itertools import pairwise

import pytest
import yaml
from markdown_it import MarkdownIt

from penstock import compose
from penstock.errors import ConfigError
from tests.support.program import ROOT, run

PAGES = ["README.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").glob("**/*.md"))]
COMMAND = re.compile(r"^(?:\$ )?((?:python run\.py|penstock) ?.*)")
IN_A_SENTENCE = re.compile(r"`((?:python run\.py|penstock) [^`]+)`")
# Words that are no overrides of this command: options of their own, and other runs' settings.
OF_RUNS = re.compile(r"(resume|weights)=|--|-sc|-h")
# Of files that `penstock init` makes, of several splits at once, of a run that is not here, and
# mistakes whose message a page shows.
OF_ANOTHER_PAGE = r" -sc |my_birds|=sales|data\.folds| run=| lr=0\.1"
# What a command shows only the form of.
FORM = re.compile(r"\.\.\.|\||\bNAME\b|<|\$")


def blocks(page):
    """(language, text) of the code blocks of a page, fenced, or indented in a tab."""

    def of(markdown):
        for token in MarkdownIt("commonmark").parse(markdown):
            if token.type == "fence":
                yield token.info.partition(" ")[0], token.content
            elif token.type == "code_block" and "```" in token.content:
                yield from of(token.content)
            elif token.type == "code_block":
                yield "", token.content

    return list(of((ROOT / page).read_text()))


def commands(page):
    """The overrides of each command of a page."""
    found = []
    for language, text in blocks(page):
        for line in text.replace("\\\n", "").splitlines():
            if (hit := COMMAND.match(line)) and (
                language in ("sh", "bash", "console") or "$" in line[:2] or not language
            ):
                found.append(re.split(r"\s+# ", hit[1])[0])
    text = (ROOT / page).read_text()
    found += [" ".join(hit[1].split()) for hit in IN_A_SENTENCE.finditer(text)]
    return [one for one in dict.fromkeys(found) if not FORM.search(one)]


def first_job(words):
    """Of a sweep's words their first values; without those that only a sweep takes."""
    for word in words:
        key, _, value = word.partition("=")
        if not re.match(r"sweep\.|hydra|-m$", key) and not re.match(r"[a-z]+\(", value):
            yield word if re.match(r"[\[{'\"]", value) else f"{key}={value.partition(',')[0]}"


@pytest.mark.parametrize("page", PAGES)
def test_blocks_are_valid(page):
    for language, text in blocks(page):
        if language == "yaml":
            yaml.safe_load(text)
        if language == "python":
            compile(text, page, "exec")


checked = set()  # of all pages: several show the same command


@pytest.mark.one_in(1 if os.environ.get("CI") else 3)
@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)])
def test_commands_name_keys_that_there_are(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _, text in blocks(page):  # the files that it says to write
        if named := re.match(r"(?:#.*\n)?# file: (\S+)\n", text):
            path = tmp_path / named[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)  # whole, as a person copies it
            assert path.suffix != ".yaml" or text.startswith("# @package "), "read by Hydra"
    monkeypatch.syspath_prepend(tmp_path)
    wrong = []
    for command in commands(page):
        if not re.search("--(trust|config-dir)", command) and command in checked:
            continue
        checked.add(command)
        words = shlex.split(command.removeprefix("python run.py").removeprefix("penstock"))
        if words[:1] == ["init"] or re.search(OF_ANOTHER_PAGE, command):
            continue
        options = dict(pairwise(words))
        monkeypatch.setenv("PENSTOCK_TRUST", options.get("--trust", ""))
        words = list(first_job(words)) if "-m" in words else words
        words = [word for word in words if "=" in word or word.startswith("~")]
        words = [word for word in words if not OF_RUNS.match(word)]
        try:
            compose(*words, config_dir=options.get("--config-dir"))
        except ConfigError as error:
            wrong.append(f"{command}\n    {error}")
    assert not wrong, "\n".join(wrong)


HASH = re.compile(r"^(?:\d+ \d+ \d+|total) [0-9a-f]{32}$", re.MULTILINE)


def hashes():
    """(command, its hashes as printed) of each `$ python run.py` that prints hashes of batches."""
    for page in PAGES:
        for language, text in blocks(page):
            for part in re.split(r"^\$ ", text, flags=re.MULTILINE) if language == "text" else ():
                command, _, output = part.partition("\n")
                found = HASH.findall(output)
                if found and command.startswith("python run.py"):
                    slow = [pytest.mark.thorough] if "nproc" in command else []
                    yield pytest.param(command, found, marks=slow, id=f"{page}: {command}")


printed = {}  # by command, since two pages show the same


@pytest.mark.parametrize(("command", "shown"), list(hashes()))
def test_hashes_are_those_that_a_page_shows(command, shown, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if command not in printed:
        words = [word for word in shlex.split(command)[2:] if not word.startswith("dataset.root=")]
        printed[command] = HASH.findall(run(capsys, *words).out)
    assert [line for line in printed[command] if line in shown] == shown


def test_extras_and_targets_of_the_pages_are_there():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    text = "".join((ROOT / page).read_text() for page in PAGES)
    named = re.findall(r"pip install .*\[([\w,]+)\]", text)
    assert {one for names in named for one in names.split(",")} <= set(
        extras["optional-dependencies"]
    )
    shell = "".join(code for page in PAGES for kind, code in blocks(page) if kind == "sh")
    made = set(re.findall(r"^make (\w+)", shell, re.MULTILINE))
    assert {"run", "test"} <= made <= set(targets)
