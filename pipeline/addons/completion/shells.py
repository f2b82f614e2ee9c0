"""Completion by Tab in bash, zsh and fish: the script for each, and the words that it asks for.

    eval "$(penstock -sc install=bash)"     connects a shell; zsh and fish have the same
    penstock -sc query=bash                 the words for the line in the environment, one a line

The name of a file, a key or an option is text, and a shell would run `$(...)` in it. So no
script has a word expanded (hydra's own do, by `compgen -W`), and each comes into the line in
quotes: bash gets it quoted from here, zsh and fish quote it themselves. A name that cannot be shown
as it is, with control characters in it for instance, is not offered.

Only the program that printed a script is ever asked, by its full path: another `penstock` or
`run.py`, in whatever folder the person has gone to, is not started. Nothing is trusted meanwhile,
so that no package is imported, and nothing of the configuration is called.
"""

from __future__ import annotations

import os
import re
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import redirect_stderr, suppress
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any

from penstock import program
from penstock.config import allowances, disclosure, hydra_internals
from penstock.config.composition import Composed, Composer
from penstock.errors import ConfigError, Problem
from penstock.terminal import put

LINE, WORDS, WORD = "COMP_LINE", "COMP_WORDS", "COMP_WORD"  # variables that a script sets

_MOST_FILES = 10_000  # of a folder are looked at
_TAKES_FOLDER = ("--config-dir", "-cd", "--config-path", "-cp")
_PLAIN = re.compile(r"[\w@%+=:,./-]*")  # means itself in bash, in quotes and outside of them
_SPECIAL = re.compile(r"[^\w@%+=:,./-]")

_BASH = """\
_penstock_completion() {{
    COMPREPLY=(){elsewhere}
    local word
    while IFS= read -r word; do
        COMPREPLY+=("$word")
    done < <(COMP_LINE="${{COMP_LINE:0:COMP_POINT}}" COMP_WORD="$2" \\
        {program} -sc query=bash 2>/dev/null </dev/null)
}}
complete -o nospace -F _penstock_completion {names}
"""
_BASH_ELSEWHERE = """
    if ! [[ "${{COMP_WORDS[1]-}}" -ef {script} ]]; then
        compopt -o bashdefault -o default +o nospace 2>/dev/null
        return
    fi"""
_ZSH = """\
_penstock_completion() {{{elsewhere}
    local word
    local -a found
    while IFS= read -r word; do
        found+=("$word")
    done < <(COMP_WORDS="${{(F)${{(@Q)words[1,CURRENT-1]}}}}" COMP_WORD="${{(Q)PREFIX}}" \\
        {program} -sc query=zsh 2>/dev/null </dev/null)
    compadd -U -S '' -- "${{found[@]}}"
}}
(( $+functions[compdef] )) || {{ autoload -Uz compinit && compinit }}
compdef _penstock_completion {names}
"""
_ZSH_ELSEWHERE = """
    if ! [[ "${{(Q)words[2]}}" -ef {script} ]]; then
        if (( $+functions[_python] )); then _python "$@"; else _default "$@"; fi
        return
    fi"""
_FISH = """\
function __penstock_completion
    set -lx COMP_WORDS (string join \\n -- (commandline -cpo) | string collect)
    set -lx COMP_WORD (string unescape -- (commandline -ct))
    {program} -sc query=fish 2>/dev/null </dev/null
end
{elsewhere}"""
_FISH_ELSEWHERE = """\
function __penstock_is_meant
    set -l words (commandline -cpo)
    test (count $words) -gt 1; and test (realpath -- $words[2] 2>/dev/null) = {script}
end
"""
_FISH_COMPLETE = "complete -c {name}{condition} -f -a '(__penstock_completion)'\n"
_REMOVED = {
    "bash": "complete -r {names}; unset -f _penstock_completion\n",
    "zsh": "compdef -d {names}; unfunction _penstock_completion\n",
    "fish": "complete -e {names}; functions -e __penstock_completion __penstock_is_meant\n",
}
SHELLS = tuple(_REMOVED)


