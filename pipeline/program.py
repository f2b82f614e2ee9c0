"""How this program was started (`penstock`, or `python run.py` in a checkout), and commands of it.

Every command that a message suggests begins with `words()`, so that it can be pasted. A process
that neither of the two started (a library's user, a job's launcher) suggests the one that is there.

A path or a name that goes into a command may be anything. It is quoted twice: for hydra, which
reads overrides (`override`), and for the shell (`joined`).
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable
from pathlib import Path

COMMAND = "penstock"
VARIABLE = "PENSTOCK_STARTED_AS"  # what processes that a launcher starts say
_HOME = Path(__file__).resolve().parent.parent
_script: str | None = None

# Text that hydra reads as itself. What could be a number has to hold a letter, or a slash.
_AS_IT_IS = re.compile(r"[A-Za-z_][\w./+@-]*|[\w./+@-]*/[\w./+@-]*", re.ASCII)
_CONSTANTS = ("true", "false", "null", "nan", "inf")
_SAFE = re.compile(r"[\w@+:,./-][\w@%+=:,./-]*", re.ASCII)  # for every shell
_ESCAPED = {"\n": r"\n", "\t": r"\t", "'": r"\'", "\\": r"\\"}


def started_from(script: str | None) -> None:
    """Note the file that this process was started from; None if it is another program's."""
    global _script
    _script = script


def script() -> str | None:
    """The file that this process was started from, if Python can run it."""
    if _script is None or (os.name == "nt" and not _script.endswith(".py")):
        return None  # Windows makes a program of `penstock`
    return _script


def words() -> list[str]:
    """The first words of a command line: ["penstock"], or ["python", "run.py"]."""
    if _script is not None:
        return ["python", _script] if _script.endswith(".py") else [COMMAND]
    if os.environ.get(VARIABLE):
        return shlex.split(os.environ[VARIABLE])
    return ["python", "run.py"] if in_checkout() else [COMMAND]


def text(*arguments: str) -> str:
    """A command line of this program, to be pasted into a shell."""
    return joined([*words(), *arguments])


def joined(words: Iterable[str]) -> str:
    """Words as a command line that bash, zsh and fish split into these very words.

    It is one line, whose letters can all be seen: others are written as `$'\\x1b'`, which fish
    refuses.
    """
    return " ".join(map(_quoted, words))


def _quoted(word: str) -> str:
    if _SAFE.fullmatch(word):
        return word
    if not word.isprintable():
        return f"$'{''.join(map(_escaped, word))}'"
    if "'" in word and not re.search(r'["$`!\\]', word):
        return f'"{word}"'  # which a person can read
    # Not as shlex does it: in fish, a backslash keeps the quote after it from ending a string.
    parts = re.findall(r"[^'\\]+|'+|\\+", word) or [""]
    return "".join(
        f"'{one}'" if one[:1] not in ("'", "\\") else '"{}"'.format(one.replace("\\", r"\\"))
        for one in parts
    )


def _escaped(letter: str) -> str:
    if letter in _ESCAPED or letter.isprintable():
        return _ESCAPED.get(letter, letter)
    return "".join(f"\\x{byte:02x}" for byte in letter.encode("utf-8", _undecoded(letter)))


def _undecoded(letter: str) -> str:
    """How to encode half of a pair, which stands for a byte of a file name that is not UTF-8."""
    return "surrogateescape" if "\udc80" <= letter <= "\udcff" else "surrogatepass"


def override(key: str, value: object) -> str:
    """An override that gives `key` the text of `value`, whatever it is."""
    return f"{key}={literal(value)}"


def literal(value: object) -> str:
    """A text as an override has it: in quotes where hydra would read something else."""
    text = str(value)
    if _AS_IT_IS.fullmatch(text) and text.lower() not in _CONSTANTS:
        return text
    # From the first backslash of several only, or each would be tried: the square of the length.
    text = re.sub(r"(?<!\\)(\\*)\$\{", r"\1\1\\${", text)  # no interpolation
    return "'" + re.sub(r"(?<!\\)(\\*)('|\Z)", _before_quote, text) + "'"


def _before_quote(match: re.Match[str]) -> str:
    return match[1] * 2 + ("\\'" if match[2] else "")


def text_of(literal: str) -> str:
    """The text of an override's value, which may be in quotes; the reverse of `literal`."""
    if len(literal) < 2 or literal[0] not in "'\"" or literal[-1] != literal[0]:
        return literal
    text = re.sub(rf"(?<!\\)(\\*)({literal[0]}|\Z)", _after_quote, literal[1:-1])
    return re.sub(r"(?<!\\)(\\*)\\\$\{", lambda match: match[1][: len(match[1]) // 2] + "${", text)


def _after_quote(match: re.Match[str]) -> str:
    return match[1][: len(match[1]) // 2] + match[2]


def base_of_paths() -> Path:
    """The folder that `--config-path` is relative to: that of run.py, or the working folder."""
    return Path() if words() == [COMMAND] else _HOME


def in_checkout() -> bool:
    """Whether this code lies in a checkout, and not in site-packages."""
    return (_HOME / "run.py").is_file() and (_HOME / "conf" / "config.yaml").is_file()
