# ruff: noqa: E501  (a row of a table stays on a line)
"""Configurations, run folders, checkpoints and data of a stranger: none of them runs any code.

A row has the words that a person types, the stranger's files and what the refusal says. CANARY
stands for a path that must not appear, FOLDER for the stranger's folder, where `stranger.py` makes
the canary when it is imported. Each row runs in a process of its own, of which an audit hook notes
programs, pickles and variables of the environment. Cost: 0.2 s a row.
"""

import importlib
import io
import os
import pickle
import re
import shlex
import sys
import tarfile
import warnings
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml

import penstock
from tests import port

# Not NVML, by which torch counts GPUs once Lightning is imported.
EVENTS = re.compile(
    r"os\.(system|exec|posix_spawn).*|subprocess\.Popen.*|pickle\.find_class.*|socket\.connect.*"
    r"|ctypes\.dlopen (?!.*libnvidia-ml).*|os\.putenv \(b'(LD_PRELOAD|PYTHONPATH|GIT_).*|import \('(stranger|this)'.*"
)
SECRET = "hidden-in-the-environment"


class Pickle:
    """Touches the canary when it is unpickled."""

    def __reduce__(self):
        return os.system, ('touch "$CANARY"',)


def by_experiment(text):
    files = {"experiment/evil.yaml": f"# @package _global_\n{text}"}
    return "--config-dir FOLDER experiment=evil", files


def by_primary(text):
    text = f"defaults: [config, _self_]\n{text}"
    return "--config-name=evil --config-dir=FOLDER", {"evil.yaml": text}


def by_group(text):
    files = {"hydra/more/evil.yaml": f"# @package _global_\n{text}"}
    return "--config-dir=FOLDER +hydra/more=evil", files


def by_run(text):
    """The config.yaml of a run's folder."""
    return {"run/manifest.json": "{}", "run/config.yaml": text}


def rows(text):
    """Lines of `name | what a stranger writes | what the refusal says`, the long ones over two."""
    return [line.split(" | ") for line in re.sub(r"\n {4,}", " ", text.strip()).splitlines()]


