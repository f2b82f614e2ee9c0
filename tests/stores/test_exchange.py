"""Many requests by one thread: what comes as it should, and what is asked for otherwise."""

import datetime
import ipaddress
import os
import select
import socket
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pytest

from penstock.addons.stores.arrivals import Arrivals
from penstock.addons.stores.direct import (
    S3,
    DirectClient,
    NoRangesError,
    Request,
    StatusError,
    UnusualError,
)
from penstock.addons.stores.exchange import Exchange
from penstock.addons.stores.parts import GAP, Came, as_part, part_address
from penstock.addons.stores.retry import Damaged, asks_to_wait
from penstock.addons.stores.store import Store
from penstock.datasets.files import Files
from tests.support.store_server import InThread, Shelf

BODY = os.urandom(100_000)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nETag: tag\r\n\r\n" % len(BODY)
CONTENTS = {f"data/{number:02}.bin": os.urandom(3000 + number) for number in range(40)}
LARGE = os.urandom(400_000)


def play(link, script):
    for item in script:
        if item == "hear":
            heard = b""
            while not heard.endswith(b"\r\n\r\n"):
                heard += link.recv(1 << 16) or b"\r\n\r\n"
        elif item == "wait":
            link.recv(1)
        elif isinstance(item, bytes):
            link.sendall(item)
        else:
            time.sleep(item)


@contextmanager
def server(*scripts, context=None):
    """The address of a server that runs a script for each connection, in turn.

    A script's items: bytes to send, or "hear" a request, "wait" for its client
    to leave, or seconds to pause.
    """
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve():
            for script in scripts:
                with suppress(OSError):  # nobody has come, or has left, or does not trust us
                    link, _ = listening.accept()
                    with link, context.wrap_socket(link, True) if context else link as opened:
                        play(opened, script)

        thread = threading.Thread(target=serve)
        thread.start()
        scheme = "http" if context is None else "https"
        yield f"{scheme}://127.0.0.1:{listening.getsockname()[1]}/a%20b?c=d"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


@contextmanager
def exchange(timeout=20.0, client=None):
    """A function that asks for files at the same time, and gives the answers in their order."""
    client = client or DirectClient(timeout)
    with ThreadPoolExecutor(4) as pool:
        asked = Exchange(timeout, pool)

        def ask(*requests, most=100_000):
            answers = {}
            for number, request in enumerate(requests):
                if isinstance(request, str):
                    request = client.request(request)
                asked.ask(
                    client,
                    request,
                    most,
                    lambda answer, number=number: answers.setdefault(number, answer),
                )
            ends = time.monotonic() + 60
            while len(answers) < len(requests) and time.monotonic() < ends:
                select.select([asked], [], [], 0.05)
                asked.work()
            return [answers[number] for number in range(len(requests))]

        yield ask
        asked.close()


def test_an_answer_may_come_in_any_pieces():
    whole = HEAD + BODY
    pieces = [whole[at : at + 7] for at in range(0, 140, 7)] + [whole[140:50_000], 0.02]
    with server(["hear", *pieces, whole[50_000:]]) as address, exchange() as ask:
        (answer,) = ask(address)
    assert bytes(answer.body) == BODY
    assert answer.size == len(BODY)
    assert answer.headers == {"content-length": str(len(BODY)), "etag": "tag"}


def test_a_connection_is_used_again_unless_its_server_closes_it():
    first = ["hear", HEAD + BODY, "hear", HEAD + BODY[::-1]]
    closing = HEAD.replace(b"ETag: tag", b"Connection: close")
    scripts = first, ["hear", closing + BODY], ["hear", HEAD + BODY]
    with server(*scripts) as address, exchange() as ask:
        answers = [bytes(ask(address)[0].body) for _ in range(4)]
    assert answers == [BODY, BODY[::-1], BODY, BODY]


