"""Every add-on can be deleted: what is left runs, and makes the same batches.

To an add-on `NAME` belong `pipeline/addons/NAME/`, `tests/NAME/`, its page, the YAML files that
name it or choose what it brings, and in `conf/config.yaml` the lines that do. `delete` finds them
by reading the YAML.
"""

import ast
import copy
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from penstock import installed
from tests import warm
from tests.program import ROOT
from tests.test_house import imports_of, tracked

ADDONS = sorted(path.parent.name for path in (ROOT / "pipeline/addons").glob("*/__init__.py"))
MOST_BUILT_ON = ("ray", "tokens", "trackers")  # of which the rest knows most
SMALL = ["dataset.count=40", "dataset.size=48", "batch.size=8"]

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

# Quick tests of packages that an add-on leaves behind.
SMOKE = {
    "order": "order/test_bucketing.py",
    "transforms": "transforms/test_image.py",
    "loading": "loading/test_window.py",
    "config": "config/test_build_data.py",
    "training": "training/test_train_step.py",
    "files": "files/test_one_writer.py",
    "distributed": "distributed/test_metric_states.py",
    "datasets": "datasets/test_arrays.py",
    "filters": "filters/test_costs.py",
    "mixtures": "mixtures/test_mixture.py",
    "reports": "reports/test_importance.py",
    "tables": "tables/test_record_index.py",
    "tokens": "tokens/test_flatten.py",
    "trackers": "trackers/test_tracker_keys.py",
    "tuning": "tuning/test_checkpoint_interval.py",
}

# Programs and tests of one process that has imported torch and the copy: each program is
# `python run.py WORDS`, and the tests are `python -m pytest FILES`.
PROGRAMS = """
import json, os, runpy, sys
import pytest
import penstock
from penstock import command
from penstock.build import training
assert os.path.dirname(penstock.__file__) == os.path.join(os.getcwd(), "penstock"), penstock

def run():
    runpy.run_path("run.py", run_name="__main__")

def test():
    sys.exit(pytest.main(sys.argv[1:]))

for name, words in json.loads(sys.argv[1]).items():
    child = os.fork()
    if not child:
        os.dup2(os.open(f"{name}.out", os.O_CREAT | os.O_WRONLY | os.O_TRUNC), 1)
        os.dup2(os.open(f"{name}.err", os.O_CREAT | os.O_WRONLY | os.O_TRUNC), 2)
        sys.argv = ["run.py", *words]
        test() if name == "tests" else run()
        sys.exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with open(f"{name}.code", "w") as file:
        print(code, file=file)
"""


def built_on(addon):
    """Add-ons that import `addon`, whose own tests may need it."""
    return {
        name.split("/")[2]
        for name in tracked("pipeline/addons/*.py")
        if any(module.startswith(f"penstock.addons.{addon}.") for module in imports_of(name))
    }


