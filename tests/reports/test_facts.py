"""What a run writes for its report: it is true, changes nothing, and is read with distrust."""

import base64
import html
import json
import shlex
from collections import Counter
from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import penstock
from penstock.addons.reports import (
    data_section,
    facts,
    report_facts,
    run_report,
)
from penstock.addons.reports.facts import Facts, read_facts
from penstock.addons.reports.pictures import signal_thumbnail, thumbnail
from penstock.addons.reports.predictions import denormalized
from penstock.addons.reports.report_facts import data_facts
from penstock.addons.reports.values import replay
from penstock.build.data import DataParts
from penstock.build.training import TrainingParts
from penstock.distributed.world import World
from penstock.errors import PenstockError
from penstock.runs.record import RunRecord
from penstock.tasks.validate import load_weights
from tests.broken_images import cut, write_images
from tests.conftest import leave_reports
from tests.program import run
from tests.reports import browser as browsers

QUICK = [
    "trainer=quick",
    "trainer.max_steps=4",
    "loader=debug",
    "trainer.pictures=false",
    "trainer.device=cpu",
    "tracker=none",
]


@pytest.fixture
def images(tmp_path, monkeypatch):
    """Overrides for a folder of images in three classes, one of them rare."""
    monkeypatch.chdir(tmp_path)
    for path in write_images(tmp_path / "data")[:7]:
        path.unlink()
    return [
        "dataset=image_folder",
        f"dataset.root={tmp_path / 'data'}",
        "batch.size=8",
        "transform.train.crop.size=[32,32]",
    ]


@pytest.fixture
def told(monkeypatch):
    """Fits write facts, and no page."""
    leave_reports(monkeypatch, "write_facts", "write_data_facts")


def written(tmp_path):
    return read_facts(tmp_path / "run")


@pytest.mark.thorough
def test_classes_are_counted_as_they_are_and_as_they_are_drawn(images):
    for sampler in ("random", "weighted", "identity"):
        small = ["sampler.identities=2", "sampler.samples=3"] if sampler == "identity" else []
        data = DataParts(penstock.compose(*images, *small, f"sampler={sampler}"), World())
        found = data_facts(data, seconds=1.0)
        for split, told in zip((data.train, data.val), found.splits, strict=True):
            (column,) = told.columns
            names = [split.dataset.classes[one] for one in split.dataset.labels.tolist()]
            assert dict(zip(column.values, column.rows, strict=True)) == Counter(names)
            assert told.rows == len(split.dataset)
        plan = data.train.plan
        drawn = [row for step in range(plan.steps(0)) for row in plan.request(0, step).indices]
        expected = Counter(
            data.train.dataset.classes[data.train.dataset.labels[row]] for row in drawn
        )
        column = found.splits[0].columns[0]
        assert dict(zip(column.values, column.drawn, strict=True)) == expected
        assert found.drawn == found.places == len(drawn)


@pytest.mark.thorough
def test_lengths_are_those_that_the_sampler_sees(tmp_path):
    texts = [" ".join(["word"] * (number % 9 + 1)) for number in range(50)]
    (tmp_path / "t.tsv").write_text(
        "".join(f"{'ab'[n % 2]}\t{one}\n" for n, one in enumerate(texts))
    )
    data = DataParts(
        penstock.compose(
            "dataset=delimited_text",
            f"dataset.root={tmp_path}",
            "dataset.file=t.tsv",
            "loader=debug",
            "dataset.columns=[label,text]",
            f"dataset.cache_dir={tmp_path / 'cache'}",
        ),
        World(),
    )
    train = data_facts(data, seconds=1.0).splits[0].lengths
    expected = Counter(len(data.train.dataset[row]["text"].split()) for row in range(40))
    assert train.unit == "tokens"
    assert dict(zip(train.edges[:-1], train.counts, strict=True)) == expected
    assert (train.least, train.most) == (min(expected), max(expected))
    assert data_facts(data, seconds=0.0).splits[0].lengths is None  # where a table costs too much


@pytest.mark.stress
def test_the_line_beside_a_batch_makes_those_very_pictures_again(faces, told, tmp_path, capsys):
    assert run(capsys, *faces, *QUICK, "sampler=weighted", f"run_dir={tmp_path / 'run'}").code == 0
    batch = written(tmp_path).batches[1]
    assert (batch.epoch, batch.step, batch.rows, batch.kind) == (0, 1, 8, "pictures")
    words = shlex.split(replay(RunRecord.read(tmp_path / "run"), 0, 1))
    replayed = run(capsys, *words[words.index("run.py") + 1 :], f"run_dir={tmp_path / 'again'}")
    rows = [line.split()[:2] for line in replayed.out.splitlines()[1:9]]
    assert rows == [[str(one.position), str(one.index)] for one in batch.samples]
    made = load_file(tmp_path / "again" / "batch.safetensors")
    split = DataParts(penstock.compose(*faces), World()).train
    images = denormalized(made["image"], split.transform)
    assert [one.picture for one in batch.samples] == [
        thumbnail(image, [(points, "#22e08a")])
        for image, points in zip(images, made["landmarks"], strict=True)
    ]


