"""The page of all keys."""

from penstock.addons.reference import page
from tests.program import ROOT


def test_the_page_of_all_keys_is_up_to_date():
    written = (ROOT / "docs" / "keys.md").read_text()
    assert written == page.page(), "python -m penstock.addons.reference.page > docs/keys.md"
