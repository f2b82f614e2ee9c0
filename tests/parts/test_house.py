"""The house rules: packages import downwards, files stay short, the documents are true."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import hydra
import pytest
import yaml
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from omegaconf import DictConfig, ListConfig
from torchmetrics import Metric
from torchmetrics.aggregation import MeanMetric

ROOT = Path(__file__).parents[2]

# What a dataset of the core may know of the pipeline: packages, or single modules of one.
KNOWN_TO_DATASETS = (
    "penstock.errors",
    "penstock.terminal",
    "penstock.seams",
    "penstock.files",
    "penstock.loading.encoded",
    "penstock.order.keys",
    "penstock.transforms.jpeg_header",
)
KNOW_HYDRA = {
    "pipeline/command.py",
    "pipeline/addons/sweeps/sweep.py",
    "pipeline/addons/sweeps/optuna_sweeper.py",
    *(
        f"pipeline/config/{name}.py"
        for name in (
            "compose",
            "hydra",
        )
    ),
}
CODE = ("pipeline/*.py", "datasets/*.py", "run.py")
PAGES = ("README.md", "CONTRIBUTING.md", "docs/*.md")
BLOCKS = ("body", "orelse", "handlers", "finalbody", "cases")  # attributes that hold statements


@cache
def tracked(*patterns):
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split()
    return sorted(name for name in listed if (ROOT / name).is_file())


@cache
def tree_of(name):
    return ast.parse((ROOT / name).read_text())


def statements_of(tree):
    """The statements below a node; expressions, which are most nodes, hold none."""
    nodes = [tree]
    for node in nodes:
        for kind in BLOCKS:
            nodes += getattr(node, kind, ())
    return [node for node in nodes[1:] if isinstance(node, ast.stmt)]


@cache
def imports_of(name):
    """Modules that a file imports, also inside functions; not those for type checking only."""
    imported, nodes = [], [tree_of(name)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.Import):
            imported += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported += [f"{node.module}.{alias.name}" for alias in node.names]
        for kind in BLOCKS:
            nodes += getattr(node, kind, ())
    return imported


def under(module, packages):
    return any(module == one or module.startswith(f"{one}.") for one in packages)


def test_packages_import_downwards():
    """The contracts of import-linter, in a program of its own: it changes how logging is set up."""
    program = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run(
        [sys.executable, "-c", program, "--no-cache", "--no-logo"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"[1-9]\d* kept, 0 broken", done.stdout)


def test_every_package_has_a_layer():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    named = {
        module.strip()
        for contract in settings["contracts"]
        if contract["type"] == "layers"
        for layer in contract["layers"]
        for module in layer.split("|")
    }
    there = {f"penstock.{path.stem}" for path in (ROOT / "pipeline").glob("[!_]*.py")}
    named |= {"penstock.addons", "penstock.conf"}
    there |= {f"penstock.{path.parent.name}" for path in (ROOT / "pipeline").glob("*/__init__.py")}
    assert there == named


def test_the_core_imports_no_dataset():
    """It meets them by the `_target_`s of a configuration; add-ons may build on them."""
    for name in tracked("pipeline/*.py"):
        if not name.startswith("pipeline/addons/"):
            datasets = [m for m in imports_of(name) if under(m, ("penstock.datasets",))]
            assert not datasets, name


def test_hydra_is_imported_only_where_configurations_are_composed():
    who = {
        name
        for name in tracked("pipeline/*.py", "run.py")
        if any(under(one, ("hydra", "omegaconf")) for one in imports_of(name))
    }
    assert who == KNOW_HYDRA


ADAPTERS = {
    "pipeline/torch_internals.py",
    "pipeline/config/compose.py",
    "pipeline/distributed/group.py",
}
FOREIGN = ("hydra", "omegaconf", "torchmetrics")


def test_private_names_of_others_are_used_in_adapters_only():
    known = {
        *vars(Metric),
        *vars(MeanMetric()),
        *dir(DictConfig),
        *dir(ListConfig),
        *dir(ConfigLoaderImpl),
        *dir(hydra.core.utils),
        *dir(hydra._internal.hydra.Hydra),
    }
    private = {name for name in known if re.fullmatch("_[a-z].*", name)}
    for name in set(tracked(*CODE)) - ADAPTERS:
        for module in imports_of(name):
            hidden = any(part.startswith("_") for part in module.split("."))
            assert not (hidden and under(module, FOREIGN)), f"{name}: {module}"
        for node in ast.walk(tree_of(name)):
            if isinstance(node, ast.Attribute) and node.attr in private:
                owner = getattr(node.value, "id", "")
                assert owner in ("self", "cls"), f"{name}: {node.attr}"


def test_datasets_know_little_of_the_pipeline_and_no_add_on():
    """import-linter does not see them: `datasets/` has no `__init__.py`, or it would shadow another
    package of that name."""
    used = set()
    for name in tracked("datasets/*.py"):
        for module in imports_of(name):
            if under(module, ("penstock",)) and not under(module, ("penstock.datasets",)):
                known = [one for one in KNOWN_TO_DATASETS if under(module, (one,))]
                assert known, f"{name}: {module}"
                used.update(known)
    assert used == set(KNOWN_TO_DATASETS)


# An add-on of one file is a module that has a folder to itself.
PACKAGES = [
    name
    for name in tracked("pipeline/__init__.py", "pipeline/*/__init__.py")
    if len(tracked(f"{Path(name).parent}/*.py")) > 1
]


@pytest.mark.parametrize("name", PACKAGES)
def test_importing_a_package_imports_nothing(name):
    imported = {module.split(".")[0] for module in imports_of(name)}
    assert imported <= {"__future__", "importlib", "typing", "penstock"}


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_says_what_it_is_for_and_names_modules_that_are_there(name):
    docstring = ast.get_docstring(tree_of(name))
    assert docstring
    inside = {path.name.partition(".")[0] for path in (ROOT / name).parent.iterdir()}
    assert set(re.findall(r"`([a-z]\w*)`", docstring)) <= inside


def test_no_file_is_too_long_or_named_for_nothing():
    for name in tracked(*CODE):
        assert Path(name).stem not in {"utils", "common", "helpers", "misc"}
        lines = len((ROOT / name).read_text().splitlines())
        assert lines <= 600, f"{name} has {lines} lines"


def test_functions_are_short():
    """In statements: how many lines one takes, ruff decides."""
    functions = {
        f"{name}:{node.name}": len(statements_of(node))
        for name in tracked(*CODE)
        for node in statements_of(tree_of(name))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
    long = [function for function, statements in functions.items() if statements > 35]
    assert len(long) <= 0.01 * len(functions), long


def test_no_test_imports_a_test_or_a_benchmark():
    for name in tracked("tests/*.py"):
        ours = [one for one in imports_of(name) if one.startswith(("tests.", "benchmarks."))]
        assert not [one for one in ours if ".test_" in one or under(one, ["benchmarks"])], name


def test_pages_that_should_be_short_are_short():
    pages = {"run.py": 40, "conf/config.yaml": 60, "README.md": 110, "docs/architecture.md": 45}
    for name, most in pages.items():
        assert len((ROOT / name).read_text().splitlines()) <= most, name


def anchors_of(path):
    """The anchors of a page's headings, as GitHub and mkdocs make them."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        yield re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-")


