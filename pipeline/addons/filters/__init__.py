"""Rows that are left out, and what rows cost."""

from penstock.protocols import AddOn

ADDON = AddOn(
    wrapper="penstock.addons.filters.wrapper:Filters",
    row_keys=("filter", "unique", "without"),
    rules=("penstock.addons.filters.rules:rows", "penstock.addons.filters.rules:balance"),
)
