"""What a language model writes after the beginnings of validation documents."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from penstock.addons.reports.pictures import shortened
from penstock.addons.tokens.language_model import INPUTS, LanguageModeling, continued
from penstock.build.data import Split
from penstock.files.disk import write_atomically
from penstock.files.table_cells import markdown_cell
from penstock.loading.dataset_facts import tokenizer_of
from penstock.order.randomness import scope

GIVEN, WRITTEN = 24, 40  # tokens
_LOOKED_AT = 500  # documents


def write_continuations(
    split: Split, model: nn.Module, objective: LanguageModeling, path: Path, count: int
) -> Path | None:
    """Write a table in Markdown: row, how a document begins, how it goes on, what the model writes.

    Returns:
        The file; None without a tokenizer that can make text of tokens, or a model that takes other
        inputs than `LanguageModel`.
    """
    tokenizer = tokenizer_of(split.transform.steps)
    if not hasattr(tokenizer, "decode") or objective.inputs != INPUTS:
        return None
    rows, found = len(split.dataset), {}
    step = max(1, rows // _LOOKED_AT)
    with scope():
        for row in range(0, rows, step):
            tokens = split.transform(split.dataset[row])["tokens"].tolist()
            if len(tokens) >= GIVEN + WRITTEN:
                found[row] = tokens
    some = list(found)[:: max(1, len(found) // count)][:count]
    if not some:
        return None
    told = continued(model.eval(), [found[row][:GIVEN] for row in some], WRITTEN)
    lines = ["| row | document | goes on | model |", "|---|---|---|---|"]
    for row, own in zip(some, told, strict=True):
        given, true = found[row][:GIVEN], found[row][GIVEN : GIVEN + WRITTEN]
        words = [str(row), *(tokenizer.decode(one) for one in (given, true, own))]
        lines.append(f"| {' | '.join(markdown_cell(shortened(one, 200)) for one in words)} |")
    write_atomically(path, ("\n".join(lines) + "\n").encode())
    return path