@pytest.mark.parametrize("name", tracked(*PAGES))
def test_links_lead_somewhere(name):
    text = re.sub(r"^```.*?^```", "", (ROOT / name).read_text(), flags=re.DOTALL | re.MULTILINE)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith(("https://", "http://")):
            continue
        file, _, anchor = link.partition("#")
        target = (ROOT / name).parent / file if file else ROOT / name
        assert target.exists(), link
        assert not anchor or anchor in anchors_of(target), link


@pytest.mark.parametrize("name", tracked(*PAGES))
def test_files_that_a_page_names_are_there(name):
    text = (ROOT / name).read_text()
    places = (
        r"\b(?:pipeline|datasets|docs|tests|benchmarks)/(?:[\w/]+\.(?:py|md|c|png)\b|[\w/]+/(?=`))"
    )
    for file in re.findall(places, text):
        if "NAME" in file:  # one that is to be written
            continue
        assert (ROOT / file).exists(), file


@cache
def names_in(path):
    """Functions and classes of a file, and methods as `Class.method`."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{one.name}" for one in node.body if hasattr(one, "name")}
    return names


@pytest.mark.parametrize(("page", "least"), [("CONTRIBUTING.md", 10), ("docs/architecture.md", 15)])
def test_what_a_page_says_is_in_a_file_is_in_it(page, least):
    """Places are written `pipeline/order/plan.py: Plan.request`."""
    text = (ROOT / page).read_text()
    places = re.findall(r"`([\w/]+\.py): ([\w.]+)`", text)
    assert len(places) >= least
    for file, name in places:
        assert name in names_in(ROOT / file), f"{file}: {name}"


def test_pages_that_code_and_configurations_name_are_there():
    for name in tracked("pipeline/*.py", "datasets/*.py", "conf/*.yaml", "tests/*.py"):
        for page in re.findall(r"\bdocs/\w+\.md\b", (ROOT / name).read_text()):
            assert (ROOT / page).exists(), f"{name}: {page}"


def pages_of(nav):
    for entry in nav:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            if isinstance(value, str):
                yield value
            else:
                yield from pages_of(value)


def test_every_page_is_in_the_navigation():
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    assert sorted(pages_of(nav)) == [name.removeprefix("docs/") for name in tracked("docs/*.md")]


def test_what_the_configuration_calls_is_in_the_api():
    """Datasets, transforms, collate functions, objectives, metrics and models of ours."""
    written = "".join((ROOT / name).read_text() for name in tracked("docs/api.md"))
    groups = ("dataset", "transform", "collate", "objective", "model", "sampler")
    for name in tracked(*(f"conf/{group}/*.yaml" for group in groups)):
        for target in re.findall(r"_target_: (penstock\.[\w.]+)", (ROOT / name).read_text()):
            module, _, last = target.rpartition(".")
            among = rf"::: {re.escape(module)}\n +options:\n +members: (null|\[.*\b{last}\b)"
            assert f"::: {target}\n" in written or re.search(among, written), f"{name}: {target}"


@pytest.mark.thorough
def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs", reason="pip install -e '.[docs]'")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown = (tmp_path / "api.html").read_text()
    assert "penstock.datasets.arrays.Arrays" in shown
    elsewhere = re.compile(
        r"""(?:src|<link(?![^>]+rel="canonical")[^>]+href)="https?://|url\(["']?https?:"""
    )
    for page in (*tmp_path.rglob("*.html"), *tmp_path.rglob("*.css")):
        assert not elsewhere.search(page.read_text()), f"{page} loads something from a network"


