"""Files at addresses: the cache, what is tried again, what is said when it doesn't help."""

import base64
import fcntl
import hashlib
import multiprocessing
import os
import pickle
import random
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from penstock.addons.stores import catalog, remote_files, retry, store
from penstock.addons.stores.file_cache import FileCache
from penstock.addons.stores.listing import FileInfo, Listing, bytes_of
from penstock.addons.stores.retry import RetryPolicy
from penstock.addons.stores.store import Store
from penstock.datasets.files import Files
from penstock.errors import ConfigError, DataError
from tests.web_server import WebServer

ROOT = Path(__file__).parents[2]


@pytest.fixture
def web():
    with WebServer() as server:
        yield server


@pytest.fixture
def memory(request):
    """A folder of `memory://` of this test alone: its name, and a function that writes there."""
    name = f"{request.node.originalname}-{time.monotonic_ns()}"
    system = fsspec.filesystem("memory", skip_instance_cache=True)

    def write(file, content):
        system.pipe_file(f"/{name}/{file}", content)

    yield f"memory://{name}", write
    system.rm(f"/{name}", recursive=True)


def quick(tmp_path, **options):
    given = {"cache_dir": str(tmp_path / "cache"), "retries": 3, "first_wait": 0.01, **options}
    return Files(**given)


def content(files, address):
    return files.read(address, lambda path: Path(path).read_bytes())


def cached(tmp_path):
    """The files in the cache, by name without the key."""
    return sorted(path.name.split("-", 1)[1] for path in (tmp_path / "cache/files").rglob("*-*"))


# Addresses and options


@pytest.mark.parametrize(
    "options",
    [
        {"key": "AKIA"},
        {"secret": "x"},
        {"token": "ya29"},
        {"client_kwargs": {"auth": "x"}},
        {"client_kwargs": {"headers": {"Authorization": "Bearer x"}}},
        {"password": "x"},
        {"aws_access_key_id": "x"},
        {"username": "me"},
    ],
)
def test_credentials_are_refused(options):
    with pytest.raises((ConfigError, ValidationError), match="environment"):
        _ = Files(options=options).remote


def test_credentials_in_addresses_are_refused():
    with pytest.raises(ConfigError, match="holds a user and a password"):
        _ = Files(options={"endpoint_url": "http://me:secret@host"}).remote
    with pytest.raises(ConfigError, match="holds a user or a password"):
        Files().local("https://me:secret@host/file")


def test_harmless_options_pass():
    Files(
        options={
            "anon": True,
            "endpoint_url": "http://host:1",
            "profile": "work",
            "client_kwargs": {"region_name": "eu"},
        }
    )


def test_unknown_stores_are_named():
    with pytest.raises(ConfigError, match=r"no store floppy://; allowed: file://, s3://"):
        Files().local("floppy://disk/file")


@pytest.mark.parametrize(
    ("scheme", "module"), [("s3", "s3fs"), ("gs", "gcsfs"), ("https", "aiohttp")]
)
def test_a_library_that_is_not_installed_is_named(monkeypatch, scheme, module):
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(store, "_is_installed", store._is_installed.__wrapped__)
    with pytest.raises(ConfigError, match=rf"{scheme}:// needs {module}: pip install {module}"):
        Files().local(f"{scheme}://bucket/file")


def test_options_that_a_store_does_not_know_are_refused():
    with pytest.raises(ConfigError, match=r"options: s3:// refuses them: .*max_concurrency"):
        Files(options={"max_concurrency": 0}).local("s3://bucket/x")
    with pytest.raises(DataError, match=r"argument 'bogus'.*Check .*files\.options"):
        Files(options={"config_kwargs": {"bogus": 1}}).local("s3://bucket/x")


# The cache


def test_files_are_fetched_once_and_listed(tmp_path, memory):
    root, write = memory
    for name in ("b/2.bin", "a/1 +.bin", "a/.hidden", "a.bin", "a/b/3.bin", "empty"):
        write(name, name.encode() if name != "empty" else b"")
    files = quick(tmp_path)
    folder = files.remote.folder(root)
    names = folder.files()
    assert list(zip(names, folder.sizes(names).tolist(), strict=True)) == [
        ("a.bin", 5),
        ("a/1 +.bin", 9),
        ("a/b/3.bin", 9),
        ("b/2.bin", 7),
        ("empty", 0),
    ]
    for name in names[:-1]:
        assert content(files, f"{root}/{name}") == name.encode()
    assert content(files, f"{root}/empty") == b""
    first = files.local(f"{root}/a.bin")
    assert files.local(f"{root}/a.bin") == first
    assert first.suffix == ".bin"
    again = pickle.loads(pickle.dumps(files))
    assert again.local(f"{root}/a.bin") == first
    with pytest.raises(DataError, match="missing in its store"):
        files.local(f"{root}/none")
    with pytest.raises(DataError, match="missing in its store, or holds no files"):
        files.remote.folder(f"{root}/none").files()


