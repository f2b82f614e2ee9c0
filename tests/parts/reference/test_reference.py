"""The page of all keys, and the examples of the API."""

import doctest
import re
import sys

import penstock
from tests.support import warm
from tests.support.program import ROOT

ELSEWHERE = ("using", "dataloader")  # examples that need a run's folder, or Lightning


def test_the_page_of_all_keys_is_up_to_date():
    written = (ROOT / "docs" / "keys.md").read_text()
    command = [sys.executable, ROOT / "docs" / "keys_page.py"]
    made = warm.run(command, capture_output=True, text=True, check=True)
    assert written == made.stdout, "python docs/keys_page.py > docs/keys.md"


def examples(name, language):
    text = (ROOT / "docs" / name).read_text()
    return "".join(re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL))


def test_the_examples_of_the_api():
    test = doctest.DocTestParser().get_doctest(examples("api.md", "pycon"), {}, "api", "", 0)
    differences = []
    done = doctest.DocTestRunner(verbose=False).run(test, out=differences.append)
    assert done.attempted > 50
    assert not differences, "".join(differences)


def test_each_public_name_has_an_example():
    shown = [examples("api.md", "pycon")]
    shown += [examples(f"{name}.md", "python") for name in ELSEWHERE]
    words = set(re.findall(r"\w+", "".join(shown)))
    assert set(penstock.__all__) - words == set()
