"""Expressions over columns: what `dataset.filter`, `batch.balance` and `sample` may hold.

    length < 500 and label != "spam"              length + 0.002 * length ** 2
    `image width` >= 224 & (year in [2019, 2020] | source.str.startswith("news"))

1. `read` turns a text into a tree of the nodes below, once. Python's own parser does the work, and
   what it finds that is not on the list here is refused. Names in backticks are looked for outside
   of string literals and comments only.
2. `evaluate` (evaluation.py) walks that tree over columns. Nothing else gets the text, and
   nothing is called by a name that stands in it.

A text comes from a configuration, which may be a stranger's, so its length, its numbers and the
depth of its tree have limits, no text is an operand of arithmetic (`"a" * 6000000000`), and regular
expressions are of the kind that RE2 searches for, in time that is linear.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

_DEEPEST = 100  # nodes inside of nodes
_MOST = 1000  # nodes, without what lists hold
# Parts of a regular expression, counts written out: RE2 may take 10 ns for each, at each letter.
_PATTERN = 1_000
_ONLY_COSTS = "allowed are columns, numbers, + - * / ** and brackets"

_ARITHMETIC: dict[type[ast.AST], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
}
_COSTS = frozenset({"+", "-", "*", "/", "**"})
_FILTERS = frozenset({"+", "-", "*", "/", "//", "%"})
_COMPARES: dict[type[ast.AST], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.In: "in",
    ast.NotIn: "not in",
}
# What may be called, with the names of its arguments, and the values of those that have a choice.
_CALLS: dict[str, tuple[str, ...]] = {
    "isna": (),
    "notna": (),
    "abs": (),
    "isin": ("values",),
    "duplicated": ("keep",),
    "between": ("left", "right", "inclusive"),
    "str.contains": ("pat", "case", "na", "regex"),
    "str.startswith": ("pat", "na"),
    "str.endswith": ("pat", "na"),
    "str.len": (),
    "str.lower": (),
    "str.upper": (),
    "str.strip": ("to_strip",),
}
_NEEDED = frozenset({"values", "left", "right", "pat"})
_CHOICES: dict[str, tuple[object, ...]] = {
    "case": (True, False),
    "na": (True, False),
    "regex": (True, False),
    "keep": ("first", "last", False),
    "inclusive": ("both", "neither", "left", "right"),
}


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """The values of a column."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A number, a text, True, False or None; in costs a np.float64."""

    value: Any


@dataclass(frozen=True, slots=True, eq=False)
class Items:
    """A list; beside `in`, == and != only."""

    values: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """Arithmetic of two, or a sign, where `left` is None."""

    symbol: str
    left: Node | None
    right: Node


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """left == right, or left < middle <= right and so on: a symbol between each two operands."""

    operands: tuple[Node, ...]
    symbols: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Not:
    """Where something does not hold."""

    of: Node


@dataclass(frozen=True, slots=True, eq=False)
class Joined:
    """`and`, `or` or `^` of two or more."""

    symbol: str
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A method of `_CALLS`, with those arguments that stand there; `pattern` is one for RE2."""

    name: str
    of: Node
    arguments: Mapping[str, Any]


Node = Column | Constant | Items | Operation | Comparison | Not | Joined | Call


def read(text: str, longest: int, costs: bool = False) -> Node:
    """The tree of an expression.

    Args:
        text: of a filter: columns, numbers and texts; comparisons, `and`, `or`, `not` (& and | are
            the same words, as they are to pandas' `query`; ~), `in`, arithmetic, and `_CALLS`.
        longest: characters that it may have.
        costs: only columns, numbers (np.float64, so that none is too large), + - * / ** and
            brackets.

    Raises:
        ValueError: it is something else. The message says what.
    """
    if len(text) > longest:
        raise ValueError(f"it is longer than {longest} characters")
    top, names = _parsed(text)
    _check_size(top)
    return _Reader(names, costs).node(top)


def compares(text: str, longest: int) -> bool:
    """Whether a text that may be a path can only be an expression."""
    try:
        top, _ = _parsed(text if len(text) <= longest else "")
    except ValueError:
        return "`" in text
    return isinstance(top, (ast.Compare, ast.BoolOp, ast.Call, ast.UnaryOp))


def nodes(tree: Node) -> Iterator[Node]:
    """All nodes of a tree, those below a node before it."""
    below: tuple[Node, ...] = ()
    match tree:
        case Operation():
            below = (tree.right,) if tree.left is None else (tree.left, tree.right)
        case Comparison():
            below = tree.operands
        case Items():
            below = tree.values
        case Joined():
            below = tree.parts
        case Not() | Call():
            below = (tree.of,)
    for node in below:
        yield from nodes(node)
    yield tree


# What a text is divided into where that matters; all else is left to Python's parser.
_LEXEMES = re.compile(
    r"""'''(?:[^'\\]|\\.|'(?!''))*''' | \"""(?:[^"\\]|\\.|"(?!""))*\"""
      | '(?:[^'\\\n]|\\.)*' | "(?:[^"\\\n]|\\.)*" | \#[^\n]*
      | `(?P<name>(?:[^`]|``)+)` | (?P<and>&) | (?P<or>\|)""",
    re.VERBOSE | re.DOTALL,
)


