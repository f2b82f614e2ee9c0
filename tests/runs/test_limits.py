"""What is read of a run's files, up to which size, and what is said of the rest."""

import json
import struct
from types import SimpleNamespace

import pytest
import torch

from penstock.errors import ConfigError, PenstockError
from penstock.files.plain_json import JsonError
from penstock.order.address import Address
from penstock.order.plan import Plan
from penstock.order.samplers import Sequential
from penstock.order.streams import StreamOrder, StreamPlan
from penstock.runs import checkpoint_file, left_out, manifest, measurements, quarantine, record
from penstock.runs.left_out import COLUMNS, Entry
from penstock.runs.state_tree import CheckpointError


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        ({}, None),
        ({"sessions": [{}, {}], "overrides": ["12345"] * 2, "best": {}}, None),
        ({"best": None}, None),
        ({"best": []}, None),
        ({"best": [1]}, "best is a list, and must be a mapping"),
        ({"sessions": {}}, "its sessions are not a list of mappings"),
        ({"sessions": [1]}, "its sessions are not a list of mappings"),
        ({"sessions": [{}] * 3}, "it has 3 sessions, more than 2"),
        ({"overrides": "a"}, "its overrides are not a list of texts"),
        ({"overrides": [1]}, "its overrides are not a list of texts"),
        ({"overrides": ["a"] * 3}, "it has 3 overrides, more than 2"),
        ({"overrides": ["123456"]}, "it has an override of more than 5 characters"),
    ],
)
def test_the_shape_of_a_manifest(content, wrong, monkeypatch, tmp_path):
    for name, limit in (("_MAX_SESSIONS", 2), ("_MAX_OVERRIDES", 2), ("_LONGEST", 5)):
        monkeypatch.setattr(manifest, name, limit)
    assert not manifest.has_manifest(tmp_path)
    (tmp_path / manifest.NAME).touch()
    assert not manifest.has_manifest(tmp_path)  # of a run that was killed before
    (tmp_path / manifest.NAME).write_text(json.dumps(content))
    assert manifest.has_manifest(tmp_path)
    if wrong is None:
        assert manifest.read_manifest(tmp_path) == content
    else:
        with pytest.raises(ConfigError, match=f"manifest.json is damaged: {wrong}"):
            manifest.read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("a: {b: [1]}", None),
        ("a: {b: [{}]}", "nested more than 3 levels deep"),
        ("a: [1, 2, 3]\nb: [4]\nc: 5", None),
        ("a: [1, 2, 3]\nb: [4]\nc: [5]", "more than 17 keys and values"),
        ("a: &x 1\nb: *x", "it holds aliases, which no run writes"),
    ],
)
def test_the_shape_of_a_configuration(text, wrong, monkeypatch, tmp_path):
    monkeypatch.setattr(manifest, "_MAX_DEPTH", 3)
    monkeypatch.setattr(manifest, "_MOST_EVENTS", 17)  # the number of the last event
    (tmp_path / "config.yaml").write_text(text)
    if wrong is None:
        assert "a" in manifest.read_config(tmp_path / "config.yaml")
    else:
        with pytest.raises(ValueError, match=wrong):
            manifest.read_config(tmp_path / "config.yaml")


def entry(index=1, path="", split="train", cause="odd", dataset="f"):
    return Entry(split, index, path, 0, 2, 7, cause, dataset)


LINE = "train,1,,0,2,7,odd,f\n"


@pytest.mark.parametrize(
    ("text", "lines", "wrong"),
    [
        ("", 0, None),
        (LINE * 3, 3, None),
        (LINE * 2 + LINE[:-1], 2, None),
        (LINE * 4, 0, "it has more than 4 lines"),
        (LINE[:-1] + ",\n", 0, "line 2: it has 9 fields, and needs 8"),
        (LINE.replace("7", "x"), 0, "line 2: 'x' is not a number of a sample or a step"),
        (LINE + "train,1,,0,2,7,odd," + "f" * 81 + "\n", 2, None),
        (LINE + "train,1,,0,2,7,odd," + "f" * 82 + "\n", 0, "it has a line of more than 0 MiB"),
        (LINE * 3 + "x" * 61, 0, "it is larger than 0 MiB: it has 175 bytes"),
    ],
)
def test_the_lines_of_a_quarantine(text, lines, wrong, monkeypatch, tmp_path):
    head = ",".join(COLUMNS) + "\n"
    monkeypatch.setattr(left_out, "_MOST", 4)
    monkeypatch.setattr(left_out, "LONGEST_LINE", 101)
    monkeypatch.setattr(left_out, "_LARGEST", 174)
    path = tmp_path / "quarantine.csv"
    path.write_text(head + text)
    if wrong is None:
        assert len(left_out.read(path)) == lines
    else:
        with pytest.raises(ConfigError, match=wrong):
            left_out.read(path)


