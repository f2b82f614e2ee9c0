"""Lengths of texts in tokens, by which samplers choose rows and batches are balanced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.loading.facts import Fields, table_for, table_of
from penstock.terminal import watched


def tokenizer_of(steps: Mapping[str, Any]) -> Any:
    """The step that makes tokens of a text; None without one."""
    return next((step for step in steps.values() if hasattr(step, "counting")), None)


def table_in_tokens(names: set[str], dataset: Any, fields: Fields, steps: Mapping[str, Any]) -> Any:
    """`facts.table_for`, but where a step makes tokens of a text, `length` counts these.

    The texts come from `dataset.text_lengths`, or from the column of the table that the step reads.

    Args:
        names: of the columns that are read.
        steps: transforms of samples.
    """
    tokenizer = tokenizer_of(steps) if "length" in names else None
    table = table_for(names, dataset, fields) if tokenizer is None else table_of(dataset, fields)
    if tokenizer is None or table is None:
        return table
    if hasattr(dataset, "text_lengths"):
        return table.assign(length=dataset.text_lengths(tokenizer.length, tokenizer.counting))
    # The `length` of a table counts characters, which would give other blocks than tokens do.
    texts = watched(table.get(tokenizer.field, ()), len(table), "counting tokens")
    lengths = [tokenizer.length(text) for text in texts]
    return table.assign(length=lengths) if lengths else table