def _parsed(text: str) -> tuple[ast.expr, dict[str, str]]:
    """Python's tree of a text, and what stood in backticks by the name that it has in there.

    Raises:
        ValueError: it is no Python.
    """
    prefix = "quoted_"
    while prefix in text:
        prefix += "_"
    names: dict[str, str] = {}

    def replaced(lexeme: re.Match[str]) -> str:
        if lexeme["and"] or lexeme["or"]:
            return " and " if lexeme["and"] else " or "
        if lexeme["name"] is None:
            return lexeme[0]
        name = f"{prefix}{len(names)}_"
        names[name] = lexeme["name"].replace("``", "`")
        return f" {name} "

    source = _LEXEMES.sub(replaced, text).strip()
    try:
        with warnings.catch_warnings():  # of "\." in a text
            warnings.simplefilter("ignore")
            return ast.parse(source, mode="eval").body, names
    except (SyntaxError, ValueError) as error:
        raise ValueError(getattr(error, "msg", None) or "it cannot be read") from None
    except (RecursionError, MemoryError):
        raise ValueError("it is too deep") from None


def _check_size(top: ast.expr) -> None:
    left: list[tuple[ast.AST, int]] = [(top, 1)]
    count = 0
    while left:
        node, depth = left.pop()
        count += 1
        if depth > _DEEPEST:
            raise ValueError(f"more than {_DEEPEST} operations stand inside of each other")
        if count > _MOST:
            raise ValueError(f"it has more than {_MOST} parts")
        listed = isinstance(node, (ast.List, ast.Tuple))
        left += [
            (below, depth + 1)
            for below in ast.iter_child_nodes(node)
            if isinstance(below, (ast.expr, ast.keyword))
            and not (listed and isinstance(below, ast.Constant))
        ]


def _is_list(node: ast.expr) -> bool:
    return isinstance(node, (ast.List, ast.Tuple))


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is str


