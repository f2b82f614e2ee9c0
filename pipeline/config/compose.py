"""From the words of a command line to one checked configuration, in one pass.

    words -> choices of groups, which Hydra composes -> values, applied one at a time
          -> resolved once -> schema | -> targets (torch is imported here) | -> rules

Each `|` ends a phase: its problems come in one ConfigError, and the next phase is left out. A node
that names another `_target_` replaces the node before it, in YAML and on the command line. Cost:
0.08 s beside imports, most of it for reading some twenty YAML files.

Private names of Hydra and OmegaConf in the whole package, there in Hydra 1.3.8 and in 1.4:
ConfigLoaderImpl, create_config_search_path, get_args_parser, _compose_config_from_defaults_list,
_apply_overrides_to_config. Nothing of theirs is patched, so threads may compose at the same time.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra import errors, types, version
from hydra._internal import config_loader_impl as private
from hydra._internal.utils import create_config_search_path, get_args_parser
from hydra.core import hydra_config, utils
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, MissingMandatoryValue, OmegaConf, open_dict, resolvers
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from penstock import program, seams
from penstock.config import familiar, messages, targets
from penstock.config import hydra as hydra_section
from penstock.config.schema import TASK_KEYS, Config
from penstock.distributed import preemption
from penstock.distributed.world import launched_size
from penstock.errors import ConfigError, Problem

# In a checkout, `pipeline/conf` is a link to the folder beside it.
CONF = (Path(__file__).resolve().parent.parent / "conf").resolve()
VERSION_BASE = "1.3"
# What a command says for itself, also where a run's folder gives everything else.
_OF_THE_COMMAND = {"task", "run_dir", "resume", "resume_despite", "hydra", *TASK_KEYS}
_NO_FOLDERS = ".", "outputs/${now:%Y-%m-%d}/${now:%H-%M-%S}", "None"  # what we and Hydra bring
_ERRORS = errors.HydraException, OmegaConfBaseException, yaml.YAMLError
_LOCK = threading.RLock()  # ${hydra:...} reads a singleton of Hydra
_COMPOSED: dict[Any, tuple[DictConfig, list[str]]] = {}  # the last ones
options = get_args_parser  # of Hydra's command line
_IS_1_3 = hydra.__version__.startswith("1.3.")
if _IS_1_3:  # 1.4 has one behaviour
    version.setbase(VERSION_BASE)
utils.setup_globals()  # ${now:...} and ${hydra:...}
utils.JobRuntime.instance().set("name", "run")


def compose(
    *words: str,
    config_dir: str | None = None,
    config_name: str | None = None,
    config_path: str | None = None,
    begin: Callable[[Config], object] | None = None,
    look: Callable[[DictConfig], object] = lambda made: None,
) -> Config:
    """The configuration that `python run.py <words>` would run, for use as a library.

    `run=`, `resume=` or `checkpoint=` of a run's folder start from its config.yaml. In a program of
    your own that a launcher has started beside others, `distributed` is `ddp` by default.

    Args:
        words: as on the command line, e.g. "sampler=weighted", "loader.num_workers=4".
        config_dir: a folder of groups of your own.
        config_name, config_path: of a primary configuration of your own.
        begin: of the command line: gets the configuration before torch is imported for the later
            phases.
        look: gets what was composed, with Hydra's own section.

    Raises:
        ConfigError: with everything that is wrong in the first phase that finds something.
    """
    made, problems, files = load(words, config_dir, config_name, config_path)
    values = resolved(made, problems)
    look(made)
    distributed = values.get("distributed") or {}
    if begin is None and launched_size() > 1 and "distributed" not in " ".join(words):
        distributed |= {"strategy": str(distributed.get("strategy")).replace("none", "ddp")}
    begin = begin or (lambda config: None)
    return accept(values, problems, begin, partial(_with_quotes, words, files))


def accept(
    values: Mapping[str, Any],
    problems: Sequence[Problem] = (),
    begin: Callable[[Config], object] = lambda config: None,
    note: Callable[[Problem], Problem] = lambda problem: problem,
) -> Config:
    """The typed configuration of plain, resolved values, with all that it calls checked.

    Args:
        problems: of the first phase, as far as they are known.
        begin: gets the configuration before torch is imported.
        note: gives each problem with what else is to be said of it.

    Raises:
        ConfigError: with all problems of a phase.
    """
    try:
        config, found = Config.model_validate(values), list[Problem]()
    except ValidationError as error:
        config, found = Config.model_construct(), messages.of_schema(error, values)
    keys = " ".join(f" {problem.key}." for problem in problems)  # a section of such a key is known
    _refuse([*problems, *map(note, (one for one in found if f" {one.key}." not in keys))])
    begin(config)
    _refuse(map(note, targets.check(config, seams.TASKS[config.task].reads)))
    if not seams.TASKS[config.task].reads:
        from penstock.config import rules  # which imports torch

        _refuse(rules.find(config))
    return config


def _refuse(problems: Iterable[Problem]) -> None:
    if each := list(dict.fromkeys(problems)):
        raise ConfigError(each)


def load(
    words: Sequence[str],
    config_dir: str | None = None,
    config_name: str | None = None,
    config_path: str | None = None,
    base: Path | None = None,
) -> tuple[DictConfig, list[Problem], list[str]]:
    """Compose the choices among the words, and apply all others.

    Args:
        base: config.yaml of a run, whose sections replace all that no choice is about; by default
            that of the run which `run=`, `resume=` or `checkpoint=` name.

    Returns:
        The configuration with its section `hydra`, the problems, and the files it was made of.

    Raises:
        ConfigError: no configuration comes of the choices.
    """
    overrides, problems, name = list[Override](), list[Problem](), config_name or "config"
    choices, values = list[str](), list[Override]()
    for word in words:
        with _noting(problems, word):
            overrides.append(parse(word))
    given = {one.key_or_group: one.value() for one in overrides}
    with _LOCK, preemption.held(), _noting(problems, ""):
        more: Any = given.get("hydra.searchpath")
        loader = open_loader(config_dir, config_path, name, more or ())
        for one in overrides:
            with _noting(problems, one.key_or_group):
                choices += _choice(one, loader, values)
        config, files = loader.composed(name, *choices)
        trackers = [file for file in files if Path(file).parent.name == "tracker"]
        if len(trackers) > 1 and "_target_" in _raw(_raw(config).get("tracker")):
            way = f"begin each with a line, as in # @package tracker.{Path(trackers[-1]).stem}"
            reason = f"{' and '.join(trackers)} replace each other; {way}"
            problems.append(Problem("tracker", reason))
        config.hydra.overrides.task += [
            str(one.input_line) for one in values if not one.is_hydra_override()
        ]
        # config.yaml of the run that a command names, by its folder or by one of its checkpoints;
        # one that is missing is an error, and no reason to take the default.
        paths = [Path(str(given.get(key))) for key in ("run", "resume", "checkpoint")]
        runs = [folder for path in paths for folder in (path, path.parent.parent)]
        of_runs = [run / "config.yaml" for run in runs if (run / "manifest.json").is_file()]
        for file in [base] if base else of_runs[:1]:
            tasks = [line for line in choices if line.startswith("task=")]
            plain = _raw(loader.composed(name, *tasks)[0])
            own = {key for key, value in _raw(config).items() if value != plain.get(key)}
            own |= {re.split("[@./=]", line.lstrip("+~"))[0] for line in choices} | _OF_THE_COMMAND
            with open_dict(config):
                config.update({k: v for k, v in _raw(OmegaConf.load(file)).items() if k not in own})
        for one in values:
            with _noting(problems, one.key_or_group):
                _apply(one, config, loader)
        folder = str(_raw(_raw(_raw(config)["hydra"]).get("run")).get("dir"))
        if folder not in _NO_FOLDERS and "${run_dir}" not in folder and "run_dir" not in given:
            with open_dict(config):  # Hydra's name for the folder of a run, also in a file
                config.run_dir = folder
        problems += hydra_section.problems(_raw(config)["hydra"], overrides)
        return config, problems, files
    raise ConfigError(problems)


@contextmanager
def _noting(problems: list[Problem], key: str) -> Iterator[None]:
    """Turn what Hydra and OmegaConf raise into problems."""
    try:
        yield
    except ConfigError as error:
        problems += error.problems
    except MissingMandatoryValue:
        problems.append(Problem(key, f"has no value yet; give it with {key}=..."))
    except (*_ERRORS, ValueError, OSError) as error:
        reasons = [str(one).split("\n    full_key:")[0] for one in (error, error.__cause__ or "")]
        gone = familiar.advice(*str(getattr(error, "missing_cfg_file", "/")).rpartition("/")[::2])
        key = getattr(error.__cause__ or error, "full_key", None) or key
        problems.append(Problem(key, re.sub(r"\s*\n\s*", "; ", "\n".join(reasons).strip()) + gone))


def parse(word: str, loader: Any = None) -> Override:
    """A word as Hydra's grammar reads it; where it does not (`run_dir=outputs/lr=0.1`), as text.

    Args:
        loader: of a sweep, in which a key may have several values.

    Raises:
        ConfigError: it is no override, or has several values.
    """
    word = re.sub(r"^address=\(?(\d+), ?(\d+)\)?$", r"address=[\1,\2]", word)  # epoch and step
    parser, (key, _, value) = OverridesParser.create(loader), word.partition("=")
    try:
        if not key:
            raise errors.HydraException("it has no key")
        one = parser.parse_overrides([word])[0]
    except errors.HydraException as error:
        if not re.fullmatch(r"[+]{0,2}\w[\w./@-]*", key, re.ASCII) or value[:1] in [*"[{'\"", ""]:
            way = "write key and value as one word, without spaces, and text in quotes"
            reason = f"cannot be parsed as key=value: {str(error).splitlines()[0]}; {way}"
            reason += familiar.advice(f"--help {word}")
            raise ConfigError(Problem(word, reason)) from error
        text = program.override(key, str(Path(value).expanduser()) if value[:2] == "~/" else value)
        one = parser.parse_overrides([text])[0]
    if one.is_sweep_override() and loader is None:
        way = f"add -m to sweep over them, or write a list as {one.key_or_group}=[a,b]"
        raise ConfigError(Problem(one.key_or_group, f"{word} is several values: {way}"))
    return one


def open_loader(folder: str | None, path: str | None, name: str, more: Sequence[str]) -> _Loader:
    """A loader that looks for groups in folders and in trusted packages alone."""
    named = [("--config-path", path), ("--config-dir", folder)]
    places = [(key, [place]) for key, place in named if place] + [("hydra.searchpath", more)]
    _refuse(one for key, each in places for one in hydra_section.search_path(each, key))
    search_path = create_config_search_path(path or str(CONF))
    if folder:
        if "://" not in folder and not Path(folder).is_dir():
            raise ConfigError(Problem("--config-dir", f"there is no folder {folder}"))
        search_path.prepend("command-line", folder, "schema")
    if path or name != "config":  # a file of somebody else's, perhaps, with a search path
        primary = _Loader(search_path).repository.load_config(name)
        entries: Any = primary and OmegaConf.select(primary.config, "hydra.searchpath")
        _refuse(hydra_section.search_path(entries or ()))
    for place in more:
        search_path.prepend("hydra.searchpath", place, "schema")
    return _Loader(search_path)


def _choice(one: Override, loader: _Loader, values: list[Override]) -> list[str]:
    """The line of a word that chooses options, which have to be there; `values` gets any other."""
    group, value, groups = one.key_or_group, one.value(), loader.repository
    if isinstance(value, dict) or not groups.group_exists(group):
        values.append(one)
        return []
    options = groups.get_group_options(group)
    for name in value if isinstance(value, list) else [value]:
        there = groups.config_exists(f"{group}/{name}") or one.is_delete()
        if not there and (name is not None or group in Config.model_fields):
            hint = familiar.advice(group, str(name)) or messages.nearest(str(name).lower(), options)
            reason = f"has no {messages.show(name)}{hint}; choose one of {', '.join(options)}"
            raise ConfigError(Problem(group, reason))
    return [str(one.input_line)]


class _Loader(private.ConfigLoaderImpl):
    """Hydra's loader, in which a node of another `_target_` replaces the node before it."""

    def composed(self, *words: str) -> tuple[DictConfig, list[str]]:
        """A primary file with choices, and the files that it is of; 5 ms where nothing changed."""
        folders = [Path(one.path) for one in self.get_sources() if one.scheme() == "file"]
        state = {path: path.stat().st_mtime_ns for each in folders for path in each.rglob("*.yaml")}
        key = (*words, Path.cwd(), utils.JobRuntime.instance().get("name"), *state.items())
        if key not in _COMPOSED:
            _COMPOSED.pop(next(iter(_COMPOSED), None) if len(_COMPOSED) > 8 else None, None)
            config = self.load_configuration(words[0], list(words[1:]), types.RunMode.RUN)
            _COMPOSED[key] = config, self.files
        return deepcopy(_COMPOSED[key])

    def _compose_config_from_defaults_list(self, defaults: Any, repo: Any) -> DictConfig:
        config = OmegaConf.create(flags={"no_deepcopy_set_nodes": True})
        self.files: list[str] = []  # in the order in which they were merged
        for default in defaults:
            addition = super()._compose_config_from_defaults_list([default], repo)
            _make_way(config, addition)
            config.merge_with(addition)
            path = f"{repo.load_config(default.config_path).path}/{default.config_path}.yaml"
            self.files.append(path.removeprefix("file://"))
        return config


