"""The prose of the code: docstrings, the texts that people see, comments of YAML files.

`python -m tests.prose.code` lists what reads badly: banned words and wrong terms of `prose.py`.
"""

import ast
import re
import subprocess

from tests.prose.prose import BANNED, ROOT

_SHOWN = re.compile(r"[a-z]{2,} [a-z]{2,}")  # a text of words, and no name, pattern or format


def texts():
    """(place, kind, text) of all docstrings, longer texts and comments of the package and conf/."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "pipeline/*.py", "datasets/*.py", "conf/*.yaml"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        if path.is_file():
            text = path.read_text()
            yield from _of_yaml(name, text) if name.endswith(".yaml") else _of_python(name, text)


def _of_yaml(name, text):
    block = []
    for number, line in enumerate(text.splitlines(), 1):
        comment = re.match(r"\s*# (.*)", line)
        if comment and not comment[1].startswith("@"):
            block.append(comment[1])
            continue
        if block:
            yield f"{name}:{number - len(block)}", "comment", " ".join(block)
            block = []
        if behind := re.search(r"\s# (.*)$", line):
            yield f"{name}:{number}", "comment", behind[1]
    if block:
        yield f"{name}:{number}", "comment", " ".join(block)


def _of_python(name, text):
    nodes = list(ast.walk(ast.parse(text)))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = set()
    for node in nodes:
        if isinstance(node, documented) and (doc := ast.get_docstring(node)) is not None:
            docstrings.add(id(node.body[0].value))
            yield f"{name}:{node.body[0].lineno}", "docstring", doc
    inside = set()
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            inside |= {id(part) for part in ast.walk(node) if part is not node}
            shown = "".join(
                part.value if isinstance(part, ast.Constant) else "X" for part in node.values
            )
            if _SHOWN.search(shown):
                yield f"{name}:{node.lineno}", "message", shown
    inside |= docstrings
    for node in nodes:
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in inside
            and _SHOWN.search(node.value)
        ):
            yield f"{name}:{node.lineno}", "message", node.value


def flaws(text):
    """Banned words of a text: (what stands there, what to write instead)."""
    plain = re.sub(r"`[^`]*`|^ +\w+:", "Code", text, flags=re.MULTILINE)  # and arguments
    for paragraph in re.split(r"\n\s*\n", plain):
        joined = " ".join(paragraph.split())
        for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z])", joined):
            for pattern, instead in BANNED.items():
                if hit := re.search(pattern, sentence, re.IGNORECASE if pattern[0] != "^" else 0):
                    yield sentence[max(0, hit.start() - 60) : hit.end() + 60], instead


if __name__ == "__main__":
    for place, kind, text in texts():
        for sentence, instead in flaws(text):
            print(f"{place}: {kind}: {sentence} -> {instead}")
