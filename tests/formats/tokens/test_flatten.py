"""Sequences end to end: every token in its place, and what kernels are told of it."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.addons.tokens.flatten import Flatten
from penstock.addons.tokens.sequence_packing import SequencePacking
from penstock.errors import DataError
from penstock.loading.bad_samples import BadSamples
from penstock.loading.batch import batch_hash
from penstock.loading.collate import Mismatch
from penstock.loading.fetch import Fetch
from penstock.order.plan import Plan
from tests.support.documents import Documents, lengths_of

T = 64


def plan_of(documents, size=4, **options):
    sampler = SequencePacking(len(documents), 0, documents.metadata, size, T, **options)
    return Plan(sampler, size)


def fetch_of(documents, bad=None, hashed=True, **options):
    policy = {} if bad is None else {"bad": bad}
    return Fetch(documents, None, Flatten(**options), seed=0, hashed=hashed, **policy)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("pad_to", [None, T])
@pytest.mark.parametrize("split", ["never", "tail"])
def test_every_token_is_in_the_epoch_once_and_edges_are_right(split, pad_to):
    documents = Documents(lengths_of())
    plan, fetch = plan_of(documents, split=split), fetch_of(documents, pad_to=pad_to)
    seen = []
    for step in range(len(plan)):
        batch = fetch(plan.request(0, step))
        tokens, ids = batch["tokens"].reshape(-1), batch["document_ids"].reshape(-1)
        positions = batch["position_ids"].reshape(-1)
        edges = batch["cu_seqlens"]
        assert edges.dtype == torch.int32
        assert (int(edges[0]), int(edges[-1])) == (0, len(tokens))
        assert batch["max_seqlen"] == int(edges.diff().max())
        assert all((batch["cu_blocks"].diff() <= T).tolist())
        for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            own = tokens[begin:end]
            assert len(ids[begin:end].unique()) <= 1
            assert torch.equal(positions[begin:end], torch.arange(end - begin))
            if len(own) and ids[begin] >= 0:
                seen.append(own)
                assert torch.equal(own - own[0], torch.arange(len(own)))
        assert torch.equal(batch["label"], torch.from_numpy(batch.indices))
        if pad_to:
            assert batch["tokens"].shape[1] == T
            assert not tokens[ids < 0].any()
    everything = torch.cat(seen).sort().values
    wanted = torch.cat(
        [1000 * row + torch.arange(int(n)) for row, n in enumerate(documents.lengths)]
    )
    assert torch.equal(everything, wanted)


@pytest.mark.thorough
@given(st.integers(1, 5), st.integers(0, 9))
@settings(deadline=None, max_examples=8)
def test_a_batch_is_dealt_out_by_blocks_and_hashes_the_same(world, seed):
    documents = Documents(lengths_of(60, seed))
    plan, fetch = plan_of(documents, split="tail"), fetch_of(documents)
    for step in range(len(plan)):
        whole = fetch(plan.request(0, step))
        shares = [fetch(plan.request(0, step, rank, world)) for rank in range(world)]
        assert batch_hash(shares) == batch_hash([whole])
        counted = [share for share in shares if share.request.valid]
        assert torch.equal(torch.cat([share["tokens"] for share in counted]), whole["tokens"])
        blocks = torch.cat([share["cu_blocks"].diff() for share in counted])
        assert torch.equal(blocks, whole["cu_blocks"].diff())
        for share in shares:
            assert len(share.request) > 0
            assert share.request.total == len(whole.request)


def test_what_a_block_has_of_a_row_is_hashed():
    documents = Documents([100, 100])
    fetch = fetch_of(documents)
    one, other = (
        batch_hash([fetch(plan_of(documents, size=9, split=split).request(0, 0))])
        for split in ("never", "tail")
    )
    assert one != other


def test_bad_rows_are_left_out_or_replaced_within_their_room():
    documents = Documents(lengths_of(), bad=[3, 50, 51])
    plan = plan_of(documents)
    skip = fetch_of(documents, BadSamples("skip", {}, plan.sampler, 0))
    substitute = fetch_of(documents, BadSamples("substitute", {}, plan.sampler, 0))
    causes = dict.fromkeys([3, 50, 51], "known")
    quarantined = fetch_of(documents, BadSamples("raise", causes, plan.sampler, 0))
    rows = []
    for step in range(len(plan)):
        request = plan.request(0, step)
        less, other = skip(request), substitute(request)
        assert batch_hash([quarantined(request)]) == batch_hash([less])
        rows += less.indices.tolist()
        assert all((other["cu_blocks"].diff() <= T).tolist())
        assert len(other.request) == len(request)
        assert not {3, 50, 51} & set(other.indices.tolist())
        assert len(other["document_ids"].unique()) == int((other["cu_seqlens"].diff() > 0).sum())
    assert set(rows) == set(range(200)) - {3, 50, 51}


def test_a_column_that_is_wrong_is_named():
    documents = Documents([10, 20, 30])
    plan = plan_of(documents)
    documents.lengths = np.array([10, 25, 30])
    with pytest.raises(DataError, match=r"sample 1 .*: it has 25 tokens.*says 20"):
        fetch_of(documents)(plan.request(0, 0))
    with pytest.raises(Mismatch, match="in one dimension"):
        Flatten()([{"tokens": torch.zeros(2, 2)}])
    with pytest.raises(Mismatch, match=r"mask.*not of the length of tokens"):
        Flatten(fields=["mask"])([{"tokens": torch.zeros(2), "mask": torch.zeros(3)}])
