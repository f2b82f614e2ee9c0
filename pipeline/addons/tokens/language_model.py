"""A small decoder-only transformer for packed documents, and its objective.

LanguageModel       tokens with their documents and places -> logits of the next tokens
LanguageModeling    a loss a token, bits per byte, and what to compare them with
continued           the text that a model writes
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
from penstock.addons.tokens.token_losses import document_losses, next_tokens, token_losses
from penstock.errors import ConfigError, Problem
from penstock.loading.batch import Batch
from penstock.order.seeding import scope
from penstock.training.objective import Supervised
from penstock.training.rendered import Rendered

if TYPE_CHECKING:
    from torchmetrics import Metric

INPUTS = ["tokens", "position_ids", "document_ids"]  # of a `LanguageModel`
GIVEN, WRITTEN = 24, 40  # tokens of an example
_LOOKED_AT = 500  # documents, for examples


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

    def __call__(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """Run the model.

        Returns:
            losses: float32[n], in nats, of the n tokens that follow one of their document.
            outputs: float32[..., num_tokens], of all tokens.
        """
        outputs = model(*[self._field(batch, name) for name in self.inputs]).float()
        following = next_tokens(batch, self.target)
        if outputs.ndim == following.ndim and following.ndim == 2:  # of `Constant`
            outputs = outputs[:, None].expand(*following.shape, -1)
        if outputs.shape != (*following.shape, self.num_tokens):
            raise ConfigError(
                Problem(
                    "model",
                    f"gives {list(outputs.shape)} for tokens "
                    f"{list(following.shape)}; it has to give {self.num_tokens} "
                    "logits of each (objective.num_tokens)",
                )
            )
        return token_losses(outputs, following), outputs

    def update(self, outputs: Tensor, batch: Batch) -> None:
        if not self.metrics:
            return
        losses, sizes = self.predictions(outputs, batch), self.targets(batch)
        if len(losses):
            for name in self.metrics:
                self.add(name, losses, sizes)

    def predictions(self, outputs: Tensor, batch: Batch) -> Tensor:
        """The loss of each token that follows one, in nats."""
        return token_losses(outputs, next_tokens(batch, self.target))

    def targets(self, batch: Batch) -> Tensor:
        """The bytes of each of these tokens."""
        following, sizes = next_tokens(batch, self.target), self._field(batch, self.bytes)
        return sizes.roll(-1, -1)[following != IGNORED]

    def bits_per_byte(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Of each row of a packed batch: float64[rows], NaN where it has no byte to predict."""
        rows = batch["document_ids"][next_tokens(batch, self.target) != IGNORED]
        nats, sizes = self.predictions(outputs, batch), self.targets(batch)
        sums = torch.zeros(2, len(batch.positions), dtype=torch.float64, device=rows.device)
        sums.index_add_(1, rows, torch.stack([nats, sizes]).double())
        return sums[0] / sums[1] / math.log(2)

    def rendered(self, batch: Batch, outputs: Tensor | None = None) -> list[Rendered]:
        if outputs is None or self.bytes not in batch:  # token files have no text
            return [Rendered()] * len(batch.positions)
        bits = self.bits_per_byte(outputs, batch).tolist()
        return [Rendered(predicted=f"{value:.2f} bits per byte") for value in bits]

    def by_sample(self, losses: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """The mean loss of each row's tokens, of those that have one."""
        if "document_ids" not in batch:
            return super().by_sample(losses, batch)
        return document_losses(losses, batch, self.target)

    def examples(
        self, model: nn.Module, dataset: Any, transform: Any, count: int
    ) -> list[Sequence[str]]:
        """How a document begins, how it continues, and what the model writes.

        None without a tokenizer that can make text of tokens, or with other inputs than
        `LanguageModel` takes.
        """
        tokenizer = tokenizer_of(transform.steps)
        if not hasattr(tokenizer, "decode") or self.inputs != INPUTS:
            return []
        rows, long_enough = len(dataset), {}
        with scope():
            for row in range(0, rows, max(1, rows // _LOOKED_AT)):
                tokens = transform(dataset[row])["tokens"].tolist()
                if len(tokens) >= GIVEN + WRITTEN:
                    long_enough[row] = tokens
        chosen = list(long_enough)[:: max(1, len(long_enough) // count)][:count]
        if not chosen:
            return []
        beginnings = [long_enough[row][:GIVEN] for row in chosen]
        table: list[Sequence[str]] = [("row", "document", "continuation", "model")]
        for row, written in zip(chosen, continued(model.eval(), beginnings, WRITTEN), strict=True):
            parts = long_enough[row][:GIVEN], long_enough[row][GIVEN : GIVEN + WRITTEN], written
            table.append((str(row), *map(tokenizer.decode, parts)))
        return table

    def constant(self, batches: Iterable[Batch], monitor: str = "loss") -> Tensor:
        """The logarithm of each token's share, counting one more of each: float32[num_tokens]."""
        counts = torch.ones(self.num_tokens, dtype=torch.float64)
        for batch in batches:
            following = next_tokens(batch, self.target)
            tokens = following[following != IGNORED].cpu()
            counts += torch.bincount(tokens, minlength=self.num_tokens)
        return (counts / counts.sum()).log().float()

    def _losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        return self.predictions(outputs, batch)

    def _statistics(self, batch: Batch) -> Tensor:
        raise NotImplementedError("`constant` counts tokens")

    def _from_mean(self, mean: Tensor) -> Tensor:
        raise NotImplementedError("`constant` counts tokens")


@torch.no_grad()
def continued(
    model: nn.Module, begin: Sequence[Sequence[int]], count: int, seed: int = 0
) -> list[list[int]]:
    """The `count` tokens that a model of `LanguageModel`'s inputs writes after each beginning.

    They are drawn by its probabilities, sharpened a little, and only from those that make up the
    likelier nine tenths (Holtzman et al. 2020, "The curious case of neural text degeneration").

    Args:
        begin: tokens of one document each, of one number.
        seed: of the draws.
    """
    device, generator = next(model.parameters()).device, torch.Generator().manual_seed(seed)
    tokens = torch.tensor(begin, device=device)
    for _ in range(count):
        places = torch.arange(tokens.shape[1], device=device).expand_as(tokens)
        logits = model(tokens, places, torch.zeros_like(tokens))[:, -1].float().cpu()
        shares, ids = (logits / 0.8).softmax(-1).sort(-1, descending=True)
        kept = shares.where(shares.cumsum(-1) - shares < 0.9, 0.0)
        drawn = ids.gather(1, torch.multinomial(kept, 1, generator=generator))
        tokens = torch.cat([tokens, drawn.to(device)], 1)
    return [row[len(begin[0]) :] for row in tokens.tolist()]
