"""Requests past fsspec: how many there are, what is left to it, what becomes of bad answers."""

import gc
import io
import os
import socket
import tarfile
import threading
import warnings
from contextlib import closing, contextmanager

import pytest

from penstock.addons.shards.tar_shards import TarShards
from penstock.addons.stores import direct
from penstock.addons.stores import store as stores
from penstock.addons.stores.direct import S3, DirectClient, StatusError, UnusualError
from penstock.datasets.files import Files
from penstock.errors import DataError
from penstock.loading.collate import List
from penstock.loading.loader import Loader
from penstock.loading.stream_fetch import StreamFetch
from penstock.order.streams import StreamOrder, StreamPlan
from tests.s3_server import wait_until
from tests.support.store_server import InThread, Shelf

pytest.importorskip("s3fs")
pytest.importorskip("aiohttp")

CONTENTS = {f"data/train/{'ab'[n % 2]}/{n} (1)+é.bin": os.urandom(3000 + n) for n in range(12)}
WAYS = ["http", "s3"]


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)


@contextmanager
def served(tmp_path, way, **options):
    """A server, access to files by a way, the address of the bucket."""
    shelf = Shelf(dict(CONTENTS), **options)
    with InThread(shelf) as port:
        url = f"http://127.0.0.1:{port}"
        files = Files(
            cache_dir=str(tmp_path / "cache"),
            options={"endpoint_url": url} if way == "s3" else {},
            retries=6,
            first_wait=0.01,
            timeout=1,
        )
        yield shelf, files, "s3://data" if way == "s3" else f"{url}/data"


def all_of(files, root):
    """Every file of the bucket, by name."""
    return {
        f"data/{info.name}": files.local(files.remote.folder(root).path(info.name)).read_bytes()
        for info in files.list(root)
    }


@pytest.mark.parametrize("way", WAYS)
def test_what_a_listing_or_an_answer_tells_is_not_asked_for(tmp_path, way, monkeypatch):
    monkeypatch.setattr(
        stores.Store, "_system", None
    )  # fsspec's, which nothing needs but web listings
    if way == "http":
        monkeypatch.undo()
    with served(tmp_path, way) as (shelf, files, root):
        assert all_of(files, root) == CONTENTS
        heads = shelf.requests.pop("HEAD", 0)
        assert heads == (0 if way == "s3" else len(CONTENTS))
        assert shelf.requests["GET"] == len(CONTENTS)
        assert shelf.requests.pop("404", 0) == (way == "http")  # an index of the folder
        assert shelf.requests.keys() == {"GET", "LIST"}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fault", ["busy", "error", "reset", "short", "stall", "version"])
def test_every_fault_that_passes_costs_requests_alone(tmp_path, way, fault, monkeypatch):
    monkeypatch.setattr(stores, "asks_to_wait", lambda error: None)  # a second, in this server
    with served(tmp_path, way) as (shelf, files, root):
        shelf.faults = {fault: 6}
        assert all_of(files, root) == CONTENTS
        proven = (way, fault) == ("s3", "version")  # by its MD5, whatever the answer's headers say
        more = shelf.requests["GET"] - len(CONTENTS)
        assert more == 0 if proven else 0 < more <= 5


@pytest.mark.parametrize("way", WAYS)
def test_a_file_that_changes_during_a_run_is_noticed(tmp_path, way):
    with served(tmp_path, way) as (shelf, files, root):
        (info, *_) = files.list(root)
        name = f"data/{info.name}"
        shelf.files[name] = bytes(len(shelf.files[name]) + 1)
        shelf.etags.clear()
        with pytest.raises(DataError, match="has changed since this run began"):
            files.local(files.remote.folder(root).path(info.name))


def test_credentials_that_expire_are_one_message(tmp_path):
    with served(tmp_path, "s3") as (shelf, files, root):
        (info, *_) = files.list(root)
        shelf.faults = {"expired": 1}
        with pytest.raises(DataError, match="may not be read with the credentials found here"):
            files.local(files.remote.folder(root).path(info.name))
        assert shelf.requests["GET"] == 2  # the other is s3fs's, whose message it is


def test_connections_are_kept(tmp_path):
    with served(tmp_path, "s3") as (shelf, files, root):
        all_of(files, root)
        assert shelf.connections <= 2


@pytest.mark.parametrize(
    ("options", "variable"),
    [
        ({"endpoint_url": "unix:///x"}, None),
        ({}, "AWS_ENDPOINT_URL"),
        ({}, "AWS_USE_FIPS_ENDPOINT"),
        ({}, "HTTPS_PROXY"),
    ],
)
def test_what_is_out_of_the_ordinary_is_left_to_fsspec(monkeypatch, options, variable):
    if variable:
        monkeypatch.setenv(variable, "http://127.0.0.1:1")
    with pytest.raises(UnusualError):
        S3(options)


def test_buckets_of_amazon_have_hosts_of_their_own(monkeypatch):
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    s3 = S3({})
    assert s3.url("data", "a b/é+.jpg") == (
        "https://data.s3.eu-west-1.amazonaws.com/a%20b/%C3%A9%2B.jpg"
    )
    for bucket in ("Data", "a.b", "arn:aws:s3:us-east-1:1:accesspoint/x"):
        with pytest.raises(UnusualError):
            s3.url(bucket, "x")