def test_new_samples_of_a_quarantine_are_named():
    new = [
        entry(number, "a.jpg" * (number % 2), cause=f"odd {'a.jpg' * (number == 3)}")
        for number in range(5)
    ]
    said = list(quarantine.notes(new, 2))
    assert len(said) == 4
    at = "of the train split (epoch 0, step 2, position 7)"
    assert said[0] == f"left out: sample 0 {at}: odd "
    assert said[1] == f"left out: sample 1 {at} a.jpg: odd "
    assert said[3] == "left out: more than 5 samples; all are listed in quarantine.csv"
    assert list(quarantine.notes(new[:1], 6)) == []
    assert "a.jpg: " not in next(quarantine.notes(new[3:], 0))


def test_a_quarantine_that_was_cut_off_goes_on(monkeypatch, tmp_path):
    path = tmp_path / "quarantine.csv"
    path.touch()
    for number, text in enumerate(("", "train,9,,0", "train,9")):
        with path.open("a") as file:
            file.write(text)
        assert quarantine.QuarantineFile(path).add([entry(number)]) == [entry(number)]
    assert left_out.read(path) == [entry(number) for number in range(3)]
    monkeypatch.setattr(quarantine, "LONGEST_LINE", 50)
    with path.open("a") as file:
        file.write("x" * 49)
    assert len(quarantine.QuarantineFile(path)) == 3
    with path.open("a") as file:
        file.write("x" * 50)
    with pytest.raises(ConfigError, match="ends in a line of more than 0 MiB"):
        quarantine.QuarantineFile(path)


@pytest.mark.parametrize(
    ("paths", "index", "rows"),
    [
        (["a", "b"], 5, [0]),
        (["a", "b"], 1, [0]),  # one row of that file: it may have moved
        (["a", "b", "a"], 2, [2]),  # a file of several samples
        (["a", "b", "a"], 1, [0, 2]),
    ],
)
def test_rows_of_a_file_that_is_left_out(paths, index, rows, tmp_path):
    file = quarantine.QuarantineFile(tmp_path / "quarantine.csv")
    file.add([entry(index, "a", dataset="other"), entry(4, "elsewhere", "val")])

    class Paths(list):
        def path(self, row):
            return paths[row]

    table = SimpleNamespace(metadata=SimpleNamespace(columns=("x",)))
    for dataset in (
        Paths(paths),
        SimpleNamespace(metadata=type("Table", (dict,), {"columns": ["path"]})(path=paths)),
    ):
        known = quarantine.known_rows(file.path, dataset, "train", "mine")
        assert known == dict.fromkeys(rows, "odd")
    with pytest.raises(ConfigError, match="no file that it names is in this one"):
        quarantine.known_rows(file.path, table, "train", "mine")


