"""A packed batch learns what its documents one by one do, by every way to mask attention."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from penstock.addons.tokens.flatten import Flatten, document_mask, flex_mask
from penstock.addons.tokens.language_model import next_tokens, token_losses
from penstock.addons.tokens.sequence_packing import SequencePacking
from penstock.order.plan import Plan

T, WORDS, HEADS, WIDTH = 64, 11, 2, 16


def batches(pad_to=T):
    """Documents of 0 to 40 tokens in blocks, as a loader makes them."""
    draw = np.random.default_rng(0)
    lengths = draw.integers(0, 40, 24)
    documents = [torch.from_numpy(draw.integers(0, WORDS, n)) for n in lengths]
    plan = Plan(SequencePacking(24, 0, None, 3, T, column=lengths), 3)
    collate = Flatten(labels=True, pad_to=pad_to)
    for step in range(len(plan)):
        request = plan.request(0, step)
        rows = [{"tokens": documents[row]} for row in request.indices]
        yield rows, Batch(collate(rows, request.parts))


class Batch(dict):
    valid = None


class Layers(nn.Module):
    """Two layers of attention, which is given: (q, k, v) [B, heads, T, width] -> the same."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(T, WIDTH)
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(2))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens, places, attention):
        x = self.tokens(tokens) + self.places(places)
        for layer in self.qkv:
            split = layer(x).unflatten(-1, (3, HEADS, -1)).transpose(1, 3)
            x = x + attention(*split.unbind(2)).transpose(1, 2).flatten(2)
        return self.head(x)


def causal(q, k, v):
    return scaled_dot_product_attention(q, k, v, is_causal=True)


def dense(batch):
    mask = document_mask(batch["document_ids"])
    return lambda q, k, v: scaled_dot_product_attention(q, k, v, attn_mask=mask)


def by_edges(batch):
    """As flash_attn_varlen_func reads its arguments: tokens laid end to end, and cu_seqlens."""
    edges = batch["cu_seqlens"].tolist()
    assert batch["max_seqlen"] == max(np.diff(edges))

    def attention(*qkv):
        flat = [one.transpose(1, 2).flatten(0, 1) for one in qkv]  # [N, heads, width]
        found = [
            causal(*(one[begin:end].transpose(0, 1)[None] for one in flat))[0].transpose(0, 1)
            for begin, end in pairwise(edges)
        ]
        whole = torch.cat(found).unflatten(0, (len(qkv[0]), -1))
        return whole.transpose(1, 2)

    return attention


def learned(losses, model):
    model.zero_grad()
    losses.mean().backward()
    return losses.mean().item(), torch.cat([one.grad.flatten() for one in model.parameters()])


def one_by_one(rows, model):
    """Losses of the next tokens of documents that never met, which need no mask."""
    found = []
    for row in rows:
        tokens = row["tokens"][None]
        if tokens.shape[1] > 1:
            logits = model(tokens, torch.arange(tokens.shape[1])[None], causal)[0, :-1]
            found.append(nn.functional.cross_entropy(logits, tokens[0, 1:], reduction="none"))
    return torch.cat(found)


def packed(batch, model, attention):
    tokens, places = (batch[name] for name in ("tokens", "position_ids"))
    if tokens.ndim == 1:
        tokens, places = tokens[None], places[None]
    logits = model(tokens, places, attention).reshape(*batch["tokens"].shape, WORDS)
    return token_losses(logits, next_tokens(batch))


@pytest.mark.parametrize("pad_to", [T, None])
@pytest.mark.parametrize("way", [dense, by_edges])
def test_loss_and_gradients_are_those_of_the_documents_one_by_one(way, pad_to):
    model = Layers()
    for rows, batch in batches(pad_to):
        wanted, gradient = learned(one_by_one(rows, model), model)
        loss, found = learned(packed(batch, model, way(batch)), model)
        assert loss == pytest.approx(wanted, abs=1e-5)
        torch.testing.assert_close(found, gradient, atol=1e-5, rtol=1e-4)


@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype stage")
@pytest.mark.filterwarnings("ignore:.*cuDNN attention")
def test_nested_tensors_take_the_same_edges():
    """torch's jagged tensors; attention to all of a document, as only CUDA has causal ones."""
    _, batch = next(batches(pad_to=None))
    edges = batch["cu_seqlens"]
    torch.manual_seed(0)
    q, k, v = torch.randn(3, int(edges[-1]), HEADS, 8, requires_grad=True).unbind()
    jagged = [
        torch.nested.nested_tensor_from_jagged(
            one, edges.long(), min_seqlen=int(edges.diff().min()), max_seqlen=batch["max_seqlen"]
        ).transpose(1, 2)
        for one in (q, k, v)
    ]
    with sdpa_kernel(SDPBackend.MATH):
        found = scaled_dot_product_attention(*jagged).transpose(1, 2).values()
    mask = document_mask(batch["document_ids"], causal=False)
    flat = (one.transpose(0, 1)[None] for one in (q, k, v))
    wanted = scaled_dot_product_attention(*flat, attn_mask=mask)[0].transpose(0, 1)
    torch.testing.assert_close(found, wanted)


def test_fields_are_those_of_hugging_faces_flattening_collator():
    """DataCollatorWithFlattening: position_ids from 0 in each, labels with -100 where one begins,
    cu_seq_lens_q/k in int32 with a 0 in front, max_length_q/k an int; all in one row."""
    rows = [{"tokens": torch.tensor(one)} for one in ([10, 11, 12], [20, 21], [30])]
    batch = Flatten(labels=True)(rows)
    assert batch["tokens"].tolist() == [10, 11, 12, 20, 21, 30]  # input_ids
    assert batch["labels"].tolist() == [-100, 11, 12, -100, 21, -100]
    assert batch["position_ids"].tolist() == [0, 1, 2, 0, 1, 0]
    assert batch["cu_seqlens"].tolist() == [0, 3, 5, 6]
    assert batch["cu_seqlens"].dtype == torch.int32
    assert batch["max_seqlen"] == 3
    assert batch["document_ids"].tolist() == [0, 0, 0, 1, 1, 2]  # seq_idx


def test_flex_attentions_mask_is_the_dense_one():
    ids = torch.tensor([[0, 0, 1, 1, 1, -1, -1, -1], [2, 3, 3, 3, 3, 3, 3, 4]]).repeat_interleave(
        16, 1
    )
    mask = flex_mask(ids)
    grid = torch.arange(ids.shape[1])
    rows = [
        mask.mask_mod(torch.tensor(b), torch.tensor(0), grid[:, None], grid[None, :])
        for b in (0, 1)
    ]
    assert torch.equal(torch.stack(rows)[:, None], document_mask(ids))