# What any file may put below `hydra:`. Number 0 of a sweep is that which is looked at beforehand.
HYDRA = rows(r"""
callback | callbacks: {e: {_target_: stranger.made}} | stranger.made is not called
callback of ours | callbacks: {e: {_target_: penstock.files.disk.Path.touch, _args_: [CANARY]}} | touch is not called
walk | callbacks: {e: {_target_: hydra.experimental.callbacks.logging.os.symlink, src: /, dst: CANARY}}
    | os.symlink is not called
pickles | callbacks: {e: {_target_: hydra.experimental.callbacks.PickleJobInfoCallback}} | PickleJobInfoCallback is not called
argument | callbacks: {e: {_target_: hydra.experimental.callbacks.LogJobReturnCallback,
    x: {_target_: os.mkdir, path: CANARY}}} | hydra.callbacks.e.x._target_: os.mkdir is not called
decoded | callbacks: {e: {_target_: "${oc.decode:stranger.made}"}} | is not called
created | callbacks: '${oc.create:"{e: {_target_: stranger.made}}"}' | hydra
later | {job: {env_set: {"0": logging.NullHandler, nine: stranger.made}}, callbacks: {e: {_target_:
    "${hydra.job.env_set.${oc.select:hydra.job.num,nine}}"}}} | hydra.callbacks.e._target_:
handler | job_logging: {handlers: {x: {class: stranger.made}}} | handlers.x.class: stranger.made is not
factory | job_logging: {handlers: {x: {(): stranger.made}}} | handlers.x.\(\): stranger.made is not
formatter | hydra_logging: {formatters: {x: {(): os.system}}} | formatters.x.\(\): os.system is not
filter | job_logging: {filters: {x: {(): stranger.made}}} | filters.x.\(\): stranger.made is not called
stream | job_logging: {handlers: {x: {class: logging.StreamHandler, stream: "ext://stranger.made"}}} | is not followed
log file | job_logging: {handlers: {x: {class: logging.FileHandler, filename: CANARY}}} | x.filename:
library | job: {env_set: {LD_PRELOAD: FOLDER/x.so}} | hydra.job.env_set.LD_PRELOAD:
modules | job: {env_set: {PYTHONPATH: FOLDER}} | hydra.job.env_set.PYTHONPATH:
trust | job: {env_set: {PENSTOCK_TRUST: stranger}} | hydra.job.env_set.PENSTOCK_TRUST:
copied | job: {env_copy: [MY_TOKEN]} | hydra.job.env_copy
search path | searchpath: [structured://stranger] | hydra.searchpath
package | searchpath: [pkg://stranger] | hydra.searchpath|Cannot find primary config
secret | run: {dir: "${oc.env:MY_TOKEN}"} | MY_TOKEN is a secret by its name
""")
SWEEPS = rows(r"""
launcher | launcher: {_target_: stranger.made} | hydra.launcher._target_:
argument | launcher: {_target_: hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher,
    temp_folder: {_target_: os.mkdir, path: CANARY}} | temp_folder
sweeper | sweeper: {_target_: stranger.made} | hydra.sweeper._target_:
path of jobs | sweeper: {params: {hydra.searchpath: "[pkg://stranger]"}} | params.hydra.searchpath:
callback of jobs | sweeper: {params: {+hydra.callbacks.e: "{_target_:stranger.made}"}} | hydra.sweeper
options of jobs | sweeper: {params: {--trust: stranger}} | hydra.sweeper.params.--trust:
folder by a secret | sweep: {dir: "${oc.env:MY_TOKEN}"} | hydra.sweep.dir: .*MY_TOKEN is a secret
""")
SCRIPTS = rows(r"""
lines for bash | launcher: {setup: ["touch CANARY"]} | hydra.launcher.setup
words for srun | launcher: {srun_args: ["--task-prolog=FOLDER/git"]} | hydra.launcher.srun_args
name of a job | job: {name: "x\\'\"\ntouch CANARY\n#"} | hydra.job.name:
partition | launcher: {partition: "x\ntouch CANARY\n#"} | hydra.launcher.partition:
""")
NODES = rows(r"""
class | dataset: {_target_: stranger.made} | dataset._target_: stranger.made may not be called
pickle | model: {_target_: torch.load, f: x} | model._target_: torch.load may not be called
program | transform: {train: {x: {_target_: os.system, command: touch CANARY, _partial_: true}}, val: {}}
    | transform.train.x._target_: os.system may not be called
argument | sampler: {_target_: penstock.order.samplers.Weighted, weights: {_target_: stranger.made}} | sampler.weights._target_: stranger.made
list | model: {_target_: torch.nn.Linear, x: [{a: {_target_: numpy.load}}]} | model.x\[0\].a._target_: numpy.load may not
position | model: {_target_: torch.nn.Linear, _args_: [{_target_: builtins.open, file: CANARY}]} | model._args_\[0\]._target_:
validation | data: {val_dataset: {_target_: stranger.made}} | data.val_dataset._target_:
filter | data: {filter: {_target_: os.system}} | data.filter._target_: os.system may not be called
metric | objective: {_target_: penstock.training.objective.Classification, metrics: {x: {_target_: stranger.made}}} | objective.metrics.x._target_:
tracker | tracker: {x: {_target_: stranger.made}} | tracker.x._target_: stranger.made may not be called
decoded | model: {_target_: "${oc.decode:stranger.made}"} | model._target_: stranger.made may not
created | model: {_target_: torch.nn.Linear, x: '${oc.create:"{_target_: os.system}"}'} | model.x._target_: os.system may not
variable | model: {_target_: "${oc.env:EVIL_TARGET}"} | model._target_: stranger.made may not be called
resolver | seed: ${stranger:made} | seed: .*stranger
secret | cache_dir: "${oc.env:MY_TOKEN}" | cache_dir: .*MY_TOKEN is a secret by its name
second secret | cache_dir: "${oc.decode:${oc.env:my_api_key}}" | my_api_key is a secret by its name
worker | loader: {worker_init_fn: stranger.made} | loader.worker_init_fn: stranger.made
object | seed: !!python/object/apply:stranger.made [] | python/object
function | seed: !!python/name:stranger.made | python/name
another Ray | loader: {backend: ray, ray: {address: "evil:6379"}} | loader.ray.address
options | model: {_target_: torch.nn.Linear, _recursive_: false} | model._recursive_:
weights | model: {_target_: timm.create_model, model_name: "hf-hub:evil/x"} | timm.create_model may not be called
yours | model: {_target_: mypkg.parts.Net} | trusted by --trust mypkg \(or by PENSTOCK_TRUST\)
near package | model: {_target_: toch.nn.Linear} | configuration \(did you mean 'torch'\?\)
near name | model: {_target_: torch.nn.Linaer} | no attribute 'Linaer' \(did you mean 'Linear'\?\)
near module | dataset: {_target_: penstock.datasets.face_landmark.X, root: x} | did you mean 'face_landmarks'
optimizer | optimizer: {_target_: stranger.made, lr: 1} | optimizer._target_: stranger.made may not be called
collate | collate: {_target_: stranger.made} | collate._target_: stranger.made may not be called
""")
# Names that no configuration calls, nor from a package that a person trusts.
NAMES = """torch.load torch.hub.load torch.hub.load_state_dict_from_url torch.jit.load torch.save torch.ops.load_library
torch.classes.load_library torch.serialization.load torch..nn torch.nn. torch.package.PackageImporter
torch.utils.cpp_extension.load numpy.load numpy.loadtxt pandas.eval numpy.ctypeslib.load_library pandas.read_pickle
pandas.read_csv joblib.load pickle.load yaml.load pickle.loads _pickle.loads cloudpickle.load dill.load ctypes.CDLL
ctypes.cdll.LoadLibrary shelve.open marshal.loads builtins.open builtins.eval builtins.exec builtins.__import__
builtins.print os.system os.remove os.environ.update posix.system subprocess.run pty.spawn shutil.copy shutil.rmtree this.d
importlib.import_module runpy.run_path sys.exit webbrowser.open urllib.request.urlopen stranger.made functools.partial
operator.attrgetter hydra.utils.call hydra.utils.instantiate stranger Linear() hydra.utils.get_method hydra.utils.get_object
omegaconf.OmegaConf.load Linear ../torch.nn hydra._internal.instantiate._instantiate2.instantiate
torch.nn.Module.load_state_dict torch.optim.Optimizer.load_state_dict torch.nn.functional.relu torch.nn.init.zeros_
torch.nn.utils.clip_grad_norm_ torch.utils.data.DataLoader torch.utils.data.random_split torchvision.io.read_image
torchvision.datasets.LSUN torchvision.datasets.folder.default_loader torch.utils.data.datapipes.iter.FileOpener
torchvision.transforms.v2.functional.register_kernel torchvision.transforms.Resize skimage.io.imread
torchmetrics.text.bert.BERTScore tοrch.nn.Linear torchmetrics.image.fid.FrechetInceptionDistance skimage.color.rgb2gray
torchmetrics.functional.accuracy penstock.runs.checkpoint.load penstock.order.samplers.hash64 penstock.config.targets.make
penstock.command.main penstock.files.disk.Path penstock.datasets.reading.base.ranked
penstock.datasets.face_landmarks.read_image torch.nn.functional.torch.hub.load torch.nn.modules.module.torch.load
torch.utils.data.dataloader.os.system torch.nn.Module.__class__ torch.optim.lr_scheduler.warnings.sys.exit
penstock.order.samplers.np.load torch.nn.Linear() penstock.datasets.face_landmarks.os.system
torchvision.transforms.v2.functional._utils.register_kernel torch.nn.Linear.__init__ torch.nn.Linear.__init__.__globals__
torch.nn.Linear.forward.__globals__.get mine.os.system mine.torch.load mine.torch.hub.load mine.Net.__init__
mine.Net.__class__ mine.LIMIT mine.__builtins__ mine.fetch mine.hidden"""
PARTS = """torch.nn.Linear torch.nn.modules.linear.Linear torch.nn.CrossEntropyLoss torch.optim.AdamW
torch.optim.lr_scheduler.OneCycleLR torch.utils.data.RandomSampler torch.utils.data.TensorDataset torch.utils.data.Subset
torch.utils.data.default_collate torch.utils.data.BatchSampler torchvision.datasets.FakeData torchvision.datasets.CIFAR10
torchvision.datasets.mnist.MNIST torchvision.datasets.ImageFolder torchvision.transforms.v2.Resize
torchvision.transforms.v2.Lambda torchvision.transforms.v2.functional.horizontal_flip torchvision.models.resnet18
torchvision.models.ResNet torchvision.models.detection.ssd300_vgg16 torchmetrics.MeanMetric
torchmetrics.classification.MulticlassRecall penstock.datasets.face_landmarks.FaceLandmarks penstock.order.samplers.Weighted
penstock.loading.collate.Pad penstock.transforms.image.LandmarkFlip penstock.training.models.torchvision_model
penstock.training.objective.LandmarkRegression penstock.training.metrics.NormalizedMeanError
penstock.addons.trackers.tracker.Tracker mine.Net mine.add mine.resnet18"""
# A package that a person trusts, by its name.
MINE = """import functools, os, torch
from hydra.experimental.callback import Callback as Seen
from omegaconf import OmegaConf
from torchvision.models import resnet18
from penstock.order.samplers import Sequential
LIMIT, fetch, hidden = 3, torch.load, functools.partial(torch.load, "x")
class Net(torch.nn.Linear): pass
class Told(Seen): pass
def add(sample): return sample
def order(length): return Sequential(length)
OmegaConf.register_new_resolver("mine", lambda value: 2 * value, replace=True)
"""
# Expressions of Python that are none of a filter; and one of texts, among which pandas saw a call.
FILTERS = r"""@pd.io|__import__('os').system('touch CANARY')|length.to_csv('CANARY')|label.str.cat
open('CANARY', 'w')|length.values.tofile('CANARY')|length.pipe(print)|[x for x in length]
length.apply('x')|f'{length}'|(lambda: 1)()|length.query('x')|length.__class__"""
TEXTS = r"""label == "\\" or label == "``A`" == label or label == '`C``" or label.to_csv("CANARY") == 0 #'"""
DIGEST = "loader=debug task=digest steps=1"
ROWS = "dataset=sequences dataset.count=60 loader=debug"

