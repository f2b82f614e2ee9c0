"""Other people's source in which ours takes the place of torch's DataLoader, and of torchdata's.

Imports and names are changed where a person would change them, and nothing else: what the framework
itself imports stays torch's. `isinstance(loader, DataLoader)` goes on to ask for torch's class.
"""

import ast
import sys
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
)
from pathlib import Path

MODULES = {
    "torch.utils.data",
    "torch.utils.data.dataloader",
    "torchdata.stateful_dataloader",
    "torchdata.stateful_dataloader.stateful_dataloader",
}
NAMES = MODULES | {"data", "dataloader", "utils.data"}  # that modules are imported by
KEPT = {"isinstance", "issubclass"}


class Swap(ast.NodeTransformer):
    """Of a module's tree; `classes` are the names of those that ours takes the place of."""

    def __init__(self, classes):
        self._classes = classes

    def visit_ImportFrom(self, node):
        if node.level or node.module not in MODULES:
            return node
        swapped = [alias for alias in node.names if alias.name in self._classes]
        if not swapped:
            return node
        ours = [
            ast.ImportFrom("penstock", [ast.alias("DataLoader", alias.asname or alias.name)], 0)
            for alias in swapped
        ]
        theirs = [alias for alias in node.names if alias.name not in self._classes]
        nodes = [*([ast.ImportFrom(node.module, theirs, 0)] if theirs else []), *ours]
        return [ast.copy_location(each, node) for each in nodes]

    def visit_Attribute(self, node):
        self.generic_visit(node)
        if node.attr in self._classes and ast.unparse(node.value) in NAMES:
            ours = ast.parse("__import__('penstock').DataLoader", mode="eval").body
            return ast.copy_location(ours, node)
        return node

    def visit_Call(self, node):
        if not (isinstance(node.func, ast.Name) and node.func.id in KEPT):
            return self.generic_visit(node)
        theirs = ast.parse("__import__('torch').utils.data.DataLoader", mode="eval").body
        asked = node.args.pop()
        if isinstance(asked, ast.Tuple):
            asked.elts = [theirs if self._is_ours(each) else each for each in asked.elts]
        node = self.generic_visit(node)
        node.args.append(theirs if self._is_ours(asked) else asked)
        return node

    @staticmethod
    def _is_ours(node):
        return isinstance(node, ast.Name) and node.id == "DataLoader"


def swapped(source, classes):
    """The tree of a module's source with our class in it."""
    return ast.fix_missing_locations(Swap(classes).visit(ast.parse(source)))


class SwappedFile(SourceFileLoader):
    """Compiles a swapped module, and takes none that was compiled before."""

    classes: frozenset[str] = frozenset()

    def path_stats(self, path):
        raise OSError(path)

    def source_to_code(self, data, path, **options):
        return compile(swapped(data, self.classes), path, "exec", dont_inherit=True)


def install(places, classes):
    """Swap in whatever is imported from `places`: folders with all below them, or single files."""
    SwappedFile.classes = frozenset(classes)
    places = [Path(place).resolve() for place in places]

    def is_swapped(path):
        return any(place == path or place in path.parents for place in places)

    def loader(name, path):
        kind = SwappedFile if is_swapped(Path(path).resolve()) else SourceFileLoader
        return kind(name, path)

    finder = FileFinder.path_hook(
        (ExtensionFileLoader, EXTENSION_SUFFIXES), (loader, SOURCE_SUFFIXES)
    )

    def hook(folder):
        path = Path(folder).resolve()
        if not (is_swapped(path) or any(path == place.parent for place in places)):
            raise ImportError(f"nothing is swapped in {folder}")
        return finder(folder)

    sys.path_hooks.insert(0, hook)
    sys.path_importer_cache.clear()
