"""A small decoder-only transformer for packed documents, and its objective.

LanguageModel       tokens with their documents and places -> logits of the next tokens
LanguageModeling    a loss a token, bits per byte, and what to compare them with
next_tokens         the goals, and token_losses, for your own objectives
continued           the text that a model writes

An objective may give more losses than a batch has samples. Everything that takes a mean then takes
it over losses: the gradient of an optimizer step (training/step.py), over all ranks and
accumulated batches; an epoch's loss (training/meter.py); validation (training/loop.py). So a token
weighs the same wherever it stands, however full its block and however few blocks its rank has.
Counters of samples (the ledger, the budget for bad ones) still count documents, or parts of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from penstock.addons.tokens.flatten import IGNORED, document_mask
from penstock.addons.tokens.lengths import tokenizer_of
from penstock.errors import ConfigError, Problem
from penstock.loading.batch import Batch
from penstock.order.seeding import scope
from penstock.training.adapter import Rendered, field
from penstock.training.objective import Supervised

if TYPE_CHECKING:
    from torchmetrics import Metric

INPUTS = ["tokens", "position_ids", "document_ids"]  # of a `LanguageModel`
GIVEN, WRITTEN = 24, 40  # tokens of an example


class LanguageModel(nn.Module):
    """A transformer whose tokens attend to those before them in their document.

    Rotary positions (Su et al. 2021), norms before each part, squared ReLU, one table for input and
    output. Attention is `scaled_dot_product_attention` with a mask of T x T.

    Forward: tokens, position_ids, document_ids of `Flatten`, int64[B, T] or [N] -> logits
    float[B, T, num_tokens] or [N, num_tokens].
    Cost at width 128, 3 layers and 2048 tokens: 850,000 weights, 0.09 ms a token forwards and
    backwards on one core.

    Args:
        num_tokens: size of the vocabulary.
        width: of a token; a multiple of twice `heads`.
        dropout: of what each part adds.
    """

    def __init__(
        self,
        num_tokens: int,
        width: int = 128,
        layers: int = 3,
        heads: int = 4,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if width % (2 * heads):
            raise ConfigError(
                Problem("model.width", f"{width} is no multiple of {2 * heads}, twice model.heads")
            )
        self.embedding = nn.Embedding(num_tokens, width)
        self.blocks = nn.ModuleList(_Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width, bias=False)
        size = width // heads
        rates = 10_000 ** (-torch.arange(0, size, 2, dtype=torch.float32) / size)
        # Not persistent: a checkpoint would tie a model to numbers that follow from its width.
        self.register_buffer("rates", rates, persistent=False)
        for name, weight in self.named_parameters():
            if weight.ndim > 1:  # what ends a part is added up over all of them
                ends = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * layers) if ends else 0.02)

    def forward(self, tokens: Tensor, position_ids: Tensor, document_ids: Tensor) -> Tensor:
        flat = tokens.ndim == 1
        if flat:
            tokens, position_ids = tokens[None], position_ids[None]
        mask = document_mask(document_ids)
        angles = position_ids[..., None] * self.rates  # type: ignore[operator]
        turn = angles.cos()[:, None], angles.sin()[:, None]
        values = self.embedding(tokens)
        for block in self.blocks:
            values = block(values, mask, turn)
        # The table of the input is that of the output, too: a third of the weights of a small
        # model.
        logits: Tensor = self.norm(values) @ self.embedding.weight.T
        return logits[0] if flat else logits


class _Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.attend = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, values: Tensor, mask: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        count, length, width = values.shape
        parts = self.attend(self.before(values)).view(count, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(
            _turned(query, *turn), _turned(key, *turn), value, attn_mask=mask
        )
        seen = seen.transpose(1, 2).reshape(count, length, width)
        values = values + self.dropout(self.out(seen))
        made: Tensor = self.down(F.relu(self.up(self.between(values))).square())
        return values + self.dropout(made)


def _turned(values: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = values.chunk(2, -1)
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
    return turned.to(values.dtype)


def next_tokens(batch: Batch, labels: str = "labels") -> Tensor:
    """The token that follows each token in its document: int64 in the shape of `labels`.

    `IGNORED` where none does: at the end of a document, and in padding, also that of a rank without
    a share. `labels` are those of `Flatten`, which has -100 where a document begins.
    """
    if labels not in batch:
        raise ConfigError(
            f"a batch has no field {labels!r}, only {', '.join(batch)}; set collate.labels=true"
        )
    shifted: Tensor = batch[labels]
    following = torch.full_like(shifted, IGNORED)
    # Only an empty share has padding rows: blocks are dealt out whole.
    if batch.valid is None or batch.valid.any():
        following[..., :-1] = shifted[..., 1:]
    return following


def token_losses(logits: Tensor, following: Tensor) -> Tensor:
    """Cross entropy in nats of each token that `following` has: float32[n], n <= its tokens.

    Args:
        logits: [..., vocabulary].
        following: of `next_tokens`.
    """
    goals = following.flatten().long()
    # In float32: sums of exponentials overflow in half precision.
    losses = F.cross_entropy(
        logits.flatten(0, -2).float(), goals, ignore_index=IGNORED, reduction="none"
    )
    return losses[goals != IGNORED]


class LanguageModeling(Supervised):
    """The next token of each: cross entropy, a loss a token.

    Metrics get the loss of each token in nats and its bytes. The best constant is the frequency of
    each token.

    Args:
        metrics: by name, e.g. `BitsPerByte`; the first one is monitored by default.
        inputs: fields that the model takes.
        num_tokens: size of the vocabulary, as the model has it.
        labels: the field of labels, as `Flatten` makes them.
        bytes: the field of bytes a token, which only metrics need.
    """

    baseline_name = "token frequencies"

    def __init__(
        self,
        metrics: Mapping[str, Metric],
        inputs: Sequence[str],
        num_tokens: int,
        labels: str = "labels",
        bytes: str = "token_bytes",
    ) -> None:
        super().__init__(nn.CrossEntropyLoss(reduction="none"), metrics, inputs, labels)
        self.num_tokens, self.bytes = num_tokens, bytes

    def outputs(self, model: nn.Module, batch: Batch) -> Tensor:
        """Logits of all tokens, float32[..., num_tokens]."""
        outputs = super().outputs(model, batch)
        shape = field(self, batch, self.target).shape
        if outputs.ndim == len(shape) == 2:  # of `Constant`
            outputs = outputs[:, None].expand(*shape, -1)
        if outputs.shape != (*shape, self.num_tokens):
            raise ConfigError(
                Problem(
                    "model",
                    f"gives {list(outputs.shape)} for tokens "
                    f"{list(shape)}; it has to give {self.num_tokens} "
                    "logits of each (objective.num_tokens)",
                )
            )
        return outputs

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        """float32[n], in nats, of the n tokens that follow one of their document."""
        return token_losses(outputs, next_tokens(batch, self.target))

    def measured(self, outputs: Tensor, batch: Batch) -> Mapping[str, tuple[Tensor, ...]]:
        following, sizes = next_tokens(batch, self.target), field(self, batch, self.bytes)
        # A token's bytes stand at its own place, and its loss one before it.
        arguments = token_losses(outputs, following), sizes.roll(-1, -1)[following != IGNORED]
        return dict.fromkeys(self.metrics, arguments)

    def rendered(self, batch: Batch, outputs: Tensor | None = None) -> list[Rendered]:
        return [Rendered()] * len(batch.positions)

    def by_sample(self, losses: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """The mean loss of each row's tokens, of those that have one."""
        rows = batch["document_ids"][next_tokens(batch, self.target) != IGNORED]
        counts = torch.bincount(rows, minlength=len(batch.positions))
        # Doubles: thousands of losses of a long document lose digits in float32.
        sums = torch.zeros(len(counts), dtype=torch.float64, device=losses.device)
        sums.index_add_(0, rows, losses.double())
        documents = counts.nonzero().squeeze(1)
        return documents, sums[documents] / counts[documents]

    def examples(
        self, model: nn.Module, dataset: Any, transform: Any, count: int
    ) -> list[Sequence[str]]:
        """How a document begins, how it continues, and what the model writes.

        Empty without a tokenizer that can make text of tokens, or with other inputs than
        `LanguageModel` takes.
        """
        tokenizer, rows = tokenizer_of(transform.steps), len(dataset)
        if not hasattr(tokenizer, "decode") or self.inputs != INPUTS:
            return []
        table: list[Sequence[str]] = [("row", "document", "continuation", "model")]
        with scope():
            for row in range(0, rows, max(1, rows // count))[:count]:
                tokens = transform(dataset[row])["tokens"].tolist()
                begin, end = tokens[:GIVEN], tokens[GIVEN : GIVEN + WRITTEN]
                # Between epochs the model is in training mode: dropout would take part in writing.
                written = continued(model.eval(), begin, WRITTEN)
                table.append((str(row), *map(tokenizer.decode, (begin, end, written))))
        return table

    def constant(self, batches: Iterable[Batch], monitor: str = "loss") -> Tensor:
        """The logarithm of each token's share, counting one more of each: float32[num_tokens]."""
        # From one on, as a token that training lacks would have an infinite loss.
        counts = torch.ones(self.num_tokens, dtype=torch.float64)
        for batch in batches:
            following = next_tokens(batch, self.target)
            tokens = following[following != IGNORED].cpu()
            counts += torch.bincount(tokens, minlength=self.num_tokens)
        return (counts / counts.sum()).log().float()


@torch.no_grad()
def continued(model: nn.Module, begin: Sequence[int], count: int, seed: int = 0) -> list[int]:
    """The `count` tokens that a model of `LanguageModel`'s inputs writes after a beginning.

    They are drawn by its probabilities, sharpened a little, and only from those that make up the
    likelier nine tenths (Holtzman et al. 2020, "The curious case of neural text degeneration").

    Args:
        begin: tokens of a document, one or more.
        seed: of the draws.
    """
    device, generator = next(model.parameters()).device, torch.Generator().manual_seed(seed)
    tokens = torch.tensor(begin, device=device)
    for _ in range(count):
        places = torch.arange(len(tokens), device=device)
        # All of it anew for each token: a cache of keys would be a second forward of the model.
        logits = model(tokens, places, torch.zeros_like(tokens))[-1].float().cpu()
        # Drawn on the CPU, so that any device writes the same.
        shares, ids = (logits / 0.8).softmax(-1).sort(descending=True)
        kept = shares.where(shares.cumsum(-1) - shares < 0.9, 0.0)
        drawn = ids[torch.multinomial(kept, 1, generator=generator)]
        tokens = torch.cat([tokens, drawn.to(device)])
    written: list[int] = tokens[len(begin) :].tolist()
    return written
