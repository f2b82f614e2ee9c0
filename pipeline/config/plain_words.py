"""Values of the command line that hydra's grammar cannot read as people write them.

sample=length > 500       an expression: hydra wants 'sample="length > 500"'
address=3,1200            epoch and step: hydra takes it for a sweep over two values
"""

from __future__ import annotations

import re

_EXPRESSIONS = re.compile(r"\+{0,2}(sample|dataset\.([\w.]+\.)?filter)", re.ASCII)  # keys
_READABLE = re.compile(r"[\w./:@+-]*|'.*'|\".*\"|\[.*\]|\$?\{.*\}", re.ASCII | re.DOTALL)
_ADDRESS = re.compile(r"address=\(?(\d+), ?(\d+)\)?", re.ASCII)


def quoted(word: str) -> str:
    """An override as hydra reads it; one that it reads anyway stays as it is."""
    key, equals, value = word.partition("=")
    if equals and _EXPRESSIONS.fullmatch(key) and not _READABLE.fullmatch(value):
        # A backslash stands for itself, but before a quote.
        text = re.sub(
            r"(\\*)('|$)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), value
        )
        return f"{key}='{text}'"
    return _ADDRESS.sub(r"address=[\1,\2]", word) if _ADDRESS.fullmatch(word) else word
