"""The house rules: imports point one way, and the maps in the documents are true."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HYDRA_FILES = {"composition", "environment", "hydra_loader", "hydra_output", "hydra_section",
               "making", "command", "own_options", "unknown_keys", "whole_nodes"}  # fmt: skip


def tracked(*patterns):
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT, capture_output=True, text=True, check=False,
    ).stdout.split()  # fmt: skip
    return sorted(name for name in listed if (ROOT / name).exists())


def layers():
    """Modules of `pipeline` from top to bottom, as docs/design.md lists them: "room.file"."""
    text = (ROOT / "docs" / "design.md").read_text()
    block = re.search(r"```text\n(pipeline/.*?)```", text, re.DOTALL)
    assert block, "docs/design.md has no block that starts with pipeline/"
    found, room = [], ""
    for line in block[1].splitlines()[1:]:
        depth, name, kind = re.match(r"( +)(\w+)(\.py|/)", line).groups()
        if kind == "/":
            room = f"{name}."
        else:
            found.append(name if len(depth) == 4 else room + name)
    return found


def module_of(path):
    return ".".join(path.relative_to(ROOT / "pipeline").with_suffix("").parts)


def module_exists(module):
    return (ROOT / f"{module.replace('.', '/')}.py").exists()


def in_the_house():
    """The files that have a place in the order; what only names a room has none."""
    listed = [*(ROOT / "pipeline").glob("*.py"), *(ROOT / "pipeline").glob("*/*.py")]
    beside = {"tasks", "native"}
    return sorted(p for p in listed if p.parent.name not in beside and p.stem != "__init__")


def imports_of(path):
    """Modules that a file imports, also inside functions; not those for type checking only."""
    tree = ast.parse(path.read_text())
    skipped = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_the_design_lists_every_file_of_the_pipeline():
    assert sorted(layers()) == sorted(map(module_of, in_the_house()))


@pytest.mark.parametrize("path", in_the_house(), ids=module_of)
def test_a_file_imports_only_from_files_above_it(path):
    order = layers()
    here = module_of(path)
    above = set(order[: order.index(here)])
    for module in imports_of(path):
        assert not module.startswith("pipeline.datasets"), f"{here} imports {module}"
        name = module.removeprefix("pipeline.")
        if module.startswith("pipeline.") and name in order:
            assert name in above, f"{here} imports {module}, which is not above it"
        if module.startswith(("hydra", "omegaconf")):
            assert path.stem in HYDRA_FILES, f"{here} imports {module}"


ROOMS = {path for path in (ROOT / "pipeline").rglob("__init__.py") if path.parent.name != "tasks"}


@pytest.mark.parametrize("path", sorted(ROOMS), ids=module_of)
def test_importing_a_room_imports_nothing(path):
    assert {m.split(".")[0] for m in imports_of(path)} <= {"__future__", "importlib", "typing"}


@pytest.mark.parametrize("path", sorted((ROOT / "datasets").rglob("*.py")), ids=lambda p: p.stem)
def test_datasets_know_only_the_top_of_the_pipeline(path):
    tops = ("errors", "limits", "own_files", "plain_json", "randomness", "regular_file",
            "terminal", "transforms")  # fmt: skip
    allowed = {f"pipeline.{name}" for name in tops}
    allowed |= {
        "pipeline.loading.encoded",
        "pipeline.transforms.jpeg_header",
        "pipeline.loading.stored",
        "pipeline.packing.fields",
        "pipeline.packing.folder",
        "pipeline.packing.npy",
        "pipeline.packing.table",
    }
    for module in imports_of(path):
        if re.fullmatch(r"pipeline\.\w+(\.\w+)?", module) and module_exists(module):
            assert module in allowed, module


def test_the_readme_maps_every_file():
    text = (ROOT / "README.md").read_text().partition("## Map")[2]
    mapped = set(re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE))
    python = set(tracked("*.py", "Makefile", "docs/*.md"))
    code = {name for name in python if not name.startswith("tests/")}
    assert code - mapped == set(), "not in the README's map"
    gone = {name for name in mapped if not (ROOT / name).exists()}
    assert gone == set(), "in the README's map, but not there"


def test_no_file_is_too_long_or_named_for_nothing():
    for name in tracked("pipeline/*.py", "datasets/*.py", "pipeline/tasks/*.py"):
        assert Path(name).stem not in {"utils", "common", "helpers", "misc"}
        lines = len((ROOT / name).read_text().splitlines())
        assert lines <= 400, f"{name} has {lines} lines"


def test_functions_are_short():
    lengths = []
    for name in tracked("pipeline/*.py", "datasets/*.py", "pipeline/tasks/*.py", "run.py"):
        for node in ast.walk(ast.parse((ROOT / name).read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lengths.append((_code_lines(node), f"{name}:{node.name}"))
    lengths.sort(reverse=True)
    long = [where for count, where in lengths if count > 50]
    assert len(long) <= 0.03 * len(lengths), long
    assert lengths[len(lengths) // 2][0] < 10


def _code_lines(node):
    docstring = ast.get_docstring(node, clean=False)
    return node.end_lineno - node.lineno + 1 - (docstring.count("\n") + 1 if docstring else 0)


def test_run_is_small_and_the_configuration_fits_on_a_screen():
    assert len((ROOT / "run.py").read_text().splitlines()) < 40
    assert len((ROOT / "conf" / "config.yaml").read_text().splitlines()) <= 60
