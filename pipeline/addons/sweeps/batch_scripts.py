"""The parameters of submitit's launchers, each of which becomes a line of a batch script.

submitit writes a line `#SBATCH --NAME=VALUE` for each parameter, and `setup` as it is. sbatch reads
the lines, and bash runs the script, so

    a line break      ends the comment, and bash runs what follows it
    a backslash       escapes for sbatch inside of single quotes, too, where bash leaves it alone:
                      the two no longer agree on where a value ends
    an interpolation  in a line of `setup` puts text of the configuration into a command

are refused. The values of the launcher itself are checked, after all interpolations and immediately
before submitit gets them; and beforehand, so that an error costs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from penstock.config.messages import show
from penstock.errors import Problem

PLUGIN = "hydra_plugins.hydra_submitit_launcher"
KEY = "hydra.launcher"
FOLDER = "submitit_folder"
LINES = ("setup", "teardown", "srun_args")  # words for a shell, taken from the command line only

# All parameters of hydra-submitit-launcher 1.2 and submitit 1.5. `python` is not one of them: jobs
# run in the interpreter that submits them.
_PARAMETERS = frozenset(
    {
        FOLDER,
        *LINES,
        "account",
        "additional_parameters",
        "array_parallelism",
        "comment",
        "constraint",
        "cpus_per_gpu",
        "cpus_per_task",
        "dependency",
        "exclude",
        "exclusive",
        "gpus_per_node",
        "gpus_per_task",
        "gres",
        "mail_type",
        "mail_user",
        "max_num_timeout",
        "mem_gb",
        "mem_per_cpu",
        "mem_per_gpu",
        "name",
        "nodelist",
        "nodes",
        "partition",
        "qos",
        "signal_delay_s",
        "stderr_to_stdout",
        "tasks_per_node",
        "timeout_min",
        "use_srun",
        "wckey",
    }
)
_OPTION = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_LONGEST = 1000  # characters
_ORIGINS = {
    "name": " (by default it is hydra.job.name)",
    FOLDER: " (by default it is below hydra.sweep.dir)",
}


def problems(parameters: Mapping[str, object]) -> Iterator[Problem]:
    """Problems of a submitit launcher's parameters, all interpolations resolved."""
    for name, value in parameters.items():
        key = f"{KEY}.{name}"
        if value is None or name == "_target_":
            continue
        if name not in _PARAMETERS:
            yield Problem(key, "is no parameter of submitit's")
        elif name in LINES:
            if not isinstance(value, list) or not all(isinstance(line, str) for line in value):
                yield Problem(key, f"got {show(value)}, expected a list of texts")
                continue
            reasons = filter(None, map(_not_a_line, value))
            yield from (Problem(key, reason) for reason in reasons)
        elif name == "additional_parameters":
            yield from _options(value, key)
        elif reason := _refusal(value):
            yield Problem(key, reason + _ORIGINS.get(name, ""))
    folder = str(parameters.get(FOLDER) or "")
    if "%" in base_of(folder):
        yield Problem(
            f"{KEY}.{FOLDER}", f"got {show(folder)}: Slurm replaces the % in it" + _ORIGINS[FOLDER]
        )


def lines_with_interpolations(raw: Mapping[str, object]) -> Iterator[Problem]:
    """The lines for a shell in which a raw node has interpolations."""
    for name in LINES:
        if "${" in str(raw.get(name)):
            yield Problem(
                f"{KEY}.{name}",
                "is run by a shell, so no interpolation puts text of "
                "the configuration into it; write it out",
            )


def folder_problems(folder: object) -> Iterator[Problem]:
    """The problem of the full path of submitit's folder, as it stands in a script."""
    reason = _refusal(str(folder))
    if "%" in str(folder):
        reason = f"got {show(str(folder))}: Slurm replaces the % in it"
    if reason:
        yield Problem("hydra.sweep.dir", reason)


def base_of(folder: str) -> str:
    """The folder of all jobs, from a pattern such as `FOLDER/%j`."""
    head, _, tail = folder.rpartition("/")
    return head if head and "%" in tail else folder


def _options(value: object, key: str) -> Iterator[Problem]:
    if not isinstance(value, Mapping):
        yield Problem(key, f"got {show(value)}, expected options of sbatch by name")
        return
    for option, content in value.items():
        if not _OPTION.fullmatch(str(option)):
            yield Problem(key, f"{show(option)} is not the name of an option of sbatch")
        elif content is None:
            yield Problem(f"{key}.{option}", "is null; leave it out")
        elif reason := _refusal(content):
            yield Problem(f"{key}.{option}", reason)


def _refusal(value: object) -> str:
    """Why a value may not stand in an #SBATCH line; empty if it may."""
    if isinstance(value, (bool, int, float)):
        return ""
    if not isinstance(value, str):
        return f"got {show(value)}, expected a number or a text"
    if "\\" in value:
        return f"got {show(value)}: a backslash means one thing to Slurm and another to bash"
    return _not_a_line(value)


def _not_a_line(text: str) -> str:
    if not text.isprintable():
        return f"got {show(text)}: it is a line of a batch script, and has to be one printable line"
    return f"has more than {_LONGEST} characters" if len(text) > _LONGEST else ""
