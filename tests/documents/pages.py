"""The commands and the Python blocks of the README and of docs/, in the order of each page.

A command is a line of a code block that begins at its margin with a program's name, or a line
behind `$`; and a complete `python run.py ...` or `penstock init ...` within a sentence.
"""

import re
from typing import NamedTuple

from markdown_it import MarkdownIt

from tests.program import ROOT

GENERATED = ("docs/keys.md",)
PAGES = tuple(
    name
    for name in (
        "README.md",
        *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("**/*.md")),
    )
    if name not in GENERATED
)

_markdown = MarkdownIt("commonmark")
_SHELL = ("sh", "bash", "console")
_PROGRAMS = (
    r"python|penstock|pip|make|torchrun|cd|export|eval|ray|ruff|mkdocs|srun|sbatch|\.|[A-Z_]+="
)
_COMMAND = re.compile(rf"^(?:\$ )?((?:{_PROGRAMS}) ?\S.*)")
_INLINE = re.compile(r"`((?:python run\.py |penstock init |python -m penstock\.)[^`]+)`")


class Piece(NamedTuple):
    """A command or a Python block, as it stands on a page.

    Attributes:
        block: which of the page's blocks it is of; 0: of a sentence.
    """

    page: str
    line: int
    kind: str
    text: str
    block: int


class Block(NamedTuple):
    line: int
    language: str
    text: str


def blocks(page):
    """The code blocks of a page, fenced or indented."""
    return list(_blocks((ROOT / page).read_text()))


def _blocks(markdown, above=0):
    for token in _markdown.parse(markdown):
        if token.type == "fence":
            yield Block(above + token.map[0] + 1, token.info.partition(" ")[0], token.content)
        elif token.type == "code_block" and "```" in token.content:  # in a tab
            yield from _blocks(token.content, above + token.map[0])
        elif token.type == "code_block":
            yield Block(above + token.map[0], "", token.content)


def sentences(page):
    """The page without its code blocks, on the same lines."""
    lines = (ROOT / page).read_text().splitlines()
    for token in _markdown.parse("\n".join(lines)):
        if token.type in ("fence", "code_block"):
            lines[slice(*token.map)] = [""] * (token.map[1] - token.map[0])
    return "\n".join(lines)


def files(page):
    """The files that a page says to write: name -> text."""
    made = {}
    for block in blocks(page):
        first, _, rest = block.text.partition("\n")
        if first.startswith("# file: "):
            made[first.removeprefix("# file: ")] = rest
    return made


def pieces(page):
    """All that is to run, in order; commands of sentences last, unless a block has them too."""
    made = []
    before = None
    for number, block in enumerate(blocks(page), 1):
        if block.text.startswith("# file: "):
            continue
        if block.language == "python" or block.text.startswith(("from penstock", "import ")):
            made.append(Piece(page, block.line, "python", block.text, number))
            continue
        commands = list(_commands(block))
        if [_program(text) for _, text in commands] != before:  # not the other tab of the same
            made += [Piece(page, block.line + n, "command", text, number) for n, text in commands]
        before = [_program(text) for _, text in commands]
    known = {piece.text for piece in made}
    text = sentences(page)
    for hit in _INLINE.finditer(text):
        command = " ".join(hit[1].split())
        if command not in known and "..." not in command and "|" not in command:
            known.add(command)
            made.append(Piece(page, text.count("\n", 0, hit.start()) + 1, "command", command, 0))
    return made


def _program(command):
    return re.sub(r"^(python run\.py|penstock)\b", "penstock", command)


def _commands(block):
    """The commands of a block, each with its line: one that `\\` continues is one."""
    if block.text.startswith("#!"):  # a script that a batch system runs
        yield 1, block.text
        return
    joined = re.sub(r"\\\n", lambda hit: "\0", block.text)
    number = 1
    for line in joined.splitlines():
        hit = _COMMAND.match(line)
        shown = block.language not in _SHELL
        if hit and not (shown and not re.match(r"(\$ |python |penstock |pip )", line)):
            yield number, without_comment(" ".join(hit[1].replace("\0", " ").split(" ")))
        number += 1 + line.count("\0")


def without_comment(command):
    """The command without the comment behind it and without its indentation of columns."""
    return re.split(r"\s+# ", command)[0].strip()
