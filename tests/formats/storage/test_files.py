"""Files at addresses and of this machine: versions, the cache, errors, credentials, uploads.

`test_equal_batches.py` has the batches.
"""

import os
import pickle
import select
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from penstock.addons.storage import index
from penstock.addons.storage.blocks import BLOCK
from penstock.addons.storage.files import RecordFiles, Spans, expand_braces, split_of
from penstock.datasets.files import Files, local_file
from penstock.datasets.reading.base import Shares
from penstock.errors import ConfigError, DataError, UnreachableError
from tests.support import warm
from tests.support.program import run
from tests.support.store_server import InThread, Shelf, bucket, read_folder

pytest.importorskip("obstore")

SIZES = [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("data")
    draws = np.random.default_rng(0)
    (made / "deep é").mkdir()
    for number, size in enumerate(SIZES):
        (made / f"deep é/{number} 50%+#.bin").write_bytes(draws.bytes(size))
    return made


def contents(folder):
    return [path.read_bytes() for path in sorted((folder / "deep é").glob("*.bin"))]


def all_of(files):
    return [bytes(each) for each in files.read(files.whole_of(range(len(files))))]


def test_spans_of_files_here_and_there_are_the_same(folder, tmp_path):
    here = RecordFiles.of(str(folder), [".bin"])
    with bucket(folder, tmp_path) as (shelf, files):
        there = pickle.loads(pickle.dumps(RecordFiles.of("s3://data", [".bin"], files)))
        assert here.names == there.names
        assert here.sizes.tolist() == there.sizes.tolist() == SIZES
        assert all_of(there) == all_of(here) == contents(folder)
        asked = shelf.requests["GET"]
        assert all_of(there) == contents(folder)
        assert shelf.requests["GET"] == asked, "it is in the cache"
        draws = np.random.default_rng(1)
        number = draws.integers(2, len(SIZES), 50)
        ends = np.sort(draws.integers(0, here.sizes[number], (2, 50)), 0)
        spans = Spans(number, *ends)
        assert [*map(bytes, there.read(spans))] == [*map(bytes, here.read(spans))]
        with there.open(5) as opened, here.open(5) as other:
            assert opened.seek(-70, os.SEEK_END) == other.seek(-70, os.SEEK_END)
            assert opened.read() == other.read()
        for number in range(len(SIZES)):
            assert there.path(number).read_bytes() == here.path(number).read_bytes()
        assert not shelf.requests["HEAD"]


def test_pieces_for_a_fingerprint_are_waited_for_once(folder, tmp_path):
    here = RecordFiles.of(str(folder), [".bin"])
    with bucket(folder, tmp_path) as (shelf, files):
        there = RecordFiles.of("s3://data", [".bin"], files)
        shelf.latency, before = 1, shelf.connections
        assert [*map(bytes, there.pieces())] == [*map(bytes, here.pieces())]
        # One after the other, requests would have shared a connection.
        assert shelf.connections - before >= 3


def test_threads_and_processes_share_a_cache(folder, tmp_path):
    with bucket(folder, tmp_path) as (shelf, files):
        there = RecordFiles.of("s3://data", [".bin"], files)
        there.want(there.whole_of(range(len(SIZES))))
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(lambda _: all_of(there) == contents(folder), range(8)))
        other = RecordFiles.of("s3://data", [".bin"], replace(files, retries=1))  # a process more
        assert all_of(other) == contents(folder)
        blocks = sum(-(-size // BLOCK) for size in SIZES)
        assert shelf.requests["GET"] <= blocks, "nothing is fetched twice"


def test_a_full_cache_keeps_what_it_has(folder, tmp_path):
    kept = 3 * BLOCK
    with bucket(folder, tmp_path, cache_size=kept) as (shelf, files):
        there = RecordFiles.of("s3://data", [".bin"], files)
        for _ in range(3):
            shelf.sent = 0
            assert all_of(there) == contents(folder)
        there.files.read(there.addresses[4], lambda path: None)
        blocks = tmp_path / "blocks"
        used = sum(path.stat().st_blocks * 512 for path in blocks.rglob("*") if path.is_file())
        assert used <= kept + 8 * 4096 * len(SIZES)
        assert there.path(5).read_bytes() == contents(folder)[5], "a path is needed"
    with bucket(folder, tmp_path, cache_size=kept) as (_, files):
        for path in blocks.rglob("*"):  # what was used before this run makes room
            os.utime(path, (1000, 1000))
        there = RecordFiles.of("s3://data", [".bin"], files)
        assert all_of(there) == contents(folder)
        assert all(path.stat().st_mtime > 1000 for path in blocks.rglob("*.bin"))


@pytest.fixture
def large(tmp_path):
    (tmp_path / "large").mkdir()
    content = np.random.default_rng(0).bytes(40 * BLOCK)
    (tmp_path / "large/a.bin").write_bytes(content)
    return content


def test_a_full_cache_is_read_by_rows_and_not_by_blocks(large, tmp_path):
    with bucket(tmp_path / "large", tmp_path, cache_size=2 * BLOCK) as (shelf, files):
        there, size = RecordFiles.of("s3://data", [".bin"], files), 5000
        there.at(0, 0, 2 * BLOCK)  # now it is full
        shelf.sent = 0
        # One row in each block, or in two.
        starts = np.random.default_rng(1).permutation(np.arange(3, 38) * BLOCK + BLOCK - size // 2)
        spans = Spans(np.zeros(len(starts), int), starts, starts + size)
        for some in np.array_split(np.arange(len(starts)), 5):
            part = Spans(*(each[some] for each in spans))
            there.want(part)
            rows = [large[start : start + size] for start in starts[some].tolist()]
            assert [*map(bytes, there.read(part))] == rows
        sent = shelf.sent
        assert sent == size * len(starts)
        # Many rows of a block at a time, as `sampler=blocks` has them, bring all of it.
        starts = 38 * BLOCK + 2 * size * np.arange(26)
        rows = Spans(np.zeros(26, int), starts, starts + size)
        there.want(Spans(*(each[::5] for each in rows)))
        assert [*map(bytes, there.read(rows))] == [large[at : at + size] for at in starts.tolist()]
        assert shelf.sent == sent + BLOCK


def test_a_file_that_is_read_forwards_comes_little_ahead(large, tmp_path):
    how = {"cache_size": 2 * BLOCK, "ahead": 8 * BLOCK}
    with bucket(tmp_path / "large", tmp_path, **how) as (shelf, files):
        there = RecordFiles.of("s3://data", [".bin"], files)
        shelf.sent = 0
        there.want(there.whole_of([0]))
        with there.open(0, ahead=True) as opened:
            read, most = b"", 0
            while piece := opened.read(50_000):
                read += piece
                most = max(most, shelf.sent - len(read))
        assert read == large
        sent = shelf.sent
        assert sent == len(large), "each byte comes once"
        # What is wanted and what is read, and a request of 2 MiB that neighbours belong to.
        assert most <= (8 + 1 + 8) * BLOCK


def test_what_a_crash_has_torn_is_fetched_again(folder, tmp_path):
    with bucket(folder, tmp_path) as (_, files):
        assert all_of(RecordFiles.of("s3://data", [".bin"], files)) == contents(folder)
        for path in (tmp_path / "blocks").rglob("*.bin"):
            path.write_bytes(bytes(path.stat().st_size))
        again = RecordFiles.of("s3://data", [".bin"], replace(files, retries=1))
        assert all_of(again) == contents(folder)
        assert [again.path(n).read_bytes() for n in range(len(SIZES))] == contents(folder)


def test_a_file_that_changes_is_named(folder, tmp_path):
    with bucket(folder, tmp_path / "cache") as (shelf, files):
        there = RecordFiles.of("s3://data", [".bin"], files)
        name = "data/deep é/5 50%+#.bin"
        shelf.files[name] = bytes(len(shelf.files[name]))
        shelf.etags.clear()
        with pytest.raises(DataError, match=r"5 50%\+#\.bin' has changed since this run began"):
            there.at(5, 0, 10)
        again = RecordFiles.of("s3://data", [".bin"], replace(files))
        assert bytes(again.at(5, 0, 10)) == bytes(10), "the next run takes the new one"
        del shelf.files["data/deep é/4 50%+#.bin"]
        with pytest.raises(DataError, match=r"4 50%\+#\.bin' cannot be read.* It is missing in"):
            again.at(4, 0, 10)
    (tmp_path / "a.bin").write_bytes(b"some")
    here = RecordFiles.of(str(tmp_path / "a.bin"), [".bin"])
    (tmp_path / "a.bin").write_bytes(b"more of it")
    with pytest.raises(DataError, match=r"a\.bin' has changed while it was in use"):
        here.at(0, 0, 4)


def test_a_web_server_needs_an_index_or_names(folder, tmp_path):
    shelf = Shelf({f"data/{name}": content for name, content in read_folder(folder).items()})
    with InThread(shelf) as port:
        root = f"http://127.0.0.1:{port}/data"
        files = Files(cache_dir=str(tmp_path / "a"), first_wait=0.01)
        with pytest.raises(DataError, match=r"has no penstock-files\.index"):
            RecordFiles.of(root, [".bin"], files)
        braces = f"{root}/deep%20%C3%A9/{{0..5}}%2050%25+%23.bin"
        assert all_of(RecordFiles.of(braces, [".bin"], files)) == contents(folder)
        index.write(folder)
        shelf.files[f"data/{index.INDEX}"] = (folder / index.INDEX).read_bytes()
        (folder / index.INDEX).unlink()
        there = RecordFiles.of(root, [".bin"], replace(files, cache_dir=str(tmp_path / "b")))
        assert "\0md5:" in there.key(0)
        assert all_of(there) == contents(folder)
        shelf.files["data/deep é/2 50%+#.bin"] = bytes(BLOCK - 1)
        shelf.etags.clear()
        there = RecordFiles.of(root, [".bin"], replace(files, cache_dir=str(tmp_path / "c")))
        with pytest.raises(DataError, match="has changed since this run began"):
            there.at(2, 0, 10)
        shelf.ranges = False
        assert bytes(there.at(3, 0, 10)) == contents(folder)[3][:10], "all of it is one request"
        with pytest.raises(DataError, match=r"5%2050.*its server sends only whole files"):
            there.read(Spans(*(np.array([n]) for n in (5, 0, 10))))
        shelf.files[f"data/{index.INDEX}"] += b"12 no\n"
        with pytest.raises(DataError, match=r"does not name files with their sizes"):
            RecordFiles.of(root, [".bin"], replace(files, cache_dir=str(tmp_path / "d")))


def test_the_process_that_fetches_may_be_killed_and_ends_with_its_owner(folder, tmp_path):
    with bucket(folder, tmp_path) as (_, files):
        there = RecordFiles.of("s3://data", [".bin"], files)
        socket = files.remote.process.path
        os.kill(files.remote.process.pid, signal.SIGKILL)
        assert all_of(there) == contents(folder)
        assert not local_file(socket).parent.exists(), "its socket is not left behind"
        program = (
            "import os, sys; from penstock.datasets.files import Files\n"
            f"files = Files(cache_dir={str(tmp_path)!r}, options={dict(files.options)!r})\n"
            "files.remote.listing('s3://data')\n"
            "print(files.remote.process.pid, flush=True); os.kill(os.getpid(), 9)"
        )
        done = warm.run([sys.executable, "-c", program], capture_output=True)
    pid = int(done.stdout)
    with suppress(ProcessLookupError):
        assert select.select([os.pidfd_open(pid)], [], [], 60)[0], "it ends with its owner"


def test_what_stays_broken_is_one_message(folder, tmp_path):
    with bucket(folder, tmp_path, retries=2) as (shelf, files):
        there = RecordFiles.of("s3://data", [".bin"], files)
        many, busy, other = "after 2 retries.*429 Too Many", "after 2 retries.*503", "has changed"
        for fault, said in (("many", many), ("busy", busy), ("version", other)):
            shelf.faults, asked = {fault: 1}, shelf.gets
            with pytest.raises(DataError, match=said) as caught:
                there.at(3, 0, 1)
            assert isinstance(caught.value, UnreachableError) == (fault != "version")
            assert shelf.gets - asked <= 3, "nobody but us tries again"
    with pytest.raises(UnreachableError, match="after 2 retries"):
        replace(files).remote.look(["s3://data/x"])


def test_addresses_that_are_none(tmp_path):
    for address, said in (
        ("s3://me:secret@data/x", "holds a user or a password"),
        ("ftp://host/x", r"Unable to recognise URL \"ftp://host"),
    ):
        with pytest.raises(ConfigError, match=said):
            RecordFiles.of(address, [".bin"], Files(cache_dir=str(tmp_path)))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("endpoint_url=http://me:secret@host", "holds a user or a password"),
        ("endpoint=https://me:secret@host", "holds a user or a password"),
        ("nothing=1", "'nothing' is not valid"),
        ("profile=nobody", r"profile \(nobody\) could not be found"),
    ],
)
def test_options_that_are_none(tmp_path, capsys, monkeypatch, options, said):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    words = ["task=digest", "dataset=image_folder", "dataset.root=s3://data/x"]
    outcome = run(capsys, *words, f"cache_dir={tmp_path}", f"+files.options.{options}")
    assert outcome.code == 2
    assert said.replace("\\", "") in outcome.err


SETTINGS = {
    "a variable": ({"AWS_ENDPOINT_URL": "URL"}, ""),
    "a variable of S3's, before the other": (
        {"AWS_ENDPOINT_URL_S3": "URL", "AWS_ENDPOINT_URL": "http://127.0.0.1:1"},
        "",
    ),
    "the file": ({}, "[default]\nendpoint_url = URL\nregion = eu-west-1\n"),
    "a profile with services": (
        {"AWS_PROFILE": "minio"},
        "[profile minio]\nservices = own\n[services own]\ns3 =\n  endpoint_url = URL\n",
    ),
}


@pytest.mark.parametrize("way", SETTINGS)
def test_endpoint_region_and_credentials_are_read_as_by_tools_of_aws(
    folder, tmp_path, monkeypatch, way
):
    variables, settings = SETTINGS[way]
    secrets = "[default]\naws_access_key_id = one\naws_secret_access_key = two\n"
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/credentials").write_text(secrets + secrets.replace("default", "minio"))
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    with bucket(folder, tmp_path / "cache") as (shelf, files):
        url = files.options["endpoint_url"]
        for name, value in variables.items():
            monkeypatch.setenv(name, value.replace("URL", url))
        (tmp_path / ".aws/config").write_text(settings.replace("URL", url))
        there = RecordFiles.of("s3://data", [".bin"], replace(files, options={}))
        assert all_of(there) == contents(folder)
        region = "eu-west-1" if way == "the file" else "us-east-1"
        assert all("Credential=one/" in sent and region in sent for sent in shelf.signed)
        assert shelf.signed


def test_a_folder_that_is_sent_is_complete_or_absent(folder, tmp_path):
    with bucket(tmp_path / "nothing", tmp_path) as (shelf, files):
        source = tmp_path / "source"
        source.mkdir()
        for name, content in (("a.npy", b"a" * 12_000_000), ("b.npy", b"b"), ("last", b"c")):
            (source / name).write_bytes(content)

        def send():
            files.remote.send(source, "s3://data/pack", "last", "pack.out")

        shelf.refuses = True
        with pytest.raises(DataError, match="The credentials found here do not allow it"):
            send()
        shelf.refuses, shelf.faults = False, {"busy": 3}
        send()
        assert {name: len(content) for name, content in shelf.files.items()} == {
            "data/pack/a.npy": 12_000_000,
            "data/pack/b.npy": 1,
            "data/pack/last": 1,
        }
        puts = [path for method, path in shelf.asked if method == "PUT" and "last" in path]
        assert shelf.asked[-1][1] == puts[-1], "the last one last"
        shelf.files["data/pack/other"] = shelf.files.pop("data/pack/last")
        with pytest.raises(ConfigError, match=r"pack\.out: .*holds other files \('other'\)"):
            send()
        with pytest.raises(ConfigError, match=r"pack\.out: .*is only read"):
            files.remote.send(source, "https://host/pack", "last", "pack.out")


def test_names_and_splits():
    assert expand_braces("x-{08..10}.{a,b}")[:3] == ["x-08.a", "x-08.b", "x-09.a"]
    for pattern, said in (("{", "do not match"), ("{2..1}", "goes down")):
        with pytest.raises(ConfigError, match=said):
            expand_braces(pattern)
    names = ["train-0.tar", "training/7.tar", "Validation.tar", "tests/x.tar", "tested.tar"]
    assert [*map(split_of, names)] == ["train", "train", "val", None, None]


def test_files_that_names_divide(tmp_path):
    for name in ("train-0.x", "train-1.x", "val-0.x", "test-0.x", "_SUCCESS.x", "other.x"):
        (tmp_path / name).write_bytes(b"")
    for split, names in (("train", 2), ("val", 1), ("test", 1)):
        files = RecordFiles.of(str(tmp_path), [".x"], split=split)
        assert len(files) == names
        assert files.divided
        assert files.tested
        assert files.shares(Shares(0.1, 0.2, 3)) == Shares(0.0, 0.0, 3)
    with pytest.raises(DataError, match=r"has no file that ends in \.y"):
        RecordFiles.of(str(tmp_path), [".y"])
