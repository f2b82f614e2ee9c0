"""Rows that are left out, and what rows cost."""

from penstock.installed import AddOn

ADDON = AddOn(
    only_with=("filter", "unique", "without", "balance"),
    wrapper="penstock.addons.filters.wrapper:Filters",
    row_keys=("filter", "unique", "without"),
    rules=("penstock.addons.filters.rules:rows", "penstock.addons.filters.rules:balance"),
)
