"""Configurations and command lines as they may be written down, without secrets.

Manifests, config.yaml, results of sweeps and checkpoints are sent along with bug reports. In them

    values from the environment            become what was written: `${oc.env:NAME}`
    values of keys that name a secret      become ***: `api_token`, `secret`, `password`, `key` ...
    users, passwords, signatures in URLs   become ***

A key names a secret by its last part, or by any part that says "secret", "password", "credential"
or "auth". Of keys and tokens, numbers of up to five digits and those that count (`num_tokens`) are
kept, and `tokens` of datasets, samplers and collate functions, which are fields and files; true,
false and null always are.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock import program

HIDDEN = "***"

_ALWAYS = re.compile(
    "secret|passw|passphrase|credential|auth|cookie|(?:^|[_-])(?:pwd|pass)(?:$|[_-])", re.IGNORECASE
)
_AT_THE_END = re.compile(
    rf"key|token|signature|(?:^|[_-])(?:sas|pat|sig)$|{_ALWAYS.pattern}", re.IGNORECASE
)
_HARMLESS = re.compile(r"tokeni[sz]\w*|key(?:point|word|frame|board|ed)|author(?!i)", re.IGNORECASE)
_OF_DATA = re.compile(
    r"(dataset|sampler|collate)(\.(?!options\b)[\w\-]+)*\.(val_)?tokens(\[\d+\])*"
)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
_COUNTS = re.compile(r"^(num|n|max|min)_|s$", re.IGNORECASE)
_CONSTANT = re.compile(r"true|false|null|''|\"\"|", re.IGNORECASE)
_REFERENCE = re.compile(r"\$\{[\w.:]+\}")  # without a default, in which a secret could stand
_USER = re.compile(r"(?<=://)[^/?#\s@]+@(?=\S)")
_PARAMETER = re.compile(r"([?&;])([^=&;#\s?]+)=([^&;#\s'\",}\]]+)")
_SIGNED = re.compile(
    r"x-(amz|goog)-|awsaccesskeyid|googleaccessid|^(sig|st|se|sp|sv|code)$", re.IGNORECASE
)
# The second way only begins where a word does: to try each of its letters takes the square.
_ENTRY = re.compile(r"""(?:(['"])([\w.\-]+)\1|(?<![\w.\-])([\w.\-]+))\s*:\s*""")


@dataclass(frozen=True)
class Origin:
    """Where a value came from: the text that was written, the variables read for it, the value."""

    text: str
    names: tuple[str, ...]
    value: Any = field(repr=False)


class Plain(dict[str, Any]):
    """A configuration as plain values.

    Attributes:
        origins: full key -> where a value came from, if from the environment.
    """

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)
        self.origins: dict[str, Origin] = {}


def names_secret(key: str, value: object = "") -> bool:
    """Whether what stands at a full key, e.g. `dataset.files.options.secret`, is to be hidden."""
    *above, last = [_HARMLESS.sub("", part) for part in re.split(r"[.\[\]@/]+", key.strip("]"))]
    if isinstance(value, bool) or value is None or _CONSTANT.fullmatch(str(value)):
        return False
    if any(map(_ALWAYS.search, (*above, last))):
        return True
    if _OF_DATA.fullmatch(key):
        return False
    counts = _NUMBER.fullmatch(str(value)) and (_COUNTS.search(last) or len(str(value)) <= 5)
    return bool(_AT_THE_END.search(last)) and not counts


def tree(value: Any, origins: Mapping[str, Origin], digests: bool = False, key: str = "") -> Any:
    """Plain values as they may be written down.

    Args:
        digests: whether what is hidden is followed by 16 bits of a hash: enough to notice that it
            changed, too few to find it by trying.
    """

    def marked(text: str) -> str:
        digest = hashlib.blake2b(repr(value).encode(errors="surrogatepass"), digest_size=2)
        return f"{text} #{digest.hexdigest()}" if digests else text

    known = origins.get(key)
    if known is not None and known.value == value:
        hidden = names_secret(key, known.text) and not _REFERENCE.fullmatch(known.text)
        return marked(HIDDEN if hidden else urls(known.text))
    if isinstance(value, Mapping):
        return {
            name: tree(item, origins, digests, f"{key}.{name}".lstrip("."))
            for name, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [
            HIDDEN
            if not isinstance(item, (Mapping, list, tuple)) and names_secret(key, item)
            else tree(item, origins, digests, f"{key}[{number}]")
            for number, item in enumerate(value)
        ]
    if key.endswith("._target_"):
        return value
    if names_secret(key, value) and not _REFERENCE.fullmatch(str(value)):
        return marked(HIDDEN)
    return urls(value) if isinstance(value, str) else value


def urls(text: str) -> str:
    """`text` with the users, passwords and signatures of its URLs hidden."""
    if "://" not in text:
        return text

    def parameter(match: re.Match[str]) -> str:
        mark, name, value = match.groups()
        hidden = _SIGNED.search(name) or names_secret(name, value)
        return f"{mark}{name}={HIDDEN if hidden else value}"

    return _PARAMETER.sub(parameter, _USER.sub(f"{HIDDEN}@", text))


def word(text: str) -> str:
    """A word of a command line, e.g. an override, as it may be written down."""
    key, equals, value = text.partition("=")
    if not equals or "://" in key:
        return urls(text)
    if not re.search(r"[\s/:{]", key) and names_secret(key.lstrip("+~-"), value):
        return text if _REFERENCE.fullmatch(value.strip("'\"")) else f"{key}={HIDDEN}"
    return f"{key}={urls(_entries(value))}"


def words(line: Iterable[str]) -> list[str]:
    """Words of a command line, as they may be written down."""
    return list(map(word, line))


def command(line: Sequence[str]) -> str:
    """A command line as it may be written down, quoted so that it can be pasted."""
    return program.joined(words(line))


def is_redacted(text: str) -> bool:
    """Whether a word that was written down lacks a part, so that it cannot be used again."""
    return HIDDEN in text


def _entries(value: str) -> str:
    """The value of an override with the secret entries of the mappings in it hidden."""
    if "{" not in value:
        return value
    parts, at = [], 0
    for match in _ENTRY.finditer(value):
        if match.start() < at or not names_secret(match[2] or match[3], "?"):
            continue
        end = _end_of_entry(value, match.end())
        if not _CONSTANT.fullmatch(value[match.end() : end].strip()):
            parts += [value[at : match.end()], HIDDEN]
            at = end
    return "".join([*parts, value[at:]])


def _end_of_entry(text: str, start: int) -> int:
    """Where the entry of a mapping ends: at a comma or bracket outside of quotes and brackets."""
    depth, quote, at = 0, "", start
    while at < len(text):
        letter = text[at]
        if quote:
            at += letter == "\\"
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "{[(":
            depth += 1
        elif letter in ")]}," and depth == 0:
            return at
        elif letter in ")]}":
            depth -= 1
        at += 1
    return len(text)