@pytest.mark.parametrize("anon", [False, True])
@pytest.mark.parametrize(
    ("variables", "is_plain"),
    [
        ({}, True),
        ({"AWS_DEFAULT_REGION": "eu-west-1", "AWS_SESSION_TOKEN": "s"}, True),
        ({"AWS_SECURITY_TOKEN": "old", "AWS_SESSION_TOKEN": "new"}, True),
        ({"AWS_SECURITY_TOKEN": "", "AWS_SESSION_TOKEN": "new", "AWS_REGION": "x"}, True),
        ({"AWS_CREDENTIAL_EXPIRATION": "2199-01-01T00:00:00Z"}, False),
        ({"AWS_CA_BUNDLE": "/other.pem"}, False),
        ({"AWS_PROFILE": "mine"}, False),
        ({"AWS_CONFIG_FILE": "~/mine"}, False),
        ({"AWS_SHARED_CREDENTIALS_FILE": "$HOME/mine"}, False),
    ],
)
def test_the_environment_is_read_as_by_botocore(monkeypatch, tmp_path, variables, is_plain, anon):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "mine").write_text("[default]\nregion = us-west-2\n")
    ours = direct._of_environment({"anon": anon})
    assert (ours is not None) == is_plain
    if is_plain:
        theirs = direct._of_botocore({"anon": anon})
        assert ours[:2] == theirs[:2]
        for each in (ours, theirs) if anon else ():
            assert each[2] is None
        if not anon:
            assert (
                tuple(ours[2].get_frozen_credentials())
                == tuple(theirs[2].get_frozen_credentials())[:3]
            )


def test_what_the_environment_lacks_is_left_to_botocore(monkeypatch, tmp_path):
    assert direct._of_environment({"profile": "mine"}) is None
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/config").touch()
    assert direct._of_environment({}) is None
    (tmp_path / ".aws/config").unlink()
    assert direct._of_environment({}) is not None
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "")
    assert direct._of_environment({}) is None


def tar_of(names):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name in names:
            content = name.replace("-", "").encode()
            member = tarfile.TarInfo(f"{name}.cls")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


@pytest.mark.parametrize("start", [0, 3])
def test_the_next_shards_of_a_stream_come_before_it_opens_them(tmp_path, start):
    names = [[f"{shard}-{n}" for n in range(4)] for shard in range(8)]
    shards = {f"data/train-{n}.tar": tar_of(inside) for n, inside in enumerate(names)}
    folder = tmp_path / "here"
    folder.mkdir()
    for name, content in shards.items():
        (folder / name.rpartition("/")[2]).write_bytes(content)

    def loader_at(root, files):
        dataset = TarShards(root, val_fraction=0.0, files=files)
        order = StreamOrder(3, 5, shuffle_shards=True)
        fetch = StreamFetch(dataset, None, List(), 3, order=order, batch_size=4)
        return Loader(StreamPlan(order, 4), fetch)

    def batches(loader, epoch):
        return [list(batch["label"]) for batch in loader.epoch(epoch, start)]

    with served(tmp_path, "s3") as (shelf, files, root):
        shelf.files = shards
        with loader_at(str(folder), None) as here, loader_at(root, files) as there:
            assert len(shelf.asked) == 2  # the listing, and the first archive for its fields
            with closing(there.epoch(0, start)) as epoch:
                next(epoch)
                wait_until(lambda: len(shelf.asked) == 9, 20)  # nobody asks for a batch
            for number in range(2):
                assert batches(there, number) == batches(here, number)
            assert len(shelf.asked) == 9
            assert not shelf.requests["HEAD"]


@pytest.mark.parametrize("page", [b"<html>", b"&", "entities"])
def test_a_listing_that_is_none_is_one_message(tmp_path, page):
    if page == "entities":
        names = "".join(
            f'<!ENTITY n{n} "{f"&n{n - 1};" * 10 if n else "n" * 99}">' for n in range(9)
        )
        page = f"<!DOCTYPE x [{names}]><ListBucketResult>&n8;</ListBucketResult>".encode()
    with served(tmp_path, "s3") as (shelf, files, root):
        shelf.listing = lambda *_: page
        with pytest.raises(DataError, match=f"'{root}' cannot be read: 7 attempts .* no XML"):
            files.list(root)


def test_a_length_that_is_no_number_of_bytes_is_unusual():
    """Python refuses to make an int of 5,000 digits, by an error of its own."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %b\r\n\r\n" % (b"9" * 5000))

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(UnusualError, match="of unknown length"):
            DirectClient(20.0).get(f"http://127.0.0.1:{server.getsockname()[1]}/file")
        thread.join()


@pytest.mark.parametrize("status", [b"403 Forbidden", b"503 Slow Down", b"302 Found"])
def test_a_refusal_that_ends_the_connection_leaves_no_socket_open(status):
    """Its response has the socket, which the connection gives away."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                head = b"HTTP/1.1 %b\r\nConnection: close\r\nContent-Length: 9\r\n\r\n"
                connection.sendall(head % status + b"x" * 9)

        thread = threading.Thread(target=answer)
        thread.start()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ResourceWarning)
            with pytest.raises((UnusualError, StatusError)) as error:
                DirectClient(20.0).get(f"http://127.0.0.1:{server.getsockname()[1]}/file")
            error.value.itself = error.value  # so that it is collected with all its frames
            del error
            gc.collect()
        thread.join()
    assert not [str(warning.message) for warning in caught]
