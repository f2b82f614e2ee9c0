"""From the words of a command line to one checked configuration, in one pass.

    words -> choices of groups, which Hydra composes -> values, applied one at a time
          -> resolved once -> schema | -> targets (torch is imported here) | -> rules

Each `|` ends a phase: its problems come in one ConfigError, and the next phase is left out. A node
that names another `_target_` replaces the node before it, in YAML and on the command line. Cost:
0.1 s beside imports, for reading some twenty YAML files and merging them.

Private names of Hydra and OmegaConf in the whole package, there in Hydra 1.3.8 and in 1.4: Hydra,
ConfigLoaderImpl, create_config_search_path, get_args_parser, run_and_report,
_load_configuration_impl, _compose_config_from_defaults_list, _apply_overrides_to_config. Nothing of
theirs is patched, so threads may compose at the same time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, cast

from hydra import __version__, errors, types
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.hydra import Hydra as Hydra
from hydra._internal.utils import create_config_search_path, get_args_parser, run_and_report
from hydra.core import utils
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf, resolvers
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError
from yaml import YAMLError

from penstock import program, seams
from penstock.config import familiar, hydra, messages, targets
from penstock.config.schema import Config
from penstock.errors import ConfigError, Problem

# In a checkout, `pipeline/conf` is a link to the folder beside it.
CONF = (Path(__file__).resolve().parent.parent / "conf").resolve()
options, reporting = get_args_parser, run_and_report  # of Hydra's command line
_COPYING = Lock()  # OmegaConf's deepcopy writes into what it copies
# OmegaConf 2.4, which Hydra 1.4 needs, has another name for it.
register = "register_new_resolver" if __version__.startswith("1.3.") else "register_resolver"
utils.setup_globals()  # ${now:...}


def compose(
    *words: str,
    config_dir: str | None = None,
    config_name: str = "config",
) -> Config:
    """The configuration that `python run.py <words>` would run, for use as a library.

    `run=`, `resume=` or `checkpoint=` of a run's folder start from its config.yaml.

    Args:
        words: as on the command line, e.g. "sampler=weighted", "loader.num_workers=4".
        config_dir: a folder of groups of your own.
        config_name: of a primary configuration of your own.

    Raises:
        ConfigError: with everything that is wrong in the first phase that finds something.
    """
    made, problems, files = load([*searched(config_dir), *words], config_name)
    return accept(resolved(made, problems), problems, words=words, files=files)


def accept(
    values: Mapping[str, Any],
    problems: Sequence[Problem] = (),
    begin: Callable[[Config], object] = lambda config: None,
    words: Sequence[str] = (),
    files: Sequence[str] = (),
) -> Config:
    """The typed configuration of plain, resolved values, with all that it calls checked.

    Args:
        problems: of the first phase, as far as they are known.
        begin: gets the configuration before torch is imported.
        words, files: that the values come from.

    Raises:
        ConfigError: with all problems of a phase.
    """
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        refuse(
            [
                *problems,
                *(
                    _with_quotes(one, words, files)
                    for one in messages.of_schema(error, values)
                    if one.key not in {known.key for known in problems}  # of no value as yet
                ),
            ]
        )
    refuse(problems)
    begin(config)
    refuse(
        _with_quotes(one, words, files) for one in targets.check(config, seams.TASKS[config.task])
    )
    if not seams.TASKS[config.task].reads:
        from penstock.config import rules  # which imports torch

        refuse(rules.find(config))
    return config


def refuse(problems: Iterable[Problem]) -> None:
    """Raise ConfigError if there are any."""
    if each := list(dict.fromkeys(problems)):
        raise ConfigError(each)


def searched(config_dir: str | None) -> list[str]:
    """The word that lets Hydra look for groups in a folder, if there is one."""
    return [f"hydra.searchpath=[{program.literal(config_dir)}]"] if config_dir else []


def load(
    words: Sequence[str], config_name: str = "config"
) -> tuple[DictConfig, list[Problem], list[str]]:
    """Compose the choices among the words, and apply all others.

    Sections of the run that `run=`, `resume=` or `checkpoint=` name replace all that no choice is
    about.

    Returns:
        The configuration with its section `hydra`, the problems, and the files it was made of.

    Raises:
        ConfigError: no configuration comes of the choices.
    """
    problems, overrides = list[Problem](), list[Override]()
    for word in words:
        with _noting(problems, word):
            overrides.append(parse(word))
    by_key: dict[str, Any] = {one.key_or_group: one.value() for one in overrides}
    with _noting(problems, ""):
        folders = by_key.get("hydra.searchpath") or ()
        loader = open_loader(folders, config_name)
        choices = {
            str(one.input_line): one.key_or_group
            for one in overrides
            if loader.repository.group_exists(one.key_or_group)
            and (one.is_delete() or isinstance(one.value(), str | list))
        }
        config, files = _read(folders, config_name, *choices)
        if "_target_" in _raw(config.get("tracker")) and (
            sum(Path(one).parent.name == "tracker" for one in files) > 1
        ):
            problems.append(
                Problem(
                    "tracker", "several replace each other; begin each with # @package tracker.NAME"
                )
            )
        for run in [
            folder
            for path in (Path(str(by_key.get(key))) for key in ("run", "resume", "checkpoint"))
            for folder in (path, path.parent.parent)  # of a checkpoint
            if (folder / "manifest.json").is_file()
        ][:1]:
            stored, fresh = map(
                _raw, (OmegaConf.load(run / "config.yaml"), _read(folders, config_name)[0])
            )
            own = {
                *hydra.OF_A_START,
                *choices.values(),  # and what else this composition changes
                *(key for key, value in _raw(config).items() if value != fresh.get(key)),
            }
            if other := sorted(stored.keys() - fresh.keys() - own):
                raise ConfigError(
                    Problem(
                        str(run),
                        f"is a run of another version, which has the key {other[0]}; use the "
                        "version and commit that its manifest.json names",
                    )
                )
            config.update({key: value for key, value in stored.items() if key not in own})
        for one in (one for one in overrides if one.input_line not in choices):
            with _noting(problems, one.key_or_group):
                key, value, typed = one.key_or_group, one.value(), f"+{one.input_line}"
                known = [name for name, _ in targets.nodes(OmegaConf.to_container(config), "")]
                if key not in known and not one.is_add() and not one.is_force_add():
                    others = [name for name in known if not key.startswith(f"{name}.")]
                    raise ConfigError(
                        Problem(
                            key,
                            "unknown key"
                            + (
                                familiar.advice(key, typed.partition("=")[2] or "...")
                                or messages.nearest(key, [*others, *config.hydra.runtime.choices])
                                + f"; to add one: {typed!r}"
                            ),
                        )
                    )
                if one.is_delete() and value is None:
                    OmegaConf.update(config, key, "", merge=False)  # Hydra 1.3 finds no null
                if isinstance(value, dict) and not one.is_delete():
                    OmegaConf.update(addition := OmegaConf.create(), key, value)
                    _make_way(config, addition)
                    # `KEY={}` empties.
                    OmegaConf.update(config, key, value, merge=bool(value), force_add=True)
                else:
                    ConfigLoaderImpl._apply_overrides_to_config([one], config)
        # Hydra's name for a run's folder, also in a file; "." is our default, "outputs" Hydra's.
        if "run_dir" not in by_key and not re.match(
            r"\.$|outputs/\$\{now:|.*\$\{run_dir",
            folder := str(_raw(config.hydra.run).get("dir")),
        ):
            config.run_dir = folder
        return config, [*problems, *hydra.problems(config.hydra, overrides)], files
    # Without an option that is not there, whatever else is wrong is found as well.
    rest = [one for one in words if re.split("[@=]", one.lstrip("+"))[0] != problems[-1].key]
    refuse(problems if len(rest) == len(words) else ())
    config, more, files = load(rest, config_name)
    return config, [*problems, *more], files


@contextmanager
def _noting(problems: list[Problem], key: str) -> Iterator[None]:
    """Turn what Hydra and OmegaConf raise into problems."""
    try:
        yield
    except ConfigError as error:
        problems += error.problems
    except (errors.HydraException, OmegaConfBaseException, YAMLError, ValueError, OSError) as error:
        group, _, option = str(getattr(error, "missing_cfg_file", None) or "").rpartition("/")
        # Without OmegaConf's remarks on types, and Hydra's on its search path.
        text = re.split(r"\n +full_key:|\nConfig search", f"{error}\n{error.__cause__ or ''}")[0]
        problems.append(
            Problem(
                group or getattr(error.__cause__ or error, "full_key", None) or key,
                " ".join(text.split())
                + (
                    familiar.advice(group, option)
                    or messages.nearest(option, text.rpartition(":")[2].split())
                ),
            )
        )


def parse(word: str, loader: Any = None) -> Override:
    """A word as Hydra's grammar reads it.

    Args:
        loader: of a sweep, in which a key may have several values.

    Raises:
        ConfigError: it is no override, or has several values.
    """
    word = re.sub(r"^address=\(?(\d+), ?(\d+)\)?$", r"address=[\1,\2]", word)  # epoch and step
    try:
        one = OverridesParser.create(loader).parse_overrides([word.removeprefix("=")])[0]
    except errors.HydraException as error:
        key, _, value = word.partition("=")
        # What has no form of Hydra's is text: label == 2, outputs/lr=0.1.
        if re.fullmatch(r"\+{0,2}\w[\w./@-]*", key, re.ASCII) and re.match(r"[^\[{'\"]", value):
            return parse(program.override(key, value))
        raise ConfigError(
            Problem(
                word,
                (
                    f"cannot be parsed as key=value: {str(error).splitlines()[0]}; write key and "
                    "value as one word, without spaces, and text in quotes: "
                    + program.joined([program.override(key, value)])
                    if value
                    else "is no key=value, like batch.size=32: one word, without spaces"
                )
                + (familiar.advice(f"--help {word}") or familiar.advice("task", word)),
            )
        ) from error
    if one.is_sweep_override() and loader is None:
        raise ConfigError(
            Problem(
                one.key_or_group,
                f"{word} is several values: add -m to sweep over them, or write a list as "
                f"{one.key_or_group}=[a,b]",
            )
        )
    return one


def open_loader(folders: Sequence[str], name: str) -> _Loader:
    """A loader that looks for groups in folders and in trusted packages alone."""
    refuse(hydra.search_path(folders))
    search_path = create_config_search_path(str(CONF))
    for folder in folders:
        search_path.prepend("command-line", folder, "schema")
    loader = _Loader(search_path)
    refuse(
        Problem("--config-dir", f"there is no folder {one.path}")
        for one in loader.get_sources()
        if not one.available()
    )
    if name != "config" and (primary := loader.repository.load_config(name)):
        # A file of somebody else's, perhaps with a search path, which Hydra would follow.
        refuse(hydra.search_path(OmegaConf.select(primary.config, "hydra.searchpath") or ()))
    return loader


def _read(folders: Sequence[str], name: str, *choices: str) -> tuple[DictConfig, list[str]]:
    """A copy of what Hydra makes of choices, and its files."""
    state = tuple(
        (path.absolute(), path.stat().st_mtime_ns)
        for folder in (str(CONF), *folders)
        for path in Path(folder.removeprefix("file://")).rglob("*.yaml")
    )
    with _COPYING:
        config, files = deepcopy(_composed(tuple(folders), name, state, *choices))
    config.hydra.runtime.cwd = str(Path.cwd())
    return config, files


@lru_cache(maxsize=64)
def _composed(
    folders: tuple[str, ...], name: str, state: object, *choices: str
) -> tuple[DictConfig, list[str]]:
    """What Hydra makes of choices, and its files. It takes 0.1 s, and a sweep asks for each job.

    Args:
        state: what it depends on besides: the files, and when they were written.
    """
    loader = open_loader(folders, name)
    return loader.load_configuration(name, list(choices), types.RunMode.RUN), loader.files


class _Loader(ConfigLoaderImpl):
    """Hydra's loader, in which a node of another `_target_` replaces the node before it."""

    made: DictConfig | None = None  # what it gives whatever it is asked for

    def _load_configuration_impl(self, *given: Any, **named: Any) -> Any:
        # A copy, as Hydra takes parts out of what it shows.
        return deepcopy(self.made) or super()._load_configuration_impl(*given, **named)

    def _compose_config_from_defaults_list(self, defaults: Any, repo: Any) -> DictConfig:
        config = OmegaConf.create(flags={"no_deepcopy_set_nodes": True})
        self.files: list[str] = []  # in the order in which they are merged
        for one in defaults:
            addition = super()._compose_config_from_defaults_list([one], repo)
            _make_way(config, addition)
            config.merge_with(addition)
            self.files.append(f"{repo.load_config(one.config_path).path}/{one.config_path}.yaml")
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
        else:
            _make_way(there[name], more[name])


