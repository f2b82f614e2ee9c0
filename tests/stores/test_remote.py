"""Data in an S3 server on loopback, read by the program as a person would start it.

The server is a process that is killed and started again; so are some of the readers.
"""

import contextlib
import multiprocessing
import os
import signal
import socket
import sys
import threading
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from penstock import build_train_loader, command, compose
from penstock.addons.stores.direct import S3
from penstock.addons.tokens.token_files import TokenFiles
from penstock.datasets.arrays import Arrays
from penstock.datasets.face_landmarks import FaceLandmarks
from penstock.datasets.files import Files
from penstock.datasets.image_folder import ImageFolder
from penstock.datasets.sequences import Sequences
from penstock.errors import ConfigError, DataError
from tests.face_folder import write_faces
from tests.program import run
from tests.s3_server import ENVIRONMENT, S3Server, wait_until
from tests.tokens.test_token_files import write_pair

pytest.importorskip("s3fs")
pytest.importorskip("moto")

IMAGES = 40
DIGEST = ["task=digest", "dataset=image_folder", "batch.size=4", "loader.num_workers=0"]
"""A digest reads every image of the training split."""


def write_insects(root):
    """JPEGs in the layout of the ants and bees of PyTorch's transfer learning tutorial."""
    for number in range(IMAGES + 8):
        split, label = ("train", number) if number < IMAGES else ("val", number)
        path = root / split / ("ants" if label % 2 else "bees") / f"{number:03d} (1).jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 255, (12, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((72, 64)).save(path, quality=85)


def write_arrays(root):
    root.mkdir()
    draws = np.random.default_rng(0)
    np.save(root / "inputs.npy", draws.normal(size=(30, 4)).astype(np.float32))
    np.save(root / "targets.npy", draws.integers(0, 2, 30))
    (root / "classes.txt").write_text("no\nyes\n")


def write_sequences(root):
    root.mkdir()
    draws = np.random.default_rng(0)
    np.save(root / "values.npy", draws.normal(size=(60, 2)).astype(np.float32))
    np.save(root / "offsets.npy", np.arange(0, 61, 3))
    np.save(root / "labels.npy", draws.integers(0, 3, 20))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("bucket")
    write_insects(root / "insects")
    write_arrays(root / "arrays")
    write_sequences(root / "sequences")
    write_faces(root / "faces")
    write_pair(root / "tokens")
    (root / "damaged/a").mkdir(parents=True)
    (root / "damaged/a/x.jpg").write_bytes(b"<html>no image</html>")
    return root


@pytest.fixture(scope="module")
def server(data, tmp_path_factory):
    server = S3Server(data, tmp_path_factory.mktemp("log") / "requests", delay=0.01).start()
    yield server
    server.kill()


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    monkeypatch.chdir(tmp_path)


def at(server, cache, *more):
    """Overrides for the images in the bucket."""
    endpoint = f"+files.options.endpoint_url={server.options['endpoint_url']}"
    return ["dataset.root=s3://data/insects", f"files.cache_dir={cache}", endpoint, *more]


def patient(retries, first_wait):
    return [f"files.retries={retries}", f"files.first_wait={first_wait}"]


def files_of(server, tmp_path, **options):
    return Files(cache_dir=str(tmp_path / "cache"), options=server.options, **options)


def in_cache(cache):
    return [path for path in (cache / "files").rglob("*-*") if path.is_file()]


def assert_whole(cache, data):
    """Every file in the cache has the very bytes of a file of the data."""
    known = {path.read_bytes() for path in data.rglob("*") if path.is_file()}
    for path in in_cache(cache):
        assert path.read_bytes() in known, path


EXECUTORS = {
    "main": [],
    "fork": ["loader.num_workers=2", "loader.multiprocessing_context=fork"],
}


def test_the_digest_does_not_depend_on_where_the_files_lie(data, server, tmp_path, capsys):
    expected = run(capsys, *DIGEST, f"dataset.root={data}/insects")
    assert len(expected.hashes) == IMAGES // 4, expected.err
    for name, options in EXECUTORS.items():
        before, asked = len(server.downloads()), len(server.requests())
        times = 2 if name == "fork" else 1
        for _ in range(times):
            remote = run(capsys, *DIGEST, *at(server, tmp_path / name), *options)
            assert remote.out == expected.out, (name, remote.err)
        downloads = server.downloads()[before:]
        assert len(downloads) == len(set(downloads)) == IMAGES, name
        # Each time, a listing for each level of folders; for a file, nothing but its download.
        assert len(server.requests()) - asked <= IMAGES + times * 8