def test_a_changed_file_is_fetched_anew_by_the_next_run(tmp_path, memory):
    root, write = memory
    write("x", b"old")
    first = quick(tmp_path)
    assert content(first, f"{root}/x") == b"old"
    write("x", b"new")
    assert content(first, f"{root}/x") == b"old"  # a run sees one version
    assert content(quick(tmp_path), f"{root}/x") == b"new"


def test_a_file_that_changes_during_a_run_is_refused(tmp_path, memory):
    root, write = memory
    write("x", b"old")
    files = quick(tmp_path)
    files.remote.folder(root).files()
    write("x", b"new")
    with pytest.raises(DataError, match="has changed since this run began: it had 3 bytes"):
        files.local(f"{root}/x")
    assert cached(tmp_path) == []


def fill(cache, entry, size, age=0.0):
    """Put an entry of `size` bytes there that was used `age` seconds ago."""
    path = cache.get(entry, size, lambda part: part.write(bytes(size)))
    os.utime(path, (time.time() - age,) * 2)
    return path


def names(cache):
    return sorted(path.name for path in (cache.folder / "files").rglob("*-*"))


def test_what_was_used_longest_ago_goes_first(tmp_path):
    cache = FileCache(tmp_path, limit=1000)
    for number in range(9):
        fill(cache, f"{number}a-", 100, age=100 - number)
    assert cache.find("0a-", 100)  # used again
    fill(cache, "9a-", 100)
    assert len(names(cache)) == 10
    fill(cache, "aa-", 250)  # down to 900 of 1000, so that not every file needs a count
    assert names(cache) == ["0a-", "5a-", "6a-", "7a-", "8a-", "9a-", "aa-"]


def test_a_file_stays_readable_when_it_goes(tmp_path):
    cache = FileCache(tmp_path, limit=1000)
    with fill(cache, "00-", 600, age=50).open("rb") as file:
        fill(cache, "11-", 600)
        assert names(cache) == ["11-"]
        assert file.read() == bytes(600)


def test_an_evicted_file_is_fetched_again_by_its_reader(tmp_path, memory):
    root, write = memory
    write("x", b"content")
    files = quick(tmp_path)
    attempts = []

    def read(path):
        attempts.append(path)
        if len(attempts) < 3:
            Path(path).unlink()
        return Path(path).read_bytes()

    assert files.read(f"{root}/x", read) == b"content"
    assert len(attempts) == 3

    def hopeless(path):
        Path(path).unlink()
        raise OSError

    with pytest.raises(DataError, match=r"evicted 20 times .*cache_size"):
        files.read(f"{root}/x", hopeless)


def test_errors_of_a_reader_are_its_own(tmp_path, memory):
    root, write = memory
    write("x", b"content")
    with pytest.raises(ZeroDivisionError):
        quick(tmp_path).read(f"{root}/x", lambda path: 1 / 0)


def test_a_file_that_does_not_fit_is_refused_and_evicts_nothing(tmp_path):
    cache = FileCache(tmp_path, limit=1000)
    fill(cache, "00-", 900)
    with pytest.raises(
        DataError, match=r"a file of 1 kB does not fit .* 1 kB\. Raise .*cache_size"
    ):
        fill(cache, "11-", 1001)
    assert names(cache) == ["00-"]
    fill(cache, "22-", 1000)
    assert names(cache) == ["22-"]


def test_a_file_of_unknown_size_is_counted_while_it_comes(tmp_path):
    cache = FileCache(tmp_path, limit=1000)
    for number in range(3):
        fill(cache, f"{number}0-", 300, age=50 - number)

    def growing(part):
        for _ in range(8):
            part.write(bytes(50))
            taken = int((tmp_path / "taken").read_text().split()[0])
            assert part.written <= part.reserved <= taken <= 1000

    assert cache.get("99-", None, growing).stat().st_size == 400
    assert int((tmp_path / "taken").read_text().split()[0]) == sum(
        path.stat().st_size for path in (tmp_path / "files").rglob("*-*")
    )


