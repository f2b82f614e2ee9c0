"""Every key is said with what its YAML says of it: in `--help` and `--cfg`."""

import inspect
import re

import pytest
import yaml
from torch.utils.data import DataLoader

import penstock
from penstock.config import yaml_comments
from penstock.config.composition import Composer
from penstock.config.schema import LoaderSection
from tests.program import ROOT, run


def keys(tree, prefix=""):
    for name, value in tree.items():
        yield f"{prefix}{name}"
        if isinstance(value, dict):
            yield from keys(value, f"{prefix}{name}.")


def test_help_lists_every_group_and_its_keys_every_key(capsys):
    done = run(capsys, "--help")
    assert done.code == 0
    for group in Composer().loader.list_groups(""):
        assert group == "hydra" or re.search(rf"^  {group}: ", done.out, re.MULTILINE)
    assert 'eval "$(python run.py -sc install=bash)"' in done.out
    shown = run(capsys, "loader.num_workers=7", "--help", "keys").out
    shown = shown.partition("key:\n")[2].partition("docs/keys.md")[0]
    composed = yaml.safe_load(run(capsys, "--cfg", "job").out)
    assert set(keys(yaml.safe_load(shown))) == set(keys(composed))
    assert "num_workers: 7  # 0 | a number | auto" in shown


def test_help_is_as_wide_as_the_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    unbroken = run(capsys, "--help").out
    for width in (60, 80, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        check_width(run(capsys, "--help").out.splitlines(), width, unbroken)


def check_width(lines, width, unbroken):
    commands = [line for line in lines if line.startswith("    python run.py")]
    assert len(commands) == 5
    assert all(len(line) <= width for line in lines if line not in commands)
    assert max(map(len, lines)) > 0.8 * width
    assert " ".join(lines).split() == unbroken.split()
    assert "    python run.py loader=fast sampler=weighted trainer.max_epochs=3" in commands


def test_what_cfg_shows_has_comments_and_stays_yaml(capsys):
    done = run(capsys, "--cfg", "job", "loader=fast", "dataset=arrays", "--package", "loader")
    assert "prefetch_factor: 2  # batches ahead for each worker" in done.out
    assert "num_workers: auto  # begins with few, increases while that helps" in done.out
    assert yaml.safe_load(done.out)["max_deaths"] == 3
    everything = run(capsys, "--cfg", "job", "dataset=arrays").out
    assert "root: ???  # folder that holds the two files" in everything
    assert yaml.safe_load(everything)["objective"]["inputs"] == ["input"]


def test_groups_of_ones_own_are_read_too(capsys, tmp_path):
    (tmp_path / "sampler").mkdir()
    path = tmp_path / "sampler" / "mine.yaml"
    path.write_text("defaults: [random]\ndefault_seed: 3  # 'mine' # and more\n")
    done = run(
        capsys, "--config-dir", str(tmp_path), "sampler=mine", "--cfg", "job", "-p", "sampler"
    )
    assert done.out.splitlines()[1:] == [
        "_target_: penstock.order.samplers.Random",
        "default_seed: 3  # 'mine' # and more",
    ]


@pytest.mark.parametrize(
    ("line", "key", "value", "comment"),
    [
        ("a: 1  # one", "a", "1", "one"),
        ("a: 'x # y'", "a", "'x # y'", ""),
        ('a: "#"  # hash', "a", '"#"', "hash"),
        ("a: {b: 1}  # both", "a", "{b: 1}", "both"),
        ("a: [1,\n  2]  # two", "a", "...", ""),
        ("a:  # section\n  b: null", "a", "", "section"),
    ],
)
def test_comments_are_found_behind_values(line, key, value, comment):
    first = yaml_comments.entries(line)[0]
    assert (first.key, first.value, first.comment) == (key, value, comment)
    plain = yaml.safe_dump(yaml.safe_load(line))
    said = {entry.key: entry.comment for entry in yaml_comments.entries(line)}
    assert yaml.safe_load(yaml_comments.annotated(plain, said)) == yaml.safe_load(line)


def test_versions(capsys):
    done = run(capsys, "--version")
    assert done.code == 0
    assert done.out.startswith(f"Penstock {penstock.__version__}, torch ")
    assert ", hydra-core 1.3" in done.out


def table():
    text = (ROOT / "docs" / "loader.md").read_text()
    return dict(re.findall(r"^\| `(\w+)` \|[^|]*\| `([\w.=]+)`", text, re.MULTILINE))


def test_the_table_of_arguments_has_all_of_torchs():
    arguments = list(inspect.signature(DataLoader).parameters)
    assert list(table()) == arguments
    page = (ROOT / "docs" / "loader.md").read_text()
    for name in LoaderSection.model_fields:
        assert f"`loader.{name}`" in page


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", list(inspect.signature(DataLoader).parameters))
def test_an_argument_of_torchs_is_taken_or_answered(name, capsys):
    """Under its name in `loader`, or with the key of the table."""
    key = table()[name]
    if key == f"loader.{name}":
        assert name in LoaderSection.model_fields
        return
    for prefix in ("", "+"):
        done = run(capsys, f"{prefix}loader.{name}=3")
        assert done.code == 2
        assert f"error in the configuration: loader.{name}: " in done.err
        assert key in done.err
        assert done.err.count("\n") == 1