def pages():
    """The page of each add-on, as docs/architecture.md says."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    return dict(re.findall(r"^\| `(\w+)` \|.*\| \[[^]]+\]\((\w+\.md)\) \|$", text, re.MULTILINE))


def delete(root, *addons):
    """Take add-ons out of a copy of the tree, with all that belongs to them."""
    for addon in addons:
        shutil.rmtree(root / "pipeline/addons" / addon)
        shutil.rmtree(root / "tests" / addon, ignore_errors=True)
        if pages()[addon] not in {page for other, page in pages().items() if other not in addons}:
            (root / "docs" / pages()[addon]).unlink(missing_ok=True)
    _Configuration(root / "conf").delete(addons)


class _Configuration:
    """The YAML files of a copy's `conf/`, by group and name."""

    def __init__(self, folder):
        self.folder = folder
        self.files = {}
        for path in sorted(folder.rglob("*.yaml")):
            group = path.relative_to(folder).parent.as_posix()
            content = yaml.load(path.read_text(), LOADER)
            self.files["" if group == "." else group, path.stem] = content

    def delete(self, addons):
        records = [installed.addons()[addon] for addon in addons]
        tasks = {("task", name) for record in records for name in record.tasks}
        backends = {name for record in records for name in record.backends}
        keys = [key for record in records for key in record.options]
        names = re.compile(rf"\bpenstock\.addons\.({'|'.join(addons)})\b")
        gone = tasks | {
            file
            for file, content in self.files.items()
            if file[0]
            and (
                file[0] in keys
                or _names(content, names)
                or (file[0] == "loader" and content.get("backend") in backends)
            )
        }
        while more := {
            file for file in self.files.keys() - gone if file[0] and gone & set(self._choices(file))
        }:
            gone |= more
        for file in gone:
            self._path(file).unlink()
            del self.files[file]
        for file, content in self.files.items():
            if self._clean(file, content, keys, names, gone):
                head = re.match(r"(#.*\n)*", self._path(file).read_text())[0]
                self._path(file).write_text(head + yaml.safe_dump(content, sort_keys=False))
        for group in sorted({group for group, _ in gone}, reverse=True):
            if not any((self.folder / group).iterdir()):
                (self.folder / group).rmdir()

    def _path(self, file):
        return self.folder / file[0] / f"{file[1]}.yaml"

    def _choices(self, file):
        """(group, name) of what a file's defaults choose."""
        for entry in (self.files[file] or {}).get("defaults", []):
            if isinstance(entry, str):
                yield file[0], entry
            else:
                for group, chosen in entry.items():
                    for name in chosen if isinstance(chosen, list) else [chosen]:
                        yield _group(group), name

    def _clean(self, file, content, keys, names, gone):
        """Take out keys of add-ons, entries that name them, and choices of files that are gone."""
        before = copy.deepcopy(content)
        for key in keys:
            _drop(content, key if not file[0] else key.removeprefix(f"{file[0]}."))
        _drop_named(content, names)
        if not file[0]:
            kept = []
            for entry in content["defaults"]:
                ((group, chosen),) = entry.items() if isinstance(entry, dict) else [("", entry)]
                if isinstance(chosen, list):
                    chosen = [name for name in chosen if (_group(group), name) not in gone]
                    entry = {group: chosen}
                if chosen != [] and (_group(group), str(chosen)) not in gone:
                    kept.append(entry)
            content["defaults"] = kept
        return content != before


def _group(written):
    """The group of an entry such as `override /hydra/sweeper@_global_.hydra.sweeper`."""
    return written.removeprefix("optional ").removeprefix("override ").strip("/").partition("@")[0]


def _names(content, names):
    return names.search(repr(content)) is not None


def _drop(content, key):
    *above, last = key.split(".")
    for name in above:
        content = content.get(name) if isinstance(content, dict) else None
    if isinstance(content, dict):
        content.pop(last, None)


def _drop_named(content, names):
    """Take out the smallest entries with a `_target_` that names one of them."""
    if isinstance(content, dict):
        for key, value in list(content.items()):
            if isinstance(value, dict) and _names(value.get("_target_"), names):
                del content[key]
            else:
                _drop_named(value, names)


def copy_of_the_tree(folder):
    """A copy of all files of the checkout, with the native code that was built in it, and what
    Python has compiled, which fits as long as a file keeps its time."""
    built = [path.relative_to(ROOT) for path in (ROOT / "pipeline/native").glob("*.so")]
    for package in ("pipeline", "datasets", "tests"):
        built += [path.relative_to(ROOT) for path in (ROOT / package).rglob("__pycache__/*.pyc")]
    for name in [*tracked("*"), "penstock", "pipeline/datasets", "pipeline/conf", *built]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)