class _Reader:
    """Makes nodes of Python's.

    Args:
        names: what stood in backticks, by the name that Python's tree has for it.
        costs: see `read`.
    """

    def __init__(self, names: Mapping[str, str], costs: bool) -> None:
        self._names, self._costs = names, costs

    def node(self, node: ast.expr) -> Node:
        match node:
            case ast.Name():
                return Column(self._names.get(node.id, node.id))
            case ast.Constant():
                return Constant(self._constant(node))
            case ast.UnaryOp(op=ast.UAdd() | ast.USub()):
                return self._signed(node)
            case ast.BinOp(op=operator) if type(operator) in _ARITHMETIC:
                return self._operation(node)
        if self._costs:
            raise ValueError(_ONLY_COSTS)
        match node:
            case ast.UnaryOp():  # not and ~
                return Not(self.node(node.operand))
            case ast.BinOp(op=ast.BitXor()):
                return Joined("^", (self.node(node.left), self.node(node.right)))
            case ast.BoolOp():
                symbol = "and" if isinstance(node.op, ast.And) else "or"
                return Joined(symbol, tuple(map(self.node, node.values)))
            case ast.Compare():
                return self._comparison(node)
            case ast.Call():
                return self._call(node)
        raise self._refused(node)

    def _refused(self, node: ast.AST) -> ValueError:
        return ValueError(f"{self._shown(node)!r} is not allowed in an expression")

    def _shown(self, node: ast.AST) -> str:
        """A node as it was written, nearly."""
        text = ast.unparse(node)
        for name, quoted in self._names.items():
            text = text.replace(name, f"`{quoted}`")
        return text if len(text) <= 100 else f"{text[:100]}..."

    def _constant(self, node: ast.Constant) -> Any:
        value = node.value
        if self._costs:
            if type(value) not in (int, float):
                raise ValueError(f"{value!r} is no number")
            try:
                return np.float64(value)  # type: ignore[arg-type]  # a number, as was just seen
            except OverflowError:
                return np.float64(np.inf)
        if type(value) is int and value >= 1 << 64:
            raise ValueError("a whole number has up to 64 bits")
        if value is not None and type(value) not in (bool, int, float, str):
            raise ValueError(f"{self._shown(node)!r} is no number and no text")
        return value

    def _operand(self, node: ast.expr) -> Node:
        """One that arithmetic may have: no text, no True, no None."""
        operand = self.node(node)
        if isinstance(operand, Constant) and type(operand.value) not in (int, float, np.float64):
            raise ValueError(f"{operand.value!r} is no number")
        return operand

    def _signed(self, node: ast.UnaryOp) -> Node:
        operand = self._operand(node.operand)
        symbol = "-" if isinstance(node.op, ast.USub) else "+"
        if isinstance(operand, Constant):
            return Constant(-operand.value) if symbol == "-" else operand
        return Operation(symbol, None, operand)

    def _operation(self, node: ast.BinOp) -> Node:
        symbol = _ARITHMETIC[type(node.op)]
        if symbol not in (_COSTS if self._costs else _FILTERS):
            raise ValueError(_ONLY_COSTS) if self._costs else self._refused(node)
        ends = (node.left, node.right)
        if symbol == "-" and not self._costs and sum(map(_is_text, ends)) == 1:
            left, right = map(self.node, ends)  # a day: when - "2026-01-31"
        else:
            left, right = map(self._operand, ends)
        return Operation(symbol, left, right)

    def _comparison(self, node: ast.Compare) -> Node:
        operands = [node.left, *node.comparators]
        symbols = []
        listed = [False] * len(operands)
        for number, operator in enumerate(node.ops):
            symbol = _COMPARES.get(type(operator))
            if symbol is None:
                raise ValueError("`is` is not allowed in an expression; write == or isna()")
            sides = (number, number + 1)
            lists = [side for side in sides if _is_list(operands[side])]
            if symbol in ("in", "not in") and not lists:  # a text is a list of itself
                lists = [side for side in sides if _is_text(operands[side])]
                if not lists:
                    raise ValueError("`in` needs a list: label in ['ham', 'spam']")
            if len(lists) > 1 or (lists and symbol not in ("in", "not in", "==", "!=")):
                raise ValueError("a list stands beside `in` or ==, with a column on the other side")
            for side in lists:
                listed[side] = True
            symbols.append(symbol)
        made = [
            self._items(operand) if is_list else self.node(operand)
            for operand, is_list in zip(operands, listed, strict=True)
        ]
        return Comparison(tuple(made), tuple(symbols))

    def _items(self, node: ast.expr) -> Items:
        values = node.elts if isinstance(node, (ast.List, ast.Tuple)) else [node]
        return Items(tuple(map(self.node, values)))

    def _call(self, node: ast.Call) -> Node:
        name, of = "", node.func
        if isinstance(of, ast.Attribute):
            name, of = of.attr, of.value
            if isinstance(of, ast.Attribute) and of.attr == "str":
                name, of = f"str.{name}", of.value
        if name not in _CALLS:
            raise ValueError(
                f"{self._shown(node.func)!r} may not be called; allowed: {', '.join(_CALLS)}"
            )
        arguments = self._arguments(name, node)
        rows = self.node(of)
        if isinstance(rows, Constant):
            raise ValueError(f"{name} is of a column, and {rows.value!r} is none")
        match name:
            case "notna":
                return Not(Call("isna", rows, {}))
            case "isin":
                return Comparison((rows, Items(tuple(map(Constant, arguments["values"])))), ("in",))
            case "between":
                inclusive = arguments.get("inclusive", "both")
                symbols = (
                    "<=" if inclusive in ("both", "left") else "<",
                    "<=" if inclusive in ("both", "right") else "<",
                )
                return Comparison(
                    (Constant(arguments["left"]), rows, Constant(arguments["right"])), symbols
                )
        return Call(name, rows, arguments)

    def _arguments(self, name: str, node: ast.Call) -> dict[str, Any]:
        known = _CALLS[name]
        arguments = dict(zip(known, map(self._plain, node.args), strict=False))
        if len(node.args) > len(known):
            raise ValueError(f"{name} takes {len(known)} arguments at most")
        for keyword in node.keywords:
            if keyword.arg not in known or keyword.arg in arguments:
                raise ValueError(f"{name} does not take the argument {keyword.arg or '**'}")
            arguments[keyword.arg] = self._plain(keyword.value)
        for argument in known:
            if argument not in arguments:
                if argument in _NEEDED:
                    raise ValueError(f"{name} needs the argument {argument}")
                continue
            value = arguments[argument]
            if not _fits(name, argument, value):
                raise ValueError(f"{name} does not take {argument}={value!r}")
        if name == "str.contains" and arguments.get("regex", True):
            arguments["pattern"] = _pattern(arguments["pat"])
        return arguments

    def _plain(self, node: ast.expr) -> Any:
        """The value of an argument: a constant, or a tuple of constants."""
        if isinstance(node, (ast.List, ast.Tuple)) and not any(map(_is_list, node.elts)):
            return tuple(map(self._plain, node.elts))
        made = self.node(node) if isinstance(node, (ast.Constant, ast.UnaryOp)) else None
        if not isinstance(made, Constant):
            raise ValueError(f"{self._shown(node)!r} is no plain value")
        return made.value


