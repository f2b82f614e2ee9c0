"""Models of transformers: from a local folder, or new ones by the numbers of their configuration.

Nothing is fetched, and nothing of a folder is run. Its config.json says numbers only: the kind of
model is one of our list, and keys are kept that the class of its configuration has. Weights
are read from safetensors. So `auto_map`, adapters, kernels and quantizers of a folder mean nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from penstock.addons.tokens.byte_pairs import BytePairs
from penstock.config.messages import nearest
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.data import read_file
from penstock.files.limits import Limits
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

    def _with_tokens(self, sample: dict[str, Any], text: str) -> dict[str, Any]:
        kept = self._encoded(text).ids[: self.max_length - 2]
        return {**sample, "tokens": torch.tensor([self.begin, *kept, self.end])}

    @property
    def counting(self) -> str:
        """A text that differs where the numbers of tokens may differ."""
        return f"{super().counting}, at most {self.max_length}"

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
# Kinds of models that need nothing but their class and their numbers.
_TYPES = (
    "albert bert camembert deberta deberta-v2 distilbert electra mobilebert modernbert mpnet "
    "roberta xlm-roberta gpt2 gpt_neox llama mistral opt phi qwen2 qwen3 "
    "beit convnext convnextv2 deit dinov2 efficientnet mobilenet_v2 mobilevit poolformer regnet "
    "resnet swin swinv2 vit"
)
TYPES = frozenset(_TYPES.split())
# Keys of a configuration that are not numbers of the model, or that are set here.
_OTHERS = (
    "_attn_implementation _name_or_path architectures attn_implementation auto_map "
    "custom_pipelines dtype id2label label2id model_type num_labels output_attentions "
    "output_hidden_states problem_type quantization_config return_dict torch_dtype "
    "transformers_version use_cache"
)
_NEVER = frozenset(_OTHERS.split())
_LARGEST = 1 << 20  # bytes of a config.json
_SHOWN = 6
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY")
_SHIFTED = ("camembert", "roberta", "xlm-roberta")  # whose positions begin behind the padding's id
_SIZED = ("beit", "deit", "vit")  # that take pictures of one size
_said: set[str] = set()


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
    auto = _transformers()
    if path is None and model_type is None:
        reason = "is missing: the kind of a new model, such as bert or vit; or model.path"
        raise ConfigError(Problem("model.model_type", reason))
    said = _config_of(path) if path is not None else {"model_type": model_type}
    made_of = said.get("model_type")
    if not isinstance(made_of, str) or made_of not in TYPES:
        where = "model.model_type" if path is None else "model.path"
        reason = (
            f"asks for {one_line(made_of)[:80]!r}{nearest(str(made_of), TYPES)}; allowed: "
            f"{', '.join(sorted(TYPES))}"
        )
        raise ConfigError(Problem(where, reason))
    config_class = auto.configuration_auto.CONFIG_MAPPING[made_of]
    known = set(config_class().to_dict()) - _NEVER
    values = {key: value for key, value in said.items() if key in known}
    for key, value in (arguments or {}).items():
        if key not in known:
            reason = f"is no number of {config_class.__name__}{nearest(key, known)}"
            raise ConfigError(Problem(f"model.arguments.{key}", reason))
        values[key] = value
    if num_tokens is not None and "vocab_size" in known:
        own = values.setdefault("vocab_size", num_tokens)
        if isinstance(own, int) and own < num_tokens:
            reason = f"{num_tokens} tokens, and the model has room for {own}; set transform=pieces"
            raise ConfigError(Problem("model.num_tokens", reason))
    if num_outputs is not None and not kind.endswith("_lm"):
        values["num_labels"] = num_outputs
    if "use_cache" in config_class().to_dict():
        values["use_cache"] = False  # of decoders that write on
    model_class = _class(auto, kind, config_class, made_of)
    try:
        config = config_class(**values)
        model = model_class(config) if path is None else _loaded(model_class, config, path)
    except (TypeError, ValueError, KeyError, RuntimeError, AssertionError, ZeroDivisionError) as e:
        where = "model.arguments" if path is None else "model.path"
        reason = f"{model_class.__name__} cannot be made of it: {one_line(e)[:200]}"
        raise ConfigError(Problem(where, reason)) from e
    model.register_forward_pre_hook(_masked)
    made: nn.Module = model.train()
    return made


def _transformers() -> Any:
    """The package's `models.auto`, which stays offline."""
    for variable in _OFFLINE:
        os.environ.setdefault(variable, "1")
    try:
        from transformers.models import auto
        from transformers.models.auto import configuration_auto, modeling_auto  # noqa: F401
        from transformers.utils import logging
    except ImportError as error:
        reason = (
            f"transformers is not installed ({error}): pip install 'penstock-loader[transformers]'"
        )
        raise ConfigError(Problem("model", reason)) from error
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    return auto