@pytest.mark.thorough
def test_spawned_processes_get_what_was_listed_and_no_connection(data, server, tmp_path):
    root = "s3://data/insects/val"
    files = files_of(server, tmp_path)
    names = files.remote.folder(root).files()
    files.local(f"{root}/{names[0]}")
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        paths = list(pool.map(files.local, [f"{root}/{name}" for name in names], timeout=60))
    for path, name in zip(paths, names, strict=True):
        assert path.read_bytes() == (data / "insects/val" / name).read_bytes()


@pytest.mark.stress
def test_workers_forked_amid_downloads_make_their_own_connections(data, server, tmp_path):
    root = "s3://data/insects/train"
    files = files_of(server, tmp_path)
    names = files.remote.folder(root).files()
    stop = threading.Event()

    def busy():  # holds connections, and the event loop's locks, while workers are forked
        while not stop.is_set():
            files.remote.catalog.look_again(f"{root}/{names[0]}")

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        config = compose(
            *DIGEST,
            *at(server, tmp_path / "cache"),
            "loader.num_workers=3",
            "loader.multiprocessing_context=fork",
            "loader.timeout=60",
            "task=fit",
        )
        loader = build_train_loader(config)
        assert sum(batch.request.valid for batch in loader) == IMAGES
        loader.close()
    finally:
        stop.set()
        thread.join()


def test_all_datasets_of_files_give_the_same_samples_and_fingerprints(data, server, tmp_path):
    for kind, name in (
        (ImageFolder, "insects"),
        (FaceLandmarks, "faces"),
        (Arrays, "arrays"),
        (Sequences, "sequences"),
        (TokenFiles, "tokens"),
    ):
        files = files_of(server, tmp_path)
        for split in ("train", "val"):
            here = kind(f"{data}/{name}", split)
            there = kind(f"s3://data/{name}", split, files=files)
            assert len(here) == len(there) > 0
            assert here.fingerprint == there.fingerprint
            assert here.facts == there.facts
            assert getattr(here, "classes", None) == getattr(there, "classes", None)
            for index in range(0, len(here), 7):
                one, other = here[index], there[index]
                for field in one:
                    assert np.array_equal(np.asarray(one[field]), np.asarray(other[field])), field


def test_the_table_tells_addresses(server, tmp_path):
    there = ImageFolder("s3://data/insects", files=files_of(server, tmp_path))
    assert there.path(0) == there.metadata["path"][0] == "s3://data/insects/train/ants/001 (1).jpg"


def test_a_file_that_is_damaged_in_the_store_is_named_by_its_address(server, tmp_path):
    there = ImageFolder("s3://data/damaged", val_fraction=0.0, files=files_of(server, tmp_path))
    said = r"image 's3://data/damaged/a/x\.jpg' is not an image: it is a web page"
    with pytest.raises(DataError, match=said):
        there[0]


@pytest.mark.parametrize(
    ("root", "said"),
    [
        ("s3://data/none", "'s3://data/none' is missing in its store, or holds no files"),
        ("s3://none/insects", "'s3://none/insects' is missing in its store"),
        ("s3://data/arrays", "has no folders in it: ImageFolder needs one for each class"),
    ],
)
def test_a_root_that_is_not_there_is_named(server, tmp_path, capsys, root, said):
    outcome = run(capsys, *DIGEST, *at(server, tmp_path), f"dataset.root={root}")
    assert outcome.code == 3
    assert said in outcome.err


def test_credentials_come_from_the_environment_only(server, tmp_path, capsys, monkeypatch):
    outcome = run(capsys, *DIGEST, *at(server, tmp_path), "+files.options.key=AKIA")
    assert outcome.code == 2
    assert "files.options.key: " in outcome.err
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    outcome = run(capsys, *DIGEST, *at(server, tmp_path), "+files.options.use_ssl=false")
    assert outcome.code == 3
    assert "needs credentials, and none were found" in outcome.err
    assert "+files.options.anon=true" in outcome.err


