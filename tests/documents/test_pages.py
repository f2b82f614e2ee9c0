"""The pages do what they say: each command and each Python block runs, or `NOT_RUN` says why not.

Each page runs by itself, from top to bottom, in a folder that has what its reader has
(`folders.py`), from the checkout and from a wheel. Runs are cut to a few steps; nothing that a page
types is changed but the names that it leaves to its reader.
"""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from typing import NamedTuple

import pytest
import yaml

from tests import warm
from tests.documents import folders, pages
from tests.ports import free_port
from tests.program import ROOT
from tests.s3_server import ENVIRONMENT, S3Server
from tests.test_wheel import build, source  # noqa: F401

# Of which pages, what it matches, and why it does not run here.
NOT_RUN = (
    ("*", r"^pip install", "asks a package index; a test below checks the extras"),
    ("*", r"^make ", "works on the checkout; a test below checks the targets"),
    ("docs/contributing.md", r"^\. |^ruff |^python -m", "works on the checkout: CI runs the same"),
    ("docs/index.md", r"^\. ", "the environment that make setup makes"),
    ("docs/installation.md", r"pytest tests/", "the tests of the checkout; CI runs the same"),
    ("docs/architecture.md", r"-m penstock\S+ >", "writes docs/keys.md; tests/reference/"),
    ("docs/clusters.md", r"^torchrun|^export", "two machines; tests/distributed/ has processes"),
    ("docs/clusters.md", r"submitit_slurm|^#!", "Slurm; tests/distributed/test_slurm.py has one"),
    ("docs/resuming.md", r"^export|^MASTER_ADDR", "the network of a cluster"),
    ("docs/ray.md", r"^ray |address=auto", "a cluster of Ray; tests/ray/ starts one"),
    ("docs/ray.md", r"hydra/launcher=ray", "hydra-ray-launcher pins an old cloudpickle"),
    ("docs/sweeps.md", r"hydra/launcher=ray", "hydra-ray-launcher pins an old cloudpickle"),
    ("docs/ray.md", r"num_workers=2", "two actors of Ray Train; tests/frameworks/ has one"),
    ("docs/using.md", r"\.\.\.\]", "the form of all commands"),
    ("docs/own_dataset.md", r"dataset=torchvision", "CIFAR10 and STL10 are 170 MB and 2.6 GB"),
)

# Commands whose answer is their exit code, in scripts.
EXITS = {("docs/comparing.md", "python run.py task=verify 'runs=[A,B]'"): 1}  # they differ

# What a block of Python takes from the text around it: the names, as code.
NAMES = {
    ("docs/dataloader.md", "loader = DataLoader"): (
        "from penstock import DataLoader\ndataset = list(range(64))"
    ),
    ("docs/streams.md", "class Lines"): "import gzip, torch",
    ("docs/tabular.md", ""): (
        "import pandas\nframe = pandas.read_csv('people.csv')\nframe['id'] = range(len(frame))"
    ),
    ("docs/frameworks.md", ""): (
        "import torch\nfrom tests.frameworks.test_torch_loader import Rows\n"
        "from tests.frameworks.test_documents import Row\n"
        "rows = train_dataset = Rows()\n"
    ),
    ("docs/frameworks.md", "from lightning_fabric"): (
        "model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 64 * 64, 136))"
    ),
    ("docs/frameworks.md", "import torch.distributed"): (
        "model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 64 * 64, 136))"
    ),
    ("docs/frameworks.md", "import pytorch_lightning"): (
        "from tests.frameworks.test_lightning import Module\nmodule = Module()"
    ),
    ("docs/frameworks.md", "from penstock import DataLoader\nfrom transformers"): "model = Row()",
}

FEW = {
    "trainer.max_steps": "2",
    "trainer.limit_batches.val": "2",
    "trainer.pictures": "false",
    "trainer.baseline": "false",
    "trainer.report": "false",
}
FACES = {"dataset.count": "200", "dataset.size": "48", "batch.size": "8"}
SHORT = {
    "profile": {"steps": "3", **FACES},
    "tune": {"tune.seconds": "2", **FACES},
    "digest": {"steps": "2", **FACES},
    "lr_find": {"steps": "5", **FACES},
    "replay": FACES,
    "where": FACES,
    "check": {},
}