def run(args: Namespace) -> None:
    """Do what stands behind `-sc`: install=SHELL, uninstall=SHELL or query=SHELL.

    Args:
        args: the command line, as hydra's parser reads it.

    Raises:
        ConfigError: it is something else, or what the line names cannot be used.
    """
    does, _, shell = args.overrides[0].partition("=") if args.overrides else ("", "", "")
    if (
        len(args.overrides) != 1
        or shell not in SHELLS
        or does not in ("install", "uninstall", "query")
    ):
        typed = " ".join(args.overrides)
        reason = f"got {typed!r}, expected install=SHELL or uninstall=SHELL, of {', '.join(SHELLS)}"
        raise ConfigError(Problem("-sc", reason))
    if does == "query":
        for word in _answer(shell, args):
            put(word)
    else:
        put((_script(shell) if does == "install" else _removal(shell)).rstrip("\n"))


def _names() -> tuple[list[str], str | None]:
    """The commands to complete, and the script that has to follow them, if one has to."""
    script = program.script() or sys.argv[0]
    is_python = script.endswith(".py")
    return (
        (["python", "python3"], str(Path(script).resolve()))
        if is_python
        else ([Path(script).name], None)
    )


def _script(shell: str) -> str:
    """The script that a shell reads."""
    names, script = _names()
    started = [sys.executable, script or str(Path(program.script() or sys.argv[0]).absolute())]
    elsewhere = {"bash": _BASH_ELSEWHERE, "zsh": _ZSH_ELSEWHERE, "fish": _FISH_ELSEWHERE}[shell]
    known = elsewhere.format(script=program.joined([script])) if script else ""
    text = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}[shell].format(
        program=program.joined(started), names=program.joined(names), elsewhere=known
    )
    if shell == "fish":
        condition = " -n __penstock_is_meant" if script else ""
        text += "".join(
            _FISH_COMPLETE.format(name=program.joined([name]), condition=condition)
            for name in names
        )
    return text


def _removal(shell: str) -> str:
    names = program.joined(_names()[0])
    if shell == "fish":
        names = " ".join(f"-c {name}" for name in names.split())
    return _REMOVED[shell].format(names=names)


def _answer(shell: str, args: Namespace) -> list[str]:
    """The words that a shell may put instead of the one before the cursor."""
    current = os.environ.get(WORD, "")
    if shell != "bash":
        return sorted(_words([*os.environ.get(WORDS, "").split("\n"), current], args))
    line = os.environ.get(LINE, "")
    kept, read = _read(line.removesuffix(current)), _read(line)
    if not line.endswith(current) or kept is None or read is None:
        return []
    (*_, before), quote = kept
    endings = (word[len(before) :] for word in _words(read[0], args) if word.startswith(before))
    if quote:
        return sorted(word for word in endings if _PLAIN.fullmatch(word))
    return sorted(_SPECIAL.sub(r"\\\g<0>", word) for word in endings)


def _read(line: str) -> tuple[list[str], str] | None:
    """The words of a line in bash's quoting, the last one maybe empty, and the quote that is open.

    None if bash would expand something in it, as nothing is expanded here.
    """
    words, word, quote, letters = [], "", "", iter(line)
    begun = False
    for letter in letters:
        if letter in "$`" and quote != "'":
            return None
        if letter == "\\" and quote != "'":
            following = next(letters, "")
            word += following if not quote or following in '"\\$`' else letter + following
            begun = True
        elif quote:
            quote, word = ("", word) if letter == quote else (quote, word + letter)
        elif letter in "'\"":
            quote, begun = letter, True
        elif letter in ";|&<>()":
            return None
        elif letter.isspace():
            words += [word] if begun else []
            word, begun = "", False
        else:
            word, begun = word + letter, True
    return [*words, word], quote


def _words(typed: list[str], args: Namespace) -> Iterator[str]:
    """The words that can stand instead of the last one of a command line."""
    *before, last = typed[2 if _is_python(typed[0]) else 1 :] or [""]
    if before and before[-1] in _TAKES_FOLDER:
        candidates: Iterator[str] = (path for path in _paths(last) if path.endswith("/"))
    else:
        candidates = _of_key(*_composed(before, args), last)
    yield from (word for word in dict.fromkeys(candidates) if word.isprintable())