def explained(docstring, section):
    """The names that a section of a docstring explains."""
    found = re.search(rf"^{section}:\n((?:(?: .*)?(?:\n|$))*)", docstring, re.MULTILINE)
    entries = re.findall(r"^    ([*a-z_][\w, *]*):", found[1], re.MULTILINE) if found else []
    return {name.strip(" *") for entry in entries for name in entry.split(",")}


def parameters_of(definition):
    """Arguments of a function; of a class, those of its constructor, or the fields."""
    if isinstance(definition, ast.FunctionDef):
        return {one.arg for one in ast.walk(definition.args) if isinstance(one, ast.arg)}
    made_by = [one for one in definition.body if getattr(one, "name", "") == "__init__"]
    fields = {one.target.id for one in definition.body if isinstance(one, ast.AnnAssign)}
    return fields.union(*map(parameters_of, made_by))


def test_docstrings_explain_arguments_that_there_are():
    for name in tracked("pipeline/*.py", "datasets/*.py"):
        for node in ast.walk(tree_of(name)):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                text = ast.get_docstring(node) or ""
                where, there = f"{name}:{node.lineno}", parameters_of(node)
                # A class without a constructor has that of its base.
                assert not there or explained(text, "Args") <= there, where
                # An error that stands deeper has become a part of the one before it.
                assert not re.search(r"^ {5,}\w+Error(, \w+Error)*:", text, re.MULTILINE), where