SETTINGS = {
    "a variable": ({"AWS_ENDPOINT_URL": "URL"}, ""),
    "a variable of S3's, before the other": (
        {"AWS_ENDPOINT_URL_S3": "URL", "AWS_ENDPOINT_URL": "http://127.0.0.1:1"},
        "",
    ),
    "the file": ({}, "[default]\nendpoint_url = URL\nregion = eu-west-1\n"),
    "a profile with services": (
        {"AWS_PROFILE": "minio"},
        "[profile minio]\nservices = own\ns3 =\n  addressing_style = path\n"
        "[services own]\ns3 =\n  endpoint_url = URL\n",
    ),
    "a host that no proxy serves": (
        {"AWS_ENDPOINT_URL": "URL", "http_proxy": "http://127.0.0.1:1", "no_proxy": "127.0.0.1"},
        "",
    ),
}


@pytest.mark.parametrize("way", SETTINGS)
def test_an_endpoint_is_read_as_tools_of_aws_read_it(way, server, data, tmp_path, monkeypatch):
    """The own client asks it: a GET for each file, and not one HEAD, which s3fs sends."""
    variables, file = SETTINGS[way]
    url = server.options["endpoint_url"]
    for name, value in variables.items():
        monkeypatch.setenv(name, value.replace("URL", url))
    (tmp_path / ".aws").mkdir()
    if file:
        (tmp_path / ".aws" / "config").write_text(file.replace("URL", url))
    before = len(server.requests())
    timeout = 50.0 + list(SETTINGS).index(way)  # each has a client of its own
    files = Files(cache_dir=str(tmp_path / "cache"), timeout=timeout)
    root = "s3://data/insects/val"
    names = files.remote.folder(root).files()
    for name in names:
        read = files.local(f"{root}/{name}").read_bytes()
        assert read == (data / "insects/val" / name).read_bytes()
    assert S3({}).url("data", "a b") == f"{url}/data/a%20b"
    assert len([line for line in server.requests()[before:] if line.endswith(".jpg")]) == len(names)
    assert not [line for line in server.requests()[before:] if line.startswith("HEAD")]


@pytest.mark.thorough
def test_a_store_that_stays_away_ends_the_run_with_one_message(data, tmp_path):
    server = S3Server(data, tmp_path / "log", delay=0.05).start()
    cache = tmp_path / "cache"
    options = [*patient(2, 0.1), "loader.num_workers=2", "files.concurrency=2"]
    running = forked(tmp_path / "run", program, *DIGEST, *at(server, cache), *options)
    try:
        wait_until(lambda: len(server.downloads()) > 8, 60)
    finally:
        server.kill()
    running.join(60)
    assert running.exitcode == 3
    err = (tmp_path / "run.err").read_text()
    _, notice, error = err.splitlines()  # the first says what will be done
    assert notice.startswith("notice: requests go to http://127.0.0.1:")
    assert error.startswith("error: ")
    for part in (
        "s3://data/insects/train/",
        "3 attempts in",
        "connection refused",
        "(epoch 0, step ",
    ):
        assert part in err
    assert len(in_cache(cache)) >= 7  # of nine, two may have been on their way to the workers
    assert_whole(cache, data)


@pytest.mark.stress
def test_a_store_that_comes_back_in_time_changes_nothing(data, tmp_path, capsys):
    expected = run(capsys, *DIGEST, f"dataset.root={data}/insects")
    server = S3Server(data, tmp_path / "log", delay=0.03).start()
    cache = tmp_path / "cache"
    restarted = threading.Thread(target=restart_after, args=(server, 10))
    restarted.start()
    try:
        options = [*patient(20, 0.1), "loader.num_workers=2"]
        remote = run(capsys, *DIGEST, *at(server, cache), *options)
    finally:
        restarted.join()
        server.kill()
    assert remote.out == expected.out, remote.err
    assert len(in_cache(cache)) == IMAGES
    assert_whole(cache, data)


def restart_after(server, downloads):
    wait_until(lambda: len(server.downloads()) >= downloads, 60)
    server.kill()
    threading.Event().wait(0.5)
    server.start()


def test_nobody_but_us_tries_again(tmp_path):
    # botocore and s3fs have retries of their own, which would multiply with ours.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connections = []
        threading.Thread(target=hang_up, args=(listener, connections), daemon=True).start()
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
        files = Files(str(tmp_path), retries=2, first_wait=0.01, options={"endpoint_url": endpoint})
        with pytest.raises(DataError, match="3 attempts"):
            files.local("s3://data/x")
        assert len(connections) <= 3 * 2  # aiohttp takes a second one at once


def hang_up(listener, connections):
    with contextlib.suppress(OSError):
        while True:
            connection, _ = listener.accept()
            connections.append(connection.close())