def _raw(node: Any) -> dict[Any, Any]:
    """The entries of a mapping with interpolations as text; none of anything else."""
    return dict(node.items_ex(resolve=False)) if isinstance(node, DictConfig) and len(node) else {}


def _make_way(config: DictConfig, addition: DictConfig) -> None:
    """Put the whole nodes of `addition` into `config`; merging the two then changes no others."""
    there, more = _raw(config), _raw(addition)
    for name in there.keys() & more.keys() - {"hydra"}:
        target = _raw(more[name]).get("_target_")
        if target and _raw(there[name]).get("_target_") not in (target, "???"):
            config[name] = more[name]
        elif _raw(there[name]):
            _make_way(there[name], more[name])


def _apply(one: Override, config: DictConfig, loader: _Loader) -> None:
    """Apply a value as Hydra does, but for whole nodes, `KEY={}`, which empties, and `~KEY`."""
    key, value = one.key_or_group, one.value()
    if not one.is_add() and not one.is_force_add():
        _check_key(one, config, loader)
    if isinstance(value, dict) and not one.is_delete():
        OmegaConf.update(addition := OmegaConf.create(), key, value)
        _make_way(config, addition)
        with open_dict(config):  # what takes which arguments is checked with the targets
            OmegaConf.update(config, key, value, merge=bool(value))
        return
    if one.is_delete() and value is None:
        OmegaConf.update(config, key, "", merge=False)  # for Hydra 1.3, a null is not there
    private.ConfigLoaderImpl._apply_overrides_to_config([one], config)


