"""Training steps in lanes.

Every lane begins with the weights and the buffers that the batch found, and with generators seeded
by (seed, batches so far, lane). Its gradients are its own. They are added up over the lanes in one
order (tree.py), and then all ranks have the same numbers and do the same with them: clip, step,
average, schedule.

Buffers that lanes have changed (running means of batch norms) become the mean over these lanes,
whole numbers among them rounded, which changes nothing where all lanes count alike.

Cost: DDP adds gradients up while the backward pass still runs; here that begins when it is over. A
rank holds log2(lanes of it) + 1 copies of the gradients.
"""

from __future__ import annotations

import platform
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from penstock.addons.lanes.turns import Turns
from penstock.distributed.gathered import OtherRowsError, apart, gathering
from penstock.distributed.group import Group
from penstock.errors import ConfigError, PenstockError, Problem
from penstock.loading.batch import Batch
from penstock.terminal import say
from penstock.torch_internals import scale
from penstock.training.epoch_metrics import EpochMetrics
from penstock.training.objective_base import Objective
from penstock.training.own_steps import OwnSteps, Update
from penstock.training.train_step import TrainStep, autocast

if TYPE_CHECKING:
    from penstock.addons.lanes.lanes import Lanes
from collections.abc import Iterator

Node = tuple[int, int]  # the first lane and one past the last
Items = list[Tensor | None]  # of a node; None: no lane in it has that one


def split(node: Node) -> tuple[Node, Node]:
    """The two nodes below one of several lanes; the first has a power of two of them."""
    first, stop = node
    middle = first + (1 << ((stop - first - 1).bit_length() - 1))
    return (first, middle), (middle, stop)


def nodes_in(lanes: range, node: Node) -> Iterator[Node]:
    """The largest nodes at or below `node` that have no other lanes than those."""
    first, stop = node
    if lanes.start <= first and stop <= lanes.stop:
        yield node
    elif first < lanes.stop and lanes.start < stop:
        for below in split(node):
            yield from nodes_in(lanes, below)


def added(node: Node, known: Callable[[Node], Items | None]) -> Items:
    """The sum of a node, of what is known of those below it; asked for from left to right."""
    items = known(node)
    if items is not None:
        return items
    left, right = (added(below, known) for below in split(node))
    return [_plus(*pair) for pair in zip(left, right, strict=True)]


def _plus(left: Tensor | None, right: Tensor | None) -> Tensor | None:
    # A lane that lacks a number counts as 0, which is added as others would: -0 + 0 is 0.
    if left is None or right is None:
        only = right if left is None else left
        return None if only is None else only.add_(0)
    return left.add_(right)


