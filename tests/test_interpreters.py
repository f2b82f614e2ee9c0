"""docs/interpreters.md lists every call that may take a text for more than a text, with its test.

The calls are found in the syntax tree of each module. A name is followed through imports, also
those inside of functions, and through assignments (`load = pickle.loads`). A reference counts as a
call: `map(eval, texts)`. Not found are names that only exist when a program runs
(`getattr(pickle, "lo" + "ads")`), and methods of objects that were made elsewhere, but for those
whose name tells (`.execute`, `.recv`).
"""

import ast
import re
from collections import Counter

import pytest

from tests.test_house import CODE, PAGES, ROOT, names_in, tracked

# Names of modules, functions and classes; spaces are none.
ALWAYS = r"""
    (builtins\.)?(eval|exec|compile|__import__|breakpoint)
    | (code|codeop|runpy|imp|timeit|site|cffi|numexpr|sympy)\..+ | pkgutil\.resolve_name
    | importlib\.(reload|machinery\..+|util\.(spec|module|Lazy)\w+) | ast\.(parse|literal_eval)
    | sys\.(path|meta_path|path_hooks)(\.\w+)? | hydra\.utils\..+ | pandas\.(eval|core\..+)
    | ctypes\.(?!c_).+ | torch\.(hub\.load\w*|jit|package|compile|classes|export|fx)(\..+)?
    | torch\.ops\.load_library | torch\.utils\.cpp_extension\..+

    | (subprocess|asyncio\.subprocess|pty|webbrowser|submitit|multiprocessing\.spawn)\..+
    | os\.(system|popen|exec\w+|spawn\w+|posix_spawnp?|startfile)
    | asyncio\.create_subprocess_\w+ | multiprocessing\.set_executable

    | (_?pickle|cloudpickle|dill|joblib|marshal|shelve|copyreg)\..+
    | ray\.(init|get|put|remote|cloudpickle\..+|util\.client\..+)
    | multiprocessing\.(reduction\..+|connection\.(?!wait).+)
    | multiprocessing\.(Queue|SimpleQueue|JoinableQueue|Pipe|Manager|Pool)
    | torch\.(load|save|serialization\..+) | numpy\.(load|lib\.npyio\..+|lib\.format\.read_array)
    | pandas\.(read|to)_(pickle|hdf) | torch\.distributed\.(\w*object\w*|rpc\..+)

    | jinja2\.(?!\w*Undefined).+ | mako\..+ | string\.(Template|Formatter) | markupsafe\.Markup
    | matplotlib\.figure\.Figure | csv\.(writer|DictWriter)

    | (sqlite3|sqlalchemy|duckdb)\..+ | mlflow\.(?!entities|exceptions).+
    | optuna\.(load_study|storages\..+) | wandb\.(init|setup) | torch\.utils\.tensorboard\..+

    | yaml\.(?!(safe_)?dump|\w+Event|\w+Node|C?SafeLoader).+
    | omegaconf\.OmegaConf\.(create|load|from_\w+|register_new_resolver)
    | json\.(loads?|JSONDecoder|detect_encoding) | (tomllib|tomli|xml|lxml|configparser)\..+

    | zlib\.decompress\w* | (gzip|bz2|lzma)\.(?!compress).+ | (zipfile|tarfile)\..+
    | (zstandard|compression|lz4|brotli|snappy)\.(?!.*Parameter).+
    | shutil\.(un|make_)\w*archive

    | PIL\.Image\.open | tokenizers\.Tokenizer\.from_\w+
    | (fsspec|requests|httpx|http\.client|http\.server|socketserver|logging\.config)\..+
    | urllib\.request\.(urlopen|urlretrieve|Request|build_opener) | os\.path\.expandvars
    | socket\.(socket|create_server|create_connection)
"""
# These take a name, a pattern, a format or a type first, which is ours where it is written there.
UNLESS_WRITTEN = r"""
    importlib\.(import_module|util\.find_spec) | codecs\.lookup | operator\.(attr|method)\w+
    | re\.(?!escape|Match|Pattern|\w*error|[A-Z]+$).+ | (glob|fnmatch)\..+ | struct\..+
    | numpy\.(dtype|fromstring|genfromtxt|loadtxt) | time\.strftime
"""
METHODS = {
    "query",
    "execute",
    "executemany",
    "executescript",
    "exec_driver_sql",
    "recv",
    "recv_object",
    "unsafe_load",
    "extractall",
}
METHODS_UNLESS_WRITTEN = {"format", "format_map", "strftime", "glob", "rglob"}
KEYWORDS = {"shell", "env", "executable", "allow_pickle", "weights_only"}

