"""A loss a token, for models that predict the next one, and how it is weighed.

An objective may give more losses than a batch has samples. Everything that takes a mean then takes
it over losses: the gradient of an optimizer step (train_step.py), over all ranks and accumulated
batches; an epoch's loss (epoch_metrics.py); validation (validation.py). So a token weighs the same
wherever it stands, however full its block and however few blocks its rank has. Counters of samples
(the ledger, the budget for bad ones) still count documents, or parts of them.

An objective of a language model overrides `Objective.__call__` and returns these losses with the
model's output.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from penstock.addons.tokens.flatten import IGNORED
from penstock.errors import ConfigError
from penstock.loading.batch import Batch


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
    losses = cross_entropy(
        logits.flatten(0, -2).float(), goals, ignore_index=IGNORED, reduction="none"
    )
    return losses[goals != IGNORED]


def document_losses(losses: Tensor, batch: Batch, labels: str = "labels") -> tuple[Tensor, Tensor]:
    """The mean loss of each row of a batch that has one: its place, int64[n], and float64[n].

    Args:
        losses: of `token_losses`.
    """
    rows = batch["document_ids"][next_tokens(batch, labels) != IGNORED]
    counts = torch.bincount(rows, minlength=len(batch.positions))
    sums = torch.zeros(len(counts), dtype=torch.float64, device=losses.device)
    sums.index_add_(0, rows, losses.double())
    rows_found = counts.nonzero().squeeze(1)
    return rows_found, sums[rows_found] / counts[rows_found]