TRUSTED = {"docs/own_dataset.md": "birds", "docs/loading.md": "loading"}  # by their Python


class Home(NamedTuple):
    """Where Penstock is: what is on the path, its program, and what it is."""

    path: str
    program: str
    kind: str


def reason(piece):
    """Why a piece of a page does not run here; None: it does."""
    for page, pattern, why in NOT_RUN:
        if fnmatch(piece.page, page) and re.search(pattern, piece.text):
            return why
    return None


def cut_short(words):
    """More words, which keep a command to seconds; those that it has itself stay as they are."""
    keys = {word.lstrip("+~").partition("=")[0]: word.partition("=")[2] for word in words}
    task = keys.get("task", "fit")
    if re.fullmatch(r"multirun/\w+", keys.get("resume", "")):  # a sweep, which has its settings
        return []
    own_data = {"dataset", "experiment", "run", "runs"} & keys.keys()
    more = {}
    if task == "fit" and "resume" not in keys:
        more = FEW | ({} if own_data else FACES)
    elif task == "fit" and "-m" not in words and keys["resume"] != "auto":
        more = {"trainer.max_steps": "4"}
    elif task == "fit" and keys.get("resume") == "auto":
        more = FEW | FACES
    elif task in SHORT:
        more = {
            name: value for name, value in SHORT[task].items() if not (own_data and name in FACES)
        }
    if "distributed" in keys and "distributed.nproc" not in keys:
        more |= {"distributed.nproc": "2"}
    if keys.get("sweep") == "optuna":
        more |= {"sweep.optuna.trials": "2"}
    if "trainer" in keys and task == "fit":  # trainer=quick
        more.pop("trainer.limit_batches.val", None)
    return [f"{name}={value}" for name, value in more.items() if name not in keys]


def start(words, home, folder, environment):
    """What a command of a page starts, in a folder."""
    if words[:2] == ["python", "run.py"] or words[0] == "penstock":
        rest = words[2:] if words[0] == "python" else words[1:]
        plain = {"init", "--version", "--help", "-sc", "--cfg"} & set(rest)
        words = [sys.executable, home.program, *rest, *([] if plain else cut_short(rest))]
    else:
        assert words[0] == "python", words
        words = [sys.executable, *words[1:]]
    return warm.run(
        words,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1200,  # a busy machine
        libraries_only=home.kind == "wheel",
    )


def python(piece):
    """A block of Python with the names that it takes from around it, on few rows."""
    names = [
        code
        for (page, first), code in NAMES.items()
        if page == piece.page and piece.text.startswith(first)
    ]
    code = piece.text
    if "dataset=" not in code and "Pairs" not in code:
        small = ", ".join(f'"{name}={value}"' for name, value in FACES.items())
        code = code.replace("compose(", f"compose({small}, ").replace(", )", ")")
    return "\n".join([*names, code])


def run_page(page, home, folder, environment):
    """Run all of a page; what went wrong, a line each."""
    folders.FILES.get(page, lambda _: None)(folder)
    for name, text in pages.files(page).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    wrong = []
    earlier, later = (
        [pages.Piece(page, 0, "command", text, 0) for text in more.get(page, ())]
        for more in (folders.BEFORE, folders.AFTER)
    )
    block, where = 0, folder
    for piece in (*earlier, *pages.pieces(page), *later):
        if reason(piece):
            continue
        if piece.block != block:
            block, where = piece.block, folder
        if piece.kind == "python":
            code = folders.filled_in(page, python(piece))
            words = ["python", "-c", code]
        else:
            words = shlex.split(folders.filled_in(page, piece.text))
            if words[0] == "cd":
                where = where / words[1]
                continue
            if words[:2] in (["penstock", "init"], ["python", "-m"]) and "FOLDER" in words:
                words = [f"made{piece.line}" if word == "FOLDER" else word for word in words]
        done = start(words, home, where, environment)
        if done.returncode != EXITS.get((page, piece.text), 0):
            wrong.append(
                f"{page}:{piece.line}: {piece.text}\n{done.stdout[-500:]}{done.stderr[-1500:]}"
            )
    return wrong


