"""Datasets of a person's own: what is said of their batches after a change (tests/strangers.py)."""

import shutil

import pytest

from tests import strangers
from tests.strangers import ASKED, CHANGES, MAPS, SAME, STREAMS


@pytest.fixture(autouse=True)
def trusted(monkeypatch, tmp_path):
    monkeypatch.setenv("PENSTOCK_TRUST", "stranger,stranger_steps")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.dont_write_bytecode", True)


@pytest.mark.thorough
def test_another_fold_is_other_data(tmp_path):
    found = strangers.table(tmp_path, ["Args"], ["argument"])
    assert {who: said for (_, _, who), said in found.items()} == {
        "resume": "refused",
        "verify": "differ",
        "diff": "differ",
        "report": "differ",
        "sharing": "refused",
        "caches": "right",
        "where": "-",
    }


@pytest.mark.stress
@pytest.mark.parametrize("kind", MAPS + STREAMS)
def test_no_answer_calls_different_batches_the_same(kind, tmp_path):
    found = strangers.table(tmp_path, [kind])
    wrong = [key for key, said in found.items() if said == SAME]
    assert not wrong
    asked = {key[1] for key in found}
    assert asked == set(CHANGES) - ({"argument"} if "Bare" in kind else set())
    assert {key[2] for key in found} == set(ASKED)


@pytest.mark.stress
@pytest.mark.parametrize(("kind", "known"), [("Args", False), ("Print", True)])
def test_a_run_of_the_same_data_is_the_same_as_far_as_that_is_known(
    kind, known, tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(tmp_path)
    project = strangers.Project(tmp_path, kind)
    again = project.fit("again")
    for asked in (strangers.verify, strangers.diff, strangers.report, strangers.where):
        assert asked(project, again) == (SAME if known else "not known"), asked.__name__
    told = strangers.run("task=verify", f"runs=[{project.base},{again}]")
    assert told.code == 0
    last = told.text.splitlines()[-1]
    assert last == (
        "the same" if known else "not known to be the same: samples; what else was compared is"
    )
    copied = tmp_path / "resumed"
    shutil.copytree(project.base, copied)
    told = strangers.run(f"resume={copied}", "trainer.max_epochs=2")
    assert told.code == 0, told.text
    line = "as far as is known, the data is that of the run: 16 of its rows were compared; give it"
    assert (line in told.text) is not known


@pytest.mark.stress
def test_what_differs_is_named_and_may_be_overruled(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    project = strangers.Project(tmp_path, "Args")
    project.change("label")
    project.change("argument")
    again = f"resume={project.base}", *project.words[-2:-1], "~dataset", "trainer.max_epochs=2"
    told = strangers.run(*again)
    assert told.code == 2
    assert (
        "dataset.identity.arguments.scale: is 2.0 here and was 1.0 in the run that is resumed"
        in told.text
    )
    assert "dataset.identity.rows: row 0, 3, 5, 8," in told.text
    assert "'resume_despite=[dataset]'" in told.text
    done = strangers.run(*again, "resume_despite=[dataset]")
    assert done.code == 0, done.text
