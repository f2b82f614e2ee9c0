"""The end of a fit, whichever it is: its status and reason, its observers, and its folder."""

from types import SimpleNamespace

import pytest

from penstock.distributed.preemption import Preempted, Stop
from penstock.errors import ConfigError, PenstockError
from penstock.order.skipped import Skipped
from penstock.tasks import fit, folder_config
from penstock.tasks.fit import Fit
from penstock.training.epoch_metrics import NonFiniteLossError


class Ending(Fit):
    """A fit that has been built, in a folder that notes what is done with it."""

    def __init__(self, tmp_path, *, was_done=False, unused=False, further=False, **parts):
        self.calls = calls = []
        folder = SimpleNamespace(
            path=tmp_path,
            manifest={"sessions": [{}, {}]},
            was_done=was_done,
            is_unused=unused,
            finish=lambda *words, release: calls.append(("finish", *words, release)),
            remove=lambda: calls.append("remove"),
            release=lambda: calls.append("release"),
        )
        saved = SimpleNamespace(saved=lambda: parts.get("saved", True))
        self.opened = SimpleNamespace(
            folder=None if parts.get("other_rank") else folder,
            checkpoints=saved if parts.get("saves", True) else None,
            came_further=lambda: further,
            put_back=lambda: calls.append("put back"),
            start=None,
        )
        trainer = SimpleNamespace(
            progress="none",
            max_epochs=1,
            compile=False,
            ledger=parts.get("ledger", False),
            digest=parts.get("digest", False),
            fast_dev_run=parts.get("quick", False),
        )
        self.config = SimpleNamespace(trainer=trainer)
        plan = SimpleNamespace(skipped=Skipped.of([[0, 1], [0, 2]]))
        self.train_loader = SimpleNamespace(plan=plan, fingerprint={})
        self.data = SimpleNamespace(splits=[], train=SimpleNamespace(budget=None))
        self.observers = []
        self.display = None


@pytest.fixture
def ending(tmp_path, monkeypatch):
    """Let a fit end with an error; gives what was done, its manifest's reason and the error."""
    monkeypatch.setattr(fit, "is_job", lambda: False)
    monkeypatch.setattr(fit, "starts_again", lambda: False)
    monkeypatch.setattr(fit, "how_to_resume", lambda folder: "to resume")
    monkeypatch.setattr(fit, "how_to_skip", lambda folder, skipped: f"skip {skipped}")
    monkeypatch.setattr(fit, "command_line", lambda *words: " ".join(words))
    for name in ("Metrics", "Quarantine", "Identity", "Ledger", "Digests"):

        def observer(*words, name=name):
            return SimpleNamespace(
                name=name,
                on_end=lambda status: run.calls.append(("end", name)),
                on_close=lambda status: run.calls.append(("close", name)),
            )

        monkeypatch.setattr(fit, name, observer)

    def end(error=None, **parts):
        nonlocal run
        run = Ending(tmp_path, **parts)
        run.calls.clear()
        raised = None
        monkeypatch.setattr(fit.seams, "observers", lambda run: [fit.Metrics()])
        try:
            with run.watched():
                if error is not None:
                    raise error
        except BaseException as ended:
            raised = ended
        return run, raised

    run = None
    return end


def reason(run):
    return run.opened.folder.manifest["sessions"][-1].get("reason")


def finished(run):
    return next(call for call in run.calls if call[0] == "finish")


def names(run):
    return [getattr(each, "name", "display") for each in run.observers]


def test_observers_of_a_run(ending):
    run, error = ending()
    assert error is None
    assert names(run) == ["Metrics", "display", "Quarantine", "Identity", "Metrics"]
    assert finished(run) == ("finish", "done", False, False)
    assert reason(run) is None
    assert run.calls[-1] == "release"
    assert run.calls.count(("end", "Metrics")) == run.calls.count(("close", "Metrics")) == 2
    run, _ = ending(ledger=True, digest=True, quick=True)
    assert names(run) == ["Metrics", "display", "Quarantine", "Identity", "Ledger", "Digests"]
    run, error = ending(other_rank=True)
    assert (run.observers, run.calls, error) == ([], [], None)


def test_a_loss_that_is_no_number(ending):
    lost = NonFiniteLossError("nan", 3, 7)
    run, error = ending(lost)
    text = str(error)
    assert "To see that batch:\n  task=replay epoch=3 step=7\nskip " in text
    assert isinstance(error, PenstockError)
    assert str(Skipped.of([[[0, 1], [0, 2]], [[3, 7], [3, 8]]])) in text
    assert reason(run) == str(lost)
    assert finished(run)[1] == "failed"
    for parts in ({"saves": False}, {"saved": False}):
        assert "skip" not in str(ending(lost, **parts)[1])


