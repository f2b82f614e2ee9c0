"""Each name that is gone is answered with what to use instead, typed or in a YAML file."""

from itertools import zip_longest

import pytest
import yaml

from penstock.config.familiar import GONE
from tests.support.program import run

KEYS = [name for name in GONE if "=" not in name and name[:2] != "--"]
OPTIONS = [name for name in GONE if name[:2] == "--"]
CHOICES = [name for name in GONE if "=" in name]


def in_a_file(capsys, folder, tree):
    (folder / "mine.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))
    done = run(capsys, "--config-dir", str(folder), "--config-name", "mine")
    assert done.code == 2, done.err
    return done.err


def test_keys_that_are_gone_are_answered_all_at_once(capsys):
    done = run(capsys, *(f"{name.replace('*', 'x')}=1" for name in KEYS), "trainer.max_epoch=1")
    assert done.code == 2, done.err
    lines = done.err.splitlines()
    for name in KEYS:
        key = name.replace("*", "x")
        assert any(f"{key}:" in line and GONE[name] in line for line in lines), name
    assert "unknown key; here that is trainer.max_epochs" in done.err


@pytest.mark.parametrize("above", dict.fromkeys(name.rpartition(".")[0] for name in KEYS))
def test_a_section_in_a_file_is_answered_by_a_row_of_it(above, capsys, tmp_path):
    rows = {name.split(".")[-1]: GONE[name] for name in KEYS if name.rpartition(".")[0] == above}
    tree = dict.fromkeys((key.replace("*", "x") for key in rows), 1)
    for section in reversed(above.split(".")):
        tree = {section: tree}
    err = in_a_file(capsys, tmp_path, {"defaults": ["config", "_self_"], **tree})
    assert any(row in err for row in rows.values()), err


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_that_is_gone_is_answered_by_its_row(name, capsys):
    done = run(capsys, name, "trainer.max_epoch=1")
    assert done.code == 2, done.err
    assert GONE[name] in done.err


def rounds():
    """Choices of different groups together; a value by itself."""
    groups = {}
    for name in CHOICES:
        groups.setdefault(name.partition("=")[0], []).append(name)
    values = [names for key, names in groups.items() if "." in key]
    choices = [names for key, names in groups.items() if "." not in key]
    together = [[one for one in names if one] for names in zip_longest(*choices)]
    return [*together, *([name] for names in values for name in names)]


@pytest.mark.parametrize("names", rounds(), ids=" ".join)
def test_choices_that_are_gone_are_answered_by_their_rows(names, capsys, tmp_path):
    done = run(capsys, *names, "trainer.max_epoch=1")
    assert done.code == 2, done.err
    chosen, tree = [], {}
    for name in names:
        assert GONE[name] in done.err
        key, _, value = name.partition("=")
        if "." not in key:
            chosen.append({f"override {key}": value})
            continue
        tree = value
        for part in reversed(key.split(".")):
            tree = {part: tree}
    assert "unknown key; here that is trainer.max_epochs" in done.err
    err = in_a_file(capsys, tmp_path, {"defaults": ["config", *chosen, "_self_"], **tree})
    assert any(GONE[name] in err for name in names), err
