"""Models of transformers: from a local folder, or new ones by the numbers of their configuration.

Nothing is fetched, and nothing of a folder is run. Its config.json says numbers only: keys are kept
that the class of its configuration has. Weights are read from safetensors. So `auto_map`, kernels
and quantizers of a folder mean nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from penstock.addons.tokens.byte_pairs import BytePairs
from penstock.errors import ConfigError, Problem
from penstock.terminal import one_line, say


class Pieces(BytePairs):
    """Adds `tokens`, int64[T], of a text, between the tokens that begin and end one.

    Args:
        vocabulary: a `tokenizer.json`, or the folder that has one.
        field: the field that holds the text.
        size: number of ids that the model has room for.
        begin, end: tokens of the vocabulary that stand before and behind a text.
        max_length: tokens kept from the start, with these two.

    Raises:
        ConfigError: `tokenizers` is not installed, or an argument is out of range.
        DataError: the vocabulary cannot be read.
    """

    def __init__(
        self,
        vocabulary: str,
        field: str = "text",
        size: int = 30522,
        begin: str = "[CLS]",
        end: str = "[SEP]",
        max_length: int = 128,
    ) -> None:
        path = Path(vocabulary).expanduser()
        path = path / "tokenizer.json" if path.is_dir() else path
        super().__init__(str(path), field, size, begin)
        self.max_length = max_length
        last = self._tokenizer.token_to_id(end)
        if last is None:
            reason = f"{end!r} is not in {vocabulary!r}; name the token that ends a text"
            raise ConfigError(Problem("end", reason))
        if max_length < 3:
            raise ConfigError(Problem("max_length", f"{max_length}; allowed: 3 or more"))
        self.end: int = last
        self.counting += f", at most {max_length}"

    def _with_tokens(self, sample: dict[str, Any], text: str) -> dict[str, Any]:
        kept = self._encoded(text).ids[: self.max_length - 2]
        return {**sample, "tokens": torch.tensor([self.begin, *kept, self.end])}

    def length(self, text: str) -> int:
        """The number of tokens of a text, with those before and behind it."""
        return min(super().length(text) + 1, self.max_length)


Kind = Literal[
    "sequence_classification",
    "image_classification",
    "token_classification",
    "masked_lm",
    "causal_lm",
]
# Keys of a configuration that say something else than numbers of the model: code, kernels and
# quantizers to load, types, and what is set here.
_OTHERS = (
    "_attn_implementation _name_or_path architectures attn_implementation auto_map "
    "custom_pipelines dtype id2label label2id model_type num_labels quantization_config "
    "torch_dtype transformers_version use_cache"
)
_NEVER = frozenset(_OTHERS.split())
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY")


def transformers_model(
    num_outputs: int | None = None,
    kind: Kind = "sequence_classification",
    path: str | None = None,
    model_type: str | None = None,
    num_tokens: int | None = None,
    arguments: dict[str, Any] | None = None,
) -> nn.Module:
    """A model of transformers, whose call also takes tokens and their lengths, as batches have.

    Forward: tokens int64[B, T] and lengths int64[B], or image float[B, C, H, W] -> what the model
    gives, with `logits`.

    Args:
        num_outputs: classes, or numbers to predict; for language models nothing.
        kind: as the end of the name of transformers' AutoModelFor...
        path: the folder of config.json and model.safetensors, as `save_pretrained` writes them.
        model_type: without a path, the kind of a new model, e.g. "bert".
        num_tokens: size of the vocabulary of a new model.
        arguments: of its configuration, e.g. {hidden_size: 128}; with a folder, other values than
            its own.

    Raises:
        ConfigError: transformers is not installed; or the folder, the kind or an argument is none.
    """
    hub = _transformers()
    if path is None and model_type is None:
        reason = "is missing: the kind of a new model, such as bert or vit; or model.path"
        raise ConfigError(Problem("model.model_type", reason))
    if path is None:
        where, said = "model.model_type", dict[str, Any](model_type=model_type)
    else:
        where, said = "model.path", _config_of(Path(path).expanduser())
    with _explained(where):
        known = set(hub.AutoConfig.for_model(str(said.get("model_type"))).to_dict())
    for key in sorted(set(arguments or {}) - (known - _NEVER)):
        reason = f"is no number of the configuration of {said['model_type']}"
        raise ConfigError(Problem(f"model.arguments.{key}", reason))
    values = {key: value for key, value in said.items() if key in known - _NEVER}
    values |= arguments or {}
    if num_tokens is not None and "vocab_size" in known:
        room = values.setdefault("vocab_size", num_tokens)
        if room < num_tokens:
            reason = f"{num_tokens} tokens, and the model has room for {room}; set transform=pieces"
            raise ConfigError(Problem("model.num_tokens", reason))
    if num_outputs is not None and not kind.endswith("_lm"):
        values["num_labels"] = num_outputs
    name = "".join(map(str.capitalize, kind.split("_"))).replace("Lm", "LM")
    auto = getattr(hub, f"AutoModelFor{name}")
    with _explained("model"):
        config = hub.AutoConfig.for_model(str(said["model_type"]), **values)
        config.use_cache = False  # of what is generated
        model = auto.from_config(config) if path is None else _loaded(auto, config, path)
    model.register_forward_pre_hook(_masked)
    made: nn.Module = model.train()
    return made


@contextmanager
def _explained(key: str) -> Iterator[None]:
    """Name the key before an error of transformers', which are of any class."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        reason = f"cannot be made: {type(error).__name__}: {one_line(error)[:200]}"
        raise ConfigError(Problem(key, reason)) from error