def test_what_was_closed_while_it_was_idle_is_asked_again_at_once():
    """The request is on its way when the news of the end comes."""
    with server(["hear", HEAD + BODY, "hear"], ["hear", HEAD + BODY]) as address, exchange() as ask:
        for _ in range(2):
            (answer,) = ask(address)
            assert bytes(answer.body) == BODY


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ([HEAD + BODY[:-1]], Damaged),
        ([], Damaged),
        ([b"nothing like HTTP\r\n\r\n"], Damaged),
        ([b"HTTP/1.1 503 Slow Down\r\nRetry-After: 3\r\nContent-Length: 0\r\n\r\n"], StatusError),
        ([b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"], FileNotFoundError),
        ([b"HTTP/1.1 302 Found\r\nLocation: /b\r\nContent-Length: 0\r\n\r\n"], UnusualError),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"], UnusualError),
        ([HEAD.replace(b"ETag", b"Transfer-Encoding") + BODY], UnusualError),
        ([HEAD.replace(b"ETag: tag", b"Content-Length: 3") + BODY], UnusualError),
        ([HEAD.replace(b"ETag: tag", b"Content-Encoding: gzip") + BODY], UnusualError),
        ([HEAD.replace(b"ETag:", b"ETag :") + BODY], UnusualError),
        ([HEAD.replace(b"ETag: tag", b"tag") + BODY], UnusualError),
        ([HEAD.replace(b"100000", b"100001") + BODY], UnusualError),
        ([b"HTTP/1.1 200 OK\r\nETag: " + b"x" * 20_000 + b"\r\n", "wait"], UnusualError),
        ([b"HTTP/1.1 200 OK\r\nETag: " + b"x" * 200_000], UnusualError),
        (["wait"], TimeoutError),
        ([HEAD + BODY[:-1], "wait"], TimeoutError),
    ],
)
def test_whatever_else_comes_is_an_error(answer, error):
    patience = 0.5 if error is TimeoutError else 20.0
    with server(["hear", *answer]) as address, exchange(patience) as ask:
        (told,) = ask(address)
    assert type(told) is error, told
    if error is StatusError:
        assert told.status == 503
        assert asks_to_wait(told) == 3


def test_the_whole_file_in_answer_to_a_request_for_a_part_is_no_part():
    with server(["hear", HEAD + BODY]) as address, exchange() as ask:
        (told,) = ask(DirectClient(20.0).request(address, 5, 10), most=5)
    assert type(told) is NoRangesError


@pytest.mark.parametrize(
    "request_",
    [
        Request("GET", "http", "user@127.0.0.1", "/", {}),
        Request("GET", "http", "bücher.example", "/", {}),
        Request("GET", "http", "127.0.0.1:1", "/a b", {}),
        Request("GET", "http", "127.0.0.1:1", "/", {"A": "b\r\nc: d"}),
    ],
)
def test_what_cannot_be_sent_as_it_is_is_left_to_others(request_):
    with socket.create_server(("127.0.0.1", 0)) as listening, exchange() as ask:
        port = listening.getsockname()[1]
        (told,) = ask(request_._replace(netloc=request_.netloc.replace(":1", f":{port}")))
    assert type(told) is UnusualError


def test_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with exchange() as ask:
        (told,) = ask(f"http://127.0.0.1:{port}/")
    assert type(told) is ConnectionRefusedError