class LaneSum:
    """Sums over all lanes of a global batch.

    Args:
        count: of lanes.
        group: the ranks, whose number divides it.
    """

    def __init__(self, count: int, group: Group) -> None:
        size = group.world.size
        self._all: Node = (0, count)
        self._group = group
        own = count // size
        self._nodes = [
            [*nodes_in(range(rank * own, (rank + 1) * own), self._all)] for rank in range(size)
        ]

    def __call__(
        self, of_lane: Callable[[int], Items], counts: Sequence[int]
    ) -> tuple[Items, list[int]]:
        """The sums, and how many lanes had each; all ranks make this call.

        Args:
            of_lane: a lane of this rank to what it adds, which is overwritten; in their order.
            counts: how many of this rank's lanes have each item; read when all were asked.

        Raises:
            OtherRowsError: on all ranks, if `of_lane` does on one of them.
        """
        own: dict[Node, Items] = {}
        try:
            for node in self._nodes[self._group.world.rank]:
                own[node] = added(node, lambda at: of_lane(at[0]) if at[1] - at[0] == 1 else None)
        except OtherRowsError:
            if self._group.alone:
                raise
            own.clear()
        if self._group.alone:
            return own[self._all], [*counts]
        ranks = self._group.gather(([*counts], _forms([*own.values()])) if own else None)
        known = [of_rank for of_rank in ranks if of_rank is not None]
        if len(known) < len(ranks):
            raise OtherRowsError
        totals = [sum(each) for each in zip(*(of for of, _ in known), strict=True)]
        by_type: dict[torch.dtype, dict[int, torch.Size]] = defaultdict(dict)
        for number, forms in enumerate(zip(*(of for _, of in known), strict=True)):
            for shape, dtype in filter(None, forms):
                by_type[dtype][number] = shape
        sums: Items = [None] * len(counts)
        for dtype, shapes in by_type.items():
            flat = torch.stack([self._flat(items, shapes, dtype) for items in own.values()])
            parts = self._sum(flat).split([shape.numel() for shape in shapes.values()])
            for (number, shape), part in zip(shapes.items(), parts, strict=True):
                sums[number] = part.view(shape)
        return sums, totals

    def _flat(self, items: Items, shapes: Mapping[int, torch.Size], dtype: torch.dtype) -> Tensor:
        """Some of the items in one piece; 0 where this node has none."""
        device = self._group.world.device
        pieces = []
        for number, shape in shapes.items():
            item = items[number]
            if item is None:
                item = torch.zeros(shape, dtype=dtype, device=device)
            pieces.append(item.reshape(-1))
        return torch.cat(pieces)

    def _sum(self, flat: Tensor) -> Tensor:
        """The sum over all lanes of numbers [n]; `flat` has this rank's nodes, [nodes, n]."""
        size = self._group.world.size
        length = flat.shape[1]
        part = -(-length // size)
        padded = torch.nn.functional.pad(flat, (0, part * size - length))
        sent = padded.view(len(flat), size, part).transpose(0, 1).reshape(-1, part)
        nodes = [node for of_rank in self._nodes for node in of_rank]
        rows = self._group.exchange(sent, [len(of_rank) for of_rank in self._nodes])
        known: Mapping[Node, Items] = {node: [row] for node, row in zip(nodes, rows, strict=True)}
        (result,) = added(self._all, known.get)
        assert result is not None
        return self._group.joined(result)[:length]


def _forms(nodes: Sequence[Items]) -> list[tuple[torch.Size, torch.dtype] | None]:
    """Shape and dtype of each item; None where no node has it."""
    by_item = (
        next((item for item in of if item is not None), None) for of in zip(*nodes, strict=True)
    )
    return [None if item is None else (item.shape, item.dtype) for item in by_item]


class LaneMetrics(EpochMetrics):
    """Losses of an epoch, added up in the order of the lanes.

    Args:
        train_step: has the sums of each lane of the last batch.
    """

    def __init__(self, train_step: InLanes, state: Mapping[str, float] | None) -> None:
        super().__init__(train_step.group, state)
        self._train_step = train_step

    def add(
        self,
        batch: Batch,
        losses: Tensor,
        named: Mapping[str, Tensor] | None = None,
    ) -> None:
        step = self._train_step
        batch = batch.replace({}, lanes=())  # whose fields would stay in memory
        self._pending.append((batch, step.sums, len(losses), step.named))

    def _summed(self, sums: Tensor) -> list[float]:
        ranks = self._group.gather(sums.tolist())
        return [sum(chain.from_iterable(of_batch)) for of_batch in zip(*ranks, strict=True)]


@dataclass
class _Kept:
    """The state of a lane while others run."""

    gradients: list[Tensor | None]
    buffers: list[Tensor]
    generators: list[Tensor]


class InLanes(TrainStep):
    """The common part of train steps in lanes.

    Attributes:
        sums: of the losses of each lane of the last batch, float32[lanes of this rank].
        named: the same of the parts of the losses that have a name.
    """

    def __init__(self, lanes: Lanes, *parts: Any, **more: Any) -> None:
        super().__init__(*parts, **more)
        self._lanes = [lane for lane, _ in lanes.shares]
        self._sum = LaneSum(lanes.count, self.group)
        say_kinds(self.group)
        self._count = lanes.count
        self.sums = torch.zeros(0)
        self.named: Mapping[str, Tensor] = {}
        # The buffers of the model, and where they are.
        self._places: dict[Tensor, list[tuple[nn.Module, str]]] = {}

    def _wrapped(self, objective: Objective) -> nn.Module:
        return objective.trained(self.model)

    def epoch_metrics(self, state: Mapping[str, float] | None = None) -> EpochMetrics:
        return LaneMetrics(self, state)

    def _learning(self) -> list[Tensor]:
        return [weight for weight in self._weights() if weight.requires_grad]

    def _note(self, losses: Sequence[Tensor], named: Sequence[Mapping[str, Tensor]]) -> None:
        """Note the losses of this rank's lanes, and their parts."""
        self.sums = torch.stack([each.sum() for each in losses])
        none = torch.zeros((), device=self.device)
        names = dict.fromkeys(chain.from_iterable(named))
        self.named = {name: torch.stack([of.get(name, none) for of in named]) for name in names}

    # What a lane has for itself.

    def _begin(self) -> None:
        """A batch begins with the buffers that there are; each lane gets copies of its own."""
        self._places = defaultdict(list)
        for module in self.model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                self._places[buffer].append((module, name))

    def _give(self, buffers: Iterable[Tensor]) -> None:
        for places, buffer in zip(self._places.values(), buffers, strict=True):
            for module, name in places:
                setattr(module, name, buffer)

    def _enter(self, kept: _Kept | None) -> None:
        """A lane begins, or continues."""
        weights = self._learning()
        if kept is None:
            for weight in weights:
                weight.grad = None
            self._give(buffer.detach().clone() for buffer in self._places)
            return
        for weight, gradient in zip(weights, kept.gradients, strict=True):
            weight.grad = gradient
        self._give(kept.buffers)
        torch.default_generator.set_state(kept.generators[0])
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(kept.generators[1], self.device)

    def _leave(self) -> _Kept:
        """The state of a lane, which others must not touch."""
        generators = [torch.default_generator.get_state()]
        if self.device.type == "cuda":
            generators.append(torch.cuda.get_rng_state(self.device))
        weights = self._learning()
        buffers = [getattr(*places[0]) for places in self._places.values()]
        kept = _Kept([weight.grad for weight in weights], buffers, generators)
        for weight in weights:
            weight.grad = None
        self._give(self._places)
        return kept

    def _items(self, kept: _Kept, counts: bool = True) -> Items:
        """A lane's gradients and the buffers that it has changed, for sums.

        Args:
            counts: whether it had a sample; else its buffers are left out.
        """
        gradients = [_summand(gradient) for gradient in kept.gradients]
        changed = self._changes(kept.buffers) if counts else [False] * len(kept.buffers)
        pairs = zip(kept.buffers, changed, strict=True)
        return gradients + [_summand(buffer) if differs else None for buffer, differs in pairs]

    def _changes(self, buffers: Sequence[Tensor]) -> list[bool]:
        """Which buffers a lane has changed; by their values, as batch norm writes its means without
        torch's taking note. Waits for the device.
        """
        differ = []
        for buffer, before in zip(buffers, self._places, strict=True):
            if buffer.shape != before.shape:
                raise PenstockError(
                    "distributed.lanes needs buffers that keep their shapes, and a batch has made "
                    f"{list(buffer.shape)} of {list(before.shape)}"
                )
            differ.append((buffer != before).any())
        changed: list[bool] = torch.stack(differ).tolist() if differ else []
        return changed

    # What becomes of all lanes' work.

    def _added(self, of_lane: Callable[[int], Items], size: int) -> tuple[Items, list[int]]:
        """Sums of `size` items over all lanes, and how many have each; `of_lane` of a number among
        this rank's lanes.
        """
        counts = [0] * size

        def counted(lane: int) -> Items:
            items = of_lane(lane - self._lanes[0])
            for number, item in enumerate(items):
                counts[number] += item is not None
            return items

        return self._sum(counted, counts)

    def _settle(self, sums: Sequence[Tensor | None], counts: Sequence[int]) -> None:
        """Give buffers the mean over the lanes that have changed them."""
        with torch.no_grad():
            for buffer, total, count in zip(self._places, sums, counts, strict=True):
                if total is not None:
                    mean = total / count
                    whole = not (buffer.is_floating_point() or buffer.is_complex())
                    buffer.copy_(mean.round() if whole else mean)

    def _rows(self, turns: Turns, counts: bool, rows: Tensor) -> Tensor:
        """The rows of all lanes, for `gathered`."""
        if self.device.type != "cpu":
            raise ConfigError(
                Problem(
                    "distributed.lanes",
                    "must be null on a GPU for an objective that calls `gathered`, as a GPU's "
                    "backward pass cannot wait for another lane's",
                )
            )
        everything: Tensor = _Rows.apply(rows if counts else rows[:0], self, turns)
        return everything

    def _all_rows(self, own: list[Tensor]) -> list[tuple[Tensor, int, int]]:
        """The rows of all lanes for each lane of this rank, and which of them are its own."""
        ranks = self.group.gather(own)
        every = [*chain.from_iterable(ranks)]
        whole, ends = torch.cat(every), torch.tensor([len(rows) for rows in every]).cumsum(0)
        return [
            (whole.clone(), int(ends[lane]) - len(rows), int(ends[lane]))
            for lane, rows in zip(self._lanes, own, strict=True)
        ]

    def _all_gradients(self, own: list[Tensor]) -> list[Tensor]:
        (total,), _ = self._added(lambda lane: [_summand(own[lane])], 1)
        assert total is not None
        return [total.to(own[0].dtype)] * len(own)


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, step: InLanes, turns: Turns) -> Tensor:
        whole, ctx.start, ctx.stop = turns.meet(own.detach(), step._all_rows)
        ctx.step, ctx.turns = step, turns
        rows: Tensor = whole
        return rows

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        total = ctx.turns.meet(gradient.contiguous(), ctx.step._all_gradients)
        return total[ctx.start : ctx.stop].clone(), None, None