def test_a_failed_download_leaves_nothing(tmp_path):
    cache = FileCache(tmp_path, limit=1000)

    def failing(part):
        part.write(b"half")
        raise DataError("it broke")

    for _ in range(3):
        with pytest.raises(DataError, match="it broke"):
            cache.get("00-", 900, failing)
    assert list((tmp_path / "parts").iterdir()) == names(cache) == []
    assert int((tmp_path / "taken").read_text().split()[0]) == 0


def test_what_dead_downloads_left_is_swept(tmp_path):
    cache = FileCache(tmp_path, limit=1000)
    fill(cache, "00-", 500)
    for name in ("dead", "live"):
        (tmp_path / "parts" / name).write_bytes(bytes(300))
    (tmp_path / "taken").write_text(f"{1100:020d} {time.time():020.1f}\n")
    with (tmp_path / "parts/live").open() as live:
        fcntl.flock(live, fcntl.LOCK_EX)
        fill(cache, "11-", 200)
        assert [path.name for path in (tmp_path / "parts").iterdir()] == ["live"]
    assert names(cache) == ["00-", "11-"]  # 500 + 300 + 200: nothing had to go


def test_a_dead_download_of_the_same_file_is_taken_over(tmp_path):
    cache = FileCache(tmp_path, limit=1000)
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts/00-").write_bytes(b"x" * 900)
    assert fill(cache, "00-", 300).read_bytes() == bytes(300)


@pytest.mark.parametrize("ledger", ["", "nonsense", "-5 -5", f"{0:020d} {0:020.1f}\n"])
def test_a_ledger_that_cannot_be_believed_is_made_anew(tmp_path, ledger):
    cache = FileCache(tmp_path, limit=1000)
    for number in range(3):
        fill(cache, f"{number}0-", 300, age=50 - number)
    (tmp_path / "taken").write_text(ledger)
    fill(cache, "99-", 300)
    assert len(names(cache)) == 3


def test_the_parts_of_a_request_are_reserved_and_committed_together(tmp_path):
    cache = FileCache(tmp_path, limit=1000)
    fill(cache, "00-", 300, age=50)
    with cache.claimed([("00-", 300, 1), ("11-", 300, 2), ("22-", 300, 3)]) as claims:
        assert list(claims) == ["11-", "22-"]  # the other is there
        assert int((tmp_path / "taken").read_text().split()[0]) == 900
        with FileCache(tmp_path, limit=1000).claimed([("11-", 300, 2)]) as others:
            assert others == {}
        for part in claims.values():
            part.write(bytes(300))
        assert cache.commit(claims) == [tmp_path / "files/11/11-", tmp_path / "files/22/22-"]
    assert names(cache) == ["00-", "11-", "22-"]
    assert int((tmp_path / "taken").read_text().split()[0]) == 900
    with cache.claimed([("33-", 1100, 4), ("44-", 60, 5)]) as claims:
        assert claims["33-"] is None  # there will never be room for it
        assert claims["44-"] is not None
    assert int((tmp_path / "taken").read_text().split()[0]) == 900
    assert list((tmp_path / "parts").iterdir()) == []


def test_parts_that_come_together_are_counted_where_the_ledger_is_gone(tmp_path):
    cache = FileCache(tmp_path, limit=1000)
    for number in range(3):
        fill(cache, f"{number}0-", 300, age=50 - number)
    (tmp_path / "taken").unlink()
    with cache.claimed([("88-", 200, 1), ("99-", 200, 2)]) as claims:
        parts = {entry: part for entry, part in claims.items() if part is not None}
        for part in parts.values():
            part.write(bytes(200))
        cache.commit(parts)
    assert parts  # entries that were used longest ago have made room
    assert sum(path.stat().st_size for path in (tmp_path / "files").rglob("*-")) <= 1000


@pytest.mark.parametrize("gone", ["", "files", "parts", "files/11"])
def test_a_cache_that_is_deleted_meanwhile_is_made_again(tmp_path, gone):
    cache = FileCache(tmp_path / "cache", limit=1000)
    fill(cache, "11-", 300)
    shutil.rmtree(cache.folder / gone)
    assert fill(cache, "11-a", 300).stat().st_size == 300


def test_a_torn_entry_is_fetched_anew(tmp_path):
    cache = FileCache(tmp_path, limit=1000)
    path = fill(cache, "00-", 300)
    path.write_bytes(b"")  # what a power failure can leave
    assert cache.find("00-", 300) is None
    assert fill(cache, "00-", 300).stat().st_size == 300


