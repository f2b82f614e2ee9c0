"""What an installation writes, and that `penstock` then does all that `python run.py` does."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from email import message_from_string

import pytest

import penstock
from tests.support.program import ROOT, SHARED

BUILD = "import sys, setuptools.build_meta as backend; getattr(backend, sys.argv[1])(sys.argv[2])"
VERSION = penstock.__version__
SMALL = ["dataset.count=40", "dataset.size=48", "batch.size=8"]


def tracked(*patterns):
    """Files of the checkout, also such as are not committed yet."""
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *patterns]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.split("\0") if name and os.path.lexists(ROOT / name)]


def build(kind, source, out):
    """The file that `build_wheel` or `build_sdist` makes."""
    out.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", BUILD, kind, str(out)],
        cwd=source,
        capture_output=True,
        text=True,
        env={**os.environ, "CC": "false"},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (built,) = out.iterdir()
    return built


@pytest.fixture(scope="session")
def source(tmp_path_factory):
    """A checkout without what earlier builds left in it."""
    folder = tmp_path_factory.mktemp("source")
    for name in tracked(
        "penstock",
        "src",
        "pipeline",
        "datasets",
        "conf",
        "*.toml",
        "*.py",
        "*.in",
        "*.md",
        "LICENSE",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name, follow_symlinks=False)
    return folder


@pytest.fixture(scope="session")
def wheel(source, tmp_path_factory):
    return build("build_wheel", source, tmp_path_factory.mktemp("built") / "wheel")


@pytest.fixture(scope="session")
def installed(wheel, tmp_path_factory):
    """A folder with what the wheel writes into site-packages."""
    folder = tmp_path_factory.mktemp("site packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def start(installed, folder, *words):
    """`penstock *words` as an installation's script starts it, from a folder."""
    script = folder.parent / "penstock"
    script.write_text(
        "import sys\nfrom penstock.console import main\n"
        "if __name__ == '__main__':\n    sys.exit(main())\n"
    )
    return subprocess.run(
        [sys.executable, str(script), *map(str, words)],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(installed)},
    )


@pytest.fixture
def empty(tmp_path):
    folder = tmp_path / "an empty folder"
    folder.mkdir()
    return folder


def test_a_wheel_writes_nothing_but_penstock(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (notes,) = {name.split("/")[0] for name in names if name.split("/")[0] != "penstock"}
        facts = message_from_string(archive.read(f"{notes}/METADATA").decode())
        commands = archive.read(f"{notes}/entry_points.txt").decode()
    assert notes == f"penstock_loader-{penstock.__version__}.dist-info"
    assert facts["Name"] == "penstock-loader"
    assert "penstock = penstock.console:main" in commands
    ours = {name for name in names if name.startswith("penstock/")}
    assert ours == shipped()


def shipped():
    """The names that a wheel's files have to have: code, configuration, templates, type hints."""
    kinds = (".py", ".pyi", ".yaml", ".txt", ".csv", ".typed", ".html", ".css", ".js")
    wanted = {name for name in tracked("pipeline", "datasets", "conf") if name.endswith(kinds)}
    return {f"penstock/{name.removeprefix('pipeline/')}" for name in wanted}


@pytest.mark.thorough
def test_a_source_distribution_has_all_that_a_build_needs(source, tmp_path):
    with tarfile.open(build("build_sdist", source, tmp_path / "sdist")) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers()}
        assert not any(member.issym() or member.islnk() for member in archive.getmembers())
    needed = {f"src/{name}" for name in shipped()} | {
        "pyproject.toml",
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
    }
    needed |= {name for name in tracked("pipeline/native") if name.endswith((".c", ".h"))}
    assert needed <= names
    tops = {name.split("/")[0] for name in names}
    assert not tops & {"datasets", "conf", "tests"}