@pytest.mark.parametrize(
    ("parts", "job", "again", "text"),
    [
        ({}, False, False, "stopped. to resume"),
        ({}, False, True, "stopped. Ranks that remain are started again from there. to resume"),
        ({}, True, False, "stopped"),
        (
            {"saves": False},
            True,
            False,
            "stopped; nothing was saved, as trainer.checkpoint is null",
        ),
    ],
)
def test_a_run_that_is_stopped(parts, job, again, text, ending, monkeypatch):
    monkeypatch.setattr(fit, "is_job", lambda: job)
    monkeypatch.setattr(fit, "starts_again", lambda: again)
    run, error = ending(Preempted("stopped"), **parts)
    assert isinstance(error, Preempted)
    assert str(error) == text
    assert (finished(run)[1], reason(run)) == ("preempted", "stopped")
    assert isinstance(ending(Stop("SIGTERM"))[1], Preempted)


def test_a_run_that_is_interrupted(ending, capsys):
    run, error = ending(KeyboardInterrupt())
    assert isinstance(error, KeyboardInterrupt)
    assert capsys.readouterr().err == f"stopped; the run is in {run.folder.path}\n"
    assert (finished(run)[1], reason(run)) == ("interrupted", "Ctrl-C")


@pytest.mark.parametrize(
    ("error", "unused", "job", "text", "removed"),
    [
        (ValueError("wrong"), True, False, "ValueError: wrong", False),
        (PenstockError("wrong"), True, False, "wrong", False),
        (ConfigError("wrong"), True, False, "wrong", True),
        (ConfigError("wrong"), False, False, "wrong", False),
        (ConfigError("wrong"), True, True, "wrong", False),
        (ValueError("x" * 2000), False, False, "ValueError: " + "x" * 988, False),
    ],
)
def test_a_run_that_fails(error, unused, job, text, removed, ending, monkeypatch):
    monkeypatch.setattr(fit, "is_job", lambda: job)
    run, raised = ending(error, unused=unused)
    assert raised is error
    assert (finished(run)[1], reason(run)) == ("failed", text)
    assert ("remove" in run.calls) == removed
    assert (("end", "Metrics") in run.calls) == (not removed)
    assert ("close", "Metrics") in run.calls
    assert run.calls[-1] == "release"


@pytest.mark.parametrize(
    ("error", "was_done", "further", "unchanged"),
    [
        (None, True, False, False),
        (ValueError(), True, False, True),
        (ValueError(), False, False, False),
        (ValueError(), True, True, False),
    ],
)
def test_a_run_that_was_done_stays_so(error, was_done, further, unchanged, ending):
    run, _ = ending(error, was_done=was_done, further=further)
    assert ("put back" in run.calls) == unchanged
    assert finished(run)[2:] == (unchanged, False)


def test_keys_beside_a_folder_that_gives_the_configuration(monkeypatch):
    from penstock.runs.record import RunRecord

    stored = {"seed": 1, "loader": None, "trainer": {"device": "cpu"}, "tracker": {"a": 1}}
    typed = {
        "seed": 2,
        "loader": {"num_workers": 3, "pool": 4},
        "trainer": {"device": "cuda", "max_epochs": 9},
        "task": "validate",
        "run": "old",
        "tracker": {"b": 1},
    }
    words = []
    record = SimpleNamespace(config=stored)
    monkeypatch.setattr(RunRecord, "read", lambda path, key: record)
    monkeypatch.setattr(folder_config.preflight, "stored", lambda config: config)
    monkeypatch.setattr(folder_config.own_command, "overrides", lambda: words)
    config = SimpleNamespace(run="old", plain=lambda: typed)

    def asked(*given, beside=()):
        words[:] = given
        answer, of_run = folder_config.asked_of(config, beside)
        assert of_run is record
        assert stored["loader"] is None
        assert {key: answer[key] for key in ("task", "run", "tracker")} == {
            "task": "validate",
            "run": "old",
            "tracker": {},
        }
        return {key: answer[key] for key in ("seed", "loader", "trainer")}

    same = {"seed": 1, "loader": None, "trainer": {"device": "cpu"}}
    assert asked("task=validate", "run=old") == same
    changed = asked("loader.num_workers=3", "trainer.device=cuda")
    assert changed == {"seed": 1, "loader": {"num_workers": 3}, "trainer": {"device": "cuda"}}
    assert asked("seed=2", beside=["seed"]) == same
    with pytest.raises(ConfigError, match="run: gives the configuration, that of old, and seed=2"):
        asked("seed=2")
    other = SimpleNamespace(run=None)
    assert folder_config.asked_of(other) == (other, None)