def _fits(name: str, argument: str, value: object) -> bool:
    """Whether a method takes a value."""
    if argument in _CHOICES:
        return any(type(value) is type(choice) and value == choice for choice in _CHOICES[argument])
    if argument == "values":
        return type(value) is tuple
    if argument in ("left", "right"):
        return type(value) is not tuple
    if argument == "pat" and name != "str.contains" and type(value) is tuple:
        return all(type(text) is str for text in value)
    return type(value) is str or (argument == "to_strip" and value is None)


_MARKS = frozenset(r".^$*+?{}[]\|()")
# The part of Python's regular expressions that means the same to RE2.
_REGEX = re.compile(
    r"""\\[^A-Za-z0-9\n] | \[\^?\]?(?:[^\[\]\\\n]|\\[^A-Za-z0-9\n])*\]
      | \{(?P<least>[0-9]{1,4})(?:,(?P<most>[0-9]{1,4})?)?\}
      | \((?:\?:|(?!\?)) | \$(?=\Z|\|) | (?P<other>[\\\[{$]|\(\?) | .""",
    re.VERBOSE | re.DOTALL,
)


def _pattern(pattern: str) -> str:
    """The text that RE2 searches for; "" where a regular expression is nothing but a text.

    Raises:
        ValueError: RE2 lacks some of it, or means something else by it than Python's `re` does.
    """
    if _MARKS.isdisjoint(pattern):
        return ""
    written, depth = [], 0
    groups, last = [0], 0  # parts of the groups that are open, and of what a count would repeat
    for lexeme in _REGEX.finditer(pattern):
        part = lexeme[0]
        depth += {"(": 1, "(?:": 1, ")": -1}.get(part, 0)
        if lexeme["other"] or (part == "$" and depth):
            rest = pattern[lexeme.start() :][:10]
            raise ValueError(
                rf"str.contains searches for {pattern!r} by RE2, and {rest!r} is not allowed there:"
                r" no \d, \w, \s or \b (write [0-9]), no (?...) but (?:...), no [ in brackets, $ "
                "at the end only, { only of a count. regex=False searches for the text as it stands"
            )
        if lexeme["least"]:
            times = max(int(lexeme["least"]), int(lexeme["most"] or 0), 1)
            groups[-1] += last * (times - 1)
            last *= times
        elif part in ("(", "(?:"):
            groups.append(1)
        elif part == ")" and len(groups) > 1:
            last = groups.pop()
            groups[-1] += last
        elif part not in ("*", "+", "?"):
            last = 1
            groups[-1] += last
        written.append(r"\n?$" if part == "$" else part)  # Python's stands before a last newline
    if sum(groups) > _PATTERN:
        raise ValueError(
            f"str.contains: {pattern!r}, with its counts written out, has more than "
            f"{_PATTERN:,} parts"
        )
    return "".join(written)
