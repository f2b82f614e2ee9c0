"""`penstock.Run`, as a notebook uses it."""

import html
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import penstock
from penstock import Run, command
from penstock.errors import ConfigError, PenstockError
from penstock.loading.batch import batch_hash
from tests.program import ROOT
from tests.program import run as run_program

RUN = (
    "trainer=quick",
    "trainer.max_steps=8",
    "trainer.digest=true",
    "trainer.pictures=false",
    "trainer.log_every=2",
    "loader=debug",
    "tracker=none",
    "trainer.device=cpu",
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, faces_root):
    folder = tmp_path_factory.mktemp("trained") / "outputs"
    words = [f"dataset.root={faces_root}", "dataset.count=60", "dataset.size=48", "batch.size=8"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder.parent)
        assert command.main([*words, *RUN, f"run_dir={folder}"]) == 0
    return folder


@pytest.fixture
def folder(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


@pytest.mark.thorough
def test_tables_configuration_and_manifest(folder):
    run = Run(folder)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert run.metrics.to_dict("records") == [
        {name: value for name, value in line.items() if name != "event"}
        for line in lines
        if line["event"] == "epoch"
    ]
    assert list(run.logs["step"]) == [one["step"] for one in lines if one["event"] == "log"]
    assert run.config["batch"]["size"] == 8
    assert run.manifest["status"] == run.state == "done"
    assert run.path == folder
    (folder / "metrics.jsonl").unlink()
    assert len(Run(folder).metrics) == len(Run(folder).logs) == 0


@pytest.mark.thorough
def test_a_batch_is_the_one_that_the_run_had(folder, trained, capsys):
    run = Run(folder)
    digests = [json.loads(line) for line in (folder / "digests.jsonl").read_text().splitlines()]
    assert len(digests) == 6
    for one in digests[::2]:
        batch = run.batch(one["epoch"], one["step"])
        assert batch_hash([batch]) == one["hash"]
    words = json.loads((trained / "manifest.json").read_text())["overrides"]
    again = run_program(capsys, *words, "task=digest", "split=val")
    assert again.hashes[1].split()[3] == batch_hash([run.batch(0, 1, "val")])
    assert isinstance(batch["image"], torch.Tensor)


def test_another_batch_than_the_run_had_is_told(folder):
    path = folder / "digests.jsonl"
    path.write_text(path.read_text().replace('"hash": "', '"hash": "0'))
    with pytest.raises(PenstockError, match=r"batch \(0, 2\) .* the data or the code has changed"):
        Run(folder).batch(0, 2)
    path.unlink()
    Run(folder).batch(0, 2)
    with pytest.raises(ConfigError, match="has 6 steps"):
        Run(folder).batch(0, 6)


def test_a_batch_needs_no_tracker(folder):
    path = folder / "config.yaml"
    none, gone = "  none: null\n", "  none: {_target_: of_a_package.that_is_gone}\n"
    assert none in path.read_text()
    path.write_text(path.read_text().replace(none, gone))
    assert Run(folder).batch(0, 2)["image"].shape[0] == 8


def test_a_folder_from_a_stranger_runs_nothing(folder, tmp_path):
    path = folder / "config.yaml"
    text = path.read_text()
    target = "penstock.datasets.synthetic_faces.SyntheticFaces"
    assert target in text
    path.write_text(text.replace(target, "os.system"))
    with pytest.raises(ConfigError, match=r"dataset._target_.*os.system"):
        Run(folder).batch(0, 0)
    path.write_text(text.replace("seed: 0", "seed: ${oc.env:HOME}", 1))
    with pytest.raises(ConfigError, match="seed"):
        Run(folder).batch(0, 0)
    with pytest.raises(ConfigError, match="not a run's folder"):
        Run(tmp_path)


def test_a_run_and_its_report_in_a_notebook(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["command"] = "<script>alert(1)</script>"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    run = Run(folder)
    assert re.fullmatch(r"Run\('.*/run': done, epochs 1, steps 6, nme 0\.\d+\)", repr(run))
    table = run._repr_html_()
    assert "<script" not in table
    assert html.escape("<script>alert(1)</script>") in table
    made = run.report()
    assert Path(made) == folder / "report.html"
    assert str(made) == str(folder / "report.html")
    page = re.fullmatch(
        r'<iframe sandbox="allow-scripts" .* srcdoc="([^"]*)"></iframe>',
        made._repr_html_(),
        re.DOTALL,
    )
    assert html.unescape(page[1]) == Path(made).read_text()


@pytest.mark.thorough
def test_what_the_documentation_shows_runs(folder, monkeypatch):
    text = (ROOT / "docs" / "using.md").read_text()
    [snippet] = re.findall(r"```python\n(from penstock import Run\n.*?)```", text, re.DOTALL)
    place = re.search(r'Run\("(.*?)"\)', snippet)[1]
    monkeypatch.chdir(folder.parent)
    Path(place).parent.mkdir(parents=True)
    shutil.copytree(folder, place)
    found = {}
    exec(compile(snippet, "docs/using.md", "exec"), found)
    assert isinstance(found["run"], penstock.Run)


@pytest.mark.thorough
def test_it_is_cheap_until_a_batch_is_asked_for(folder):
    code = (
        "import sys; from penstock import Run; run = Run(sys.argv[1]); repr(run); run.state; "
        "run._repr_html_(); sys.exit(bool({'torch', 'pandas'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code, folder], check=True, cwd=ROOT)
