"""Batches dealt to ranks by cost are the same batches: for any ranks, resumed, with bad samples."""

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock.addons.filters.expressions import Expression, PartCosts, RowCosts
from penstock.addons.tokens.flatten import Flatten
from penstock.addons.tokens.sequence_packing import SequencePacking
from penstock.build.data import DataParts
from penstock.distributed.world import World
from penstock.loading.bad_samples import BadSamples
from penstock.loading.batch import batch_hash
from penstock.loading.fetch import Fetch
from penstock.loading.loader import Loader
from penstock.order.plan import Plan
from penstock.order.samplers import Random
from tests.support.documents import Documents, lengths_of
from tests.support.shipped import OWN, only

SIZE = 6
BAD = (3, 17, 18, 40)


@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=60),
    size=st.integers(1, 6),
    world=st.integers(1, 8),
    split=st.sampled_from(["never", "tail"]),
    cost=st.sampled_from(["tokens", "tokens ** 2", None]),
)
@settings(max_examples=40, deadline=None)
def test_blocks_stay_whole(lengths, size, world, split, cost):
    table = pd.DataFrame({"length": lengths})
    sampler = SequencePacking(len(lengths), 0, table, size, tokens=16, window=8, split=split)
    costs = None if cost is None else PartCosts(Expression(cost, "batch.balance", costs=True))
    plan = Plan(sampler, size, costs=costs)
    for step in range(plan.steps(0)):
        whole, found = plan.request(0, step), []
        for rank in range(world):
            mine = plan.request(0, step, rank, world)
            assert len(mine)
            assert mine.total == whole.total
            assert (np.diff(mine.parts[:, 3]) >= 0).all()
            rows = np.column_stack([mine.positions, mine.indices, mine.parts])[: mine.valid]
            found.append(rows)
            if mine.valid:
                blocks = np.unique(rows[:, -1])
                assert len(rows) == np.isin(whole.parts[:, 3], blocks).sum()
        together = np.concatenate(found)
        expected = np.column_stack([whole.positions, whole.indices, whole.parts])
        assert np.array_equal(together[np.argsort(together[:, -1], kind="stable")], expected)


def loading(kind, world=None, bad=None):
    """A loader of documents, hashed."""
    documents = Documents(lengths_of(50), BAD if bad else ())
    if kind == "blocks":
        sampler = SequencePacking(50, 0, documents.metadata, SIZE, 64, split="tail")
        costs = PartCosts(Expression("tokens ** 2", "batch.balance", costs=True))
    else:
        sampler = Random(50, 0)
        columns = {"length": documents.lengths}
        costs = RowCosts(Expression("length", "batch.balance", costs=True), columns)
    given = {"bad": BadSamples(bad, {}, sampler, 0)} if bad else {}
    fetch = Fetch(documents, None, Flatten(), 0, hashed=True, **given)
    return Loader(Plan(sampler, SIZE, costs=costs), fetch, world=world)


@pytest.mark.parametrize("kind", ["rows", "blocks"])
@pytest.mark.parametrize("bad", [None, "skip", "substitute"])
def test_any_number_of_ranks_makes_the_same_batches(kind, bad):
    with loading(kind, bad=bad) as alone:
        whole = list(alone.epoch(1))
        wanted, state = [batch_hash([batch]) for batch in whole], alone.state_dict()
    assert len(wanted) > 3
    for world in (2, 3, 4):
        start = world - 1  # each goes on where that one left off
        state |= {"epoch": 1, "step": start}
        shares = []
        for rank in range(world):
            with loading(kind, World(rank, world), bad) as one:
                one.load_state_dict(state)
                shares.append(list(one))
        found = list(zip(*shares, strict=True))
        assert [batch_hash(batch) for batch in found] == wanted[start:]
        for batch, ranks in zip(whole[start:], found, strict=True):
            tokens = sum(share["tokens"].sum() for share in ranks if share.request.valid)
            assert tokens == batch["tokens"].sum()
            for share in ranks if kind == "blocks" else ():  # none that is another rank's
                assert len(share["cu_blocks"]) - 1 == len(np.unique(share.request.parts[:, 3]))
        # And they are not dealt contiguously.
        assert any((np.diff(batch.positions) > 1).any() for share in shares for batch in share)


@pytest.fixture
def trusting(monkeypatch):
    monkeypatch.setenv("PENSTOCK_TRUST", "tests")


def test_a_configuration_balances_training_only(trusting):
    own = [*OWN, "transform=none", "batch.size=8"]
    config = penstock.compose(*own, "batch.balance=length ** 2 + 1")
    ranks = [DataParts(config, World(rank, 3)) for rank in range(3)]
    table = ranks[0].train.dataset.metadata
    costs = (table.length**2 + 1).to_numpy()

    def loads(split):
        requests = [getattr(one, split).plan.request(0, 0, one.world.rank, 3) for one in ranks]
        return [costs[one.indices].sum() for one in requests], [len(one) for one in requests]

    (train, _), (_, rows) = loads("train"), loads("val")
    assert max(train) <= 4 / 3 * np.mean(train)
    assert max(rows) - min(rows) <= 1  # validation
    plain = DataParts(penstock.compose(*own)).train
    assert plain.fingerprint == ranks[0].train.fingerprint  # so either resumes the other
    assert plain.plan.costs is None
    for split in ("train", "val"):
        both = [getattr(one, split).plan.request(0, 0) for one in (plain.data, ranks[0])]
        assert torch.equal(*(torch.from_numpy(one.indices) for one in both))


def test_blocks_are_balanced_by_their_tokens(trusting):
    words = ["sampler=packed", "sampler.tokens=9", "collate=packed", "batch.size=8"]
    config = penstock.compose(*OWN, "transform=none", *words, "batch.balance=tokens ** 2")
    plans = [DataParts(config, World(rank, 2)).train.plan for rank in range(2)]
    shares = [plan.request(0, 0, rank, 2).parts for rank, plan in enumerate(plans)]
    loads = [np.square(parts[:, 1] - parts[:, 0]).sum() for parts in shares]
    assert max(loads) <= 4 / 3 * np.mean(loads)
    whole = plans[0].request(0, 0)
    assert sum(loads) == np.square(whole.parts[:, 1] - whole.parts[:, 0]).sum()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["batch.balance=lenght"],
            "the dataset has no column 'lenght'; it has columns label, length",
        ),
        (
            ["batch.balance=length % 2"],
            "'length % 2': 'Mod' is not allowed; "
            "allowed are columns, numbers, + - * / ** and brackets",
        ),
        (
            ["batch.balance=length", "sampler=packed", "sampler.tokens=64", "collate=packed"],
            "'length', but the sampler packs rows into blocks, of which only the number of each "
            "row's tokens is known; write e.g. tokens ** 2",
        ),
    ],
)
def test_what_cannot_be_balanced_is_refused(trusting, overrides, message):
    assert only("batch.balance", *overrides) == message
