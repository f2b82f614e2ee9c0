"""Which add-ons are installed, and what they bring: an `AddOn` each.

The core's tasks stand in the same kind of record, `penstock.tasks.CORE`.
"""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from penstock.errors import ConfigError, Problem

_FOLDER = Path(__file__).parent / "addons"


@dataclass(frozen=True)
class Task:
    """The task `task=NAME`; `conf/task/NAME.yaml` has its keys.

    Attributes:
        run: "module:function" that takes the `Config`, imported when the task runs.
        sentence: what it is about to do, in a few words with names in braces, which
            `config/announcement.py` lists; or "module:function" that takes the `Config` and the
            same names.
        reads: it only reads folders of runs, and needs no torch.
        ranks: several ranks share it; one process does the others.
        writes: it writes into the run's folder.
    """

    run: str
    sentence: str
    reads: bool = False
    ranks: bool = False
    writes: bool = False


@dataclass(frozen=True)
class Callables:
    """The classes of a module, or of all modules of a package, that a configuration may call.

    Attributes:
        module: its full name.
        kind: what they are, for messages: "a sampler".
        base: full name of the class that they have to be kinds of.
        functions: whether it may call its functions too.
    """

    module: str
    kind: str
    base: str | None = None
    functions: bool = False


@dataclass(frozen=True)
class Sweeps:
    """How an add-on runs the several jobs of a command line with `-m`.

    Attributes:
        check: "module:function" of (composer, overrides, what is composed of those that are fixed,
            announce), which gives the problems of all jobs.
        plugins: "module:function" of (hydra's section, its plain values, the overrides), which
            gives the problems of a launcher and a sweeper that are not hydra's basic ones.
        resumed: "module:function" of overrides, one of which is `resume`: the overrides with those
            of the sweep that it names before them, and whether it names one.
        running: "module:function" of (composer, overrides, words of the command line), which gives
            the context manager in which hydra runs the jobs.
        job: "module:function" of (accept, run, report), called in the process of each job: it
            gives `accept` the job's folder for its configuration, and that to `run` for its value;
            what is raised goes to `report`, for an exit code.
    """

    check: str
    plugins: str
    resumed: str
    running: str
    job: str


