"""Sequences of unequal length, one after the other, with the places where each begins.

What a model needs so that documents in one block do not attend to each other, under the names that
kernels use: `cu_seqlens` and `max_seqlen` for FlashAttention's functions of variable length,
`position_ids`, and `document_ids` for masks (pipeline/training/document_masks.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipeline.errors import ConfigError, Problem
from pipeline.loading.collate import Mismatch, Sample, columns, plain, stack
from pipeline.order.randomness import IntArray

IGNORED = -100  # label of a token that no loss counts, as of torch's cross entropy


class Flatten:
    """Per-token fields concatenated; the others stacked, with a row for each document.

    A document is a sample, or with sampler=packed the part of one that stands in a block. The
    fields of the batch, where N is the number of all tokens and n that of documents:

        tokens and `fields`    [N], or [blocks, pad_to]
        labels                 the same for `labels`: the tokens, and -100 where a document begins
        position_ids           int64, of each token in its document, from 0
        document_ids           int64, of each token; -1 in padding
        cu_seqlens             int32[n + 1], where each document begins in N, and N itself
        max_seqlen             int, tokens of the longest document
        cu_blocks              int32[blocks + 1], where each block begins in N

    With `pad_to`, blocks are rows of the same length, N counts padding, and what pads a block is a
    document of its own for `cu_seqlens`, so that they also fit the rows laid end to end.

    Args:
        tokens: the field that has the lengths; of shape [T].
        fields: further fields of shape [T], such as a mask.
        labels: add `labels` for models that predict the next token and shift labels themselves, as
            Hugging Face's do.
        pad_to: tokens of a block, for models that take [B, T]; None leaves blocks without padding.
        value: what stands in the padding of `tokens`; 0 in that of other fields.
    """

    packs = True

    def __init__(
        self,
        tokens: str = "tokens",
        fields: Sequence[str] = (),
        labels: bool = False,
        pad_to: int | None = None,
        value: int = 0,
    ) -> None:
        if pad_to is not None and pad_to < 1:
            raise ConfigError(Problem("collate.pad_to", f"{pad_to}; allowed: 1 or more, or null"))
        self.tokens, self.fields, self.labels = tokens, tuple(fields), labels
        self.pad_to, self.value = pad_to, value

    def __call__(self, samples: Sequence[Sample], parts: IntArray | None = None) -> dict[str, Any]:
        """The batch.

        Args:
            parts: of each sample, as `Request.parts`; None: all of it, in a block with the others,
                or with `pad_to` in one of its own.
        """
        given = columns(samples)
        flat = [self.tokens, *self.fields]
        for name in flat:
            if name not in given:
                raise Mismatch(name, (0, 0), f"to be concatenated, but samples have {list(given)}")
        values = {name: _tensors(name, given[name]) for name in flat}
        self._check(values)
        counts = np.array([len(one) for one in values[self.tokens]], np.int64)
        starts, stops = np.zeros_like(counts), counts
        blocks = np.zeros_like(counts) if self.pad_to is None else np.arange(len(counts))
        if parts is not None:
            starts, stops = parts[:, 0], parts[:, 1]
            blocks = np.unique(parts[:, 3], return_inverse=True)[1]  # a rank has some of a batch's
            starts, stops = _within(self.tokens, counts, starts, stops, parts[:, 2])
        lengths = stops - starts
        number = int(blocks[-1]) + 1
        used = np.bincount(blocks, lengths, number).astype(np.int64)
        gaps = np.zeros(number, np.int64) if self.pad_to is None else self.pad_to - used
        if gaps.min() < 0:
            raise Mismatch(self.tokens, (0, int(np.searchsorted(blocks, gaps.argmin()))),
                           f"a block of {used.max()} tokens is longer than collate.pad_to="
                           f"{self.pad_to}")  # fmt: skip
        # Documents in their order, each block's padding behind its last one.
        of_block = np.concatenate([blocks, np.flatnonzero(gaps)])
        order = np.argsort(of_block, kind="stable")
        spans = np.concatenate([lengths, gaps[gaps > 0]])[order]
        ids = np.concatenate([np.arange(len(lengths)), np.full(int((gaps > 0).sum()), -1)])[order]
        edges = np.concatenate([[0], np.cumsum(spans)])
        batch: dict[str, Any] = {
            name: self._shaped(self._joined(name, values[name], starts, stops, ids, spans), number)
            for name in flat
        }
        batch |= {name: stack(name, one) for name, one in given.items() if name not in batch}
        documents = np.repeat(ids, spans)
        positions = np.arange(edges[-1]) - np.repeat(edges[:-1], spans)
        batch["position_ids"] = self._shaped(torch.from_numpy(positions), number)
        batch["document_ids"] = self._shaped(torch.from_numpy(documents), number)
        if self.labels:
            begins = (positions == 0) | (documents < 0)
            batch["labels"] = batch[self.tokens].masked_fill(
                self._shaped(torch.from_numpy(begins), number), IGNORED
            )
        batch["cu_seqlens"] = torch.from_numpy(edges.astype(np.int32))
        batch["max_seqlen"] = int(spans.max(initial=0))
        batch["cu_blocks"] = torch.from_numpy(
            np.concatenate([[0], np.cumsum(used + gaps)]).astype(np.int32)
        )
        return batch

    def _check(self, values: dict[str, list[Tensor]]) -> None:
        for name, tensors in values.items():
            for row, (one, tokens) in enumerate(zip(tensors, values[self.tokens], strict=True)):
                if one.ndim != 1 or len(one) != len(tokens):
                    wanted = "[T]" if name == self.tokens else f"[{len(tokens)}], as {self.tokens}"
                    raise Mismatch(name, (0, row), f"shape {list(one.shape)} is not {wanted}")

    def _joined(
        self, name: str, tensors: list[Tensor], starts: IntArray, stops: IntArray, ids: IntArray,
        spans: IntArray,
    ) -> Tensor:  # fmt: skip
        value = self.value if name == self.tokens else 0
        begins, ends = starts.tolist(), stops.tolist()
        return torch.cat([
            tensors[one][begins[one] : ends[one]] if one >= 0
            else tensors[0].new_full((span,), value)
            for one, span in zip(ids.tolist(), spans.tolist(), strict=True)
        ])  # fmt: skip

    def _shaped(self, values: Tensor, number: int) -> Tensor:
        return values if self.pad_to is None else values.reshape(number, self.pad_to)


def _tensors(name: str, values: list[Any]) -> list[Tensor]:
    try:
        return [plain(torch.as_tensor(one)) for one in values]
    except (TypeError, ValueError) as error:
        reason = f"to be concatenated, but it is a {type(values[0]).__name__}, and no tensor"
        raise Mismatch(name, (0, 0), reason) from error


def _within(
    field: str, counts: IntArray, starts: IntArray, stops: IntArray, told: IntArray
) -> tuple[IntArray, IntArray]:
    """Where parts begin and end in samples of `counts` tokens, of which the sampler was `told`."""
    stand_in = told < 0  # another row in the place of a bad one: as much of it as there is room
    wrong = np.flatnonzero(~stand_in & (told != counts))
    if wrong.size:
        row = int(wrong[0])
        raise Mismatch(
            field, (row, row), f"it has {counts[row]} tokens, and the column of lengths says "
            f"{told[row]}; the sampler packs by that column (sampler.column)"
        )  # fmt: skip
    room = np.minimum(stops - starts, counts)
    return np.where(stand_in, 0, starts), np.where(stand_in, room, stops)