def test_a_cache_that_cannot_be_written_is_named(tmp_path, memory):
    root, write = memory
    write("x", b"content")
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(DataError, match=r"cannot keep files in the cache .*files\.cache_dir"):
        quick(tmp_path).local(f"{root}/x")


def test_threads_and_handles_download_a_file_once(tmp_path, web):
    web.contents["/x"] = os.urandom(200_000)
    handles = [quick(tmp_path) for _ in range(3)]
    with ThreadPoolExecutor(12) as pool:
        asked = [pool.submit(content, handles[i % 3], f"{web.address}/x") for i in range(24)]
        assert all(one.result() == web.contents["/x"] for one in asked)
    assert web.downloads("/x") == 1


SIZES = [1000 + 37 * number for number in range(40)]
LIMIT = 12_000


def shared_reader(folder, seed):
    """Read files in random order through the cache of `folder`; any that is torn is an error."""
    cache = FileCache(folder, LIMIT)
    draws = random.Random(seed)
    for _ in range(150):
        number = draws.randrange(len(SIZES))
        expected = bytes([number]) * SIZES[number]

        def slowly(part, expected=expected):
            for start in range(0, len(expected), 300):
                part.write(expected[start : start + 300])
                if draws.random() < 0.2:
                    time.sleep(0.001)

        while True:
            path = cache.get(f"{number:02x}-", len(expected), slowly)
            try:
                assert path.read_bytes() == expected
                break
            except FileNotFoundError:  # evicted in between
                continue


@pytest.mark.thorough
def test_processes_share_a_cache_that_stays_under_its_limit(tmp_path):
    context = multiprocessing.get_context("fork")
    readers = [context.Process(target=shared_reader, args=(tmp_path, seed)) for seed in range(5)]
    for reader in readers:
        reader.start()
    time.sleep(0.1)
    readers[0].kill()  # in the middle of something
    most = 0
    while any(reader.is_alive() for reader in readers):
        with (tmp_path / "taken").open() as ledger:
            fcntl.flock(ledger, fcntl.LOCK_EX)  # nothing comes or goes during the walk
            most = max(most, size_on_disk(tmp_path))
        time.sleep(0.002)
    assert [reader.exitcode for reader in readers[1:]] == [0] * 4
    assert LIMIT // 2 < most <= LIMIT
    for path in (tmp_path / "files").rglob("*-*"):
        assert path.stat().st_size == SIZES[int(path.name[:2], 16)]


def size_on_disk(folder):
    """What the cache takes. A file that is renamed during the walk is counted once."""
    sizes = {}
    for kind in ("files", "parts"):
        for where, _, found in os.walk(folder / kind):
            for name in found:
                try:
                    state = Path(where, name).stat()
                    sizes[state.st_ino] = state.st_size
                except FileNotFoundError:
                    pass
    return sum(sizes.values())


# Stores that break


def test_listing_a_web_server(tmp_path, web):
    web.contents = {
        "/d/": b'<a href="?C=N">sort</a><a href="../">up</a><a href="sub/">s</a>'
        b'<a href="a%20b">a</a>',
        "/d/sub/": b'<a href="x.bin">x</a><a href="gone">g</a>',
        "/d/a%20b": b"spaced",
        "/d/sub/x.bin": b"content",
    }
    web.contents["/d/sub"], web.contents["/d"] = web.contents["/d/sub/"], web.contents["/d/"]
    files = quick(tmp_path)
    folder = files.remote.folder(f"{web.address}/d/")
    assert folder.files() == ["a b", "sub/x.bin"]
    assert folder.sizes(["a b", "sub/x.bin"]).tolist() == [6, 7]
    assert content(files, f"{web.address}/d/a%20b") == b"spaced"
    assert content(files, f"{web.address}/d/sub/x.bin") == b"content"
    with pytest.raises(DataError, match="its server has to list its files"):
        files.remote.folder(f"{web.address}/none").files()