def certificate(folder):
    """A file with a key and a certificate of its own for 127.0.0.1."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    day, now = datetime.timedelta(days=1), datetime.datetime.now(datetime.UTC)
    local = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, now - day, now + day)
    signed = builder.add_extension(local, False).sign(key, hashes.SHA256())
    path = folder / "certificate.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + signed.public_bytes(serialization.Encoding.PEM)
    )
    return str(path)


def test_tls_gives_all_that_it_has_read_and_checks_who_answers(tmp_path):
    trusted = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(trusted)
    client = DirectClient(20.0, authorities=trusted)
    script = ["hear", HEAD + BODY, "hear", HEAD[:30], 0.02, HEAD[30:] + BODY]
    with server(script, context=context) as address, exchange(client=client) as ask:
        for _ in range(2):
            (answer,) = ask(address)
            assert bytes(answer.body) == BODY
    with server(["hear"], context=context) as address, exchange() as ask:
        (told,) = ask(address)
    assert isinstance(told, ssl.SSLCertVerificationError)


# Signatures


@pytest.mark.parametrize("token", ["", "to//ken=="])
@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9000", "https://h.example:443", None])
def test_a_signature_is_that_of_botocore(monkeypatch, tmp_path, endpoint, token):
    auth = pytest.importorskip("botocore.auth")
    awsrequest = pytest.importorskip("botocore.awsrequest")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKID")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "se/cret+x")
    monkeypatch.setenv("AWS_SESSION_TOKEN", token)
    s3 = S3({"endpoint_url": endpoint} if endpoint else {})
    query = "?delimiter=%2F&list-type=2&continuation-token=1%2F%2B&prefix=a%20b"
    for url in (s3.url("data", "a b/ü~+&=%.jpg"), s3.url("data", ""), s3.url("data", "") + query):
        for method in ("GET", "HEAD"):
            ours = {"Accept-Encoding": "identity", "Range": "bytes=0-9"}
            s3.sign(method, url, ours)
            at = datetime.datetime.strptime(ours["x-amz-date"], "%Y%m%dT%H%M%SZ")
            monkeypatch.setattr(auth, "get_current_datetime", lambda *_, at=at, **__: at)
            theirs = awsrequest.AWSRequest(method, url, {})
            signer = auth.S3SigV4Auth(s3._credentials.get_frozen_credentials(), "s3", "us-east-1")
            signer.add_auth(theirs)
            lowered = {name.lower(): text for name, text in ours.items()}
            for name, text in theirs.headers.items():
                assert lowered[name.lower()] == text


def test_a_new_day_and_new_credentials_have_another_key(monkeypatch, tmp_path):
    pytest.importorskip("botocore")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKID")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    s3, seen = S3({"endpoint_url": "http://h"}), []
    for secret, day in (("a", 0), ("a", 0), ("b", 0), ("b", 1), ("a", 0)):
        s3._credentials.secret_key = secret
        monkeypatch.setattr(
            time, "gmtime", lambda day=day: time.struct_time((2026, 1, 1 + day, *[0] * 6))
        )
        headers = {}
        s3.sign("GET", "http://h/data/a", headers)
        seen.append(headers["Authorization"])
    assert seen[0] == seen[1] == seen[4]
    assert len({*seen}) == 3


# From the request to the cache


@contextmanager
def arrivals(tmp_path, monkeypatch, timeout=60, **options):
    """A server's files, access to them, and a function that brings rows of addresses."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("HOME", str(tmp_path))
    shelf = Shelf({**CONTENTS, "data/large.bin": LARGE})
    with InThread(shelf) as port, ThreadPoolExecutor(4) as pool:
        given = {"endpoint_url": f"http://127.0.0.1:{port}"}
        files = Files(cache_dir=str(tmp_path / "cache"), options=given, timeout=timeout, **options)
        files.list("s3://data")
        remote, others = files.remote, []

        def otherwise(rows, delivered):
            others.append([*rows])
            return Came((), 7)

        coming = Arrivals(remote, remote.cache, pool, otherwise)

        def bring(*rows, delivered=0):
            futures = [coming.begin(each, delivered) for each in rows]
            ends = time.monotonic() + 60
            while any(each and not each.done() for each in futures) and time.monotonic() < ends:
                select.select([coming.exchange], [], [], 0.05)
                coming.work()
            return [each and each.result(0) for each in futures]

        yield shelf, remote, bring, others
        coming.exchange.close()


def address(number):
    return f"s3://data/{number:02}.bin"


def cached(remote, address):
    part = as_part(address)
    if part is not None:
        return remote.filled_mirror(part.address).read(part, 0, part.end - part.start)
    path = remote.cache.find(*remote.entry(address))
    return path and path.read_bytes()


def test_files_and_parts_come_into_the_cache_once(tmp_path, monkeypatch):
    with arrivals(tmp_path, monkeypatch) as (shelf, remote, bring, others):
        every = [{address(number): number} for number in range(40)]
        sizes = [len(content) for content in CONTENTS.values()]
        assert [came.size for came in bring(*every)] == sizes
        large = "s3://data/large.bin"
        spans = [(100, 5000), (5000, 9000), (9000 + GAP, 80_000)]
        parts = {part_address(large, *span): 1 for span in spans}
        assert bring(parts) == [Came([], 79_900)]
        for number, content in enumerate(CONTENTS.values()):
            assert cached(remote, address(number)) == content
        for part, (start, end) in zip(parts, spans, strict=True):
            assert cached(remote, part) == LARGE[start:end]
        assert shelf.requests["GET"] == 41
        assert bring(*every, parts) == [Came([], 0)] * 41
        assert shelf.requests["GET"] == 41
        assert not others
        assert not [*(tmp_path / "cache/parts").iterdir()]
        taken = sum(sizes) + sum(end - start for start, end in spans)
        assert int((tmp_path / "cache/taken").read_text().split()[0]) == taken