_ALWAYS, _UNLESS = re.compile(ALWAYS, re.VERBOSE), re.compile(UNLESS_WRITTEN, re.VERBOSE)
_BUILTINS = {"eval", "exec", "compile", "__import__", "breakpoint"}
_NAMING = (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.NamedExpr)
_CONSTANTS = {"HIGHEST_PROTOCOL", "DEFAULT_PROTOCOL", "PIPE", "DEVNULL", "STDOUT"}


def found_in(source):
    """The calls of a module, counted."""
    return _Finder(ast.parse(source)).found


class _Finder(ast.NodeVisitor):
    def __init__(self, tree):
        self.found = Counter()
        self._aliases, self._written = {}, set()
        named = [node for node in ast.walk(tree) if isinstance(node, _NAMING)]
        for node in (*named, *named):  # again, as an alias may be of an alias
            self._learn(node)
        self.visit(tree)

    def _learn(self, node):
        if isinstance(node, ast.Import):
            for one in node.names:
                name = one.name if one.asname else one.name.partition(".")[0]
                self._aliases[one.asname or name] = name
        elif isinstance(node, ast.ImportFrom):
            for one in node.names:
                self._aliases[one.asname or one.name] = f"{node.module or ''}.{one.name}"
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and node.value:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            name, written = self._dotted(node.value), self._is_written(node.value)
            for target in targets:
                if isinstance(target, ast.Name):
                    if name and name != target.id:
                        self._aliases[target.id] = name
                    if written and target.id.isupper():
                        self._written.add(target.id)

    def _dotted(self, node):
        """The whole name of what a node refers to; None if only the running program knows."""
        if isinstance(node, ast.Name):
            known = self._aliases.get(node.id)
            return known or (node.id if node.id in _BUILTINS else None)
        if isinstance(node, ast.Attribute):
            above = self._dotted(node.value)
            return f"{above}.{node.attr}" if above else None
        return None

    def _is_written(self, node):
        """Whether a text stands in the source, with nothing put into it."""
        if isinstance(node, ast.JoinedStr):
            parts = [one.value for one in node.values if isinstance(one, ast.FormattedValue)]
            return all(map(self._is_written, parts))
        if isinstance(node, ast.BinOp):
            return self._is_written(node.left) and self._is_written(node.right)
        if isinstance(node, ast.Tuple):
            return all(map(self._is_written, node.elts))
        if isinstance(node, ast.Attribute):  # np.uint8; NAME.pattern
            of = self._dotted(node) or ""
            return of.startswith("numpy.") or (
                node.attr == "pattern" and self._is_written(node.value)
            )
        if isinstance(node, ast.Call):  # Markup("..."), re.compile("...")
            name = self._dotted(node.func) or ""
            return name in ("markupsafe.Markup", "re.compile") and self._is_first_written(node)
        if isinstance(node, ast.Name):
            return node.id in self._written or node.id in ("float", "int", "bool", "object")
        return isinstance(node, ast.Constant)

    def _is_first_written(self, node):
        return bool(node.args) and self._is_written(node.args[0])

    def _note(self, name, written=False):
        last = name.rpartition(".")[2]
        if last in _CONSTANTS or last.endswith(("Error", "Exception", "Warning", "Expired")):
            return
        ours = written and (name == "markupsafe.Markup" or not _ALWAYS.fullmatch(name))
        if not ours and (_ALWAYS.fullmatch(name) or _UNLESS.fullmatch(name)):
            self.found[name] += 1

    def visit_Call(self, node):
        name, written = self._dotted(node.func), self._is_first_written(node)
        if name is not None:
            self._note(name, written)
        else:
            if isinstance(node.func, ast.Attribute):
                self._method(node, node.func.attr)
            self.visit(node.func)
        for keyword in node.keywords:
            if keyword.arg in KEYWORDS:
                self.found[f"{keyword.arg}="] += 1
            self.visit(keyword.value)
        for argument in node.args:
            self.visit(argument)

    def _method(self, node, name):
        if name in METHODS_UNLESS_WRITTEN:
            own = name.startswith("format") and self._is_written(node.func.value)
            ours = own or (not name.startswith("format") and self._is_first_written(node))
            self.found[f".{name}"] += not ours
        # `model.eval()` is torch's.
        elif name in METHODS or (name == "eval" and (node.args or node.keywords)):
            self.found[f".{name}"] += 1

    def visit_BinOp(self, node):
        formatted = isinstance(node.op, ast.Mod) and isinstance(node.right, ast.Tuple | ast.Dict)
        if formatted and not self._is_written(node.left):
            self.found["%"] += 1
        self.generic_visit(node)

    def visit_Attribute(self, node):
        name = self._dotted(node)
        if name is None:
            self.visit(node.value)
        elif isinstance(node.ctx, ast.Load):
            self._note(name)

    def visit_Name(self, node):
        name = self._dotted(node)
        if name is not None and isinstance(node.ctx, ast.Load):
            self._note(name)

    def visit_If(self, node):
        if "TYPE_CHECKING" not in ast.dump(node.test):
            self.generic_visit(node)

    def visit_ExceptHandler(self, node):
        for one in node.body:
            self.visit(one)

    def visit_AnnAssign(self, node):
        if node.value is not None:
            self.visit(node.value)

    def visit_arg(self, node):
        """Annotations are no calls."""

    def visit_FunctionDef(self, node):
        for one in (*node.decorator_list, node.args, *node.body):
            self.visit(one)

    visit_AsyncFunctionDef = visit_FunctionDef