def _check_key(one: Override, config: DictConfig, loader: _Loader) -> None:
    """Raise ConfigError for a key that is not there, with what may be meant."""
    key, node, names = one.key_or_group, config, one.key_or_group.split(".")
    while names and names[0] in _raw(node):
        node = _raw(node)[names.pop(0)]
    if names:
        typed = "..." if one.is_delete() else one.get_value_element_as_str()
        groups = loader.list_groups("") if node is config else []
        known, read = sorted({*map(str, _raw(node)), *groups}), loader.repository.load_config
        others = [f"{name}.{below}" for name in _raw(config) for below in _raw(config[name])]
        all_tasks: Any = {
            f"task={one}": read(f"task/{one}") for one in loader.get_group_options("task")
        }
        tasks = " | ".join(one for one in all_tasks if groups and names[0] in all_tasks[one].config)
        hint = f"; it is a key of {tasks}" if tasks else messages.nearest(names[0], known + others)
        add = "" if groups else f"; to add one: '+{key}={typed}'"
        hint = hint or f"; there are {', '.join(known)}"
        hint = familiar.advice(key, typed) or f"{hint}{add}"
        raise ConfigError(Problem(key, f"unknown key {names[0]!r}{hint}"))


def resolved(config: DictConfig, problems: list[Problem]) -> dict[str, Any]:
    """The plain values of a configuration; `problems` gets what has none, which is left out."""
    state: Any = hydra_config.HydraConfig.instance()
    with _LOCK:
        before, state.cfg = state.cfg, state.cfg or config  # that of a job of Hydra's, if one runs
        try:
            return dict(_plain(config, "", problems))
        finally:
            state.cfg = before


