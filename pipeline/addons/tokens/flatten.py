"""Sequences of unequal length, one after the other, with the places where each begins.

The inputs that keep documents in one block from attending to each other, under the names that
kernels use: `cu_seqlens` and `max_seqlen` for FlashAttention's functions of variable length,
`position_ids`, and `document_ids` for masks (pipeline/addons/tokens/flatten.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from penstock.files.limits import Count
from penstock.loading.collate import Mismatch, Ragged, Sample, columns, plain, stack
from penstock.loading.facts import unfiltered
from penstock.order.keys import IntArray

IGNORED = -100  # label of a token that no loss counts, as for torch's cross entropy


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
    takes_gathered = True

    def __init__(
        self,
        tokens: str = "tokens",
        fields: Sequence[str] = (),
        labels: bool = False,
        pad_to: Count | None = None,
        value: int = 0,
    ) -> None:
        self.tokens, self.fields, self.labels = tokens, tuple(fields), labels
        self.pad_to, self.value = pad_to, value

    def __call__(self, samples: Sequence[Sample], parts: IntArray | None = None) -> dict[str, Any]:
        """The batch.

        Args:
            parts: of each sample, as `Request.parts`; None: all of it, in a block with the others,
                or with `pad_to` in one of its own.
        """
        return self.together(columns(samples), parts)

    def together(
        self, by_field: Mapping[str, Any], parts: IntArray | None = None
    ) -> dict[str, Any]:
        """Collate the values of each field."""
        rows = {name: _ragged(name, by_field.get(name)) for name in (self.tokens, *self.fields)}
        counts = rows[self.tokens].lengths.numpy()
        for name, (values, lengths) in rows.items():
            if values.ndim != 1 or not np.array_equal(lengths, counts):
                row = int((lengths.numpy() != counts).argmax())
                raise Mismatch(
                    name, (0, row), f"not of the length of {self.tokens}, in one dimension"
                )
        starts, stops, picks = np.zeros_like(counts), counts, None
        # Rows were gathered or read as a whole, and a block has a part of them.
        if parts is not None:
            starts, stops = _within(self.tokens, counts, *parts.T[:3])
            sizes, firsts = stops - starts, np.cumsum(counts) - counts + starts
            shifts = np.repeat(firsts - np.cumsum(sizes) + sizes, sizes)
            picks = torch.from_numpy(np.arange(len(shifts)) + shifts)
        layout = self._layout(stops - starts, parts)
        batch = dict[str, Any]()
        for name, (values, _) in rows.items():
            taken = values if picks is None else values.index_select(0, picks)
            if (room := int(layout.edges[-1])) > len(taken):
                filled = values.new_full((room,), self.value if name == self.tokens else 0)
                kept = torch.from_numpy(np.repeat(layout.ids >= 0, layout.spans))
                taken = filled.masked_scatter_(kept, taken)
            batch[name] = self._shaped(taken, layout)
        batch |= {
            name: stack(name, values) for name, values in by_field.items() if name not in rows
        }
        return batch | self._places(batch[self.tokens], layout)

    def reads(self, dataset: Any) -> bool:
        # Of the class: what wraps a dataset hands on its attributes, and numbers rows otherwise.
        known = hasattr(type(unfiltered(dataset)), "read_tokens")
        # A class of it may put samples together in a way of its own.
        return type(self) is Flatten and known and self.tokens == "tokens" and not self.fields

    def read(self, dataset: Any, indices: IntArray, parts: IntArray | None) -> dict[str, Any]:
        """The batch of rows that are read straight into it; as by `__call__`.

        Raises:
            DataError: a row cannot be read, or lacks the tokens that the sampler counted.
            Mismatch: as `__call__`.
        """
        # Without blocks nothing says how much of a row is wanted, so all of it is read.
        if parts is None:
            return self(dataset.__getitems__(indices.tolist()))
        starts, stops, known = parts.T[:3]
        layout = self._layout(stops - starts, parts)
        total, padded = int(layout.edges[-1]), len(layout.spans) > len(stops)
        tokens = np.full(total, self.value) if padded else np.empty(total, np.int64)
        places = layout.edges[:-1][layout.ids >= 0] if padded else layout.edges[:-1]
        counts = dataset.read_tokens(tokens, places, indices, starts, stops)
        # What was read is wrong then, or of a row that stands in for a bad one; `_within` tells
        # which.
        if not np.array_equal(counts, known):
            _within(self.tokens, counts, starts, stops, known)
        shaped = self._shaped(torch.from_numpy(tokens), layout)
        return {self.tokens: shaped} | self._places(shaped, layout)

    def _layout(self, lengths: IntArray, parts: IntArray | None) -> Layout:
        """Where documents stand, each block's padding behind its last one."""
        # Without a sampler of blocks: one for all documents, or a row for each, as they are padded.
        blocks = np.zeros_like(lengths) if self.pad_to is None else np.arange(len(lengths))
        if parts is not None:
            # A rank has some of a batch's blocks, so they are counted anew.
            blocks = np.cumsum(np.diff(parts[:, 3], prepend=parts[:1, 3]) != 0)
        number = int(blocks[-1]) + 1
        used = np.bincount(blocks, lengths, number).astype(np.int64)
        ids = np.arange(len(lengths))
        if self.pad_to is None:
            return Layout(lengths, ids, _summed(lengths), _summed(used))
        gaps = self.pad_to - used
        if gaps.min() < 0:
            raise Mismatch(
                self.tokens,
                (0, int(np.searchsorted(blocks, gaps.argmin()))),
                f"a block of {used.max()} tokens is longer than collate.pad_to={self.pad_to}",
            )
        # Padding is a document of its own: kernels of variable length have no mask to leave it out.
        open_ = np.flatnonzero(gaps)
        order = np.argsort(np.concatenate([blocks, open_]), kind="stable")
        spans = np.concatenate([lengths, gaps[open_]])[order]
        ids = np.concatenate([ids, np.full(len(open_), -1)])[order]
        return Layout(spans, ids, _summed(spans), _summed(used + gaps))

    def _places(self, tokens: Tensor, layout: Layout) -> dict[str, object]:
        """The fields that say where documents are."""
        documents = np.repeat(layout.ids, layout.spans)
        positions = np.arange(layout.edges[-1]) - np.repeat(layout.edges[:-1], layout.spans)
        batch = {
            "position_ids": self._shaped(torch.from_numpy(positions), layout),
            "document_ids": self._shaped(torch.from_numpy(documents), layout),
        }
        if self.labels:
            # No token in front of it predicts the first one, also where a document goes on from
            # another block.
            begins = (positions == 0) | (documents < 0)
            batch["labels"] = tokens.masked_fill(
                self._shaped(torch.from_numpy(begins), layout), IGNORED
            )
        return batch | {
            "cu_seqlens": torch.from_numpy(layout.edges.astype(np.int32)),
            "max_seqlen": int(layout.spans.max(initial=0)),
            "cu_blocks": torch.from_numpy(layout.blocks.astype(np.int32)),
        }

    def _shaped(self, values: Tensor, layout: Layout) -> Tensor:
        if self.pad_to is None:
            return values
        return values.reshape(len(layout.blocks) - 1, self.pad_to)