PAGE = ROOT / "docs" / "interpreters.md"


def listed():
    """Counts and tests by module and call, of the page's tables."""
    counts, tests = Counter(), {}
    for module, calls, held_by in re.findall(
        r"^\| `([\w/]+\.py)` \| (.+?) \| .+ \| (.+?) \|$", PAGE.read_text(), re.MULTILINE
    ):
        for call, count in re.findall(r"`([^`]+)`(?: (\d+))?", calls):
            counts[module, call] += int(count or 1)
            tests[module, call] = re.findall(r"`([\w/]+\.py): (\w+)`", held_by)
    return counts, tests


def test_every_call_is_listed_and_every_row_has_its_call():
    there = Counter()
    for name in tracked(*CODE, "setup.py"):
        for call, count in found_in((ROOT / name).read_text()).items():
            there[name, call] += count
    counts, _ = listed()
    assert sum(counts.values()) > 100
    new = {f"{name}: {call}" for name, call in there if there[name, call] > counts[name, call]}
    gone = {f"{name}: {call}" for name, call in counts if there[name, call] < counts[name, call]}
    assert not new, f"say in {PAGE.name} what reaches these, and which test holds it"
    assert not gone, f"{PAGE.name} lists calls that are not there"


def test_every_row_has_a_test_that_is_there():
    for row, tests in listed()[1].items():
        assert tests, row
        for file, name in tests:
            assert name in names_in(ROOT / file), f"{row}: {file}: {name}"