def _plain(node: Any, key: str, problems: list[Problem]) -> Any:
    """A node and all below it, every interpolation resolved, but for Hydra's own section."""
    made, is_mapping = dict[Any, Any](), isinstance(node, DictConfig)
    for name in (
        one for one in (node if is_mapping else range(len(node))) if key or one != "hydra"
    ):
        below = f"{key}.{name}".lstrip(".") if is_mapping else f"{key}[{name}]"
        with _noting(problems, below):
            value = node[name]
            made[name] = _plain(value, below, problems) if OmegaConf.is_config(value) else value
    return made if is_mapping else list(made.values())


def _with_quotes(words: Sequence[str], files: Sequence[str], problem: Problem) -> Problem:
    """A problem of a text that Hydra or YAML reads as something else, with the way to write it."""
    key, name = problem.key, re.escape(problem.key.rpartition(".")[2])
    typed = [f'"{word}"' for word in words if word.lstrip("+").startswith(f"{key}=")]
    read = [Path(file).read_text("utf-8") for file in files if "://" not in file]
    if re.search(r"\b(string|text|array)", problem.message):
        for text in reversed(typed or read):
            # The key with what stands behind it, and in the lines below that belong to it.
            block = re.search(rf"^( *).*?\b{name}[:=](.*(\n\1[ -].*)*)", text, re.M)
            quoted = re.sub(
                r"(?<![\w'#.-])[\w.+~:-]*[\w~](?![\w':.])",
                lambda one: (
                    one[0] if isinstance(OmegaConf.create(f"x: {one[0]}").x, str) else f"'{one[0]}'"
                ),
                block[2] if block else "",
            )
            if block and quoted != block[2]:
                text = block[0].removesuffix(block[2]).strip() + quoted
                return Problem(key, f"{problem.message}; if it is text, quote it, as in {text}")
    return problem


def _variable(name: str, *default: str | None, _root_: Any) -> str | None:
    """`${oc.env:NAME}`, but for secrets: a run's folder keeps all values. Elsewhere OmegaConf's."""
    if "resume_despite" in _root_ and re.search("secret|token|pass|key|cred", name, re.IGNORECASE):
        raise ValueError(f"{name} is a secret by its name; the tool that needs it reads it itself")
    return resolvers.oc.env(name, *default)


# OmegaConf 2.4, which Hydra 1.4 needs, has another name for it.
register = "register_new_resolver" if _IS_1_3 else "register_resolver"
getattr(OmegaConf, register)("oc.env", _variable, replace=True)


def composed(
    words: Sequence[str], base: Path | None = None, **places: Any
) -> tuple[dict[str, Any], list[Problem]]:
    """Plain values, resolved, and the problems of words and files; of a run by its `base`."""
    config, problems, _ = load(words, base=base, **places)
    return resolved(config, problems), problems
