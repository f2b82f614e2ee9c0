"""Models of transformers: from a local folder, or new ones by the numbers of their configuration.

Nothing is fetched, and nothing of a folder is run. Its config.json says numbers only: keys are kept
that the class of its configuration has. Weights are read from safetensors. So `auto_map`, kernels
and quantizers of a folder mean nothing.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from penstock.addons.tokens.byte_pairs import BytePairs
from penstock.errors import ConfigError, Problem
from penstock.terminal import one_line

Kind = Literal[
    "sequence_classification",
    "image_classification",
    "token_classification",
    "masked_lm",
    "causal_lm",
]
# Keys of a configuration that say something else than numbers of the model: code, kernels and
# quantizers to load, types, and what is set here.
_NEVER = {
    *("_attn_implementation", "_name_or_path", "architectures", "attn_implementation"),
    *("auto_map", "custom_pipelines", "dtype", "id2label", "label2id", "model_type"),
    *("num_labels", "quantization_config", "torch_dtype", "transformers_version", "use_cache"),
}


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
    # Before its import, which reads them; what a person has set stays.
    os.environ |= {
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
    } | os.environ
    try:
        import transformers

        folder = None if path is None else Path(path).expanduser()
        said = json.loads((folder / "config.json").read_bytes()) if folder else {}
        said.setdefault("model_type", model_type)
        known = {*transformers.AutoConfig.for_model(said["model_type"]).to_dict()} - _NEVER
        if unknown := ", ".join(sorted({*(arguments or {})} - known)):
            raise ValueError(f"arguments: {unknown}: no number of its configuration")
        room = {"vocab_size": num_tokens} if num_tokens and "vocab_size" in known else {}
        values = room | {key: said[key] for key in said.keys() & known} | (arguments or {})
        if room and values["vocab_size"] < num_tokens:
            raise ValueError(f"vocab_size has no room for the {num_tokens} of the transform")
        if num_outputs is not None and not kind.endswith("_lm"):
            values["num_labels"] = num_outputs
        config = transformers.AutoConfig.for_model(said["model_type"], use_cache=False, **values)
        name = kind.title().replace("_", "").replace("Lm", "LM")
        auto: Any = getattr(transformers, f"AutoModelFor{name}")
        if folder is None:
            model = auto.from_config(config)
        else:
            model, info = auto.from_pretrained(
                folder,
                config=config,
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
                # A head of other classes starts from random weights, as in fine-tuning.
                ignore_mismatched_sizes=True,
                dtype=torch.float32,
                output_loading_info=True,
            )
            odd = [*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])]
            count, new = len(model.state_dict()), ", ".join(sorted({*odd}))
            matched = f"{count - len({*odd})} of {count} tensors; new: {new or 'none'}"
            vars(model)["warm_start"] = f"{matched} from {folder}"  # said when the run begins
    except Exception as error:  # transformers raises any of them
        reason = f"{type(error).__name__}: {one_line(error)[:300]}"
        raise ConfigError(
            Problem("model", f"{path or model_type}: {reason} (nothing is fetched)")
        ) from error
    # Our batches have lengths where transformers takes a mask.
    model.register_forward_pre_hook(_masked)
    made: nn.Module = model.train()
    return made


def _masked(model: nn.Module, inputs: tuple[Any, ...]) -> Any:
    """Tokens and their lengths as transformers takes them: tokens, and which of them count."""
    if len(inputs) != 2 or inputs[1].ndim != 1:
        return None
    tokens, lengths = inputs
    counted = torch.arange(tokens.shape[1], device=tokens.device)
    return tokens, (counted < lengths.to(tokens.device)[:, None]).long()


class Pieces(BytePairs):
    """Adds `tokens`, int64[T], of a text, between the tokens that begin and end one.

    Args:
        vocabulary: a `tokenizer.json`, or the folder that has one.
        field: the field that holds the text.
        size: number of ids that the model has room for.
        begin, end: tokens of the vocabulary that stand before and behind a text.
        max_length: tokens kept from the start, with these two; 3 or more.

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
        self.end, self.max_length = self._tokenizer.token_to_id(end), max_length
        self.counting += f", at most {max_length}"  # the texts' lengths in tokens differ by it
        if self.end is None or max_length < 3:
            reason = f"{end!r} is not in {vocabulary!r}, or max_length={max_length} is below 3"
            raise ConfigError(Problem("end", reason))

    def _with_tokens(self, sample: dict[str, Any], text: str) -> dict[str, Any]:
        kept = self._encoded(text).ids[: self.max_length - 2]
        return {**sample, "tokens": torch.tensor([self.begin, *kept, self.end])}

    def length(self, text: str) -> int:
        """The number of tokens of a text, with those before and behind it."""
        return min(super().length(text) + 1, self.max_length)
