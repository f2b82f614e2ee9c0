"""Where files are written: which keys say so, whom they may come from, and all code that writes.

Attacks through every door are in test_attacks.py.
"""

import ast
import inspect
import json
import os
import pkgutil
import re
import types
from typing import Annotated, Literal, Union, get_args, get_origin

import pytest
import yaml
from pydantic import BaseModel

from penstock.config import allow_list, outputs
from penstock.config.command_line_keys import typed_values
from penstock.config.outputs import Place
from penstock.config.schema import Config
from penstock.config.signatures import arguments
from tests.program import run
from tests.test_house import CODE, ROOT, imports_of, tracked, tree_of, under

# Keys of the schema that take any text, and name nothing to write.
TEXT = {
    "batch.balance",
    "bad_samples.quarantine",
    "checkpoint",
    "distributed.backend",
    "epochs",
    "find.command",
    "find.since",
    "loader.multiprocessing_context",
    "loader.ray.address",
    "loader.worker_init_fn",
    "resume_despite",
    "sample",
    "trainer.freeze.names",
    "trainer.monitor",
    "trainer.recompute",
    "trainer.warm_start.path",
    "trainer.warm_start.without",
}
# Arguments of parts that could name a file, and are read.
READ = {"ann_file", "cache_mb", "cache_size", "file", "is_valid_file", "path", "val_file"}
READ |= {"compute_with_cache"}  # of torchmetrics: a result that is kept in memory
WRITTEN = {"cache_dir", "root", "folder", "uri"}  # `root` of data that is drawn or downloaded
PLACES = {"dir", "folder", "path", "root", "file", "out", "uri", "cache", "log", "dest", "save"}


def texts(model, above=""):
    """Full key of every field that takes any text, alone or in a list."""
    for name, field in model.model_fields.items():
        key = f"{above}{name}"
        for kind in members(field.annotation):
            if kind is str:
                yield key
            elif isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from texts(kind, f"{key}.")


def members(annotation):
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType, list):
        return [one for member in get_args(annotation) for one in members(member)]
    if origin is Annotated:
        return members(annotation.__origin__)
    return [] if origin is Literal else [annotation]


def test_every_key_that_takes_text_says_whether_it_names_something_to_write():
    assert set(texts(Config)) == TEXT | {*outputs.FILES, *outputs.FOLDERS}


def callables():
    """What a configuration may call of ours, and of torchvision's datasets."""
    for rule in allow_list.RULES:
        if rule.prefix.startswith("penstock."):
            module = __import__(rule.prefix, fromlist=["x"])
            inside = pkgutil.iter_modules(getattr(module, "__path__", []))
            below = [f"{rule.prefix}.{one.name}" for one in inside if not one.ispkg]
            names = [rule.prefix, *below]
        elif rule.prefix == "torchvision.datasets":
            names = [rule.prefix]
        else:
            continue
        for name in names:
            for found in vars(__import__(name, fromlist=["x"])).values():
                if inspect.isclass(found) and rule.admits(found):
                    yield found


def test_every_argument_that_could_name_a_place_is_known():
    met = {
        name
        for one in callables()
        for name in arguments(one).names
        if PLACES & set(name.lower().split("_"))
    }
    assert met >= WRITTEN
    assert met <= READ | WRITTEN, "does it name something to write? See config/outputs.py"


