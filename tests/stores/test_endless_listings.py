"""Listings that do not end, and that lead elsewhere, by real servers on this machine."""

import contextlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from penstock import terminal
from penstock.addons.stores import listing, store
from penstock.datasets.files import Files, walk
from penstock.errors import DataError
from penstock.files.limits import Limits
from tests.program import run
from tests.web_server import WebServer


@contextlib.contextmanager
def serving(answer):
    """A server whose answers are `answer(path, query)`: status, headers, body."""
    requests = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_GET(self):
            requests.append(self.path)
            url = urlsplit(self.path)
            status, headers, body = answer(url.path, parse_qs(url.query))
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                with contextlib.suppress(ConnectionError):
                    self.wfile.write(body)

        do_HEAD = do_GET

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", requests
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def files(tmp_path, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")

    def make(endpoint=None, **limits):
        options = {"endpoint_url": endpoint} if endpoint else {}
        return Files(str(tmp_path), retries=0, options=options, limits=Limits(**limits))

    return make


HTML = {"Content-Type": "text/html"}
XML = {"Content-Type": "application/xml"}


def page(*links):
    return 200, HTML, "".join(f'<a href="{link}">x</a>' for link in links).encode()


def bucket(keys=(), folders=(), token=None):
    """A page of S3's list of objects."""
    found = "".join(
        f"<Contents><Key>{key}</Key><Size>1</Size><ETag>&quot;x&quot;</ETag></Contents>"
        for key in keys
    ) + "".join(f"<CommonPrefixes><Prefix>{one}</Prefix></CommonPrefixes>" for one in folders)
    more = f"<NextContinuationToken>{token}</NextContinuationToken>" if token else ""
    text = (
        '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<IsTruncated>{'true' if token else 'false'}</IsTruncated>{more}{found}</ListBucketResult>"
    )
    return 200, XML, text.encode()


def deeper(path, query):
    """A page that links to itself, one level further down; with a file, so that it isn't barren."""
    return page("a.txt", "again/")


def wider(path, query):
    """Every folder has two new ones in it, under names that never come again."""
    return page(f"{len(path)}-{hash(path)}.txt", f"{hash((path, 1))}/", f"{hash((path, 2))}/")


def line(path, query):
    """One folder inside of another, each of its own name and with a file of its own."""
    return page(f"{len(path)}.txt", f"f{len(path)}/")


WEB = {
    "a page that links to itself": (deeper, "have the same names", 40),
    "folders without end": (wider, "more than limits.files=300 allows", 1200),
    "one folder after another": (line, "deeper than 64 levels", 200),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("answer", "reason", "most"), WEB.values(), ids=WEB)
def test_a_web_index_ends(files, answer, reason, most):
    with serving(answer) as (address, requests):
        with pytest.raises(DataError, match=reason) as caught:
            files(files=300).remote.catalog.listing(f"{address}/data")
        assert f"{address}/data" in str(caught.value)
        assert len(requests) < most


def test_folders_without_files_end(files, monkeypatch):
    monkeypatch.setattr(listing, "_BARREN", 100)

    def empty(path, query):
        return page(f"{hash((path, 1))}/", f"{hash((path, 2))}/")

    with serving(empty) as (address, requests):
        with pytest.raises(DataError, match="in a row hold no file"):
            files().remote.catalog.listing(f"{address}/data")
        assert len(requests) < 1000


def test_a_page_without_end_is_not_kept(files, monkeypatch):
    monkeypatch.setattr(store, "MOST_OF_A_PAGE", 2**20)

    def endless(path, query):
        return 200, HTML, b"<a href='x.txt'>" * 2**18

    with (
        serving(endless) as (address, _),
        pytest.raises(DataError, match="more than 1048576 bytes"),
    ):
        files().remote.catalog.listing(f"{address}/data")


def numbered(path, query):
    """S3 whose pages go on for ever, each with files of its own."""
    page = int(query.get("continuation-token", ["0"])[0])
    return bucket([f"d/{page}-{n}.txt" for n in range(10)], token=page + 1)


def repeated(path, query):
    return bucket(["d/a.txt"], token="again")


def alternating(path, query):
    mark = query.get("continuation-token", ["b"])[0]
    return bucket(["d/a.txt"], token="a" if mark == "b" else "b")


def inside(path, query):
    """Every folder holds one more, as long as it is asked for folder by folder."""
    prefix = query.get("prefix", [""])[0]
    return bucket([f"{prefix}x.txt"], [f"{prefix}f{len(prefix)}/"])


S3 = {
    "new pages for ever": (numbered, "more than limits.files=300 allows", 40),
    "the same page": (repeated, "the same page again and again", 3),
    "two pages in turn": (alternating, "the same page again and again", 4),
    "folders inside of folders": (inside, "deeper than 64 levels", 70),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("answer", "reason", "most"), S3.values(), ids=S3)
def test_a_bucket_ends(files, answer, reason, most):
    with serving(answer) as (endpoint, requests):
        with pytest.raises(DataError, match=reason) as caught:
            files(endpoint, files=300).remote.catalog.listing("s3://data/d")
        assert "'s3://data/d'" in str(caught.value)
        assert len(requests) <= most


def test_what_is_below_a_bucket_ends(files):
    def many(path, query):
        if query.get("delimiter"):
            return bucket(folders=[f"d/{n}/" for n in range(20)])
        return repeated(path, query)

    with serving(many) as (endpoint, _), pytest.raises(DataError, match="again and again"):
        files(endpoint).remote.catalog.listing("s3://data/d")


def test_a_store_that_answers_with_folders_where_all_files_were_asked_for(files):
    def many(path, query):
        prefix = query.get("prefix", [""])[0]
        return bucket([f"{prefix}x.txt"], [f"{prefix}f{n}/" for n in range(20)])

    refused = pytest.raises(DataError, match=r"below 's3://data/d/f0', .* a folder, .*d/f0/f0'")
    with serving(many) as (endpoint, _), refused:
        files(endpoint).remote.catalog.listing("s3://data/d")


def test_pages_that_end_are_all_there(files):
    def pages(path, query):
        number = int(query.get("continuation-token", ["0"])[0])
        keys = [f"d/{number}-{n}.txt" for n in range(10)] + ["d/", f"d/{number}-folder/"]
        return bucket(keys, token=number + 1 if number < 4 else None)

    with serving(pages) as (endpoint, _):
        names = [one.name for one in files(endpoint, files=50).list("s3://data/d")]
    assert names == sorted(f"{page}-{n}.txt" for page in range(5) for n in range(10))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("key", ["d/../secret", "d/a/../../x", "d//x", "d/./x", "d/a/.."])
def test_names_that_lead_out_of_a_bucket_are_refused(files, key):
    refused = pytest.raises(DataError, match="leads out of the folder")
    with serving(lambda path, query: bucket([key])) as (endpoint, _), refused:
        files(endpoint).remote.catalog.listing("s3://data/d")


def test_what_a_store_lists_beside_the_folder_is_no_part_of_it(files):
    keys = ["elsewhere/x", "d/ok.txt", "https://evil.example/x", "/etc/passwd", "dd/x"]
    with serving(lambda path, query: bucket(keys)) as (endpoint, _):
        assert [one.name for one in files(endpoint).list("s3://data/d")] == ["ok.txt"]


def test_a_page_may_link_to_anything_but_only_what_is_below_it_is_listed(files):
    links = [
        "ok.txt",
        "../up.txt",
        "a/../../b",
        "%2e%2e/c",
        "..%2fd",
        "/etc/x",
        "file:///e",
        "https://evil.example/f",
        "x/%2e%2e/%2e%2e/g",
        "//evil.example/h",
        "../",
    ]

    def answer(path, query):
        return page(*links) if path == "/data" else (200, {}, b"x")

    with serving(answer) as (address, requests):
        names = [one.name for one in files().list(f"{address}/data")]
        assert "ok.txt" in names
        assert all(path.startswith("/data") and ".." not in path for path in requests)
    assert not any(".." in name for name in names)


def test_it_says_how_far_it_is(files, monkeypatch, capsys):
    monkeypatch.setattr(terminal, "LINE_SECONDS", 0.0)
    with serving(numbered) as (endpoint, _), contextlib.suppress(DataError):
        files(endpoint, files=300).remote.catalog.listing("s3://data/d")
    assert "listing s3://data/d  10\n" in capsys.readouterr().err


@pytest.mark.thorough
def test_a_run_ends_with_its_exit_code(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with serving(deeper) as (address, _):
        outcome = run(capsys, "dataset=image_folder", f"dataset.root={address}/d", "task=digest")
        assert outcome.code == 3
        assert outcome.err.count("\n") == 2, "what will be done, and what is wrong"
    with serving(wider) as (address, _):
        outcome = run(
            capsys,
            "dataset=image_folder",
            f"dataset.root={address}/d",
            "task=digest",
            "limits.files=50",
        )
        assert "limits.files=50" in outcome.err, "the section reaches the files"
        assert outcome.code == 3


def test_a_folder_of_this_machine_has_the_same_limit(tmp_path):
    for number in range(5):
        (tmp_path / f"{number}.txt").touch()
    assert len(walk(tmp_path, Limits(files=5))) == 5
    with pytest.raises(DataError, match=r"more than limits\.files=4 allows"):
        walk(tmp_path, Limits(files=4))


def test_a_retried_listing_counts_its_files_once():
    one = listing.Crawl("x", Limits(files=10))
    for _ in range(5):
        one.start("a")
        one.page("a", 4)
        one.page("a", 4)
    one.page("b", 2)
    with pytest.raises(DataError, match="11 files"):
        one.page("b", 1)


OURS = ["Host", "Accept", "Accept-Encoding", "User-Agent", "Range"]


@pytest.mark.parametrize(
    ("location", "headers", "fine"),
    [
        ("http://h/x", OURS, False),
        ("http://other/x", OURS, False),
        ("ftp://h/x", OURS, False),
        ("https://other/x", OURS, True),
        ("/y", OURS, True),
        ("//other/y", OURS, True),
        ("https://other/x", [*OURS, "X-Api"], False),
        ("//other/x", ["X-Api"], False),
        ("https://h/y", [*OURS, "X-Api"], True),
        ("y", ["X-Api"], True),
        ("HTTP://h/x", OURS, False),
    ],
)
def test_redirects(location, headers, fine):
    with contextlib.nullcontext() if fine else pytest.raises(DataError, match="is redirected to"):
        store.check_redirect("https://h/x", location, headers)


def test_a_redirect_with_headers_of_ones_own_is_not_followed(tmp_path):
    with WebServer() as other:
        other.contents["/x.txt"] = b"content"

        def moved(path, query):
            return 302, {"Location": f"{other.address}/x.txt"}, b""

        with serving(moved) as (address, _):
            headers = {"client_kwargs": {"headers": {"X-Team": "blue"}}}
            given = Files(str(tmp_path / "a"), retries=0, options=headers)
            with pytest.raises(DataError, match="would get the headers X-Team"):
                given.open(f"{address}/y.txt")
            assert other.requests == []
            plain = Files(str(tmp_path / "b"), retries=0)
            with plain.open(f"{address}/y.txt") as file:
                assert file.read() == b"content"