@pytest.mark.parametrize("fault", ["cut", "short", 500, 502, 503, 429, 408])
def test_what_breaks_is_tried_again(tmp_path, web, fault):
    web.contents["/x"] = os.urandom(50_000)
    web.faults["/x"] = [fault, fault, fault]
    assert content(quick(tmp_path), f"{web.address}/x") == web.contents["/x"]
    assert web.downloads("/x") == 4


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("cut", "ClientPayloadError|received"),
        (503, "HTTP 503 Service Unav"),
        ("short", "received 25000 of 50000 bytes"),
    ],
)
def test_what_stays_broken_is_one_clear_message(tmp_path, web, fault, said):
    web.contents["/x"] = os.urandom(50_000)
    web.faults["/x"] = [fault] * 9
    files = quick(tmp_path)
    with pytest.raises(DataError) as caught:
        files.local(f"{web.address}/x")
    pattern = rf"/x' cannot be read: 4 attempts in \d+\.\d s, the last failed with: .*({said})"
    assert caught.match(pattern + r".*Check the address.*files\.retries")
    assert "\n" not in str(caught.value)
    assert cached(tmp_path) == []
    web.faults["/x"] = []
    assert content(files, f"{web.address}/x") == web.contents["/x"]


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (404, "is missing in its store"),
        (410, "is missing in its store"),
        (403, r"may not be read with the credentials found here.*environment or ~/\.aws"),
        (401, "needs credentials"),
        (400, "HTTP 400 Bad Request"),
        (501, "HTTP 501"),
    ],
)
def test_what_is_final_is_not_tried_again(tmp_path, web, status, said):
    web.contents["/x"] = b"content"
    web.faults["/x"] = [status] * 9
    with pytest.raises(DataError, match=said):
        quick(tmp_path).local(f"{web.address}/x")
    assert web.downloads("/x") == 1


def test_a_silent_server_is_given_up(tmp_path, web):
    web.contents["/x"] = b"content"
    web.faults["/x"] = ["silent"] * 9
    files = quick(tmp_path, timeout=0.1, retries=1)
    with pytest.raises(DataError, match=r"2 attempts in .*the last failed with: timed out"):
        files.local(f"{web.address}/x")


def test_a_server_that_is_not_there_is_given_up(tmp_path):
    with pytest.raises(
        DataError, match=r"4 attempts in .*the last failed with: connection refused"
    ):
        quick(tmp_path).local("http://127.0.0.1:9/x")


def test_a_server_that_is_not_there_is_not_taken_for_missing_files(tmp_path):
    # fsspec makes a FileNotFoundError of a refused connection.
    with pytest.raises(
        DataError, match=r"4 attempts in .*the last failed with: connection refused"
    ):
        quick(tmp_path).remote.catalog.sizes("http://127.0.0.1:9/folder", ["x"])


def test_a_body_that_ends_early_without_a_length_is_found_by_its_size(tmp_path, web):
    web.contents["/x"] = os.urandom(50_000)
    web.faults["/x"] = ["short"] * 8
    files = quick(tmp_path)
    with pytest.raises(DataError, match=r"4 attempts .* with: received 25000 of 50000 bytes"):
        files.local(f"{web.address}/x")
    assert cached(tmp_path) == []
    assert content(files, f"{web.address}/x") == web.contents["/x"]


def test_a_server_that_tells_no_size(tmp_path, web):
    web.contents["/x"] = os.urandom(50_000)
    web.lengths = web.etags = False
    assert content(quick(tmp_path), f"{web.address}/x") == web.contents["/x"]


@pytest.mark.parametrize("ranges", [True, False])
def test_large_files_come_in_pieces(tmp_path, web, monkeypatch, ranges):
    monkeypatch.setattr(remote_files, "PIECE", 10_000)
    web.contents["/x"] = os.urandom(45_000)
    web.ranges = ranges
    web.faults["/x"] = ["cut"] if not ranges else [503, None, "cut", None, 503]
    assert content(quick(tmp_path), f"{web.address}/x") == web.contents["/x"]
    assert web.downloads("/x") == (8 if ranges else 2)  # a piece is tried again, not the file


def test_a_checksum_that_does_not_fit_is_tried_again(tmp_path, memory, monkeypatch):
    root, write = memory
    write("x", b"content")
    md5 = "md5:" + hashlib.md5(b"content").hexdigest()
    monkeypatch.setattr(Store, "_version", lambda self, info: md5)
    bodies = [b"cantent", b"kontent", b"content"]
    monkeypatch.setattr(Store, "read", lambda self, *_: bodies.pop(0))
    assert content(quick(tmp_path), f"{root}/x") == b"content"


def test_what_only_looks_like_a_checksum_is_found_out(tmp_path, memory, monkeypatch):
    # S3 gives 32 hexadecimal digits for encrypted files, too, which are no MD5 of the content.
    root, write = memory
    for name in "xyz":
        write(name, name.encode())
    monkeypatch.setattr(Store, "_version", lambda self, info: "md5:" + "5" * 32)
    read, reads = Store.read, []
    monkeypatch.setattr(Store, "read", lambda self, *a: reads.append(a) or read(self, *a))
    files = quick(tmp_path)
    assert [content(files, f"{root}/{name}") for name in "xyz"] == [b"x", b"y", b"z"]
    assert len(reads) == 4  # it was needed once to find out


