"""`task=where`: samples and addresses, asked of a configuration and of a run."""

from pathlib import Path

import pytest

from penstock.config.compose import parse
from tests.support.program import run

DATA = ("experiment=sequences", "dataset.count=60", "batch.size=8", "loader=debug")
SEQUENCES = "_target_: penstock.datasets.sequences.SyntheticSequences, count: 60"
STREAM = (
    "{_target_: penstock.addons.tables.table.StreamedTable, root: ., text: text, classes: [a, b]}"
)
FIT = (
    *DATA,
    "trainer=quick",
    "scheduler=none",
    "trainer.max_epochs=3",
    "trainer.max_steps=9",
    "trainer.ledger=true",
    "trainer.progress=none",
    "trainer.pictures=false",
    "trainer.baseline=false",
    "tracker=none",
    "trainer.checkpoint.every_steps=4",
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of 9 steps."""
    from penstock import command

    folder = tmp_path_factory.mktemp("runs") / "a"
    assert command.main([*FIT, f"run_dir={folder}"]) == 0
    return folder


def table(out):
    """Rows of the table in an output, as dicts."""
    lines = out.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(("row  ", "position  ")))
    names = lines[start].split()
    return [
        dict(zip(names, line.split(maxsplit=len(names)), strict=False))
        for line in lines[start + 1 :]
    ]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("sampler", ["random", "bucket"])
def test_an_address_has_what_replay_makes_there(sampler, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    given = (*DATA, f"sampler={sampler}")
    asked = run(capsys, "task=where", *given, "address=1,2")
    made = run(capsys, "task=replay", *given, "epoch=1", "step=2")
    assert asked.code == made.code == 0, asked.err + made.err
    rows = table(asked.out)
    assert [(one["position"], one["row"]) for one in rows] == [
        (one["position"], one["index"]) for one in table(made.out)[: len(rows)]
    ]
    row = rows[3]
    again = run(capsys, "task=where", *given, f"sample={row['row']}", "epochs=1:2")
    assert table(again.out) == [row]


def test_a_run_is_asked_by_its_own_configuration(trained, capsys):
    done = run(capsys, "task=where", "sample=5", f"run={trained}", "epochs=0:3")
    assert done.code == 0, done.err
    rows = table(done.out)
    assert [int(one["epoch"]) for one in rows] == [0, 1, 2]
    assert done.out.endswith("behind the end (trainer.max_epochs, trainer.max_steps)\n")
    assert table(run(capsys, "task=where", "sample=5", f"run={trained}").out) == rows


def test_an_address_that_is_skipped_is_shown_as_skipped(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    given = ("task=where", *DATA, "trainer.skip=[[1,2],[1,3]]")
    assert "left out (trainer.skip)" in run(capsys, *given, "address=1,2").out
    assert "left out" not in run(capsys, *given, "address=1,3").out


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sample=60"], "sample: 60 is none of the 48 rows of the train split"),
        (["sample=-1"], "sample: -1 is none of the 48 rows"),
        (["sample=nowhere.txt"], "sample: 'nowhere.txt' is none of the 48 rows"),
        (["sample=length > 9999"], "sample: 'length > 9999' is none of the 48 rows"),
        (["sample=hue == 3"], "there is no column 'hue'"),
        (["sample=3", "address=0,1"], "give this or address, one of the two"),
        ([], "give this or address, one of the two"),
        (["address=0,99"], "address: epoch 0 of the train split has"),
        (["address=0"], "address: "),
        (["sample=3", "epochs=3-4"], "epochs: "),
        (["sample=3", "sampler=stream", f"dataset={STREAM}"], "StreamedTable is a stream: which"),
        (
            ["address=0,1", "sampler=stream", f"dataset={STREAM}"],
            "StreamedTable is a stream: which",
        ),
        (["sample=3", "run=nowhere"], "run: nowhere is not a run's folder"),
    ],
)
def test_questions_without_an_answer(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("label,text\na,one\nb,two\n")
    data = DATA if f"dataset={STREAM}" not in words else DATA[:1] + DATA[2:]
    done = run(capsys, "task=where", *data, *words)
    assert done.code == 2
    assert message in done.err


@pytest.mark.parametrize("sampler", ["random", "bucket"])
def test_a_tail_that_is_dropped_is_never_seen(sampler, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    given = (
        "task=where",
        *DATA,
        "batch.size=7",
        "batch.tail=drop",
        f"sampler={sampler}",
        "epochs=0",
    )
    out = run(capsys, *given, "sample=length > 0").out
    assert ("batches of the epoch (batch.tail=drop" in out) == (sampler == "random")
    places = {one["row"] for one in table(out)}
    assert (len(places) < 48) == (sampler == "bucket")


def test_rows_behind_a_filter_have_the_datasets_numbers(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    given = ("task=where", *DATA, "data.filter=label != 1")
    kept = run(capsys, *given, "sample=label != 1", "epochs=0")
    batch = table(run(capsys, *given, "address=0,1").out)
    assert "1" not in [one["label"] for one in batch]
    places = {one["row"]: (one["position"], one["key"]) for one in table(kept.out)}
    assert {one["row"]: (one["position"], one["key"]) for one in batch}.items() <= places.items()
    left_out = next(row for row in map(str, range(48)) if row not in places)
    done = run(capsys, *given, f"sample={left_out}")
    assert done.code == 2
    assert f"behind its filter, which leaves out [{left_out}]" in done.err


@pytest.mark.parametrize(
    ("word", "read"),
    [
        ("sample=17", "sample=17"),
        ("sample=faces/0017.jpg", "sample=faces/0017.jpg"),
        ("sample=[3,17]", "sample=[3,17]"),
        ("sample=length > 5", "sample='length > 5'"),
        ("sample=name == 'a'", r"sample='name == \'a\''"),
        ("sample='length > 5'", "sample='length > 5'"),
        ("address=3,1200", "address=[3,1200]"),
        ("address=(3, 1200)", "address=[3,1200]"),
    ],
)
def test_expressions_and_addresses_need_no_quotes(word, read):
    assert parse(word).input_line == read