@pytest.mark.parametrize(
    "page", [name for name in tracked(*PAGES) if name != "docs/interpreters.md"]
)
def test_tests_that_a_page_names_are_there(page):
    for file, name in re.findall(r"`(tests/[\w/]+\.py): (\w+)`", (ROOT / page).read_text()):
        assert name in names_in(ROOT / file), f"{file}: {name}"


def test_templates_escape_and_their_script_makes_no_markup():
    folder = ROOT / "pipeline" / "addons" / "reports" / "templates"
    for path in folder.iterdir():
        text = path.read_text()
        odd = re.findall(
            r"\|\s*safe\b|autoescape|innerHTML|outerHTML|insertAdjacentHTML|"
            r"document\.write|\beval\b|Function\(|setTimeout\([\"']|\bon\w+=|"
            r"javascript:|fetch\(|XMLHttp|import\(",
            text,
        )
        assert not odd, f"{path.name}: {odd}"


# One of each kind, however it is written; the test of the list has to see them all.
SEEN = {
    "eval(text)": "eval",
    "exec(text)": "exec",
    "compile(text, '', 'eval')": "compile",
    "__import__(text)": "__import__",
    "import builtins\nbuiltins.eval(text)": "builtins.eval",
    "list(map(eval, texts))": "eval",
    "from functools import partial\npartial(exec, text)": "exec",
    "run = eval\nrun(text)": "eval",
    "frame.query(text)": ".query",
    "frame.eval(text)": ".eval",
    "frame.eval(expr=text)": ".eval",
    "import pandas as pd\npd.eval(text)": "pandas.eval",
    "import pandas as pd\npd.read_pickle(path)": "pandas.read_pickle",
    "import subprocess\nsubprocess.run(words)": "subprocess.run",
    "import subprocess as sp\nsp.Popen(words)": "subprocess.Popen",
    "from subprocess import check_output as out\nout(words)": "subprocess.check_output",
    "def f():\n    from os import system\n    system(text)": "os.system",
    "import os\nos.popen(text)": "os.popen",
    "import os\nos.execvp(name, words)": "os.execvp",
    "import os\nos.spawnl(0, name)": "os.spawnl",
    "import os\nrun = os.posix_spawn\nrun(name, words, {})": "os.posix_spawn",
    "start(words, shell=True)": "shell=",
    "start(words, env=variables)": "env=",
    "import asyncio\nasyncio.create_subprocess_shell(text)": "asyncio.create_subprocess_shell",
    "import webbrowser\nwebbrowser.open(text)": "webbrowser.open",
    "from pickle import loads\nloads(data)": "pickle.loads",
    "import pickle\nclass Reader(pickle.Unpickler): pass": "pickle.Unpickler",
    "import cloudpickle\ncloudpickle.load(file)": "cloudpickle.load",
    "import joblib\njoblib.load(path)": "joblib.load",
    "import marshal\nmarshal.loads(data)": "marshal.loads",
    "import shelve\nshelve.open(path)": "shelve.open",
    "import numpy as np\nnp.load(path)": "numpy.load",
    "import torch\ntorch.load(path)": "torch.load",
    "import torch as t\nload = t.load\nload(path)": "torch.load",
    "read(path, allow_pickle=True)": "allow_pickle=",
    "import torch.distributed as dist\ndist.all_gather_object(a, b)": (
        "torch.distributed.all_gather_object"
    ),
    "pipe.recv()": ".recv",
    "import yaml\nyaml.load(text, Loader)": "yaml.load",
    "from yaml import unsafe_load\nunsafe_load(text)": "yaml.unsafe_load",
    "from omegaconf import OmegaConf as O\nO.create(text)": "omegaconf.OmegaConf.create",
    "import json\njson.loads(text)": "json.loads",
    "from xml.etree import ElementTree\nElementTree.parse(file)": "xml.etree.ElementTree.parse",
    "import zlib\nzlib.decompress(data)": "zlib.decompress",
    "import gzip\ngzip.open(path)": "gzip.open",
    "import bz2\nbz2.decompress(data)": "bz2.decompress",
    "import lzma\nlzma.LZMAFile(path)": "lzma.LZMAFile",
    "import zstandard\nzstandard.ZstdDecompressor()": "zstandard.ZstdDecompressor",
    "import tarfile\ntarfile.open(path)": "tarfile.open",
    "import zipfile\nzipfile.ZipFile(path)": "zipfile.ZipFile",
    "archive.extractall(path)": ".extractall",
    "import re\nre.compile(text)": "re.compile",
    "import re\nre.search(f'a{text}', line)": "re.search",
    "from re import fullmatch as fits\nfits(text, line)": "re.fullmatch",
    "import re\nre.sub(pattern='a' + text, repl='', string=line)": "re.sub",
    "import fnmatch\nfnmatch.filter(names, text)": "fnmatch.filter",
    "folder.glob(text)": ".glob",
    "import importlib\nimportlib.import_module(name)": "importlib.import_module",
    "from importlib.util import spec_from_file_location as s\ns(name, path)": (
        "importlib.util.spec_from_file_location"
    ),
    "import runpy\nrunpy.run_path(path)": "runpy.run_path",
    "import sys\nsys.path.append(folder)": "sys.path.append",
    "import ast\nast.literal_eval(text)": "ast.literal_eval",
    "import jinja2\njinja2.Template(text)": "jinja2.Template",
    "from string import Template\nTemplate(text)": "string.Template",
    "from markupsafe import Markup\nMarkup(text)": "markupsafe.Markup",
    "text.format(value)": ".format",
    "text.format_map(values)": ".format_map",
    "text % (one, two)": "%",
    "moment.strftime(text)": ".strftime",
    "import sqlite3\nsqlite3.connect(path)": "sqlite3.connect",
    "database.execute(text)": ".execute",
    "from sqlalchemy import text as t\nt(words)": "sqlalchemy.text",
    "import ctypes\nctypes.CDLL(path)": "ctypes.CDLL",
    "import torch\ntorch.ops.load_library(path)": "torch.ops.load_library",
    "from torch.utils.cpp_extension import load\nload(name, files)": (
        "torch.utils.cpp_extension.load"
    ),
    "import numpy\nnumpy.dtype(text)": "numpy.dtype",
    "import struct\nstruct.unpack(text, data)": "struct.unpack",
    "import fsspec\nfsspec.open(address)": "fsspec.open",
    "import urllib.request\nurllib.request.urlopen(address)": "urllib.request.urlopen",
    "import logging.config\nlogging.config.dictConfig(values)": "logging.config.dictConfig",
    "import csv\ncsv.writer(file)": "csv.writer",
    "from matplotlib.figure import Figure\nFigure()": "matplotlib.figure.Figure",
    "import ray\nray.init(address)": "ray.init",
    "from hydra.utils import instantiate\ninstantiate(node)": "hydra.utils.instantiate",
}


@pytest.mark.parametrize("source", SEEN)
def test_each_kind_of_call_is_seen(source):
    assert SEEN[source] in found_in(source)


UNSEEN = [
    "model.eval()",
    "import re\nre.compile('a+')",
    "import re\nA = 'a'\nre.compile(f'{A}+')",
    "'{}'.format(text)",
    "number % 3",
    "folder.glob('*.png')",
    "import numpy\nnumpy.dtype(numpy.int64)",
    "import struct\nstruct.pack('<q', 1)",
    "moment.strftime('%Y')",
    "import re\nre.escape(text)",
    "from markupsafe import Markup\nMarkup('<p>{}</p>').format(text)",
    "import pickle\ntry: f()\nexcept pickle.UnpicklingError: pass",
    "import multiprocessing.connection as c\ndef f(a: c.Connection) -> c.Connection: return a",
    "import zlib\nzlib.crc32(data)",
    "import json\njson.dumps(value)",
    "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pickle\n    x = pickle.loads",
]


@pytest.mark.parametrize("source", UNSEEN)
def test_what_is_only_a_text_is_not(source):
    assert not +found_in(source)