def test_checksums_of_the_stores():
    s3, gs = Store("s3", {}, 1, None), object.__new__(Store)
    digest = hashlib.md5(b"x")
    assert s3._version({"ETag": f'"{digest.hexdigest()}"'}) == "md5:" + digest.hexdigest()
    assert s3._version({"ETag": f'"{digest.hexdigest()}-7"'}) == digest.hexdigest() + "-7"
    gs._kind = None
    encoded = base64.b64encode(digest.digest()).decode()
    assert gs._version({"md5Hash": encoded, "etag": "CL="}) == "md5:" + digest.hexdigest()
    assert gs._version({"crc32c": "AAA=", "generation": "17", "etag": "CL="}) == "17"


# RetryPolicy


def test_waits_double_and_draw_from_no_generator_of_a_sample(monkeypatch):
    waits, before = [], random.getstate()
    monkeypatch.setattr(retry.time, "sleep", waits.append)

    def refused():
        raise ConnectionRefusedError

    with pytest.raises(DataError, match="9 attempts"):
        RetryPolicy(8, 1.0)("s3://x", refused)
    longest = [1, 2, 4, 8, 16, 32, 60, 60]
    assert len(waits) == 8
    assert all(top / 2 <= wait <= top for wait, top in zip(waits, longest, strict=True))
    assert len({wait / top for wait, top in zip(waits, longest, strict=True)}) > 1
    assert random.getstate() == before


def test_draws_of_a_library_are_put_back(tmp_path, memory, monkeypatch):
    root, write = memory
    write("x", b"content")
    read = Store.read

    def drawing(self, *arguments):
        random.random()  # as botocore and gcsfs do for their waits
        return read(self, *arguments)

    monkeypatch.setattr(Store, "read", drawing)
    before = random.getstate()
    quick(tmp_path).local(f"{root}/x")
    assert random.getstate() == before


# Listings


@given(st.lists(st.text("ab/.c", min_size=1, max_size=6), unique=True), st.text("ab/", max_size=9))
def test_a_listing_finds_what_is_in_it(given, asked):
    listing = Listing.of(FileInfo(name, len(name), f"v{name}") for name in given)
    assert listing.names.tolist() == sorted(name.encode() for name in given)
    for name in [*given, asked, asked + "/x"]:
        found = listing.find(name)
        assert found == (FileInfo(name, len(name), f"v{name}") if name in given else None)
    below = [name.decode() for name in listing.names[listing.below(asked)].tolist()]
    assert below == sorted(name for name in given if not asked or name.startswith(asked + "/"))
    start = len(asked) + 1 if asked else 0
    inner = {name[start:].split("/")[0] for name in below if name.find("/", start) > start}
    assert listing.folders(listing.below(asked), start) == sorted(inner)


def test_sizes_of_a_listing():
    listing = Listing.of([FileInfo("b", 5, ""), FileInfo("a", None, "")])
    assert listing.sizes_of(bytes_of(["b", "none", "a"])).tolist() == [5, -1, 0]
    assert Listing.of([]).sizes_of(bytes_of(["b"])).tolist() == [-1]
    joined = Listing.joined([("", listing), ("x/", listing), ("y/", Listing.of([]))])
    assert joined.names.tolist() == [b"a", b"b", b"x/a", b"x/b"]
    assert joined.sizes.tolist() == [-1, 5, -1, 5]


@pytest.mark.parametrize("folders", [1, 3, 20, 70])
def test_folders_are_listed_side_by_side(tmp_path, memory, monkeypatch, folders):
    monkeypatch.setattr(catalog, "_FOLDERS", 50)  # from here on all at once
    root, write = memory
    expected = [f"f{n // 9}/{n}/x" for n in range(folders)] + ["top"]
    for name in expected:
        write(name, b"")
    files = quick(tmp_path)
    assert files.remote.folder(root).files() == sorted(expected)


def test_a_lookup_is_quick():
    listing = Listing.of(
        FileInfo(f"{n % 100}/{n:07d}.jpg", n, f"md5:{n:032x}") for n in range(100_000)
    )
    began = time.process_time()  # of the CPU: others may have it meanwhile
    for number in range(1000):
        listing.find(f"{number % 100}/{number:07d}.jpg")
    assert time.process_time() - began < 0.2  # 10 us each, and ten times the room
