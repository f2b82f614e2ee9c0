"""The program as a person runs it: exit codes, messages, and what is left behind."""

import logging
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from penstock import command, seams
from penstock.errors import ConfigError, DataError, PenstockError

ROOT = Path(__file__).parents[3]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder to run in."""
    monkeypatch.chdir(tmp_path)
    for name in ("PENSTOCK_TRUST", "HYDRA_FULL_ERROR", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def task(monkeypatch):
    """Puts a function in the place of every task."""

    def use(run):
        monkeypatch.setattr(seams, "function", lambda name: run)

    return use


def test_a_task_runs_with_the_checked_configuration(here, task, capsys):
    seen = []
    task(lambda config: seen.append(config) or 0.5)
    assert command.main(["seed=3", "task=digest", "loader=debug"]) == 0
    assert command.main(["seed=4"]) == 0
    assert [(one.seed, one.task) for one in seen] == [(3, "digest"), (4, "fit")]
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.split(":")[0] for line in err.splitlines()] == ["digest", "fit"]
    assert list(here.iterdir()) == [], "a single run leaves nothing of hydra's"


def test_a_wrong_configuration(here, task, capsys):
    task(lambda config: pytest.fail("the task ran"))
    assert command.main(["sampler=wieghted", "batch.size=0", "lodaer=fast"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("3 errors in the configuration:\n  sampler: ")
    assert "did you mean 'weighted'" in err
    assert err.count("\n") == 4
    assert "Traceback" not in err
    assert command.main(["batch.size=0"]) == 2
    assert capsys.readouterr().err.startswith("error in the configuration: batch.size: ")
    assert list(here.iterdir()) == []


def test_trust_adds_to_what_the_environment_trusts(here, task, capsys, monkeypatch):
    seen = []
    task(lambda config: seen.append(os.environ["PENSTOCK_TRUST"]))
    untrusted = "sampler._target_=tests.support.own_parts.sequential"
    assert command.main([untrusted]) == 2
    assert "--trust tests" in capsys.readouterr().err
    monkeypatch.setenv("PENSTOCK_TRUST", "tests")
    assert command.main(["--trust", "hypothesis", untrusted]) == 0
    assert seen == ["tests,hypothesis"]


@pytest.mark.parametrize("words", [["--trust", "os"], ["--trust", "torch"], ["--trust=a-b"]])
def test_trust_has_bounds(here, capsys, words):
    assert command.main(words) == 2
    assert "--trust: " in capsys.readouterr().err


def test_a_configuration_cannot_trust_for_itself(here, task, capsys):
    task(lambda config: pytest.fail("the task ran"))
    untrusted = "sampler._target_=tests.support.own_parts.sequential"
    assert command.main([untrusted, "+hydra.job.env_set.PENSTOCK_TRUST=tests"]) == 2
    assert "sampler._target_" in capsys.readouterr().err
    assert command.main([untrusted, "+trust=[tests]"]) == 2
    assert "trust: " in capsys.readouterr().err


def raising(error):
    def run(config):
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ConfigError("late"), 2, "error in the configuration: late\n"),
        (DataError("faces.csv, line 3: no number"), 3, "error: faces.csv, line 3: no number\n"),
        (PenstockError("the loss is NaN"), 1, "error: the loss is NaN\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (SystemExit(7), 7, ""),
    ],
)
def test_exit_codes(here, task, capsys, error, code, message):
    task(raising(error))
    assert command.main([]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.partition("\n")[2] == message, "the first line says what was to be done"


def test_bugs_keep_their_traceback(here, task, capsys):
    task(raising(ZeroDivisionError("a bug")))
    assert command.main([]) == 1
    err = capsys.readouterr().err.partition("\n")[2]
    assert err.startswith("Traceback")
    assert "in run\n" in err
    assert err.endswith("ZeroDivisionError: a bug\n")
    assert "hydra/_internal" not in err


def test_the_traceback_of_an_error_can_be_asked_for(here, task, capsys, monkeypatch):
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    task(raising(DataError("no file")))
    assert command.main([]) == 3
    err = capsys.readouterr().err.partition("\n")[2]
    assert err.startswith("Traceback")
    assert err.endswith("\nerror: no file\n")


def test_the_whole_configuration_can_be_looked_at(here, capsys):
    assert command.main(["--cfg", "job", "--package", "batch", "batch.size=7"]) == 0
    assert "size: 7" in capsys.readouterr().out
    assert command.main(["--cfg", "job", "dataset=face_landmarks"]) == 0
    assert "root: ???" in capsys.readouterr().out
    assert command.main(["--cfg", "job", "lodaer=fast"]) == 2
    assert "did you mean 'loader'" in capsys.readouterr().err
    assert list(here.iterdir()) == []


def test_help_names_parts_examples_and_exit_codes(here, capsys):
    assert command.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert "sampler: blocks, bucket, curriculum, identity" in out
    assert "--trust PACKAGE" in out
    assert "75   stopped, and can be resumed" in out


def test_looking_and_most_mistakes_do_not_wait_for_torch(here):
    """Of two mistakes, the one that needs the class of the model waits for the next round."""
    script = """
        import runpy, sys
        sys.argv[1:] = ["--cfg", "job"]
        sys.settrace(lambda *_: None)  # with which the program ends by SystemExit
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        finally:
            from penstock import command
            assert command.main(["loader=fsat"]) == 2
            assert command.main(["trainer.max_epoch=3", "batch.size=0", "+model.foo=1",
                                 "optimizer._target_=os.system"]) == 2
            assert "hydra" in sys.modules and not {"torch", "numpy"} & set(sys.modules)
    """
    script = f"import sys; sys.argv = [{str(ROOT / 'run.py')!r}]\n" + textwrap.dedent(script)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "seed:" in done.stdout
    first, second, *problems = done.stderr.splitlines()
    assert "(did you mean 'fast'?)" in first
    assert second == "2 errors in the configuration:"
    keys = [line.split(":")[0].strip() for line in problems]
    assert keys == ["trainer.max_epoch", "batch.size"]


@pytest.mark.parametrize("flag", ["--hydra-help", "--cfg=all", "--info=config"])
def test_what_only_looks_calls_nothing_either(here, capsys, flag):
    handler = "+hydra.hydra_logging.handlers={x:{class:tests.support.own_parts.Holder}}"
    assert command.main([flag, handler]) == 2
    assert "hydra.hydra_logging.handlers.x.class" in capsys.readouterr().err


def test_a_pickle_is_not_run_again(here, capsys):
    assert command.main(["--experimental-rerun", "x.pickle"]) == 2
    assert "--experimental-rerun: there is no such option" in capsys.readouterr().err


def test_unknown_options_are_refused(here, capsys):
    assert command.main(["--bogus"]) == 2
    assert "--bogus: there is no such option; keys stand without dashes" in capsys.readouterr().err


def test_what_modules_log_goes_to_stderr(here, task, capsys):
    task(lambda config: logging.getLogger("penstock.transforms.statistics").info("computing"))
    assert command.main([]) == 0
    out, err = capsys.readouterr()
    assert (out, err.partition("\n")[2]) == ("", "computing\n")


def run_py(*words, **options):
    done = subprocess.run(
        [sys.executable, str(ROOT / "run.py"), *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        **options,
    )
    return done.returncode, done.stdout, done.stderr


def test_the_program_itself(here):
    """Once as a process of its own, from another folder, with another `datasets` on the path."""
    other = here / "elsewhere" / "datasets"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("raise ImportError('the wrong package')")
    environment = {**os.environ, "PYTHONPATH": str(other.parent)}
    code, out, err = run_py("dataset.count=0", "sampler=rnadom", cwd=here, env=environment)
    assert (code, out) == (2, "")
    assert "sampler: In 'config': Could not find 'sampler/rnadom'" in err
    assert "(did you mean 'random'?)" in err
    assert "wrong package" not in err
    assert sorted(path.name for path in here.iterdir()) == ["elsewhere"]