def resolved(config: DictConfig, problems: list[Problem]) -> dict[str, Any]:
    """The plain values of a configuration; `problems` gets what has none."""
    values = {
        name: OmegaConf.to_container(node) if OmegaConf.is_config(node) else node
        for name, node in _raw(config).items()
        if name != "hydra"
    }
    problems += [
        Problem(key, f"has no value yet; give it with {key}=...")
        for key, value in targets.nodes(values, "")
        if value == "???"
    ]
    for name in [name for name, value in values.items() if value != "???"]:
        with _noting(problems, name):
            values[name] = (
                OmegaConf.to_container(config[name], resolve=True)
                if isinstance(values[name], dict | list)
                else config[name]
            )
    return dict(values)


def _with_quotes(problem: Problem, words: Sequence[str], files: Sequence[str]) -> Problem:
    """A problem of a text that Hydra or YAML reads as something else, with how it is written."""
    key, name = problem.key, re.escape(problem.key.rpartition(".")[2])
    ways = [
        way
        for file in files
        if file.startswith("file://")
        for way in re.findall(rf"\b{name}: *.*(?:\n +- .*)*", Path(file[7:]).read_text("utf-8"))
    ] + [
        program.joined([program.override(*one.split("=", 1))])
        for one in words
        if one.lstrip("+").startswith(f"{key}=")
    ]
    if ways and re.search(r"\b(string|text|array)", problem.message):
        return Problem(key, f"{problem.message}; if it is text, it needs quotes: {ways[-1]}")
    return problem


def _of_hydra(key: str, *, _root_: Any) -> Any:
    """`${hydra:KEY}` of the job that Hydra runs, or else of the composition itself."""
    return OmegaConf.select(
        cast(Any, HydraConfig.get()) if HydraConfig.initialized() else _root_.hydra, key
    )


def _variable(name: str, *default: str | None, _root_: Any) -> str | None:
    """`${oc.env:NAME}`, but for secrets: a run's folder keeps all values. Elsewhere OmegaConf's."""
    if "resume_despite" in _root_ and re.search("secret|token|pass|key|cred", name, re.IGNORECASE):
        raise ValueError(f"{name} is a secret by its name; the tool that needs it reads it itself")
    return resolvers.oc.env(name, *default)


getattr(OmegaConf, register)("hydra", _of_hydra, replace=True)
getattr(OmegaConf, register)("oc.env", _variable, replace=True)