def _is_python(word: str) -> bool:
    return re.fullmatch(r"python[\d.]*", Path(word).name) is not None


def _composed(before: list[str], args: Namespace) -> tuple[Composer, Composed]:
    """The configuration of an unfinished command line, as far as it can be composed."""
    parser = hydra_internals.get_args_parser()
    for option in allowances.OPTIONS:
        parser.add_argument(option, action="append")
    named, words = args, []
    with suppress(SystemExit), redirect_stderr(StringIO()):
        read, _ = parser.parse_known_intermixed_args(before)
        words = [word for word in read.overrides if "=" in word or word.startswith("~")]
        named = Namespace(
            **{
                name: getattr(read, name) or getattr(args, name)
                for name in ("config_path", "config_name", "config_dir")
            }
        )
    composer = Composer(named.config_path, named.config_name, named.config_dir)
    overrides = [
        override for override in composer.parse(words)[0] if not override.is_sweep_override()
    ]
    composed = composer.compose(overrides)
    if not composed.complete and composed.problems:
        raise ConfigError(composed.problems)
    return composer, composed


def _of_key(composer: Composer, composed: Composed, word: str) -> Iterator[str]:
    """The keys and groups that a word begins, or the values of its key."""
    key, equals, typed = word.partition("=")
    name = key.lstrip("+~")
    mark = key[: len(key) - len(name)]
    if equals:
        yield from (f"{key}={value}" for value in _values(composer, composed, name, typed))
        return
    above = name.rpartition("/")[0]
    for group in composer.loader.list_groups(above):
        whole = f"{above}/{group}".lstrip("/")
        if whole.startswith(name):
            yield f"{mark}{whole}{'=' if composer.options(whole) else '/'}"
    parent, dot, _ = name.rpartition(".")
    node = _node({**composed.config, "hydra": composed.hydra}, parent)
    for child, value in node.items() if isinstance(node, Mapping) else ():
        whole = f"{parent}{dot}{child}"
        if whole.startswith(name):
            yield f"{mark}{whole}{'.' if isinstance(value, Mapping) and value else '='}"


def _node(config: Mapping[str, object], key: str) -> object:
    node: Any = config
    for part in key.split(".") if key else ():
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


def _values(composer: Composer, composed: Composed, key: str, typed: str) -> Iterator[str]:
    """The options of a group; or the value that a key has, and the files of that name."""
    if options := composer.options(key):
        yield from (option for option in options if option.startswith(typed))
        return
    value = _node(composed.config, key)
    hidden = key in composed.config.origins or disclosure.names_secret(key, value)
    if isinstance(value, str | int | float) and not hidden:
        text = program.literal(value) if isinstance(value, str) else str(value)
        text = text.lower() if isinstance(value, bool) else text
        if text.startswith(typed):
            yield text
    if typed:
        paths = list(_paths(_text_so_far(typed)))
        written = [program.literal(path) for path in paths]
        if typed[0] in "'\"" or any(text[0] == "'" for text in written):
            # All of them alike, so that what they begin with is longer than what was typed.
            written = [text if text[0] == "'" else f"'{text}'" for text in written]
        yield from written


def _text_so_far(typed: str) -> str:
    """The text of a value of which the end has not been typed yet, nor maybe its last quote."""
    quote = typed[0] if typed[0] in "'\"" else ""
    is_open = quote and (len(typed) == 1 or typed[-1] != quote)
    return program.text_of(typed + quote if is_open else typed)


def _paths(typed: str) -> Iterator[str]:
    """Files and folders whose paths begin so; a folder ends in a slash."""
    folder, slash, begin = typed.rpartition("/")
    with suppress(OSError, ValueError), os.scandir(f"{folder}{slash}" or ".") as entries:
        for entry in islice(entries, _MOST_FILES):
            if entry.name.startswith(begin) and (begin or not entry.name.startswith(".")):
                yield f"{folder}{slash}{entry.name}{'/' if entry.is_dir() else ''}"