@dataclass(frozen=True)
class AddOn:
    """The parts that a package above the core adds to it: `ADDON` in the package's `__init__.py`.

    The core never imports an add-on. It finds the packages in `penstock.addons` by their folder
    (`penstock.installed`), and imports a module when it is needed. A callable is named
    "module:function".

    Attributes:
        tasks: by name.
        callables: what a configuration may call of it.
        options: "module:NAME" of its sections and options, `penstock.config.sections.Extension` and
            `Option`, by the key where they stand. A module of options imports nothing slow.
        backends: "module:function" of a `Fetch` and its `LoaderOptions` to a `Backend`
            (`penstock.loading.workers.backends`), by the name that `loader.backend` has for it.
        ahead: "module:function" of `(plan, dataset, rank, world, options)` to a `ReadsAhead`, or
            None: those of a `Loader`, whose dataset has `remote_files`.
        wrapper: "module:Class" of what it does to the data of a split, a
            `penstock.build.wrapper.SplitWrapper`: opens or wraps the dataset, completes nodes
            before they are built, gives costs of rows,
        row_keys: keys that any dataset's node may have, by which its `wrapper` chooses among rows.
        optimizer_keys: keys that any optimizer's node may have beside its arguments.
        parameters: "module:function" of (Config, key of an optimizer's node, the part of the model
            that it trains, the model, the weights of that part that learn at first), which gives
            what the optimizer trains: weights, or torch's groups of them.
        models: "module:function" of (Config, a new model, whether it begins a run), which prepares
            one for training, in place and on every rank, before it is spread over the ranks.
        epochs: "module:function" of (Config, the model in training, an epoch), called on every rank
            before the epoch's first batch: says which weights learn in it, by `requires_grad`, and
            returns whether others do than before.
        lanes: "module:function" of (Config, World), which gives the `penstock.protocols.Lanes` in
            which each rank of a fit works on its batches, or None.
        explains: "module:function" for a run that resumes with other data, `(problems, saved, own,
            address) -> problems`: what differs (`Problem`s by key) between the fingerprints of
            the run and of the configuration, said better.
        observers: "module:function" that takes a `penstock.tasks.fit.Fit` on the first rank, when
            its folder is open, and returns a list of `penstock.training.observer.Observer`s.
        checks: "module:function" of `penstock.build.data.DataParts` that prints what `task=check`
            says of all splits together.
        pictures: "module:function" that takes a `penstock.build.data.Split`, a `Batch` of it and a
            folder, draws the batch there, and returns the path of the picture, or None.
        iterated: "module:function" of a `Loader` that somebody else's loop asks for its batches:
            `iter(loader)`.
        stores: "module:class" that reads files at addresses: (`penstock.datasets.files.Files`) ->
            `penstock.datasets.files.Remote`. It is imported with the first address.
        typed: "module:NAME" of a `penstock.config.command_line_keys.TypedKey`, by a key that only a
            command line sets.
        sends: a module that is a `penstock.config.endpoints.Sends`: what goes to which servers.
        rules: "module:function" of (Config, the callable of each part by key), which yields what
            contradicts each other, `full.key: why; how to resolve it`.
        completion: "module:function" of hydra's parsed command line: what stands behind `-sc`.
        sweeps: how it runs several jobs; one add-on at most has it.
        sweep_contexts: "module:function" of the configuration that the jobs of a sweep start from,
            which gives a context manager that is open until no job comes any more.
        sweep_pages: "module:function" of (that configuration, the sweep's folder, whether other
            jobs come), called after each job in its process, and at the end.
        launchers: "module:function" of a launcher of hydra's, by its module, which gives a context
            manager that is open while it runs jobs.
        commands: what takes the place of a run, by the first word of the command line: takes the
            words after it, and returns an exit code.
        only_with: names of keys, or NAME=VALUE. A configuration that has none of them at any depth
            (or null) is none of the add-on's business, if its options have their defaults and no
            module of its `callables` is imported: nothing of `wrapper`, `observers`, `sends`,
            `rules`, `parameters`, `models` and `epochs` is loaded. None: it is always asked.
    """

    tasks: Mapping[str, Task] = field(default_factory=dict)
    callables: Sequence[Callables] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    backends: Mapping[str, str] = field(default_factory=dict)
    ahead: str = ""
    wrapper: str = ""
    row_keys: Sequence[str] = ()
    optimizer_keys: Sequence[str] = ()
    parameters: str = ""
    models: str = ""
    epochs: str = ""
    lanes: str = ""
    explains: str = ""
    observers: str = ""
    checks: str = ""
    pictures: str = ""
    iterated: str = ""
    stores: str = ""
    typed: Mapping[str, str] = field(default_factory=dict)
    sends: str = ""
    rules: Sequence[str] = ()
    completion: str = ""
    sweeps: Sweeps | None = None
    sweep_contexts: Sequence[str] = ()
    sweep_pages: Sequence[str] = ()
    launchers: Mapping[str, str] = field(default_factory=dict)
    commands: Mapping[str, str] = field(default_factory=dict)
    only_with: Sequence[str] | None = None


@cache
def addons() -> Mapping[str, AddOn]:
    """The add-ons by name. Cost: 0.2 ms for each, once.

    Packages of other distributions are no add-ons: they would run without anybody having said so.
    """
    names = [module.name for module in pkgutil.iter_modules([str(_FOLDER)])]
    return {name: import_module(f"penstock.addons.{name}").ADDON for name in names}


@cache
def tasks() -> Mapping[str, Task]:
    """All tasks by name, the core's first."""
    by_name: dict[str, Task] = dict(load("penstock.tasks:CORE"))
    for addon in addons().values():
        by_name |= addon.tasks
    return by_name