@pytest.mark.stress
def test_two_runs_share_a_cache(data, server, tmp_path, capsys):
    expected = run(capsys, *DIGEST, f"dataset.root={data}/insects")
    cache, before = tmp_path / "cache", len(server.downloads())
    programs = [
        forked(
            tmp_path / f"{workers}",
            program,
            *DIGEST,
            *at(server, cache),
            f"loader.num_workers={workers}",
        )
        for workers in (0, 2)
    ]
    for one in programs:
        one.join(60)
    assert [one.exitcode for one in programs] == [0, 0]
    for workers in (0, 2):
        assert (tmp_path / f"{workers}.out").read_text() == expected.out
    downloads = server.downloads()[before:]
    assert sorted(downloads) == sorted(set(downloads))  # each of them once
    assert len(in_cache(cache)) == IMAGES
    assert_whole(cache, data)


@pytest.mark.stress
def test_a_small_cache_is_enough_and_stays_small(data, server, tmp_path, capsys):
    expected = run(capsys, *DIGEST, f"dataset.root={data}/insects")
    sizes = [path.stat().st_size for path in (data / "insects/train").rglob("*.jpg")]
    limit = 5 * max(sizes)
    assert sum(sizes) > 6 * limit
    cache, most, done = tmp_path / "cache", [0], threading.Event()

    def watch():
        while not done.wait(0.002):
            most.append(taken(cache))

    watcher = threading.Thread(target=watch)
    watcher.start()
    options = [f"files.cache_size={limit}", "loader.num_workers=3"]
    remote = run(capsys, *DIGEST, *at(server, cache), *options)
    done.set()
    watcher.join()
    assert remote.out == expected.out, remote.err
    assert 0 < max(most) <= limit
    assert sum(path.stat().st_size for path in in_cache(cache)) <= limit
    assert_whole(cache, data)


def taken(cache):
    try:
        return int((cache / "taken").read_text().split()[0])
    except (FileNotFoundError, IndexError):
        return 0


def test_a_reader_that_is_killed_leaves_nothing_torn_and_holds_nobody_up(data, server, tmp_path):
    cache, before = tmp_path / "cache", len(server.downloads())
    first = forked(tmp_path / "first", read_all, server, tmp_path)
    wait_until(lambda: len(server.downloads()) > before and parts(cache), 60)
    first.kill()
    first.join(60)
    assert first.exitcode == -signal.SIGKILL
    second = forked(tmp_path / "second", read_all, server, tmp_path)
    second.join(60)
    assert second.exitcode == 0, (tmp_path / "second.err").read_text()
    assert len(in_cache(cache)) == 8
    assert parts(cache) == []
    assert_whole(cache, data)


def read_all(server, tmp_path):
    files = files_of(server, tmp_path)
    for name in files.remote.folder("s3://data/insects/val").files():
        files.local(f"s3://data/insects/val/{name}")
    return 0


def parts(cache):
    """Downloads under way."""
    return list((cache / "parts").glob("*"))


def test_a_dataset_that_needs_folders_of_this_machine_says_so(server, tmp_path, capsys):
    for dataset in ("synthetic_faces", "sequences"):
        outcome = run(capsys, "task=digest", f"dataset={dataset}", "dataset.root=s3://data/faces")
        assert outcome.code == 2
        assert "dataset.root: " in outcome.err
        assert "drawn data is written to a folder of this machine" in outcome.err
    assert not Path("s3:").exists()


def test_an_extra_that_is_missing_is_a_matter_of_configuration(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    outcome = run(capsys, *DIGEST, "dataset.root=gs://bucket/folder")
    assert outcome.code == 2
    assert "gs:// needs gcsfs: pip install gcsfs" in outcome.err


def test_a_name_that_leads_out_of_the_root_is_refused(server, tmp_path):
    with pytest.raises(ConfigError, match=r"leads out of it"):
        FaceLandmarks("s3://data/faces", images="../x", files=files_of(server, tmp_path))


def program(*arguments):
    return command.main([str(argument) for argument in arguments])


def forked(out, function, *arguments):
    """`function` in a process of its own, which doesn't have to import everything again.

    Its standard output goes to the file `out`.out, its errors to `out`.err; its exit code is what
    it returns.
    """

    def call():
        for number, ending in ((1, ".out"), (2, ".err")):
            os.dup2(os.open(f"{out}{ending}", os.O_WRONLY | os.O_CREAT), number)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
        code = function(*arguments)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    process = multiprocessing.get_context("fork").Process(target=call)
    process.start()
    return process