# All files that write others, and why what they write to is right.
CACHE = "below cache_dir, in a folder of this user's alone"
RUN = "in a run's folder, which was claimed or looked through"
SWEEP = "in a sweep's folder, or a job's, which check_sweep has looked at"
NEW = "a new folder, which is moved to its place if nothing is there"
NAMED = "a file that is not there yet, which the command line names as out"
TEMPORARY = "a temporary folder of its own"
WRITERS = {
    "datasets/reading/generated_folder.py": NEW,
    "pipeline/addons/shards/tar/index.py": "beside an archive, of this kind before or not there",
    "pipeline/addons/stores/file_cache.py": CACHE,
    "pipeline/addons/stores/file_index.py": "a file of one name, of this kind before or not there",
    "pipeline/addons/stores/forecast.py": CACHE,
    "pipeline/addons/stores/mirror.py": CACHE,
    "pipeline/addons/stores/request_gate.py": CACHE,
    "pipeline/addons/stores/sending.py": "notes in a folder that was made to be sent",
    "datasets/synthetic_faces.py": NEW,
    "pipeline/addons/forecasting/drawn_series.py": NEW,
    "pipeline/addons/image_tables/drawn_scenes.py": NEW,
    "pipeline/addons/tabular/drawn_table.py": NEW,
    "pipeline/addons/video/drawn_motions.py": NEW,
    "pipeline/addons/predicting/export.py": NAMED,
    "pipeline/addons/predicting/journal.py": NAMED,
    "pipeline/addons/predicting/learned.py": RUN,
    "pipeline/addons/predicting/tables.py": NAMED,
    "pipeline/addons/predicting/test.py": RUN,
    "datasets/synthetic_sequences.py": NEW,
    "pipeline/addons/tables/text/standard_library.py": NEW,
    "pipeline/addons/tokens/vocabulary.py": CACHE,
    "pipeline/config/hydra_output.py": SWEEP,
    "pipeline/config/outputs.py": "named.json in Penstock's own cache",
    "pipeline/distributed/launch.py": TEMPORARY,
    "pipeline/distributed/meeting.py": TEMPORARY,
    "pipeline/distributed/standing.py": TEMPORARY,
    "pipeline/files/disk.py": "the functions that the others use",
    "pipeline/files/one_writer.py": "a lock beside a file",
    "pipeline/files/own_files.py": "the functions that the others use",
    "pipeline/addons/ray/access.py": TEMPORARY,
    "pipeline/addons/ray/pool.py": TEMPORARY,
    "pipeline/addons/ray/worker.py": TEMPORARY,
    "pipeline/addons/packs/folder.py": NEW,
    "pipeline/addons/packs/packing.py": NEW,
    "pipeline/addons/reports/charts.py": "into memory",
    "pipeline/addons/reports/page.py": "a page that the command line names, or in a run's or "
    "sweep's folder: replaces pages only",
    "pipeline/addons/reports/spikes.py": RUN,
    "pipeline/runs/checkpoint.py": RUN,
    "pipeline/runs/checkpoint_file.py": RUN,
    "pipeline/runs/holder.py": RUN,
    "pipeline/runs/identity/contents.py": CACHE,
    "pipeline/addons/sweeps/job_result.py": SWEEP,
    "pipeline/addons/reports/pictures.py": RUN,
    "pipeline/runs/quarantine.py": RUN,
    "pipeline/runs/run_folder.py": RUN,
    "pipeline/runs/sharded_checkpoint.py": RUN,
    "pipeline/addons/sweeps/stored_sweep.py": SWEEP,
    "pipeline/addons/sweeps/study.py": SWEEP,
    "pipeline/addons/trackers/csv_file.py": RUN,
    "pipeline/addons/trackers/known.py": RUN,
    "pipeline/addons/trackers/mlflow.py": SWEEP,
    "pipeline/addons/trackers/tensorboard.py": RUN,
    "pipeline/addons/trackers/wandb.py": RUN,
    "pipeline/addons/starter/init.py": "files that are not there yet, in the folder that was typed",
    "pipeline/addons/sweeps/launching.py": SWEEP,
    "pipeline/tasks/fit.py": TEMPORARY,
    "pipeline/addons/tuning/lr_find.py": RUN,
    "pipeline/addons/sweeps/optuna_sweeper.py": SWEEP,
    "pipeline/addons/reports/predictions.py": RUN,
    "pipeline/addons/tuning/profile.py": RUN,
    "pipeline/tasks/recording.py": RUN,
    "pipeline/tasks/replay.py": RUN,
    "pipeline/addons/reports/report_facts.py": RUN,
    "pipeline/addons/sweeps/sweep.py": SWEEP,
    "pipeline/addons/sweeps/sweep_grid.py": SWEEP,
    "pipeline/addons/sweeps/sweep_job.py": SWEEP,
    "pipeline/transforms/statistics.py": CACHE,
    "pipeline/addons/tuning/timeline.py": RUN,
}
CALLS = {
    "FileLock",
    "SummaryWriter",
    "TemporaryDirectory",
    "copyfile",
    "hardlink_to",
    "makedirs",
    "mkdir",
    "mkdtemp",
    "mkstemp",
    "new_folder",
    "one_writer",
    "open_own",
    "own_folder",
    "replace_own",
    "replacing",
    "save_file",
    "savefig",
    "symlink_to",
    "to_csv",
    "touch",
    "write_atomically",
    "write_bytes",
    "write_text",
}
OF_FILES = {"append", "prepare"}  # of penstock.files, as others have methods of these names
MAYBE = re.compile(rf"\b({'|'.join([*CALLS, *OF_FILES, 'open'])})\(")


def writes(name):
    """Whether a file calls something that writes one."""
    if not MAYBE.search((ROOT / name).read_text()):
        return False
    ours = {one.rpartition(".")[2] for one in imports_of(name) if under(one, ("penstock.files",))}
    for node in ast.walk(tree_of(name)):
        if not isinstance(node, ast.Call):
            continue
        called = getattr(node.func, "attr", getattr(node.func, "id", ""))
        plain = isinstance(node.func, ast.Name)
        if called in CALLS or (plain and called in OF_FILES & ours):
            return True
        given = [*node.args, *(one.value for one in node.keywords if one.arg == "mode")]
        modes = [
            one.value
            for one in given
            if isinstance(one, ast.Constant) and isinstance(one.value, str)
        ]
        if called == "open" and any(len(mode) < 4 and set("wax+") & set(mode) for mode in modes):
            return True
    return False


def test_files_are_written_where_this_list_says():
    assert {name for name in tracked(*CODE) if writes(name)} == set(WRITERS)


