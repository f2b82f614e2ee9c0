"""Modules that keep no activations and compute them again for the gradient: `trainer.recompute`.

They draw the same numbers again (dropout), and batch norms count a batch once,
so the weights are those of a run without it, to the bit. It costs a second forward pass of these
modules, and saves the memory of all that lies between their inputs and their outputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint

from penstock.addons.finetuning import patterns
from penstock.errors import ConfigError, PenstockError, Problem

KEY = "trainer.recompute"


def recompute(model: nn.Module, names: list[str]) -> None:
    """Let the outermost modules of a model that the patterns name be computed again.

    Raises:
        ConfigError: a pattern names no module, or a list of modules, which computes nothing.
    """
    modules = {name: module for name, module in model.named_modules() if name}
    patterns.check_used(KEY, names, list(modules), f"module of {type(model).__name__}")
    outermost = ""
    for name, module in modules.items():
        if outermost and name.startswith(f"{outermost}."):
            continue
        if not any(patterns.matches(pattern, name) for pattern in names):
            continue
        if type(module).forward is nn.Module.forward:
            reason = f"{name} is a {type(module).__name__}, which is not called; name {name}.%"
            raise ConfigError(Problem(KEY, reason))
        module.forward = MethodType(_forward, module)
        outermost = name


def _forward(self: nn.Module, *arguments: Any, **options: Any) -> Any:
    """The forward pass of a module's class, without its activations."""
    forward = partial(type(self).forward, self)
    if not torch.is_grad_enabled():
        return forward(*arguments, **options)
    contexts = partial(_contexts, self)
    return checkpoint(forward, *arguments, use_reentrant=False, context_fn=contexts, **options)


def _contexts(module: nn.Module) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    return nullcontext(), _again(module)


@contextmanager
def _again(module: nn.Module) -> Iterator[None]:
    """Batch norms measure the batch and do not count it.

    Raises:
        PenstockError: another buffer has changed, which it then has twice.
    """
    norms = [
        each
        for each in module.modules()
        if isinstance(each, _NormBase) and each.training and each.track_running_stats
    ]
    counted = {id(buffer) for norm in norms for buffer in norm.buffers()}
    others = {n: b for n, b in module.named_buffers() if id(b) not in counted}
    before = {name: buffer._version for name, buffer in others.items()}
    kept = [(norm, norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum, norm.num_batches_tracked = 0.0, None
    try:
        yield
    finally:
        for norm, momentum, count in kept:
            norm.momentum, norm.num_batches_tracked = momentum, count
        # Here, as torch leaves by an exception when it has all that it needs.
        if changed := [name for name, buffer in others.items() if buffer._version != before[name]]:
            raise PenstockError(
                f"{KEY}: {type(module).__name__} changes {changed[0]} when it is called, which it "
                "would do twice; leave that module out"
            )