@pytest.mark.thorough
def test_predictions_are_the_best_the_median_and_the_worst_of_all(faces, told, tmp_path, capsys):
    small = [*faces, "dataset.count=120", "batch.val_size=5"]
    assert run(capsys, *small, *QUICK, f"run_dir={tmp_path / 'run'}").code == 0
    parts = TrainingParts(penstock.compose(*small, *QUICK))
    model, objective = parts.model().eval(), parts.objective()
    load_weights(model, tmp_path / "run" / "checkpoints" / "best.safetensors")
    with parts.data.val.loader() as loader, torch.no_grad():
        losses = torch.cat([objective(model, batch)[0] for batch in loader.epoch(0)])
    found = written(tmp_path)
    order = losses.argsort().tolist()
    assert len(order) == found.losses.samples == 24
    expected = {"best": order[:4], "median": order[10:14], "worst": order[-4:][::-1]}
    for group, rows in expected.items():
        shown = [one for one in found.predictions if one.group == group]
        assert [one.index for one in shown] == rows
        assert [one.loss for one in shown] == pytest.approx(losses[rows].tolist(), rel=1e-4)
    assert found.losses.quantiles == pytest.approx(
        np.quantile(losses.double().numpy(), facts.QUANTILES).tolist()
    )


@pytest.mark.thorough
def test_a_run_is_the_same_bit_by_bit_with_and_without_a_report(faces, told, tmp_path, capsys):
    def content(name, wanted):
        more = [
            "trainer.ledger=true",
            "trainer.digest=true",
            "trainer.max_epochs=2",
            "trainer.max_steps=null",
            f"trainer.report={wanted}",
        ]
        assert run(capsys, *faces, *QUICK, *more, f"run_dir={tmp_path / name}").code == 0
        folder = tmp_path / name
        assert (folder / "report" / "facts.json").exists() == wanted
        weights = load_file(folder / "checkpoints" / "best.safetensors")
        metrics = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
        measured = ("step", "train/loss", "val/loss", "val/nme")
        return (
            (folder / "ledger.jsonl").read_bytes(),
            (folder / "digests.jsonl").read_bytes(),
            {key: value.numpy().tobytes() for key, value in weights.items()},
            [[one.get(key) for key in measured] for one in metrics],
            json.loads((folder / "manifest.json").read_text())["order"],
        )

    assert content("with", True) == content("without", False)


def test_generators_are_where_they_were(faces):
    from penstock.addons.reports.report_facts import shown_batches

    parts = TrainingParts(penstock.compose(*faces, "loader=debug"))
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()
    assert len(list(shown_batches(parts.data.train, parts.objective(), 4))) == 2
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()


@pytest.mark.thorough
def test_what_fails_is_noted_and_the_run_is_done(faces, reports, tmp_path, capsys, monkeypatch):
    def fail(*given):
        raise OSError("no more \x1b[31mpictures")

    monkeypatch.setattr(report_facts, "thumbnail", fail)
    done = run(capsys, *faces, *QUICK, f"run_dir={tmp_path / 'run'}")
    assert done.code == 0
    assert "a part of the report (the first batches) is missing: OSError: no more \\x1b" in done.err
    found = written(tmp_path)
    assert found.data is not None
    assert not found.batches
    assert not found.predictions
    assert len(found.notes) == 2
    assert "A part is missing (predictions)" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.thorough
def test_a_run_that_fails_tells_its_data(images, told, tmp_path, capsys):
    failed = run(
        capsys,
        *images,
        *QUICK,
        "optimizer.lr=1e30",
        "trainer.clip_norm=null",
        f"run_dir={tmp_path / 'run'}",
    )
    assert failed.code == 1
    found = written(tmp_path)
    assert [one.rows for one in found.data.splits] == [23, 6]
    assert found.data.splits[0].columns[0].values == ("ant", "bee", "cat")
    assert not found.batches


def test_left_out_samples_are_named(images, told, tmp_path, capsys):
    broken = sorted((tmp_path / "data").rglob("*.jpg"))[2:4]
    for path in broken:
        cut(path)
    done = run(
        capsys,
        *images,
        *QUICK,
        "bad_samples.on_error=skip",
        "bad_samples.budget=5",
        f"run_dir={tmp_path / 'run'}",
    )
    assert done.code == 0
    page = str(data_section.section(RunRecord.read(tmp_path / "run")).body)
    left_out = RunRecord.read(tmp_path / "run").left_out
    assert left_out
    assert "as they could not be read" in page
    assert all(html.escape(one.path) in page for one in left_out)