def outcome_of(folder, data, tests):
    """What a digest says, where the default run, a digest, --help and test files succeed."""
    root = f"dataset.root={data}"
    programs = {
        "run": ["trainer.max_steps=3", "run_dir=outputs/first", root, *SMALL],
        "digest": ["task=digest", "steps=3", root, *SMALL],
        "help": ["--help"],
    }
    imported = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # plugins are, by then
    programs["tests"] = ["-q", "-n", "0", "-p", "no:cacheprovider", *imported, *tests]
    environment = {name: text for name, text in os.environ.items() if "PYTEST" not in name}
    warm.run(
        [sys.executable, "-c", PROGRAMS, json.dumps(programs)],
        cwd=folder,
        env=environment,
        timeout=600,
        check=True,
        libraries_only=True,
    )
    for name in programs:
        said = (folder / f"{name}.err").read_text() + (folder / f"{name}.out").read_text()
        assert (folder / f"{name}.code").read_text() == "0\n", f"{name}: {said[-6000:]}"
    assert (folder / "outputs/first/config.yaml").exists()
    assert "Parts, swapped with group=name" in (folder / "help.out").read_text()
    return (folder / "digest.out").read_text()


def smoke_tests(*addons):
    """The quick tests of what is left, but of add-ons that are built on one that is gone."""
    without = {*addons, *(name for addon in addons for name in built_on(addon))}
    return [f"tests/{file}" for package, file in SMOKE.items() if package not in without]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tmp_path_factory.mktemp("drawn")


@pytest.fixture(scope="module")
def whole(data):
    """What a digest says with all add-ons."""
    words = ["task=digest", "steps=3", f"dataset.root={data}", *SMALL]
    return warm.run(
        [sys.executable, "run.py", *words], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def check_without(addons, whole, data, folder):
    """Delete add-ons from a copy: what is left has to run, make the same batches, and be tested."""
    copy_of_the_tree(folder)
    delete(folder, *addons)
    assert outcome_of(folder, data, smoke_tests(*addons)) == whole


@pytest.mark.parametrize(
    "addon",
    [
        pytest.param(
            addon, marks=pytest.mark.thorough if addon in MOST_BUILT_ON else pytest.mark.stress
        )
        for addon in ADDONS
    ],
)
def test_an_add_on_can_be_deleted(addon, whole, data, tmp_path):
    check_without([addon], whole, data, tmp_path)


def test_the_core_runs_without_any_add_on(whole, data, tmp_path):
    check_without(ADDONS, whole, data, tmp_path)
    left = {path.name for path in (tmp_path / "pipeline/addons").iterdir() if path.is_dir()}
    assert left <= {"__pycache__"}


def test_what_belongs_to_an_add_on_is_found(tmp_path):
    """Its YAML, what chooses that, and the lines of conf/config.yaml, but nothing else."""
    copy_of_the_tree(tmp_path)
    before = {path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("conf/**/*.yaml")}
    delete(tmp_path, "tokens", "trackers", "sweeps", "packs")
    after = {path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("conf/**/*.yaml")}
    gone = {name.removeprefix("conf/").removesuffix(".yaml") for name in before - after}
    assert {
        "dataset/token_files",
        "dataset/plain_text",  # chooses model=language_model
        "experiment/tiny_lm",  # chooses dataset=plain_text
        "model/language_model",
        "sampler/packed",
        "tracker/tensorboard",
        "sweep/grid",
        "sweep/optuna",
        "hydra/sweeper/penstock_optuna",
        "task/pack",
        "dataset/packed",
    } <= gone
    assert not {"dataset/arrays", "loader/default", "task/fit", "experiment/sequences"} & gone
    content = yaml.safe_load((tmp_path / "conf/config.yaml").read_text())
    assert not {"tracker", "sweep"} & {
        key for e in content["defaults"] if e != "_self_" for key in e
    }
    assert "pack" not in content
    assert "penstock.addons" not in yaml.safe_dump(content)
    assert not (tmp_path / "conf/sweep").exists()


def test_every_add_on_has_its_record_and_its_page():
    for addon in ADDONS:
        tree = ast.parse((ROOT / "pipeline/addons" / addon / "__init__.py").read_text())
        assert any(isinstance(node, ast.Assign) for node in tree.body), addon
    assert pages().keys() == set(ADDONS)
    for page in pages().values():
        assert Path(ROOT / "docs" / page).is_file(), page