TYPED = rows(rf"""
path of a package | --config-path pkg://stranger | --config-path
search path | hydra.searchpath=[structured://stranger] | hydra.searchpath:
search path, shown | hydra.searchpath=[pkg://stranger] --cfg job | --trust stranger
callback | +hydra.callbacks.e._target_=stranger.made | hydra.callbacks.e._target_: stranger.made
pickle | --experimental-rerun=FOLDER/config.pickle | --experimental-rerun
pickles that are trusted | --trust os,torch.hub,numpy,hydra | 'os' and 'torch.hub' and 'numpy' and
one of a sweep | -m model._target_=torch.nn.Linear,stranger.made | stranger.made may not be called
cost | {ROWS} batch.balance=length.pipe(print) | batch.balance:
sample | {ROWS} task=where sample='length.pipe(print)' | sample:
no package | --trust never_there | never_there: .*No module named
key of a store | dataset=arrays dataset.root=x +files.options.access_key=x | put it into the environment
""")
# Groups of Hydra's in the stranger's folder: file, its text, and what is typed.
GROUPS = rows(r"""
launcher/basic | _target_: stranger.made | -m seed=1,2
launcher/evil | _target_: stranger.made | hydra/launcher=evil
sweeper/basic | _target_: stranger.made | -m seed=1,2
callbacks/evil | e: {_target_: stranger.made} | hydra/callbacks=[evil]
""")
OF_A_RUN = """resume=FOLDER/run
task=validate run=FOLDER/run
task=test run=FOLDER/run
task=where run=FOLDER/run sample=0
task=predict run=FOLDER/run out=a.csv dataset.root=x
task=export run=FOLDER/run out=a.safetensors
task=validate checkpoint=FOLDER/run/checkpoints/best.safetensors""".splitlines()