class LaneStep(InLanes):
    """A model in training, a lane after the other."""

    def __init__(self, lanes: Lanes, *parts: Any, **more: Any) -> None:
        super().__init__(lanes, *parts, **more)
        self._gathers = False  # whether the objective has gathered rows

    def learn(self, batch: Batch) -> Tensor:
        """Add the gradients of a batch; returns the losses of this rank's lanes, one after the
        other.
        """
        self._keep_before()
        lanes: Sequence[Batch] = batch.lanes  # type: ignore[attr-defined]
        if not self.pending:
            total = lanes[0].request.total or len(lanes[0].request)
            self._divisor = max(-(-total // self._count), 1) * self.options.accumulate
        weights = self._learning()
        before = [weight.grad for weight in weights]
        self._begin()
        results: list[tuple[Tensor, Mapping[str, Tensor]]] = []
        size = len(weights) + len(self._places)

        def alone(number: int) -> Items:
            part = lanes[number]
            if not part.request.valid:
                results.append((torch.zeros(0, device=self.device), {}))
                return [None] * size
            self._enter(None)
            with apart(self._lanes[number]):
                results.append(self._pass(self._lanes[number], part))
            return self._items(self._leave())

        if not self._gathers:
            try:
                sums, counts = self._added(alone, size)
            except OtherRowsError:
                self._gathers = True
        if self._gathers:
            turns = Turns(self._leave, self._enter)

            def in_turn(number: int, part: Batch) -> tuple[Tensor, Mapping[str, Tensor]]:
                lane, counts = self._lanes[number], part.request.valid > 0
                with gathering(partial(self._rows, turns, counts), lane):
                    return self._pass(self._lanes[number], part)

            done = turns.run([partial(in_turn, *each) for each in enumerate(lanes)])
            results = [result for result, _ in done]
            had = [part.request.valid > 0 for part in lanes]
            sums, counts = self._added(
                lambda number: self._items(done[number][1], had[number]), size
            )
        for weight, gradient, added in zip(weights, before, sums, strict=False):
            weight.grad = gradient
            if added is not None:
                own = added.to(weight.dtype)
                weight.grad = own if gradient is None else gradient.add_(own)
        self._settle(sums[len(weights) :], counts[len(weights) :])
        losses, named = zip(*results, strict=True)
        self._note(losses, named)
        self._counted += sum(self.group.gather(sum(map(len, losses))))
        self.pending = True
        self.batches += 1
        return torch.cat(losses)

    def _pass(self, lane: int, batch: Batch) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Forward and backward pass of a lane: its losses, and their parts."""
        self.seed(lane)
        with autocast(self.device, self.options.precision):
            losses, _ = self.objective(self._forward, batch)
        named = dict(self.objective.named)
        self.scaler.scale(losses).backward(torch.full_like(losses, 1 / self._divisor))
        return losses.detach(), named

    def _average(self) -> bool:
        if not self._counted:
            return False
        gradients = [weight.grad for weight in self._weights() if weight.grad is not None]
        scale(gradients, self._divisor / self._counted)
        return True


class OwnLaneSteps(InLanes, OwnSteps):
    """A model in training whose objective takes the steps: all lanes come to each step, which is
    taken once, with the gradients of all.
    """

    def learn(self, batch: Batch) -> Tensor:
        lanes: Sequence[Batch] = batch.lanes  # type: ignore[attr-defined]
        valid = [part.request.valid for part in lanes]
        total = torch.tensor(float(sum(self.group.gather(sum(valid)))), device=self.device)
        self._begin()
        self._stepped = False
        turns = self._turns = Turns(self._leave, self._enter)

        def work(number: int, part: Batch) -> tuple[Tensor, Mapping[str, Tensor]]:
            self.seed(self._lanes[number])
            update = Update(self, part.request.valid, total)
            with (
                autocast(self.device, self.options.precision),
                gathering(partial(self._rows, turns, part.request.valid > 0), self._lanes[number]),
            ):
                losses = self.objective.step(self.model, part, update).detach()
            return losses, dict(self.objective.named)

        done = turns.run([partial(work, *each) for each in enumerate(lanes)])
        self.batches += 1
        weights = len(self._learning())
        sums, counts = self._added(
            lambda number: self._items(done[number][1], valid[number] > 0)[weights:],
            len(self._places),
        )
        self._settle(sums, counts)
        losses, named = zip(*(result for result, _ in done), strict=True)
        self._note(losses, named)
        return torch.cat(losses)

    def _wrapped(self, objective: Objective) -> nn.Module:
        return self.model

    def backward(self, loss: Tensor, count: int, options: Mapping[str, Any]) -> None:
        loss = loss.float().mean() if loss.ndim else loss.float()
        with torch.autocast(self.device.type, enabled=False):
            self.scaler.scale(loss * count).backward(**options)

    def step(self, name: str | None, count: int, total: Tensor) -> None:
        weights = self.weights(name)
        own = [_summand(weight.grad) for weight in weights]
        for weight in weights:
            weight.grad = None
        self._turns.meet(own, partial(self._step_of_all, name, total))

    def _step_of_all(self, name: str | None, total: Tensor, own: list[Items]) -> list[None]:
        """The step, by the mean over the samples of all lanes."""
        optimizer, weights = self.optimizer_of(name), self.weights(name)
        sums, _ = self._added(own.__getitem__, len(weights))
        for weight, gradient in zip(weights, sums, strict=True):
            weight.grad = None
            if gradient is not None:
                weight.grad = (gradient / total.clamp_min(1)).to(weight.dtype)
        if total.item():
            self._take(optimizer, weights)
        optimizer.zero_grad()
        return [None] * len(own)


def _summand(value: Tensor | None) -> Tensor | None:
    """A gradient or a buffer as it is added up: at least in float32, and on its own."""
    if value is None:
        return None
    if value.layout is not torch.strided:
        raise ConfigError(
            Problem(
                "distributed.lanes",
                "cannot add up sparse gradients in a fixed order; make the embedding's dense "
                "(sparse=False), or set distributed.lanes=null",
            )
        )
    whole = not (value.is_floating_point() or value.is_complex())
    dtype = torch.float64 if whole else torch.promote_types(value.dtype, torch.float32)
    return value.detach().to(dtype)


def kind(device: str) -> str:
    """The parts of this machine that decide how it rounds: its processor or GPU, and torch."""
    processor = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    if device != "cpu":
        processor = torch.cuda.get_device_name(torch.device(device))
    return f"{processor}, torch {torch.__version__}"


def say_kinds(group: Group) -> None:
    """Say that ranks are of several kinds; all of them make this call."""
    kinds = sorted(set(group.gather(kind(group.world.device))))
    if len(kinds) > 1 and group.is_first:
        say(
            f"distributed.lanes: ranks are on machines of several kinds ({'; '.join(kinds)}), so "
            "the last bits of weights depend on which lanes each has"
        )