NAMES = {
    "cache_dir=/a/b": [Place("cache_dir", "/a/b")],
    "cache_dir=/a/b,/c": [Place("cache_dir", "/a/b"), Place("cache_dir", "/c")],
    "run_dir=/a/${seed}/b": [Place("run_dir", "/a")],
    "run_dir=/a/b${seed}": [Place("run_dir", "/a")],
    "run_dir=/${seed}": [],
    "run_dir=${seed}": [],
    "run_dir=${oc.env:WHERE}/x": [Place("run_dir", "/where/x")],
    "run_dir=${oc.env:NOT_THERE,/d}/x": [Place("run_dir", "/d/x")],
    "run_dir=${oc.env:WHERE}/${now:%Y}": [Place("run_dir", "/where")],
    "hydra.sweep.dir=/a": [Place("dir", "/a")],
    "dataset={_target_:x,files:{cache_dir:/a}}": [Place("cache_dir", "/a")],
    "runs=[/a,/b]": [Place("runs", "/a"), Place("runs", "/b")],
    "dataset.root=s3://bucket/x": [],
    "pack.out=s3://bucket/x": [Place("out", "s3://bucket/x")],
    "tracker.mlflow.uri=sqlite:////a/b.db": [Place("uri", "/a/b.db")],
    "tracker.mlflow.uri=sqlite:////a%2fb": [Place("uri", "/a%2fb"), Place("uri", "/a/b")],
    "dataset.file=/a": [],
    "cache_dir=[": [],
}


@pytest.mark.parametrize("line", NAMES)
def test_what_a_command_line_names(line, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WHERE", "/where")
    monkeypatch.delenv("NOT_THERE", raising=False)
    lines = filter(outputs.may_name, [line])
    assert list(outputs.named(typed_values(lines))) == [Place("", str(tmp_path)), *NAMES[line]]


def problems(**config):
    return [one.key for one in outputs.check({"task": "fit", **config})]


def test_only_the_command_line_names_an_address_to_write_to(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert problems(pack={"out": "s3://bucket/x"}) == ["pack.out"]
    values = [("pack.out", "s3://bucket/x")]
    with outputs.naming(outputs.named(values)):
        assert problems(pack={"out": "s3://bucket/x"}) == []
        assert problems(pack={"out": "s3://bucket"}) == ["pack.out"]
        assert not outputs.may_stand(values), "a command for pasting would name it"


def test_links_are_followed_before_a_place_is_judged(tmp_path, monkeypatch):
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    for folder in (here, elsewhere):
        folder.mkdir()
    monkeypatch.chdir(here)
    (here / "link").symlink_to(elsewhere)
    (here / "outputs").symlink_to(elsewhere / "outputs")  # as a person keeps runs on another disk
    assert problems(run_dir="link/x") == ["run_dir"]
    assert problems(run_dir="outputs/x", cache_dir="data/cache") == []
    assert problems(run_dir="outputs/../x") == ["run_dir"], "the link's parent"
    assert problems(run_dir=f"{here}/x", cache_dir="\0") == ["cache_dir"]
    with outputs.naming([Place("", str(here)), Place("cache_dir", str(elsewhere))]):
        assert problems(run_dir="link/x") == []
    with outputs.naming([Place("", str(here)), Place("root", str(elsewhere))]):
        assert problems(run_dir="link/x") == ["run_dir"], "named to be read"


@pytest.mark.thorough
def test_folders_once_named_are_remembered(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "own"))
    (tmp_path / "here" / "conf" / "experiment").mkdir(parents=True)
    text = yaml.safe_dump({"cache_dir": str(tmp_path / "cache")})
    experiment = tmp_path / "here" / "conf" / "experiment" / "mine.yaml"
    experiment.write_text(f"# @package _global_\n{text}")
    monkeypatch.chdir(tmp_path / "here")
    words = ["task=digest", "steps=1", "dataset=sequences", "dataset.count=40", "loader=debug"]
    mine = [*words, "--config-dir=conf", "experiment=mine"]
    assert run(capsys, *mine).code == 2
    assert run(capsys, *words, f"cache_dir={tmp_path}/cache").code == 0
    assert run(capsys, *mine).code == 0
    kept = tmp_path / "own" / "named.json"
    assert json.loads(kept.read_text()) == [["cache_dir", f"{tmp_path}/cache"]]
    assert kept.parent.stat().st_mode & 0o777 == 0o700
    kept.parent.chmod(0o777)
    assert run(capsys, *mine).code == 2, "anybody can write into it"
    kept.parent.chmod(0o700)
    os.link(kept, tmp_path / "another")
    assert run(capsys, *mine).code == 2, "another name of a file elsewhere"
    (tmp_path / "another").unlink()
    for damage in ("[", "{}", "[1]", '[["cache_dir"]]', json.dumps([["page", str(tmp_path)]])):
        kept.write_text(damage)
        assert run(capsys, *mine).code == 2, damage
    assert run(capsys, *mine, "--allow-write", str(tmp_path / "cache")).code == 0
    assert run(capsys, *mine, "--allow-write", "/").code == 2