@pytest.mark.parametrize(
    ("size", "blocks", "memory", "wrong"),
    [
        (1000, 0, 1000, None),
        (1001, 0, 1000, "its 1001 bytes do not fit into the 1000 bytes of this machine's"),
        (1001, 0, 0, None),  # unknown
        (2**26, 0, 2**30, None),
        (2**26 + 1, 0, 2**30, "nearly all of its 67108865 bytes were never written"),
        (2**26 + 512 * 16, 2**13 + 1, 2**30, None),
        (2**26 + 512 * 16 + 1, 2**13 + 1, 2**30, "nearly all"),
        (2**26 + 1, None, 2**30, None),
    ],
)
def test_the_size_of_a_checkpoint(size, blocks, memory, wrong, monkeypatch, tmp_path):
    sizes = {"SC_PAGE_SIZE": 10, "SC_PHYS_PAGES": memory // 10}
    if memory == 2**30:
        sizes = {"SC_PAGE_SIZE": 2**12, "SC_PHYS_PAGES": 2**18}
    monkeypatch.setattr(checkpoint_file.os, "sysconf", sizes.get)
    state = SimpleNamespace(st_size=size, **({} if blocks is None else {"st_blocks": blocks}))
    if wrong is None:
        checkpoint_file.check_size(tmp_path, state)
    else:
        with pytest.raises(CheckpointError, match=wrong):
            checkpoint_file.check_size(tmp_path, state)


def test_tensors_of_a_checkpoint_are_aligned_and_counted(monkeypatch, tmp_path):
    for length in range(8):
        path = tmp_path / f"{length}.safetensors"
        checkpoint_file.save(path, {"a" * (length + 1): torch.ones(3), "b": torch.ones(2).double()})
        content = path.read_bytes()
        (head,) = struct.unpack("<Q", content[:8])
        assert head % 8 == 0
        header = content[8 : 8 + head]
        assert header.rstrip(b" ").endswith(b"}")
        assert len(header) - len(header.rstrip(b" ")) < 8
        assert json.loads(header)["b"]["data_offsets"] == [0, 16]
    monkeypatch.setattr(checkpoint_file, "_MOST_TENSORS", 2)
    assert len(checkpoint_file.load(path)) == 2
    monkeypatch.setattr(checkpoint_file, "_MOST_TENSORS", 1)
    with pytest.raises(CheckpointError, match="it has 2 tensors, more than 1"):
        checkpoint_file.load(path)


def log(**numbers):
    return json.dumps({"event": "log", "epoch": 0, "step": 1, **numbers}) + "\n"


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        (log(x=1.5, y=None, z=-3), None),
        (log(**{"n" * 1000: 1}), None),
        (log(x=1e99), None),
        (log(x=-1e99), None),
        (log(**{"n" * 1001: 1}), "line 2 is broken: it has a name of 1001 characters"),
        (log(x="text"), "line 2 is broken: x is 'text', and must be a number"),
        (log(x=True), "line 2 is broken: x is True, and must be a number"),
        ('{"event": "log", "epoch": 0}\n', "line 2 is broken: step"),
        ('{"event": "other", "epoch": 0, "step": 1}\n', "line 2 is broken: event is 'other'"),
        ('{"event": "log", "epoch": -1, "step": 1}\n', "line 2 is broken: epoch"),
    ],
)
def test_a_line_of_measurements(line, wrong, tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(log(x=2) + line + log(x=1)[:-1])
    if wrong is None:
        read = measurements.read(path)["log"]
        assert list(read) == [json.loads(log(x=2)), json.loads(line)]
        plain = len(line) < 900
        assert (measurements._parsed(line.encode()) is not None) == (
            (plain and "e+99" not in line) or "n" * 1000 in line
        )
    else:
        with pytest.raises(PenstockError, match=wrong):
            measurements.read(path)


@pytest.mark.parametrize("block", [100, 1000])
def test_measurements_are_read_block_by_block(block, monkeypatch, tmp_path):
    monkeypatch.setattr(measurements, "_BLOCK", block)
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(log(x=number, y=number / 2) for number in range(100)))
    read = measurements.read(path)["log"]
    assert read.column("x").tolist() == list(range(100))
    assert read[-1]["y"] == 49.5
    assert [one["x"] for one in read[97:]] == [97, 98, 99]
    for index in (100, -101):
        with pytest.raises(IndexError):
            read[index]
    with path.open("a") as file:
        file.write('{"event": "log", "epoch": 0, "step": 1, "x": []}\n')
    with pytest.raises(PenstockError, match="line 101 is broken"):
        measurements.read(path)