def _transformers() -> Any:
    """The package, which stays offline."""
    for variable in _OFFLINE:
        os.environ.setdefault(variable, "1")
    try:
        import transformers
        from transformers.utils import logging
    except ImportError as error:
        reason = (
            f"transformers is not installed ({error}): pip install 'penstock-loader[transformers]'"
        )
        raise ConfigError(Problem("model", reason)) from error
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    return transformers


def _config_of(folder: Path) -> dict[str, Any]:
    """The content of a folder's config.json."""
    if not folder.is_dir():
        reason = (
            f"{str(folder)!r} is no folder here, and nothing is fetched; where the hub can be "
            f"reached: hf download {one_line(folder)[:100]} --local-dir FOLDER"
        )
    elif not any((folder / f"model.safetensors{end}").is_file() for end in ("", ".index.json")):
        reason = (
            f"{str(folder)!r} has no model.safetensors; other files of weights can run code. Load "
            "it where you trust it, and save_pretrained it again"
        )
    elif (folder / "adapter_config.json").exists():
        reason = f"{str(folder)!r} has an adapter, which is not read; merge it into its model"
    else:
        with _explained("model.path"):
            return {**json.loads((folder / "config.json").read_bytes())}
    raise ConfigError(Problem("model.path", reason))


def _loaded(auto: Any, config: Any, folder: str) -> Any:
    """A model with the weights of a folder; says what is new."""
    model, info = auto.from_pretrained(
        Path(folder).expanduser(),
        config=config,
        local_files_only=True,
        use_safetensors=True,
        trust_remote_code=False,
        ignore_mismatched_sizes=True,
        dtype=torch.float32,
        output_loading_info=True,
    )
    other = [entry[0] if isinstance(entry, tuple) else entry for entry in info["mismatched_keys"]]
    new, total = sorted({*info["missing_keys"], *other}), len(model.state_dict())
    if len(new) >= total:
        reason = f"{folder!r} has none of the weights of {type(model).__name__}"
        raise ConfigError(Problem("model.path", reason))
    more = f"; new: {', '.join(new)[:200]}" * bool(new)
    _say_once(f"{'start':<9} {total - len(new)} of {total} tensors{more} from {folder}")
    return model


_say_once = cache(say)  # the model of validation is the same


def _masked(model: nn.Module, inputs: tuple[Any, ...]) -> Any:
    """Tokens and their lengths as transformers takes them: tokens, and which of them count."""
    if len(inputs) != 2 or inputs[1].ndim != 1:
        return None
    tokens, lengths = inputs
    counted = torch.arange(tokens.shape[1], device=tokens.device)
    return tokens, (counted < lengths.to(tokens.device)[:, None]).long()