def content(write, *given, **named):
    """The bytes of a file."""
    write(file := io.BytesIO(), *given, **named)
    return file.getvalue()


def archive(ending, data):
    """A tar archive of samples with one part each."""
    with tarfile.open(fileobj=(file := io.BytesIO()), mode="w") as tar:
        for number in range(9):
            member = tarfile.TarInfo(f"{number}.{ending}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return file.getvalue()


def parquet():
    """A column of an extension type that pyarrow unpickled before 14.0.1."""
    more = {"ARROW:extension:name": "arrow.py_extension_type"}
    more["ARROW:extension:metadata"] = pickle.dumps(Pickle())
    fields = [pa.field("label", pa.int64(), metadata=more)]
    return content(lambda file: pq.write_table(pa.table([[0, 1] * 9], pa.schema(fields)), file))


def of_data():
    """Name, words, files, what is said, and the exit code."""
    bare, zipped = pickle.dumps({"w": Pickle()}), content(lambda f: torch.save({"w": Pickle()}, f))
    objects = content(np.save, np.array([Pickle()] * 4, dtype=object), allow_pickle=True)
    arrays = {f"{name}.npy": objects for name in ("inputs", "targets", "values", "offsets")}
    cifar = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta"]
    cifar = {f"cifar-10-batches-py/{name}": bare for name in cifar}
    mnist = {f"MNIST/processed/{name}.pt": zipped for name in ("training", "test")}
    tar = "transform=none dataset.classes=[a] cache_dir=FOLDER/cache"
    for words, files, says, code in (
        ("dataset=arrays", arrays, "Python objects in dtype", 3),
        ("dataset=sequence_files", arrays, "Python objects in dtype", 3),
        ("dataset=token_files", {"a.npy": objects}, "a.npy", 3),
        (f"dataset=tar_shards {tar}", {"a.tar": archive("pkl", bare)}, "is a pickle", 2),
        (f"dataset=indexed_tars {tar}", {"a.tar": archive("pth", zipped)}, "is a pickle", 2),
        (
            "dataset=parquet transform=none collate=list cache_dir=FOLDER/cache",
            {"a.parquet": parquet()},
            "",
            0,
        ),
        ("dataset=torchvision", cifar, "not found or corrupted", 3),
        ("dataset=torchvision dataset._target_=torchvision.datasets.MNIST", mnist, "MNIST", 3),
    ):
        yield words, f"{words} dataset.root=FOLDER {DIGEST}", files, says, code
    run, best = by_run("STORED"), "run/checkpoints/step-00000002.safetensors"
    for kind, data in {"pickle": bare, "archive": zipped}.items():
        words = f"{ROWS} trainer.warm_start.path=FOLDER/w.pt"
        yield f"weights, {kind}", words, {"w.pt": data}, "w.pt", 2
        for task in ("task=validate run", "task=export out=a.safetensors run", "resume"):
            yield (
                f"{kind}, {task}",
                f"{task}=FOLDER/run",
                {**run, best: data},
                "no safetensors file|no checkpoint of Penstock's",
                1,
            )


def attacks():
    """Every attack: name, words, files, what the refusal says, and the exit code."""
    for number, (name, text, says) in enumerate(HYDRA):
        for way in (by_experiment, (by_group, by_primary)[number % 2]):
            yield f"{way.__name__}: hydra, {name}", *way(f"hydra:\n  {text}\n"), says, 2
    for more, table in (("-m seed=1,2", SWEEPS), ("-m hydra/launcher=submitit_slurm", SCRIPTS)):
        for name, text, says in table:
            words, files = by_experiment(f"hydra:\n  {text}\n")
            yield f"sweep: {name}", f"{words} {more}", files, says, 2
    for number, (name, text, says) in enumerate(NODES):
        yield f"by_experiment: {name}", *by_experiment(text), says, 2
        if "loader" not in text:
            words = OF_A_RUN[number % len(OF_A_RUN)]
            yield f"{words}: {name}", words, by_run(text), says, 2
    for name, words, says in TYPED:
        yield f"typed: {name}", words, {}, says, 2
    for name, text, words in GROUPS:
        yield name, f"--config-dir FOLDER {words}", {f"hydra/{name}.yaml": text}, "_target_", 2
    for text in [*re.split(r"[|\n]", FILTERS), TEXTS]:
        words, files = by_experiment(yaml.safe_dump({"data": {"filter": text}}))
        yield text, f"{words} {ROWS}", files, "data.filter", 3 if text == TEXTS else 2
    words = f"{ROWS} task=where run=FOLDER/run sample=0 epochs=0"
    yield "run: filter", words, by_run(yaml.safe_dump({"data": {"filter": TEXTS}})), "none of", 3
    yield from of_data()


ATTACKS = {name: row for name, *row in attacks()}


@cache
def stored():
    """The config.yaml of a run; and this process imports what each row would import again."""
    return yaml.safe_dump(penstock.compose(*ROWS.split()).model_dump())


@pytest.fixture
def attack(tmp_path, monkeypatch):
    """Runs words beside files in a process of its own, from an empty folder."""
    folder, here, canary = (tmp_path / name for name in ("stranger", "here", "canary"))
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delenv("PENSTOCK_TRUST", raising=False)
    variables = {"MY_TOKEN": SECRET, "my_api_key": SECRET, "EVIL_TARGET": "stranger.made"}
    for name, value in {**variables, "CANARY": str(canary)}.items():
        monkeypatch.setenv(name, value)

    def filled(text):
        text = text.replace("STORED", stored())
        return text.replace("CANARY", str(canary)).replace("FOLDER", str(folder))

    def watch():
        warnings.resetwarnings()  # pytest makes errors of them
        # The folder may have been looked at in the tick of the clock in which its files were made.
        importlib.invalidate_caches()
        sys.modules.pop("mine", None)  # of the examples of a page that this process ran before
        out = os.open(tmp_path / "events", os.O_CREAT | os.O_WRONLY)

        def note(event, given):
            if EVENTS.fullmatch(line := f"{event} {given!r:.200}"):
                os.write(out, line.encode())

        sys.addaudithook(note)

    def run(words, files):
        stranger = f"open({str(canary)!r}, 'w')\nmade = dict\n"
        always = {"stranger.py": stranger, "__init__.py": stranger, "mine/__init__.py": MINE}
        for name, data in {**always, **files}.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data if isinstance(data, bytes) else filled(data).encode())
        paths = [tmp_path / name for name in ("out", "err", "events")]
        typed = [filled(word) for word in shlex.split(words)]
        pid = port.fork(typed, *paths[:2], before=watch)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert not canary.exists() | canary.is_symlink(), "the stranger's code ran"
        return code, *(path.read_text() for path in paths), [*here.iterdir()]

    return run


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", ATTACKS)
def test_nothing_of_a_strangers_runs(name, attack):
    words, files, says, code = ATTACKS[name]
    ended, out, err, *done = attack(words, files)
    assert ended == code, out + err
    assert done == ["", []]
    assert re.search(says, err), err
    assert "Traceback" not in err
    assert SECRET not in out + err


