"""Other people's tests with our class: what is swapped, what is said of a test, of a hang."""

import ast
import time
from types import SimpleNamespace

import pytest

from tests.suites import __main__ as suites
from tests.suites.inside import swapping

TESTS = """
import time
from torch.utils.data import DataLoader


def test_both():
    assert isinstance(DataLoader(), DataLoader)


def test_lost():
    assert DataLoader.maker == "torch"


def test_listed():
    assert DataLoader.maker == "torch"


def test_hangs():
    if DataLoader.maker == "penstock":
        time.sleep(600)


def test_of_neither():
    raise OSError
"""
MODULES = {
    "torch/__init__.py": "",
    "torch/utils/__init__.py": "",
    "torch/utils/data.py": "class DataLoader:\n    maker = 'torch'\n",
    "penstock/__init__.py": (
        "import torch.utils.data\n"
        "class DataLoader(torch.utils.data.DataLoader):\n    maker = 'penstock'\n"
    ),
}


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A project's checkout, with a torch of its own that is imported in no time."""
    files = {"made/tests/test_loader.py": TESTS}
    files |= {f"made/modules/{name}": text for name, text in MODULES.items()}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    suite = suites.Suite(("tests/test_loader.py",), inside=("modules",))
    monkeypatch.setattr(suites, "SUITES", {"made": suite})
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # half of what a pytest takes
    reasons = {f"tests/test_loader.py::test_{name}": "another way" for name in ("listed", "both")}
    monkeypatch.setattr(suites, "listed", lambda: {"made": reasons})
    return tmp_path


def test_what_is_lost_is_reported_and_a_hang_ends(checkout, capsys, monkeypatch):
    results = checkout / "results/made.penstock.reversed.jsonl"

    def later():  # by hours, while the test that hangs is the last that has begun
        last = suites.lines(results)[-1:]
        return time.time() + 10_000 * ("test_hangs" in last[0].get("begun", "") if last else 0)

    monkeypatch.setattr(suites, "time", SimpleNamespace(time=later, sleep=time.sleep))
    words = [str(checkout), "--orders", "reversed"]
    assert suites.main(words) == 1
    printed = capsys.readouterr().out
    assert "made, reversed, penstock: 3 failed, 1 hangs, 1 passed" in printed
    assert "made, reversed, torch: 1 failed, 3 passed" in printed  # where ours fails
    assert "failed: tests/test_loader.py::test_lost: NOT LISTED" in printed
    assert "failed: tests/test_loader.py::test_listed: another way" in printed
    assert "hangs: tests/test_loader.py::test_hangs: NOT LISTED" in printed
    assert "listed, and passes: tests/test_loader.py::test_both" in printed
    assert "3 of 5 are lost" in printed
    noted = suites.lines(results)
    ended = [line["test"].partition("test_loader.py::")[2] for line in noted if "test" in line]
    assert ended == ["test_of_neither", "test_hangs", "test_listed", "test_lost", "test_both"]
    assert suites.main(words) == 1  # from the results alone
    assert capsys.readouterr().out == printed


def test_a_file_that_cannot_be_imported_is_no_success(checkout, capsys):
    (checkout / "made/tests/test_loader.py").write_text("import nothing_of_this_name\n")
    assert suites.main([str(checkout), "--orders", "forward"]) == 1
    missing = "ModuleNotFoundError: No module named 'nothing_of_this_name'"
    assert f"not collected: tests/test_loader.py: E   {missing}" in capsys.readouterr().out


def test_a_suite_without_tests_is_no_success(checkout, capsys):
    (checkout / "made/tests/conftest.py").write_text(
        "def pytest_collection_modifyitems(unknown): ...\n"  # as of another version of pytest
    )
    assert suites.main([str(checkout), "--orders", "forward"]) == 1
    log = checkout / "results/made.penstock.forward.log"
    assert f"not collected: anything: see {log}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (
            "from torch.utils.data import DataLoader as Loader, Dataset",
            "from torch.utils.data import Dataset\nfrom penstock import DataLoader as Loader",
        ),
        ("x = torch.utils.data.DataLoader(y)", "x = __import__('penstock').DataLoader(y)"),
        (
            "isinstance(DataLoader(y), (int, DataLoader))",
            "isinstance(DataLoader(y), (int, __import__('torch').utils.data.DataLoader))",
        ),
        ("from lightning.wrappers import DataLoader", "from lightning.wrappers import DataLoader"),
        ("from torchdata.stateful_dataloader import StatefulDataLoader",) * 2,
    ],
)
def test_names_are_changed_where_a_person_would(theirs, ours):
    assert ast.unparse(swapping.swapped(theirs, {"DataLoader"})) == ours


def test_each_exception_is_one_sentence():
    for entries in suites.listed().values():
        for test, why in entries.items():
            assert why.endswith("."), test
