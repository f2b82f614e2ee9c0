"""What a `tokenizer.json` may ask of the package `tokenizers`, which does all that it is told.

A vocabulary may come from anybody. Its normalizer may replace each letter by a million, again and
again; its patterns may take time that doubles with each letter; and the head of a compiled table
may claim memory that no machine has, which ends the process. So all of that is looked at before.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any

from penstock.files import plain_json
from penstock.files.plain_json import JsonError, mapping, shown

_MEMORY = 1 << 30  # bytes; a vocabulary of 250,000 words takes a tenth
_LONGEST = 2048  # characters of a text that is no entry of the vocabulary
_LONGEST_MARK = 64  # of what is put before or behind every piece of a word
# Bytes out for a byte in, at most; of others 3, such as spaces around each letter.
_GROWTH = {"NFKC": 11, "NFKD": 11, "Strip": 1, "StripAccents": 1, "Nmt": 1, "Lowercase": 2}
_TIMES = re.compile(r"(?:[?*+]|\{\d{0,9},?\d{0,9}\})+")  # how often, behind a part of a pattern
_BRACES = re.compile(r"\{(\d*)(,?)(\d*)\}")
_FEW, _MOST_IN_A_ROW = 9, 2


def checked(content: str) -> float:
    """By how many times the normalizer of a `tokenizer.json` may enlarge a text, at most.

    Raises:
        JsonError: it is no JSON, or asks for what no vocabulary needs.
    """
    tokenizer = mapping(plain_json.parse(content, _MEMORY))
    others = {key: value for key, value in tokenizer.items() if key != "added_tokens"}
    for name, text in _texts(others):
        if name == "Regex":
            _check_pattern(text)
        most = _LONGEST_MARK if name in _MARKS else _LONGEST
        if len(text) > most and name != "precompiled_charsmap":
            raise JsonError(f"{name} has {len(text)} characters, more than {most}")
    return _growth(tokenizer.get("normalizer"))


_MARKS = ("continuing_subword_prefix", "end_of_word_suffix", "prepend")


def _texts(node: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Every text with the key that it stands at, but for the entries of the vocabulary."""
    if isinstance(node, str):
        yield name, node
    elif isinstance(node, Mapping):
        for key, value in node.items():
            if key not in ("vocab", "merges"):
                yield from _texts(value, key)
    elif isinstance(node, list):
        for value in node:
            yield from _texts(value, name)


def _growth(node: Any) -> float:
    """Bytes that a normalizer gives for each one it gets, at most."""
    if not isinstance(node, Mapping):
        return 1
    kind = str(node.get("type"))
    if kind == "Sequence":
        growth = 1.0
        for inner in node.get("normalizers") or ():
            growth *= _growth(inner)
        return growth
    if kind == "Replace":
        pattern, content = node.get("pattern"), len(str(node.get("content", "")).encode())
        text = pattern.get("String") if isinstance(pattern, Mapping) else None
        if text == "":
            raise JsonError("a normalizer replaces nothing by something")
        # A pattern may fit between any two letters.
        return max(1.0, content / len(text.encode())) if isinstance(text, str) else 1.0 + content
    if kind == "Precompiled":
        return _growth_by_table(node.get("precompiled_charsmap"))
    return _GROWTH.get(kind, 3)


def _growth_by_table(text: Any) -> float:
    """The longest text that a table of SentencePiece's puts in place of another; see its head."""
    try:
        table = base64.b64decode(text or "", validate=True)
    except (TypeError, ValueError) as error:
        raise JsonError(f"precompiled_charsmap is {shown(text)}, and no base64") from error
    size = int.from_bytes(table[:4], "little")
    if len(table) < 4 or size % 4 or size > len(table) - 4:
        raise JsonError(f"precompiled_charsmap claims {size} bytes, and has {len(table)}")
    return max(1, *map(len, table[4 + size :].split(b"\0")))


# `tokenizers` searches by Oniguruma, which backtracks without a limit of time. With one, or with a
# linear engine, this reading of patterns by patterns could go.
def _check_pattern(pattern: str) -> None:
    """Raise JsonError for a pattern whose time may double with each letter, or nearly so.

    That takes a repetition of what repeats or chooses, a call of a group, or many repetitions in a
    row. Those of well-known vocabularies have two in a row at most.
    """
    letters = re.sub(r"\\[^gk]|\[(?:\\.|[^\]\\])*\]", "x", pattern, flags=re.DOTALL)
    inside = [False]  # of each open group: whether it holds a choice or a repetition
    at = in_a_row = 0
    harmless = "\\" not in letters  # no call of a group, and no reference to one
    while at < len(letters) and harmless:
        letter = letters[at]
        times = _TIMES.match(letters, at + 1) if letter not in "(|" else None
        is_many = times is not None and _is_many(times[0])
        at = times.end() if times is not None else at + 1
        if letter == "(":
            inside.append(False)
            continue
        if letter == ")" and len(inside) > 1:
            inner = inside.pop()
            harmless = not (inner and is_many)
            inside[-1] |= inner
        inside[-1] |= is_many or letter == "|"
        in_a_row = in_a_row + is_many if letter != "|" else 0
        harmless = harmless and in_a_row <= _MOST_IN_A_ROW
    if not harmless:
        raise JsonError(
            f"the pattern {shown(pattern)} repeats what repeats, or refers to itself, "
            "which can take forever"
        )


def _is_many(times: str) -> bool:
    """Whether signs such as `*`, `??` or `{2,}` allow more than a few repetitions."""
    if {"*", "+"} & set(times):
        return True
    most = [last or (99 if comma else first) for first, comma, last in _BRACES.findall(times)]
    return any(int(count or 0) > _FEW for count in most)
