"""The page of all keys, and the examples of the API."""

import doctest
import re
import subprocess
import sys

import pytest

import penstock
from tests.program import ROOT

API = ("collate", "dataloader", "models", "pipeline", "samplers", "transforms")
ELSEWHERE = ("using", "frameworks")  # examples that need a run's folder, or Lightning


def test_the_page_of_all_keys_is_up_to_date():
    written = (ROOT / "docs" / "keys.md").read_text()
    made = subprocess.run(
        [sys.executable, ROOT / "docs" / "keys_page.py"], capture_output=True, text=True, check=True
    )
    assert written == made.stdout, "python docs/keys_page.py > docs/keys.md"


def examples(name, language):
    text = (ROOT / "docs" / name).read_text()
    return "".join(re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL))


@pytest.mark.parametrize("name", API)
def test_the_examples_of_the_api(name):
    text = examples(f"api/{name}.md", "pycon")
    test = doctest.DocTestParser().get_doctest(text, {}, name, f"docs/api/{name}.md", 0)
    differences = []
    done = doctest.DocTestRunner(verbose=False).run(test, out=differences.append)
    assert done.attempted > 5
    assert not differences, "".join(differences)


def test_each_public_name_has_an_example():
    shown = [examples(f"api/{name}.md", "pycon") for name in API]
    shown += [examples(f"{name}.md", "python") for name in ELSEWHERE]
    words = set(re.findall(r"\w+", "".join(shown)))
    assert set(penstock.__all__) - words == set()