def options() -> dict[str, Any]:
    """The parts of add-ons in the configuration, by key: `Extension` classes and `Option`s."""
    by_key: dict[str, Any] = {}
    for addon in addons().values():
        by_key |= {key: load(name) for key, name in addon.options.items()}
    return by_key


def backends() -> dict[str, str]:
    """The opener of each backend that add-ons bring, by the name of `loader.backend`."""
    return {name: opener for addon in addons().values() for name, opener in addon.backends.items()}


def all_of(seam: Literal["explains", "pictures", "checks", "iterated"]) -> list[Callable[..., Any]]:
    """The functions that add-ons bring to a seam."""
    names = (getattr(addon, seam) for addon in addons().values())
    return [load(name) for name in names if name]


Asked = Literal["observers", "rules", "sends", "wrapper", "parameters", "models", "epochs", "lanes"]


def asked(config: object, seam: Asked) -> list[Any]:
    """The parts of add-ons at a seam, for a configuration; see `AddOn.only_with`.

    Args:
        config: a `Config` or a mapping; of keys that are missing, or wrong, nothing is asked.
    """
    said = set(_said(config))
    return [
        load(name)
        for addon in addons().values()
        if (names := getattr(addon, seam))
        and (
            addon.only_with is None
            or not said.isdisjoint(addon.only_with)
            or any(_is_set(config, key, load(option)) for key, option in addon.options.items())
            or any(brought.module in sys.modules for brought in addon.callables)
        )
        for name in ([names] if isinstance(names, str) else names)
    ]


def _said(config: object) -> Iterator[str]:
    """NAME and NAME=VALUE of every key at any depth that is not null."""
    if isinstance(config, (list, tuple)):
        for value in config:
            yield from _said(value)
    elif isinstance(config, Mapping) or hasattr(config, "model_fields_set"):
        for name, value in (config if isinstance(config, Mapping) else vars(config)).items():
            if isinstance(value, (str, int)):
                yield f"{name}={value}"
            if value is not None:
                yield str(name)
                yield from _said(value)


def _is_set(config: Any, key: str, option: Any) -> bool:
    """Whether an option of an add-on has another value than its default."""
    for name in key.split("."):
        config = config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
    default = option() if isinstance(option, type) else option.default
    if isinstance(config, Mapping) and isinstance(option, type):
        return {**default.model_dump(), **config} != default.model_dump()
    return config is not None and config != default


@cache
def typed_keys() -> Mapping[str, str]:
    """The values that keys of the command line alone may have; see `AddOn.typed`."""
    return {key: name for addon in addons().values() for key, name in addon.typed.items()}


def completion() -> Callable[..., Any]:
    """The part that answers `-sc`.

    Raises:
        ConfigError: no add-on does.
    """
    name = next((addon.completion for addon in addons().values() if addon.completion), None)
    if name is None:
        raise ConfigError(Problem("-sc", "completion by Tab needs the add-on completion"))
    return load(name)


def sweeps() -> Sweeps | None:
    """How several jobs of one command line run; None if no add-on does that."""
    return next((addon.sweeps for addon in addons().values() if addon.sweeps), None)


def command(word: str) -> Callable[[Sequence[str]], int] | None:
    """The function that takes a command line with this first word; None for a run."""
    names = (addon.commands[word] for addon in addons().values() if word in addon.commands)
    return next(map(load, names), None)


def only_reads(task: object) -> bool:
    """Whether a task of that name only reads folders of runs."""
    known = tasks().get(task) if isinstance(task, str) else None
    return known is not None and known.reads


def runner(task: str) -> Callable[..., Any]:
    """The function that a task runs."""
    return load(tasks()[task].run)


def load(name: str) -> Any:
    """The object that "module:NAME" names, or a module."""
    module, _, attribute = name.partition(":")
    loaded = import_module(module)
    return getattr(loaded, attribute) if attribute else loaded
