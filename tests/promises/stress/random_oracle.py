"""What samplers promise, checked by brute force over the rows of every batch.

Nothing here asks an order: the rows of each batch, the table of the rows that are left, and the
plain configuration are all that is read.
"""

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise


@dataclass
class Data:
    """A split: how many rows are left, their table, and of a mixture rows by source."""

    rows: int
    table: object = None
    sources: dict | None = None
    mixing: dict | None = None

    def column(self, name):
        if name == "length" and (self.table is None or name not in self.table):
            raise AssertionError("no lengths are known")
        return self.table[name].tolist()


def name_of(node):
    return node["_target_"].rpartition(".")[2]


def check_epochs(epochs, sampler, size, tail, data):
    """Every whole epoch of training: its batches, and what the sampler says of their rows.

    Args:
        epochs: a list of `Step` for each epoch from 0 on.
        sampler: its node.
        size, tail: of batches.
    """
    kind = name_of(sampler)
    for number, steps in enumerate(epochs):
        assert [(one.epoch, one.step) for one in steps] == [
            (number, step) for step in range(len(steps))
        ], "addresses"
        for one in steps:
            assert all(0 <= row < data.rows for row in one.rows), f"{one}: no such row"
    if kind == "SequencePacking":
        for steps in epochs:
            _blocks(steps, sampler, size, tail, data)
        orders, drops = [_by_position(steps) for steps in epochs], tail == "drop"
        # Blocks that are dropped have taken rows from the middle of the last window's order.
        gaps = drops and sampler.get("window") != 1
        _orders(orders, sampler.get("order"), data, size, tail, drops, gaps)
        return
    for steps in epochs:
        positions = [position for one in steps for position in one.positions]
        assert len(set(positions)) == len(positions), "a position comes twice"
    if kind == "Bucket":
        for steps in epochs:
            _buckets(steps, sampler, size, tail, data)
    elif kind == "Identity":
        for steps in epochs:
            _identities(steps, sampler, data)
    else:
        orders = [[row for one in steps for row in one.rows] for steps in epochs]
        for steps, rows in zip(epochs, orders, strict=True):
            positions = [position for one in steps for position in one.positions]
            assert positions == list(range(len(rows))), "positions of an order follow each other"
            _cut(steps, size, tail)
        if kind == "Repeated":
            for steps in epochs:
                _repetitions(steps, sampler["times"])
            shortened = sampler.get("shorten", True)
            orders = [
                [row for one in steps for row in one.rows[: len(one.rows) // sampler["times"]]]
                for steps in epochs
            ]
            ends = "keep" if shortened else tail  # a shortened epoch has no end to go on from
            _orders(orders, sampler.get("order"), data, size, ends, shortened or tail == "drop")
        else:
            _orders(orders, sampler, data, size, tail, tail == "drop")


def _cut(steps, size, tail):
    for one in steps[:-1]:
        assert len(one.rows) == size, f"{one}: {len(one.rows)} rows, not {size}"
    if steps:
        last = len(steps[-1].rows)
        assert last == size if tail == "drop" else 0 < last <= size, f"the last has {last} rows"


def _orders(orders, node, data, size, tail, dropped, gaps=False):
    """Rows of each epoch in their order.

    Args:
        node: of the order; None: each row once, at random, or a mixture.
        dropped: whether the end of an epoch may lack.
        gaps: whether rows before its end may lack, too.
    """
    kind = name_of(node) if node else "MixtureOrder" if data.mixing else "Random"
    if kind == "MixtureOrder":
        # Passes go on from the end of an epoch, which a shortened one has none of.
        if tail == "drop" or not dropped:
            _mixture(orders, data)
        return
    for rows in orders:
        length = data.rows
        if kind in ("Random", "Curriculum", "Sequential", "SequentialSampler", "RandomSampler"):
            _once(rows, range(length), dropped)
        if kind in ("Sequential", "SequentialSampler"):
            wanted = sorted(rows) if gaps else list(range(len(rows)))
            assert rows == wanted, "not in the order of the dataset"
        if kind == "Curriculum" and not gaps:
            _stages(rows, node, data)
        if kind == "Subset" and node.get("indices") is not None:
            _once(rows, node["indices"], dropped)
            if not node.get("shuffle", True) and not gaps:
                assert rows == node["indices"][: len(rows)]
        elif kind == "Subset":
            assert len(set(rows)) == len(rows), "a row comes twice"
            count = round(length * node["fraction"])
            assert len(rows) == count or dropped, f"{len(rows)} rows, not {count}"
            assert len({frozenset(one) for one in orders}) == 1 or dropped, "epochs have other rows"
        if kind == "Weighted":
            _weighted(rows, node, data, dropped)
        if kind == "WeightedRandomSampler":
            assert all(node["weights"][row] > 0 for row in rows), "a row of weight 0"
    shuffled = kind in ("Random", "RandomSampler")
    if shuffled and len(orders) > 1 and len(orders[0]) > 15:
        assert orders[0] != orders[1], "two epochs have one order"


def _once(rows, of, dropped):
    extra = Counter(rows) - Counter(of)
    assert not extra, f"too often: {dict(extra)}"
    missing = Counter(of) - Counter(rows)
    assert dropped or not missing, f"missing: {sorted(missing)[:9]}"


def _stages(rows, node, data):
    values = data.column(node.get("column", "length"))
    sign = -1 if node.get("descending") else 1
    count, wanted = node.get("stages", 4), sorted(sign * value for value in values)
    edges = [data.rows * stage // count for stage in range(count + 1)]
    for first, last in pairwise(edges):
        here = sorted(sign * values[row] for row in rows[first:last])
        assert here == wanted[first:last] or len(here) < last - first, "a stage has other values"


def _weighted(rows, node, data, dropped):
    weights, column = node.get("weights"), node.get("column", "label")
    if isinstance(weights, str):
        weights = data.column(weights)
    if weights is None:
        data.column(column)
        weights = [1] * data.rows
    assert all(weights[row] > 0 for row in rows), "a row of weight 0"
    replacement = node.get("replacement", True)
    count = node.get("num_samples")
    if count is None:
        count = data.rows if replacement else sum(weight > 0 for weight in weights)
    assert len(rows) == count or (dropped and len(rows) < count), f"{len(rows)} draws, not {count}"
    if not replacement:
        assert len(set(rows)) == len(rows), "a row comes twice"


def _repetitions(steps, times):
    for one in steps:
        width = len(one.rows) // times
        turns = [one.rows[turn * width : (turn + 1) * width] for turn in range(times)]
        assert width * times == len(one.rows), f"{one}: not {times} times"
        assert all(turn == turns[0] for turn in turns), f"{one}: not {times} times"


def _buckets(steps, node, size, tail, data):
    lengths = data.column(node.get("column", "length"))
    _once([row for one in steps for row in one.rows], range(data.rows), tail == "drop")
    budget, count = node.get("tokens"), node.get("num_buckets")
    for one in steps:
        longest = max(lengths[row] for row in one.rows)
        if budget is None:
            assert len(one.rows) <= size, f"{one}: over {size} rows"
        else:
            cost = longest * len(one.rows)
            assert cost <= budget or len(one.rows) == 1, f"{one}: {cost} tokens of {budget}"
    # Buckets are stretches of the rows sorted by length: batches lie in one each, so of two batches
    # one lies below the other, or they are of one bucket.
    spans = sorted(
        (min(map(lengths.__getitem__, one.rows)), max(map(lengths.__getitem__, one.rows)))
        for one in steps
    )
    joined = []
    for low, high in spans:
        if joined and low < joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], high)
        else:
            joined.append([low, high])
    if count is not None and budget is None and len(set(lengths)) == len(lengths):
        assert len(joined) >= min(count, len(steps)) or tail == "drop", "fewer buckets"


def _identities(steps, node, data):
    values = data.column(node.get("column", "label"))
    count, samples = node.get("identities", 8), node.get("samples", 4)
    batches = node.get("batches") or max(1, data.rows // (count * samples))
    assert len(steps) == batches, f"{len(steps)} batches, not {batches}"
    sizes = Counter(values)
    for one in steps:
        assert len(one.rows) == count * samples
        groups = [one.rows[at : at + samples] for at in range(0, len(one.rows), samples)]
        found = [{values[row] for row in rows} for rows in groups]
        assert all(len(values_of) == 1 for values_of in found), f"{one}: not one identity a group"
        assert len({next(iter(value)) for value in found}) == count, f"{one}: an identity twice"
        for rows in groups:
            assert len(set(rows)) == min(samples, sizes[values[rows[0]]]), f"{one}: a row again"


def _blocks(steps, node, size, tail, data):
    """Documents in blocks: all of each, no block over its tokens, none cut that need not be."""
    lengths = data.column(node.get("column", "length"))
    room, split = node["tokens"], node.get("split", "never")
    pieces = {}
    for one in steps:
        assert len(one.parts) == len(one.rows)
        used = Counter()
        for position, row, (start, stop, length, block) in zip(
            one.positions, one.rows, one.parts, strict=True
        ):
            assert length == lengths[row], f"{one}: row {row} has {lengths[row]} tokens"
            assert 0 <= start <= stop <= length
            used[block] += stop - start
            pieces.setdefault((position, row), []).append((start, stop))
        blocks = [part[3] for part in one.parts]
        assert blocks == sorted(blocks), f"{one}: blocks do not ascend"
        assert set(blocks) == set(range(blocks[-1] + 1)), f"{one}: an empty block"
        assert len(used) <= size, f"{one}: {len(used)} blocks of {size}"
        assert max(used.values()) <= room, f"{one}: a block of {max(used.values())} tokens"
        if one is not steps[-1]:
            assert len(used) == size, f"{one}: {len(used)} blocks of {size}"
    positions = [position for position, _ in pieces]
    assert len(positions) == len(set(positions)), "two rows at one position"
    for (position, row), found in pieces.items():
        edges = sorted(found)
        whole = edges[0][0] == 0 and edges[-1][1] == lengths[row]
        joins = all(one[1] == other[0] for one, other in pairwise(edges))
        assert (whole and joins) or tail == "drop", f"row {row} at {position}: {edges}"
        if split == "never" and lengths[row] <= room:
            assert len(edges) == 1, f"row {row} of {lengths[row]} tokens is cut: {edges}"


def _by_position(steps):
    rows = {}
    for one in steps:
        rows.update(zip(one.positions, one.rows, strict=True))
    return [rows[position] for position in sorted(rows)]


def _mixture(orders, data):
    """Sources in their shares; each read in whole passes that go on from one epoch to the next."""
    starts, first = {}, 0
    for name, length in data.sources.items():
        starts[name] = range(first, first + length)
        first += length
    of = {row: name for name, rows in starts.items() for row in rows}
    run = [of[row] for rows in orders for row in rows]
    mixing = data.mixing
    for name, rows in starts.items():
        seen = [row for order in orders for row in order if of[row] == name]
        for at in range(0, len(seen), len(rows)):
            _once(seen[at : at + len(rows)], rows, dropped=at + len(rows) > len(seen))
        limit = (mixing.get("passes") or {}).get(name)
        if limit is not None:
            assert len(seen) <= limit * len(rows), f"source {name} is read too often"
    weights = mixing.get("weights") or data.sources
    constant = all(isinstance(one, (int, float)) for one in weights.values())
    if not constant or mixing.get("passes"):
        return
    total = sum(weights.values())
    for name, weight in weights.items():
        count = 0
        for place, source in enumerate(run, 1):
            count += source == name
            error = abs(count - weight / total * place)
            if place % 1000 == 0:
                assert error <= 2, f"{name}: {count} of {place}, weight {weight}/{total}"


def check_stream(epochs, sampler, size, tail, count):
    """Every record of a stream once, in its block."""
    size = size or 1  # batch.size=null: samples
    buffer = sampler.get("buffer", 0)
    for steps in epochs:
        _cut(steps, size, tail)
        rows = [row for one in steps for row in one.rows]
        if sampler.get("steps") is not None:
            assert len(steps) <= sampler["steps"]
            assert len(set(rows)) == len(rows), "a record comes twice"
            continue
        wanted = count - count % size if tail == "drop" else count
        assert len(rows) == wanted, f"{len(rows)} records, not {wanted}"
        assert len(set(rows)) == len(rows), "a record comes twice"
        if not sampler.get("shuffle_shards") and not buffer:
            assert rows == list(range(len(rows))), "not in the order of the stream"
        elif not sampler.get("shuffle_shards"):
            assert all(abs(row - place) < buffer for place, row in enumerate(rows)), "out of block"


def check_validation(steps, size, rows):
    """Every row once, in order."""
    assert [row for one in steps for row in one.rows] == list(range(rows)), "not every row in order"
    _cut(steps, size, "keep")