class Layout(NamedTuple):
    """Documents of a batch and what pads their blocks, in their order.

    Attributes:
        spans: tokens of each, int64[n].
        ids: number of the document; -1: padding.
        edges: where each begins, and the end: int64[n + 1].
        blocks: the same of blocks.
    """

    spans: IntArray
    ids: IntArray
    edges: IntArray
    blocks: IntArray


def _ragged(name: str, values: Any) -> Ragged:
    """The values of a field, row after row."""
    if isinstance(values, Ragged):
        return values
    if isinstance(values, Tensor) and values.ndim > 1:
        return Ragged(values.flatten(0, 1), torch.full((len(values),), values.shape[1]))
    try:
        rows = [plain(torch.as_tensor(value)) for value in values]
        return Ragged(torch.cat(rows), torch.tensor([len(row) for row in rows]))
    except (TypeError, ValueError, RuntimeError) as error:
        raise Mismatch(name, (0, 0), f"cannot be concatenated ({error})") from error


def _summed(counts: IntArray) -> IntArray:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])


def _within(
    field: str, counts: IntArray, starts: IntArray, stops: IntArray, known: IntArray
) -> tuple[IntArray, IntArray]:
    """Where parts begin and end in samples of `counts` tokens; the sampler counted `known`."""
    stand_in = known < 0  # another row instead of a bad one: as much of it as there is room
    # A stale column would cut documents at wrong tokens, and every block after them would be
    # another.
    wrong = np.flatnonzero(~stand_in & (known != counts))
    if wrong.size:
        row = int(wrong[0])
        raise Mismatch(
            field,
            (row, row),
            f"it has {counts[row]} tokens, and the column of lengths says "
            f"{known[row]}; the sampler packs by that column (sampler.column)",
        )
    room = np.minimum(stops - starts, counts)
    return np.where(stand_in, 0, starts), np.where(stand_in, room, stops)


def _allowed(ids: Tensor, causal: bool) -> tuple[Tensor, Callable[..., Tensor]]:
    """The documents of tokens [B, T], and whether a query may attend to a key, by their places."""
    rows = ids if ids.ndim == 2 else ids[None]

    def allowed(batch: Tensor, head: object, query: Tensor, key: Tensor) -> Tensor:
        own = rows[batch, query]
        # Padding attends to itself: a softmax over nothing is no number.
        same = (own == rows[batch, key]) & ((own >= 0) | (query == key))
        return same & (query >= key) if causal else same

    return rows, allowed


def document_mask(ids: Tensor, causal: bool = True) -> Tensor:
    """True where the token of the third dimension may attend to that of the fourth.

    Args:
        ids: `document_ids`, int64[B, T] or [T].
    """
    rows, allowed = _allowed(ids, causal)
    places = torch.arange(rows.shape[1], device=ids.device)
    blocks = torch.arange(len(rows), device=ids.device)[:, None, None, None]
    return allowed(blocks, None, places[:, None], places)


def flex_mask(ids: Tensor, causal: bool = True, **options: Any) -> Any:
    """The same for `torch.nn.attention.flex_attention`; `options` go to `create_block_mask`."""
    from torch.nn.attention.flex_attention import create_block_mask

    (rows, allowed), size = _allowed(ids, causal), ids.shape[-1]
    return create_block_mask(allowed, len(rows), None, size, size, device=ids.device, **options)