def test_parts_are_called_and_no_other_name(attack):
    names = ["", "torch nn Linear", "torch.nn.Linear\n", *NAMES.split(), *PARTS.split()]
    node = {"_target_": "torch.nn.Linear", "x": [{"_target_": name} for name in names]}
    words, files = by_experiment(yaml.safe_dump({"model": node}, allow_unicode=True))
    code, _, err, *done = attack(f"--trust mine {words}", files)
    assert (code, done) == (2, ["", []])
    called = [name for at, name in enumerate(names) if f"model.x[{at}]._target_" not in err]
    assert called == PARTS.split()


def test_a_package_that_is_trusted_runs(attack):
    with pytest.raises(AssertionError, match="code ran"):
        attack("--trust stranger --cfg job", {})


# What people do, and what they trust by name.
GOOD = rows("""
launcher of a plugin | -m seed=1 hydra/launcher=joblib hydra.launcher.n_jobs=1
callback | --trust=mine +hydra.callbacks.x._target_=mine.Told
handler of rich's | +hydra.job_logging.handlers={x:{class:rich.logging.RichHandler}}
threads | +hydra.job.env_set.OMP_NUM_THREADS=2
package of groups | --trust=mine hydra.searchpath=[pkg://mine]
folders by name | -m seed=1 hydra.sweep.subdir=${hydra.job.override_dirname}
own sampler | --trust mine sampler={_target_:mine.order}
own resolver | --trust mine seed=${mine:4}
variable that is no secret | cache_dir=${oc.env:HOME}
""")


@pytest.mark.one_in(6)
@pytest.mark.parametrize(("name", "words"), GOOD)
def test_what_people_do_keeps_working(name, words, attack):
    code, out, err, *_ = attack(f"{words} task=digest {ROWS} steps=1", {})
    assert code == 0, out + err