def test_an_installation_runs_from_an_empty_folder(installed, empty):
    for name in ("conf", "datasets", "pipeline"):  # somebody's own, which nobody asks for
        (empty / name).mkdir()
        (empty / name / "__init__.py").write_text("raise SystemExit('not ours')\n")
    root = f"dataset.root={empty.parent / 'drawn'}"
    done = start(installed, empty, "task=digest", "steps=2", root, *SMALL, "loader.num_workers=1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("total ")


# Files of somebody's project, three of whose names are those of folders of a checkout.
PROJECT = {
    "pipeline.py": """
def scale(value):
    return 2 * value
""",
    "own.py": """
class Same:
    def __call__(self, sample):
        return sample
""",
    "datasets/__init__.py": "",
    "datasets/squares.py": """
import torch
from pipeline import scale

class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return scale(index * index)
""",
    "conf/config.yaml": "[ this is no configuration of ours",
    "script.py": """
import sys
import penstock
import pipeline
from datasets.squares import Squares
from penstock import DataLoader, Loader, Run, build_train_loader, build_val_loader, compose

if __name__ == "__main__":
    spawned = {"num_workers": 1, "multiprocessing_context": "spawn"}
    batches = list(DataLoader(Squares(), batch_size=4, **spawned))
    assert [batch.tolist() for batch in batches] == [[0, 2, 8, 18], [32, 50, 72, 98]]
    config = compose(*sys.argv[1:], "loader.num_workers=0")
    with build_train_loader(config) as loader, build_val_loader(config) as validation:
        assert isinstance(loader, Loader) and isinstance(validation, Loader)
        assert len(next(iter(loader))["image"]) == 8
    print(penstock.__file__)
    print(Run.__name__)
""",
}


@pytest.mark.thorough
@pytest.mark.one_in(2)
@pytest.mark.parametrize("origin", ["wheel", "checkout"])
def test_a_project_may_have_a_pipeline_datasets_and_conf_of_its_own(
    origin, tmp_path, request, drawn
):
    """A script, a worker that it spawns, a run that calls a module of the project, and resumes."""
    project = tmp_path / "project"
    for name, text in PROJECT.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    if origin == "wheel":
        home = request.getfixturevalue("installed")
        program = tmp_path / "penstock"
        program.write_text("import sys\nfrom penstock.console import main\nsys.exit(main())\n")
    else:
        home, program = ROOT, ROOT / "run.py"
    small = [f"dataset.root={drawn}", *SMALL]

    def start(*words):
        done = subprocess.run(
            [sys.executable, *map(str, words)],
            cwd=project,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(home)},
        )
        assert done.returncode == 0, done.stderr
        return done

    said = start("script.py", *small).stdout.splitlines()
    assert said == [str(home / "penstock" / "__init__.py"), "Run"]
    own = [
        "--trust=own",
        "+transform.train.mine._target_=own.Same",
        "run_dir=outputs/first",
        *small,
    ]
    own += ["trainer.baseline=false", "trainer.pictures=false", "trainer.report=false"]
    start(program, "trainer.max_steps=1", *own)
    resumed = start(program, "trainer.max_steps=2", "resume=auto", *own)
    assert "resum" in resumed.stderr
    ledger = (project / "outputs/first/ledger.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in ledger] == [0, 1]


def test_importing_penstock_imports_nothing_else():
    """And each of its names is there when it is asked for."""
    program = (
        "import sys, penstock\n"
        "assert not {'torch', 'numpy', 'hydra', 'omegaconf'} & sys.modules.keys()\n"
        "assert [name for name in sys.modules if name.startswith('penstock')] == ['penstock']\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [getattr(penstock, name).__name__ for name in penstock.__all__] == penstock.__all__
    with pytest.raises(AttributeError, match="module 'penstock' has no attribute 'Laoder'"):
        _ = penstock.Laoder


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Where faces are drawn once."""
    return tmp_path_factory.mktemp("drawn")


@pytest.mark.stress
def test_its_help_and_its_hints_say_penstock(installed, empty):
    done = start(installed, empty, "--help")
    assert done.returncode == 0, done.stderr
    assert 'eval "$(penstock -sc install=bash)"' in done.stdout
    assert "run.py" not in done.stdout
    missing = start(installed, empty, "init")
    assert missing.returncode == 2
    assert "penstock init FOLDER\n" in missing.stderr


def test_no_message_tells_to_install_another_program():
    """`penstock` on the package index is somebody else's."""
    for name in tracked("pipeline", "datasets", "conf", "docs", "*.md", "*.toml"):
        path = ROOT / name
        if path.is_file() and path.suffix in (".py", ".yaml", ".md", ".toml", ".txt"):
            text = path.read_text(encoding="utf-8").replace("penstock-loader", "")
            assert "install penstock" not in text, name
            assert "penstock[" not in text, name


@pytest.mark.stress
def test_a_fresh_environment_trains_on_faces_and_on_a_new_project(source, tmp_path):
    """Built by pip, with the native code, installed by pip; from folders with spaces."""
    pip = [sys.executable, "-m", "pip"]
    out = tmp_path / "wheels"
    offline = ["--no-deps", "--no-index", "--quiet"]
    subprocess.run(
        [*pip, "wheel", *offline, "--no-build-isolation", "-w", out, "."], cwd=source, check=True
    )
    venv.create(tmp_path / "an environment")
    bins = tmp_path / "an environment" / "bin"
    (site,) = (tmp_path / "an environment" / "lib").glob("python*/site-packages")
    others = [path for path in sys.path if path.endswith("site-packages")]
    (site / "shared.pth").write_text("\n".join(others) + "\n")  # torch and so on
    subprocess.run(
        [
            *pip,
            "--python",
            bins / "python",
            "install",
            *offline,
            "--ignore-installed",
            *out.iterdir(),
        ],
        check=True,
    )
    written = {path.name for path in site.iterdir()} - {"shared.pth"}
    assert written == {"penstock", f"penstock_loader-{VERSION}.dist-info"}

    work = tmp_path / "a folder with spaces"
    work.mkdir()
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    environment["PATH"] = f"{bins}{os.pathsep}{environment['PATH']}"

    def penstock(*words, folder=work, program="penstock"):
        done = subprocess.run(
            [bins / program, *words],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, (words, done.stderr)
        return done

    quick = ["trainer.max_steps=2", "run_dir=outputs/first"]
    penstock(*quick, *SMALL, "loader=fast", "sampler=random", f"dataset.root={tmp_path / 'drawn'}")
    penstock(
        "-m",
        "hydra/launcher=joblib",
        "seed=1,2",
        "task=digest",
        "steps=1",
        *SMALL,
        f"dataset.root={tmp_path / 'drawn'}",
    )
    if (SHARED / "faces").is_dir():
        faces = ["dataset=face_landmarks", f"dataset.root='{SHARED / 'faces'}'"]
        assert "nme" in penstock(*faces, "trainer.max_steps=2").stdout
    script = 'eval "$(penstock -sc install=bash)"; complete -p penstock'
    done = subprocess.run(
        ["bash", "-c", script],
        env=environment,
        cwd=work,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "hydra_bash_completion" in done.stdout

    penstock("init", "my birds")
    project = work / "my birds"
    ranks = ["distributed=ddp", "distributed.nproc=2", "run_dir=outputs/first"]
    penstock(
        "run.py", "dataset=my_birds", "trainer=quick", *ranks, folder=project, program="python"
    )
    penstock("-m", "pytest", "-q", "-p", "no:cacheprovider", folder=project, program="python")


def test_a_clone_named_penstock_does_not_hide_an_editable_installation(source, tmp_path):
    """A script beside the clone: the folder of that name has no code, and comes first."""
    editable = build("build_editable", source, tmp_path / "wheel")
    zipfile.ZipFile(editable).extractall(tmp_path / "site")
    (tmp_path / "penstock").symlink_to(source)
    lines = (
        "import site, sys; site.addsitedir(sys.argv[1]); import penstock; print(penstock.compose)"
    )
    (tmp_path / "script.py").write_text(lines)
    words = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "site")]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(words, capture_output=True, text=True, env=clean, cwd=tmp_path)
    assert "function compose" in done.stdout, done.stderr