def test_numbers_and_names_are_limited(monkeypatch, tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(log(a=1) + log(a=2) + log(b=1))
    monkeypatch.setattr(measurements, "_MOST_NUMBERS", 12)
    monkeypatch.setattr(measurements, "_MOST_NAMES", 4)
    assert measurements.read(path)["log"].names == ["epoch", "step", "a", "b"]
    monkeypatch.setattr(measurements, "_MOST_NAMES", 3)
    with pytest.raises(PenstockError, match="line 3: it has more than 3 names of numbers"):
        measurements.read(path)
    monkeypatch.setattr(measurements, "_MOST_NUMBERS", 11)
    with pytest.raises(PenstockError, match="line 3: it has more than 11 numbers"):
        measurements.read(path)


def step(epoch=0, step=0, order="00000000000000ff", loss="0x1.8p+0", **more):
    line = {"epoch": epoch, "step": step, "samples": 4, "order": order, "loss": loss}
    return json.dumps(line | more) + "\n"


SKIPPED = '{"epoch": 0, "step": 1, "skipped_to": [0, 3]}\n'


@pytest.mark.parametrize(
    ("text", "addresses", "wrong"),
    [
        (step() + SKIPPED + step(0, 3) + step(1, 0), [(0, 0), (0, 3), (1, 0)], None),
        (SKIPPED, [], None),
        (step(7, 2, more=1), [(7, 2)], None),  # of another version
        (step() + step()[:-1], [(0, 0)], None),
        (step() + step(), None, "line 2: epoch 0, step 0 comes after a later one"),
        (step(1, 0) + step(0, 5), None, "line 2: epoch 0, step 5 comes after a later one"),
        (step(order="f" * 17), None, f"line 1 is broken: order is '{'f' * 17}'"),
        (step(order="-1"), None, "line 1 is broken: order is '-1'"),
        (step(loss="x" * 101), None, "line 1 is broken: loss is"),
        (step(loss="one"), None, "line 1 is broken: "),
        (step(loss=1), None, "line 1 is broken: loss is 1"),
    ],
)
def test_the_lines_of_a_ledger(text, addresses, wrong, tmp_path):
    path = tmp_path / "ledger.jsonl"
    path.write_text(text)
    if wrong is not None:
        with pytest.raises(PenstockError, match=wrong):
            record.read_ledger(path)
        return
    ledger = record.read_ledger(path)
    assert list(zip(ledger.epoch.tolist(), ledger.step.tolist(), strict=True)) == addresses
    assert set(ledger.order.tolist()) <= {255}
    assert set(ledger.loss.tolist()) <= {1.5}
    assert [address for address, _ in record.by_address(path)] == addresses
    assert str(record.skipped_in(path)) == ("[[[0,1],[0,3]]]" if SKIPPED in text else "[]")


def test_of_a_ledger_no_more_is_read_than_needed(monkeypatch, tmp_path):
    path = tmp_path / "ledger.jsonl"
    path.write_text("".join(step(0, number) for number in range(20)))
    monkeypatch.setattr(record, "_BLOCK", 3 * len(step()) - 10)
    for least, lines in ((3, 3), (4, 6), (None, 20), (0, 0)):
        assert len(record.read_ledger(path, least).step) == lines
    monkeypatch.setattr(record, "_MOST_STEPS", 20)
    assert len(record.read_ledger(path).step) == 20
    monkeypatch.setattr(record, "_MOST_STEPS", 19)
    with pytest.raises(PenstockError, match="has more than 19 steps"):
        record.read_ledger(path)
    monkeypatch.setattr(record, "_MOST_SKIPPED", 1)
    path.write_text(SKIPPED)
    assert record.skipped_in(path)
    path.write_text(SKIPPED + SKIPPED.replace("1,", "5,").replace("3]", "7]"))
    with pytest.raises(PenstockError, match="has more than 1 ranges"):
        record.skipped_in(path)
    path.write_text(SKIPPED.replace("3]", "1]"))
    with pytest.raises(PenstockError, match=r"line 1 is broken: .* ends before or where it starts"):
        record.skipped_in(path)


def test_hashes_of_batches_by_address(monkeypatch, tmp_path):
    path = tmp_path / "digests.jsonl"
    assert record.Digests(path).hash(Address(0, 0)) is None
    lines = [(0, 1, "aa"), (0, 3, "b" * 100), (1, 0, "c")]
    text = "".join(
        json.dumps({"epoch": epoch, "step": at, "hash": value}) + "\n" for epoch, at, value in lines
    )
    path.write_text(text)
    digests = record.Digests(path)
    for epoch in (0, 1, 2):
        for at in range(5):
            expected = {(a, b): value for a, b, value in lines}.get((epoch, at))
            assert digests.hash(Address(epoch, at)) == expected
    monkeypatch.setattr(record, "_MOST_HASHES", 103)
    assert record.Digests(path).hash(Address(1, 0)) == "c"
    monkeypatch.setattr(record, "_MOST_HASHES", 102)
    with pytest.raises(PenstockError, match="more than 102 bytes of hashes"):
        record.Digests(path)
    for value in ("", "b" * 101, 1):
        path.write_text(json.dumps({"epoch": 0, "step": 1, "hash": value}) + "\n")
        with pytest.raises(PenstockError, match="line 1 is broken: hash is"):
            record.Digests(path)


def test_where_runs_are_and_what_became_of_them(monkeypatch, tmp_path):
    for name in ("b", "a", "a/inner", "c/d"):
        (tmp_path / name).mkdir(parents=True)
        for file in ("manifest.json", "config.yaml"):
            (tmp_path / name / file).write_text("{}")
    for name, file in (("x", "manifest.json"), ("y", "config.yaml")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).touch()
    found = [path.relative_to(tmp_path).as_posix() for path in record.find(tmp_path)]
    assert found == ["a", "b", "c/d"]
    locked = {tmp_path / "a" / "holder.json"}
    monkeypatch.setattr(record, "is_locked", lambda path: path in locked)
    for name, status, state in (
        ("a", "running", "running"),
        ("b", "running", "killed"),
        ("a", "done", "done"),
        ("b", "done", "done"),
    ):
        assert record.state_of(tmp_path / name, {"status": status}) == state
    assert record.state_of(tmp_path / "b", {}) == "unknown"
    one, other = record.two_runs([str(tmp_path / "a"), str(tmp_path / "b")])
    assert (one.path.name, other.path.name) == ("a", "b")
    for paths, count in ((None, "none"), ([], "0"), (["a"], "1"), (["a"] * 3, "3")):
        with pytest.raises(ConfigError, match=f"needs the folders of two runs, and has {count}: "):
            record.two_runs(paths)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([10**15 - 1, 1 - 10**15], "int64"),
        ([10**15, 0], "float64"),
        ([0, -(10**15)], "float64"),
        ([0, 1.5], "float64"),
        ([None, 1], "float64"),
    ],
)
def test_whole_numbers_up_to_a_size_stay_whole(values, dtype, tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(log(x=value) for value in values))
    read = measurements.read(path)["log"]
    assert read.column("x").dtype == dtype
    assert [record["x"] for record in read] == values