@pytest.mark.parametrize("fits", [True, False])
def test_parts_share_a_file_where_all_data_fits_into_half_of_the_cache(tmp_path, monkeypatch, fits):
    total = len(LARGE) + sum(map(len, CONTENTS.values()))
    size = 2 * total if fits else 2 * total - 1
    with arrivals(tmp_path, monkeypatch, cache_size=size) as (shelf, remote, bring, _):
        spans = [(100, 5000), (5000, 9000), (9000 + GAP, 80_000)]
        parts = [part_address("s3://data/large.bin", *span) for span in spans]
        bring({address(0): 0})  # the first file of a cache, at which its bytes are counted
        bring(dict.fromkeys(parts, 1))
        kept = [path.name for path in (tmp_path / "cache/files").rglob("*-*")]
        assert len(kept) == (1 if fits else 4)
        for part, (start, end) in zip(parts, spans, strict=True):
            assert remote.content(part) == LARGE[start:end]
            assert remote.content(part, 7, 100) == LARGE[start + 7 : start + 107]
            assert (
                remote.kept_as(part)
                == (remote.entry("s3://data/large.bin") if fits else remote.entry(part))[0]
            )
        assert shelf.requests["GET"] == 2
        remote.content(part_address("s3://data/large.bin", 0, 50))
        assert shelf.requests["GET"] == 3, "whoever reads a part first keeps it as a file"


def test_what_is_not_as_it_was_listed_is_asked_for_otherwise(tmp_path, monkeypatch):
    with arrivals(tmp_path, monkeypatch) as (shelf, remote, bring, others):
        part = part_address("s3://data/large.bin", 0, 70_000)
        far = part_address("s3://data/large.bin", 70_001 + GAP, 200_000)
        shelf.files["data/00.bin"] = bytes(3000)  # as long as before
        shelf.files["data/01.bin"] = b"short"
        shelf.files["data/large.bin"] = LARGE[::-1]
        del shelf.files["data/02.bin"]
        shelf.etags.clear()
        odd = [{address(0): 0}, {address(1): 1}, {address(2): 2}, {part: 3}, {part: 4, far: 4}]
        unknown = {"s3://data/unknown.bin": 5}
        came = bring(*odd, unknown, {address(9): 9})
        assert came == [Came((), 7)] * 6 + [Came([], 3009)]
        assert sorted(others) == sorted([*each] for each in (*odd, unknown))
        assert cached(remote, address(9)) == CONTENTS["data/09.bin"]
        assert not [*(tmp_path / "cache/parts").iterdir()], "claims are given back"


@pytest.mark.parametrize("fault", ["busy", "reset", "short", "stall", "error"])
def test_faults_are_left_to_who_tries_again(tmp_path, monkeypatch, fault):
    patience = 1 if fault == "stall" else 60
    with arrivals(tmp_path, monkeypatch, patience) as (shelf, remote, bring, others):
        shelf.faults = {fault: 2}
        came = bring(*[{address(number): number} for number in range(6)])
        failed = {name for (name,) in others}
        assert len(failed) == 3 if fault != "stall" else failed
        for number, each in enumerate(came):
            assert (address(number) in failed) == (each == Came((), 7))
            expected = None if address(number) in failed else CONTENTS[f"data/{number:02}.bin"]
            assert cached(remote, address(number)) == expected
        assert (remote.catalog.gate.limit() < 128) == (fault == "busy")


def test_nothing_begins_without_a_permit_or_without_room(tmp_path, monkeypatch):
    with arrivals(tmp_path, monkeypatch, concurrency=1, cache_size=8000) as given:
        shelf, remote, bring, others = given
        permit = remote.catalog.gate.begin()
        assert bring({address(0): 0}) == [None]
        remote.catalog.gate.end(permit)
        assert bring({address(0): 0}) == [Came([], 3000)]
        large = part_address("s3://data/large.bin", 0, 9000)
        assert bring({large: 3}) == [Came([large], 0)]
        assert shelf.requests["GET"] == 1
        assert not others
        assert cached(remote, address(0)) == CONTENTS["data/00.bin"]


def test_headers_that_say_nonsense_end_no_process(tmp_path, monkeypatch):
    """Such as a Content-MD5 that is no base64."""
    with arrivals(tmp_path, monkeypatch) as (_, remote, bring, others):

        def nonsense(*_):
            raise ValueError("no base64")

        monkeypatch.setattr(Store, "described", nonsense)
        assert bring({address(0): 0}) == [Came((), 7)]
        assert others == [[address(0)]]
        assert cached(remote, address(0)) is None
        assert not [*(tmp_path / "cache/parts").iterdir()]