@pytest.mark.thorough
def test_a_stream_has_batches_and_no_predictions(tmp_path, reports, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.tsv").write_text("".join(f"{'ab'[n % 2]}\tword {n}\n" for n in range(60)))
    done = run(
        capsys,
        "dataset=delimited_stream",
        f"dataset.root={tmp_path / 't.tsv'}",
        "dataset.columns=[label,text]",
        "sampler=stream",
        "batch.size=8",
        "dataset.classes=[a,b]",
        *QUICK,
        f"run_dir={tmp_path / 'run'}",
    )
    assert done.code == 0, done.err
    found = written(tmp_path)
    assert [len(one.samples) for one in found.batches] == [8, 8]
    assert all(one.words.startswith("word ") for one in found.batches[0].samples)
    assert not found.predictions
    assert "samples of a stream cannot be chosen" in found.notes[0]
    assert "the report is missing" not in done.err
    assert "Steps whose loss is highest" in (tmp_path / "run" / "report.html").read_text()


HOSTILE = {
    "version": lambda one: one | {"version": 2},
    "list": lambda one: [one],
    "no data": lambda one: one | {"data": "none"},
    "rows": lambda one: one | {"losses": {"epoch": -1, "samples": 3, "quantiles": []}},
    "quantiles": lambda one: one | {"losses": {"epoch": 1, "samples": 3, "quantiles": [1.0]}},
    "text": lambda one: one | {"notes": ["x" * 2000]},
    "number": lambda one: one | {"notes": [7]},
    "many": lambda one: one | {"notes": ["x"] * 1000},
    "truth": lambda one: one | {"predictions": [{"index": True}]},
    "picture": lambda one: one | {"predictions": [{"index": 1, "picture": "PHN2Zz4="}]},
    "no base64": lambda one: one | {"predictions": [{"index": 1, "picture": "../x.png"}]},
    "missing": lambda one: one | {"predictions": [{}]},
    "unequal": lambda one: (
        one
        | {
            "data": {
                "mode": "sizes",
                "splits": [
                    {
                        "name": "train",
                        "dataset": "D",
                        "rows": 1,
                        "fingerprint": "",
                        "columns": [{"name": "label", "values": ["a"], "rows": [1, 2]}],
                    }
                ],
            }
        }
    ),
    **{
        f"edges {edges}": lambda one, edges=edges, counts=counts: (
            one
            | {
                "data": {
                    "mode": "sizes",
                    "splits": [
                        {
                            "name": "train",
                            "dataset": "D",
                            "rows": 1,
                            "fingerprint": "",
                            "lengths": {
                                "unit": "",
                                "edges": edges,
                                "counts": counts,
                                "least": 0,
                                "median": 0,
                                "most": 0,
                            },
                        }
                    ],
                }
            }
        )
        for edges, counts in (([], [1]), ([1], []), ([2, 1], [1]), ([0, 1e300], [1]))
    },
}


@pytest.fixture
def folder(tmp_path):
    """A run's folder, with no report yet."""
    (tmp_path / "run" / "report").mkdir(parents=True)
    (tmp_path / "run" / "config.yaml").write_text("seed: 0\n")
    (tmp_path / "run" / "manifest.json").write_text('{"status": "done", "sessions": []}')
    return tmp_path / "run"


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_is_wrong_with_facts_is_one_message(folder, kind):
    path = folder / "report" / "facts.json"
    path.write_text(json.dumps(HOSTILE[kind](json.loads(facts.written(Facts(1))))))
    with pytest.raises(PenstockError, match=r"facts\.json cannot be used: "):
        read_facts(folder)
    run_ = RunRecord.read(folder)
    assert data_section.samples(run_) is None
    assert "facts.json cannot be used" in str(data_section.section(run_).body)


def test_facts_that_are_no_file_or_too_large_are_refused(folder):
    path = folder / "report" / "facts.json"
    path.mkdir()
    with pytest.raises(PenstockError, match="cannot be used"):
        read_facts(folder)
    path.rmdir()
    path.write_bytes(b'{"version": 1, "notes": ["' + b"x" * (3 << 20) + b'"]}')
    with pytest.raises(PenstockError, match="larger than"):
        read_facts(folder)
    path.unlink()
    assert read_facts(folder) is None


@pytest.mark.thorough
def test_names_and_texts_come_out_as_text(images, reports, tmp_path, capsys):
    evil = "<script>alert(1)<script>"
    (tmp_path / "data" / "cat").rename(tmp_path / "data" / evil)
    for number, path in enumerate(sorted((tmp_path / "data" / evil).iterdir())):
        path.rename(path.with_name(f"\"'><img src=x onerror=alert({number})>.jpg"))
    assert run(capsys, *images, *QUICK, f"run_dir={tmp_path / 'run'}").code == 0
    found = written(tmp_path)
    assert evil in found.data.splits[0].columns[0].values
    one = replace(
        found.predictions[0],
        words="\x1b[31m\u202e</td><script>",
        path="/a\"b'<i>",
        group="</h4><b onclick=x>",
    )
    batch = replace(found.batches[0], kind="</p>`rm` <script>\x1b]0;x\x07")
    told = replace(found, predictions=(one,), batches=(batch,), notes=("<script>",))
    (tmp_path / "run" / "report" / "facts.json").write_bytes(facts.written(told))
    page = run_report.write(tmp_path / "run").read_text()
    assert html.escape(evil) in page
    for bad in ("<script>alert", "<img src=x", "<b onclick", "\x1b", "\u202e", "<i>", "<script>`"):
        assert bad not in page


def test_pictures_are_bounded_and_whole_facts_come_back():
    image = thumbnail(torch.randint(0, 256, (3, 200, 100), dtype=torch.uint8))
    sample = facts.ShownSample(3, picture=image, loss=float("1e-3"))
    assert sample.uri == f"data:image/jpeg;base64,{base64.b64encode(image).decode()}"
    size = facts.MOST_PICTURES // len(image) + 5
    told = Facts(
        1, batches=(facts.ShownBatch(0, 0, 9, "pictures", (sample,) * 300),) * (size // 300 + 1)
    )
    kept = report_facts._bounded(told)
    pictures = [one.picture for batch in kept.batches for one in batch.samples if one.picture]
    assert sum(map(len, pictures)) <= facts.MOST_PICTURES < len(image) * (len(pictures) + 1)


def test_signals_and_images_of_every_shape_can_be_drawn():
    for shape in ((1, 1, 1), (3, 28, 28), (1, 5, 700), (3, 700, 5)):
        assert Image.open(BytesIO(thumbnail(torch.rand(shape)))).size[0] >= 1
    odd = np.array([[np.nan], [np.inf], [1.0]])
    for values in (odd, np.zeros((1, 1)), np.zeros((1, 40)), np.random.rand(7, 3)):
        for wave in (None, np.zeros(0), np.ones(3), np.random.rand(100_000) - 0.5):
            made = Image.open(BytesIO(signal_thumbnail(values, wave)))
            assert made.size == (160, 80 if wave is None else 120)


@pytest.mark.stress
def test_a_resumed_run_shows_the_same_batches(faces, told, tmp_path, capsys):
    assert run(capsys, *faces, *QUICK, f"run_dir={tmp_path / 'run'}").code == 0
    before = written(tmp_path)
    assert run(capsys, f"resume={tmp_path / 'run'}", "trainer.max_steps=6").code == 0
    after = written(tmp_path)
    assert [one.samples for one in after.batches] == [one.samples for one in before.batches]
    line = replay(RunRecord.read(tmp_path / "run"), 0, 0)
    assert "dataset.count=60" in line
    assert "resume" not in line
    # There is nothing left to do, and what was known stays known.
    assert run(capsys, f"resume={tmp_path / 'run'}", "trainer.max_steps=6").code == 0
    assert written(tmp_path) == after
    assert len(after.predictions) == 12


@pytest.mark.one_in(2)
@browsers.needed
@pytest.mark.parametrize("kind", ["faces", "sequences"])
def test_a_browser_shows_every_picture(browser, faces, told, tmp_path, capsys, kind):
    drawn = [
        "dataset=sequences",
        "dataset.count=60",
        "batch.size=8",
        "sampler=weighted",
        f"dataset.root={tmp_path}",
    ]
    data = faces if kind == "faces" else drawn
    assert run(capsys, *data, *QUICK, f"run_dir={tmp_path / 'run'}").code == 0
    path = run_report.write(tmp_path / "run")
    seen = browsers.look(browser, path, width=390, scheme="dark")
    assert (seen.problems, seen.violations, seen.overflow) == ([], [], 0)
    page = browser.new_page()
    page.goto(path.as_uri())
    images = page.evaluate("[...document.images].map(one => [one.naturalWidth, one.alt])")
    page.close()
    assert len(images) in range(4 + 4 + 12, 8 + 8 + 12 + 1)  # a busy machine shows fewer rows
    assert all(width >= 64 and alt.startswith("row ") for width, alt in images)
