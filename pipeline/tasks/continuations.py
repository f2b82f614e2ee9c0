"""What a language model writes after the beginnings of validation documents."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from pipeline.build.data import Split
from pipeline.files.disk import write_atomically
from pipeline.files.table_cells import markdown_cell
from pipeline.loading.dataset_facts import tokenizer_of
from pipeline.order.randomness import scope
from pipeline.runs.pictures import shortened
from pipeline.training.language_model import INPUTS, LanguageModeling, continued

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