def test_lines_that_are_parsed_together_may_hold_whole_numbers_others_and_none():
    assert measurements._parsed(b"") == []
    lines = [log(x=1), log(x=1.5), log(x=None)]
    assert measurements._parsed("".join(lines).encode()) == [[*map(json.loads, lines)]]


def test_names_of_numbers_line_by_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    line = {"event": "log", "epoch": 0, "step": 1, "n" * 1000: 1}
    path.write_text(json.dumps(line, separators=(",", ":")) + "\n")
    assert list(measurements.read(path)["log"]) == [line]
    path.write_text(json.dumps({**line, "n" * 101: "x"}) + "\n")
    with pytest.raises(PenstockError, match=f"line 1 is broken: {'n' * 100} is 'x', and must"):
        measurements.read(path)


@pytest.mark.parametrize(
    ("stream", "shuffle", "shards", "refused"),
    [
        (True, True, 2, True),
        (True, True, 1, False),
        (True, True, None, False),
        (True, False, 2, False),
        (False, None, None, False),
    ],
)
def test_a_quarantine_of_a_stream_needs_an_order_that_stays(
    stream, shuffle, shards, refused, tmp_path
):
    file = quarantine.QuarantineFile(tmp_path / "quarantine.csv")
    file.add([entry(1)])
    dataset = type("Rows", (list,), {})(range(4))
    if shards is not None:
        dataset.shards = lambda: ["x"] * shards
    plan = StreamPlan(StreamOrder(0, 0, shuffle), 2) if stream else Plan(Sequential(4), 2)

    def treated():
        return quarantine.policy("skip", str(file.path), "train", plan, dataset, "f", 0)

    if refused:
        with pytest.raises(ConfigError, match="have other numbers in each epoch"):
            treated()
    else:
        assert treated().known == {1: "odd"}
    dataset.set_epoch = print
    if stream:
        with pytest.raises(ConfigError, match="have other numbers in each epoch"):
            treated()


def test_a_line_of_a_quarantine_has_a_bound_that_is_named(tmp_path):
    path = tmp_path / "quarantine.csv"
    path.write_text(",".join(COLUMNS) + "\n" + "x" * (1 << 20))
    with pytest.raises(ConfigError, match="ends in a line of more than 1 MiB"):
        quarantine.QuarantineFile(path)
    with pytest.raises(ConfigError, match="it has a line of more than 1 MiB"):
        left_out.read(path)


def test_what_is_shown_of_a_quarantine_that_is_none(tmp_path):
    path = tmp_path / "quarantine.csv"
    path.write_text("x" * 301 + "\n")
    with pytest.raises(ConfigError, match=f"columns are {'x' * 300}; expected"):
        left_out.read(path)
    path.write_text(",".join(COLUMNS) + "\n" + LINE.replace("7", "y" * 41))
    with pytest.raises(ConfigError, match=f"line 2: '{'y' * 40}' is not a number"):
        left_out.read(path)


def test_no_paths_are_asked_for_where_none_is_left_out(tmp_path):
    file = quarantine.QuarantineFile(tmp_path / "quarantine.csv")
    file.add([entry(2)])

    class Rows(list):
        path = None

        @property
        def metadata(self):
            raise AssertionError("the table was asked for")

    assert quarantine.known_rows(file.path, Rows("abc"), "train", "f") == {2: "odd"}


def test_json_errors_of_a_file_name_it(tmp_path):
    wrong = pytest.raises(PenstockError, match=r"x\.jsonl, line 3")
    with wrong, measurements.naming(tmp_path / "x.jsonl"):
        raise JsonError("line 3")
    with measurements.naming(tmp_path / "x.jsonl"):
        raise FileNotFoundError