@pytest.fixture(scope="module")
def homes(tmp_path_factory, request):
    """The checkout, and what pip installs of a wheel, each made when it is asked for."""
    made = {}

    def home(kind):
        if kind == "checkout":
            return Home(str(ROOT), str(ROOT / "run.py"), kind)
        if kind not in made:
            folder = tmp_path_factory.mktemp("installed")
            wheel = build("build_wheel", request.getfixturevalue("source"), folder / "built")
            pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet"]
            subprocess.run([*pip, "--target", folder / "site", wheel], check=True)
            site = folder / "site"
            assert not (site / "tests").exists()
            made[kind] = Home(str(site), str(site / "bin" / "penstock"), kind)
        return made[kind]

    return home


@pytest.mark.stress
@pytest.mark.parametrize("kind", ["checkout", "wheel"])
@pytest.mark.parametrize("page", pages.PAGES)
def test_a_page(page, kind, homes, tmp_path, request):
    if not pages.pieces(page):
        pytest.skip("nothing on it runs")
    home = homes(kind)
    folder = tmp_path / "a folder"
    folder.mkdir()
    environment, close = environment_of(page, home, folder)
    request.addfinalizer(close)
    wrong = run_page(page, home, folder, environment)
    assert not wrong, "\n\n".join(wrong)


def environment_of(page, home, folder):
    """The variables that a page's commands see, and a call that ends what it needed."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([home.path, "."]),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    close = list
    if page == "docs/frameworks.md":  # a script that torchrun starts; and its models, in tests/
        environment |= {"RANK": "0", "WORLD_SIZE": "1"}
        for name in ("tests", "docs"):  # which a test of these blocks reads
            (folder / name).symlink_to(ROOT / name)
    if page in TRUSTED:
        environment["PENSTOCK_TRUST"] = TRUSTED[page]
    if page == "docs/stores.md":
        served = folder.parent / "served"
        folders.stores(served)
        server = S3Server(served / "store", folder.parent / "requests").start()
        close = server.kill
        environment |= ENVIRONMENT | {"AWS_ENDPOINT_URL": server.options["endpoint_url"]}
        environment["PENSTOCK_ALLOW_ENDPOINT"] = "127.0.0.1"
    return environment, close


def test_each_reason_is_of_something_on_a_page():
    every = [piece for page in pages.PAGES for piece in pages.pieces(page)]
    assert len(every) > 280
    for page, pattern, why in NOT_RUN:
        assert any(
            fnmatch(piece.page, page) and re.search(pattern, piece.text) for piece in every
        ), (page, pattern, why)
    assert EXITS.keys() <= {(piece.page, piece.text) for piece in every}
    left = [piece for piece in every if reason(piece)]
    assert len(left) < len(every) / 6


def test_extras_and_targets_of_the_pages_are_there():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    texts = [piece.text for page in pages.PAGES for piece in pages.pieces(page)]
    named = [hit for text in texts for hit in re.findall(r"pip install .*\[([\w,]+)\]", text)]
    assert {name for names in named for name in names.split(",")} <= set(
        extras["optional-dependencies"]
    )
    made = {text.split()[1] for text in texts if text.startswith("make ")}
    assert {"run", "test"} <= made <= set(targets)


def test_blocks_are_what_they_say():
    """YAML is YAML, and Python compiles."""
    for page in pages.PAGES:
        for block in pages.blocks(page):
            if block.language == "yaml":
                yaml.safe_load(block.text)
            if block.language == "python":
                compile(block.text, f"{page}:{block.line}", "exec")