def _config_of(folder: str) -> Mapping[str, Any]:
    """The content of a folder's config.json."""
    path = Path(folder).expanduser()
    if not path.is_dir():
        reason = (
            f"{folder!r} is no folder here, and nothing is fetched; where the hub can be reached: "
            f"hf download {one_line(folder)[:100]} --local-dir FOLDER"
        )
        raise ConfigError(Problem("model.path", reason))
    try:
        content = read_file(path / "config.json", Limits(record_bytes=_LARGEST)).decode()
        return {**json.loads(content)}
    except (OSError, TypeError, ValueError, DataError) as error:
        reason = f"{folder!r} has no config.json that can be read: {one_line(error)[:200]}"
        raise ConfigError(Problem("model.path", reason)) from error


def _class(auto: Any, kind: Kind, config_class: type, model_type: str) -> Any:
    """The class of a model; one of transformers' own modules."""
    names = f"MODEL_FOR_{kind.upper()}_MAPPING"
    classes = getattr(auto.modeling_auto, names)
    if config_class not in classes:
        reason = f"transformers has none of it for {model_type}"
        raise ConfigError(Problem("model.kind", f"{kind}: {reason}"))
    found = classes[config_class]
    found = found[0] if isinstance(found, tuple) else found
    assert found.__module__.startswith("transformers.models.")
    return found


def _loaded(model_class: Any, config: Any, folder: str) -> Any:
    """A model with the weights of a folder; says what is new."""
    path = Path(folder).expanduser()
    if not any((path / f"model.safetensors{end}").is_file() for end in ("", ".index.json")):
        reason = (
            f"{folder!r} has no model.safetensors; other files of weights can run code. Load it "
            "where you trust it, and save_pretrained it again"
        )
        raise ConfigError(Problem("model.path", reason))
    if (path / "adapter_config.json").exists():
        reason = f"{folder!r} has an adapter, which is not read; merge it into its model"
        raise ConfigError(Problem("model.path", reason))
    try:
        model, info = model_class.from_pretrained(
            path,
            config=config,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,
            dtype=torch.float32,
            output_loading_info=True,
        )
    except Exception as error:  # of safetensors', of no class of its own
        reason = f"{folder!r} cannot be read: {type(error).__name__}: {one_line(error)[:200]}"
        raise ConfigError(Problem("model.path", reason)) from error
    total = len(model.state_dict())
    other = [entry[0] if isinstance(entry, tuple) else entry for entry in info["mismatched_keys"]]
    new = sorted({*info["missing_keys"], *other})
    if len(new) >= total:
        reason = f"{folder!r} has none of the weights of {model_class.__name__}"
        raise ConfigError(Problem("model.path", reason))
    unused = sorted(info["unexpected_keys"])
    kinds = {"new": new, "not used": unused}
    text = "; ".join(
        [
            f"{total - len(new)} of {total} tensors",
            *(f"{k}: {_few(n)}" for k, n in kinds.items() if n),
        ]
    )
    if folder not in _said:  # the model of validation is the same
        _said.add(folder)
        say(f"{'start':<9} {text} from {folder}")
    return model


def _masked(model: nn.Module, inputs: tuple[Any, ...]) -> Any:
    """Tokens and their lengths as transformers takes them: tokens, and which of them count."""
    config: Any = model.config
    if not inputs or not isinstance(inputs[0], Tensor):
        return None
    if inputs[0].is_floating_point():
        _check_size(inputs[0], config)
        return None
    tokens: Tensor = inputs[0]
    room = getattr(config, "max_position_embeddings", None)
    if isinstance(room, int) and config.model_type in _SHIFTED:
        room -= config.pad_token_id + 1
    if isinstance(room, int) and tokens.shape[1] > room:
        reason = f"a text has {tokens.shape[1]} tokens, and the model has room for {room}; set it"
        raise ConfigError(Problem("transform.train.tokenize.max_length", reason))
    if len(inputs) != 2 or inputs[1].ndim != 1:
        return None
    counted = torch.arange(tokens.shape[1], device=tokens.device)
    return tokens, (counted < inputs[1].to(tokens.device)[:, None]).long()


def _check_size(pictures: Tensor, config: Any) -> None:
    size = getattr(config, "image_size", None)
    if config.model_type in _SIZED and isinstance(size, int) and pictures.ndim == 4:
        height, width = pictures.shape[-2:]
        if (height, width) != (size, size):
            reason = f"{size}, and pictures have {height} x {width}; set it to their size"
            raise ConfigError(Problem("model.arguments.image_size", reason))


def _few(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
