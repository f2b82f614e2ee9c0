"""GET, HEAD and S3's listing by `http.client`, for what nearly every request is.

fsspec's file systems cost 0.4 ms (aiohttp) and 3 ms (s3fs) of CPU a GET of 78 kB, this 0.3 and 0.4,
`exchange.py` 0.06 and 0.15. The answer's headers say which version
came, so that nobody has to ask for it. (obstore takes 0.26 and 0.37, but hangs in a process that
was forked after its first request.)

Connections are kept open, by host, in each process of its own. Whatever is out of the ordinary is
an `UnusualError`, after which the same is asked of fsspec: options other than `endpoint_url`,
`anon` and `profile`, proxies, redirects, compressed or endless bodies, refusals.
"""

from __future__ import annotations

import atexit
import hashlib
import hmac
import http.client
import importlib.util
import os
import re
import ssl
import threading
import time
import urllib.request
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping
from functools import cached_property
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlencode, urlsplit

from penstock.addons.stores.retry import Damaged

_IDLE = 64  # connections of a host that are kept
_MOST_OF_A_PAGE = 64 * 2**20  # bytes of a listing's page
_SIZE = r"[0-9]{1,18}"
_BEFORE_PATH = re.compile(r"[^/?#]*")
_PLAIN_BUCKET = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
_PORTS = {"http": ":80", "https": ":443"}
_OF_NOTHING = hashlib.sha256().hexdigest()
_OTHERWISE = ("use_fips_endpoint", "use_dualstack_endpoint", "use_accelerate_endpoint")
_OF_BOTOCORE = (
    "AWS_PROFILE",
    "AWS_DEFAULT_PROFILE",
    "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_CREDENTIAL_EXPIRATION",
    "AWS_CA_BUNDLE",
    "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS",
)


class UnusualError(Exception):
    """It is asked of fsspec.

    Attributes:
        for_ever: the next requests to this host are, too.
    """

    def __init__(self, reason: str, for_ever: bool = False) -> None:
        super().__init__(reason)
        self.for_ever = for_ever


class NoRangesError(UnusualError):
    """Its server sends the whole file in answer to a request for a part."""


class StatusError(Exception):
    """A store is busy, broken, or does not have it.

    Attributes:
        status, headers: of its answer.
    """

    def __init__(self, status: int, headers: Mapping[str, str]) -> None:
        super().__init__(f"HTTP {status}")
        self.status, self.headers = status, headers


class Answer(NamedTuple):
    """The answer.

    Attributes:
        body: of a GET.
        size: bytes of the whole file.
        headers: their names in small letters.
    """

    body: bytes | bytearray
    size: int
    headers: Mapping[str, str]


class Request(NamedTuple):
    """A request, signed for this moment.

    Attributes:
        target: path and query, as they are sent.
    """

    method: str
    scheme: str
    netloc: str
    target: str
    headers: dict[str, str]


Sign = Callable[[str, str, dict[str, str]], None]
"""Adds to the headers of a request of a method and a URL."""


class DirectClient:
    """Requests of one process.

    Args:
        timeout: seconds of silence.
        sign: adds a signature.
        authorities: file of certificates to trust; None: the system's.
    """

    def __init__(
        self, timeout: float, sign: Sign | None = None, authorities: str | None = None
    ) -> None:
        self._timeout, self._sign, self._authorities = timeout, sign, authorities
        self._lock = threading.Lock()
        self._idle: dict[tuple[str, str], list[http.client.HTTPConnection]] = {}
        self._unusual: set[str] = set()
        atexit.register(self._close)  # forgotten in a forked process, which has no such end

    def get(
        self, url: str, start: int | None = None, end: int | None = None, most: int | None = None
    ) -> Answer:
        """A file, or the bytes from `start` to `end` of it.

        Raises:
            UnusualError: see above; also for more than `most` bytes.
            NoRangesError: these are the whole file, of which a part was asked for.
            StatusError: the store is busy or broken; on a web server, any other refusal, too.
            FileNotFoundError: a web server does not have it.
            Damaged: the body ended early.
        """
        return self._ask(self.request(url, start, end), most)

    def head(self, url: str) -> Answer:
        """Of a file all but the bytes."""
        return self._ask(self.request(url, method="HEAD"), None)

    def request(
        self, url: str, start: int | None = None, end: int | None = None, method: str = "GET"
    ) -> Request:
        """A signed request for a file, or the bytes from `start` to `end` of it.

        Raises:
            UnusualError: its host is one that fsspec asks.
        """
        scheme, _, rest = url.partition("://")
        netloc = _BEFORE_PATH.match(rest)[0]  # type: ignore[index]
        if netloc in self._unusual:
            raise UnusualError("as before")
        headers = {"Accept-Encoding": "identity"}
        if start is not None and end is not None:
            headers["Range"] = f"bytes={start}-{end - 1}"
        if self._sign is not None:
            self._sign(method, url, headers)
        target = rest[len(netloc) :].partition("#")[0]
        if not target.startswith("/"):
            target = f"/{target}"
        return Request(method, scheme.lower(), netloc, target, headers)

    def _ask(self, request: Request, most: int | None) -> Answer:
        host = request.scheme, request.netloc
        try:
            while True:
                connection, fresh = self._connection(*host)
                try:
                    connection.request(request.method, request.target, headers=request.headers)
                    response = connection.getresponse()
                except (ConnectionError, http.client.BadStatusLine):
                    connection.close()
                    if fresh:
                        raise
                    continue  # the server has closed what was idle
                except BaseException:
                    connection.close()
                    raise
                try:
                    answer = self._answer(request, response, most)
                except BaseException:
                    response.close()  # which has the socket where the server ends the connection
                    connection.close()
                    raise
                self._keep(host, connection, response)
                return answer
        except UnusualError as error:
            if error.for_ever:
                self._unusual.add(request.netloc)
            raise

    def _answer(
        self, request: Request, response: http.client.HTTPResponse, most: int | None
    ) -> Answer:
        headers = {name.lower(): text for name, text in response.getheaders()}
        size, whole = self.sizes(request, response.status, headers, most)
        if request.method == "HEAD":
            response.read()
            return Answer(b"", whole, headers)
        body = bytearray(size)
        view, have = memoryview(body), 0
        while have < size:
            count = response.readinto(view[have:])
            if not count:
                raise Damaged(f"received {have} of {size} bytes")
            have += count
        response.read()
        return Answer(body, whole, headers)

    def sizes(
        self, request: Request, status: int, headers: Mapping[str, str], most: int | None
    ) -> tuple[int, int]:
        """The bytes of an answer's body, and of the whole file.

        Args:
            headers: of the answer, their names in small letters.

        Raises:
            UnusualError, NoRangesError, StatusError, FileNotFoundError: as `get`.
        """
        if status in (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS) or (
            status >= HTTPStatus.INTERNAL_SERVER_ERROR and status != HTTPStatus.NOT_IMPLEMENTED
        ):
            raise StatusError(status, headers)
        if status not in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
            moved = 300 <= status < 400
            if moved or request.method == "HEAD" or self._sign is not None:
                raise UnusualError(f"HTTP {status}", moved)
            if status == HTTPStatus.NOT_FOUND:
                raise FileNotFoundError(f"HTTP {status}")
            raise StatusError(status, headers)
        length = headers.get("content-length", "")
        if (
            re.fullmatch(_SIZE, length) is None
            or headers.get("content-encoding", "identity") != "identity"
        ):
            raise UnusualError("a compressed body, or one of unknown length", for_ever=True)
        size = whole = int(length)
        if status == HTTPStatus.PARTIAL_CONTENT:
            match = re.fullmatch(rf"bytes \d+-\d+/({_SIZE})", headers.get("content-range", ""))
            if match is None:
                raise UnusualError("a part of an unknown whole")
            whole = int(match[1])
        if request.method != "HEAD" and most is not None and size > most:
            if "Range" in request.headers and status == HTTPStatus.OK:
                raise NoRangesError(f"a body of {size} bytes")
            raise UnusualError(f"a body of {size} bytes")
        return size, whole

    def _connection(self, scheme: str, netloc: str) -> tuple[http.client.HTTPConnection, bool]:
        """A connection, and whether it is a new one."""
        with self._lock:
            idle = self._idle.get((scheme, netloc))
            if idle:
                return idle.pop(), False
        if scheme == "https":
            return http.client.HTTPSConnection(
                netloc, timeout=self._timeout, context=self.context
            ), True
        return http.client.HTTPConnection(netloc, timeout=self._timeout), True

    def _keep(
        self,
        host: tuple[str, str],
        connection: http.client.HTTPConnection,
        response: http.client.HTTPResponse,
    ) -> None:
        with self._lock:
            idle = self._idle.setdefault(host, [])
            if not response.will_close and len(idle) < _IDLE:
                idle.append(connection)
                return
        connection.close()

    def _close(self) -> None:
        with self._lock:
            for connections in self._idle.values():
                for connection in connections:
                    connection.close()

    @cached_property
    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self._authorities)


class _Credentials(NamedTuple):
    """Credentials that do not change, used as botocore's."""

    access_key: str
    secret_key: str
    token: str | None

    def get_frozen_credentials(self) -> _Credentials:
        return self


def _of_environment(options: Mapping[str, Any]) -> tuple[str, str, Any, str | None] | None:
    """As `_of_botocore`, where environment variables have all: its import takes 0.1 s.

    None where botocore would look at anything else.
    """
    if (
        options.get("profile")
        or any(os.environ.get(name) for name in _OF_BOTOCORE)
        or any(Path("~/.aws", name).expanduser().exists() for name in ("config", "credentials"))
        or importlib.util.find_spec("certifi") is None
    ):
        return None
    import certifi

    credentials = None
    if not options.get("anon"):
        access, secret = (
            os.environ.get(f"AWS_{name}", "") for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY")
        )
        if not access or not secret:
            return None
        tokens = (os.environ.get(f"AWS_{kind}_TOKEN") for kind in ("SECURITY", "SESSION"))
        credentials = _Credentials(access, secret, next(filter(None, tokens), None))
    region = os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    named = filter(None, map(os.environ.get, ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")))
    return certifi.where(), region, credentials, next(named, None)


def _of_botocore(options: Mapping[str, Any]) -> tuple[str, str, Any, str | None]:
    """File of the certificates to trust, region, credentials and endpoint.

    Raises:
        UnusualError: there are none, or settings for which requests are otherwise.
    """
    import botocore.session
    from botocore.configprovider import ConfiguredEndpointProvider
    from botocore.httpsession import get_cert_path

    session = botocore.session.Session(profile=options.get("profile"))
    settings = session.get_scoped_config()
    own = settings.get("s3") or {}
    addressing = own.get("addressing_style", "auto")
    if (
        (settings | own).keys() & {*_OTHERWISE}
        or addressing not in ("auto", "path")
        or own.get("signature_version", "s3v4") != "s3v4"
    ):
        raise UnusualError("settings of the profile")
    endpoint = ConfiguredEndpointProvider(session.full_config, settings, "s3").provide()
    if session.get_config_variable("ignore_configured_endpoint_urls"):
        endpoint = None
    if addressing == "path" and not endpoint and not options.get("endpoint_url"):
        raise UnusualError("paths at Amazon")
    authorities = session.get_config_variable("ca_bundle") or get_cert_path(True)
    region = session.get_config_variable("region") or "us-east-1"
    credentials = None if options.get("anon") else session.get_credentials()
    if credentials is None and not options.get("anon"):
        raise UnusualError("no credentials")
    return authorities, region, credentials, endpoint


class S3:
    """Where S3's buckets are, and how requests are signed: by botocore's rules for the plain case.

    Args:
        options: of the store: `endpoint_url`, `anon`, `profile`.

    Attributes:
        authorities: file of the certificates that it trusts.

    Raises:
        UnusualError: it is not the plain case.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        if any(os.environ.get(f"AWS_{name.upper()}") for name in _OTHERWISE):
            raise UnusualError("settings of the environment")
        read = _of_environment(options) or _of_botocore(options)
        self.authorities, self._region, self._credentials, endpoint = read
        endpoint = options.get("endpoint_url") or endpoint
        parts = urlsplit(str(endpoint or "https://s3.amazonaws.com"))
        proxied = parts.scheme in urllib.request.getproxies()
        if proxied and not urllib.request.proxy_bypass(parts.netloc):
            raise UnusualError("a proxy")
        if endpoint is not None and not re.match("https?://", str(endpoint)):
            raise UnusualError("an endpoint of another kind")
        self._endpoint = None if endpoint is None else str(endpoint).rstrip("/")
        self._day = "", "", b""  # secret, scope and key of the last signature

    def url(self, bucket: str, key: str) -> str:
        """The URL of a key, or of the bucket.

        Raises:
            UnusualError: an access point, or a name that needs rules of its own.
        """
        if not _PLAIN_BUCKET.fullmatch(bucket) or set(key.split("/")) & {".", ".."}:
            raise UnusualError("a name that needs rules of its own")
        path = quote(key, safe="/~")
        if self._endpoint is not None:
            return f"{self._endpoint}/{bucket}/{path}" if key else f"{self._endpoint}/{bucket}"
        return f"https://{bucket}.s3.{self._region}.amazonaws.com/{path}"

    def sign(self, method: str, url: str, headers: dict[str, str]) -> None:
        """Add the signature of this moment's credentials, for a request without a body.

        AWS Signature Version 4 (docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth),
        of the host and the headers that it adds. It takes 10 us, botocore's own 55 to 75.
        """
        if self._credentials is None:
            return
        credentials = self._credentials.get_frozen_credentials()
        secret = credentials.secret_key
        now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        parts = urlsplit(url)
        signed = {
            "host": host_of(parts.scheme, parts.netloc),
            "x-amz-content-sha256": _OF_NOTHING,
            "x-amz-date": now,
        }
        if credentials.token:
            signed["x-amz-security-token"] = credentials.token
        names = ";".join(signed)
        query = "&".join(sorted(parts.query.split("&")))
        lines = [f"{name}:{text}" for name, text in signed.items()]
        request = "\n".join([method, parts.path or "/", query, *lines, "", names, _OF_NOTHING])
        scope = f"{now[:8]}/{self._region}/s3/aws4_request"
        digest = hashlib.sha256(request.encode()).hexdigest()
        text = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{digest}"
        if self._day[:2] != (secret, scope):
            key = f"AWS4{secret}".encode()
            for word in scope.split("/"):
                key = hmac.digest(key, word.encode(), "sha256")
            self._day = secret, scope, key
        signature = hmac.digest(self._day[2], text.encode(), "sha256").hex()
        del signed["host"]
        headers |= signed
        headers["Authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={credentials.access_key}/{scope}, SignedHeaders={names}, "
            f"Signature={signature}"
        )


def host_of(scheme: str, netloc: str) -> str:
    """The header `Host`: without a port that goes without saying."""
    return netloc.removesuffix(_PORTS.get(scheme, ""))


def page_of_s3(
    client: DirectClient, s3: S3, bucket: str, asked: Mapping[str, str]
) -> dict[str, Any]:
    """A page of ListObjectsV2, as botocore gives it, of what a listing needs.

    Raises:
        UnusualError: as `DirectClient.get`.
        Damaged: it is no such page.
    """
    query = {"list-type": "2", "encoding-type": "url", **asked}
    url = f"{s3.url(bucket, '')}?{urlencode(sorted(query.items()), quote_via=quote)}"
    body = client.get(url, most=_MOST_OF_A_PAGE).body
    try:
        root = ElementTree.fromstring(bytes(body))
    except ElementTree.ParseError as error:
        raise Damaged(f"a listing that is no XML: {error}") from error
    if root.tag.rpartition("}")[2] != "ListBucketResult":
        raise UnusualError("no listing")
    start = root.tag[: root.tag.find("}") + 1]
    text: Callable[[str], str] = (
        unquote if root.findtext(f"{start}EncodingType") == "url" else lambda name: name
    )
    try:
        contents = [
            {
                "Key": text(entry.findtext(f"{start}Key") or ""),
                "Size": int(entry.findtext(f"{start}Size") or ""),
                "ETag": entry.findtext(f"{start}ETag"),
            }
            for entry in root.findall(f"{start}Contents")
        ]
    except ValueError as error:
        raise Damaged("a listing with a file without a size") from error
    folders = root.findall(f"{start}CommonPrefixes")
    return {
        "Contents": contents,
        "CommonPrefixes": [
            {"Prefix": text(each.findtext(f"{start}Prefix") or "")} for each in folders
        ],
        "IsTruncated": root.findtext(f"{start}IsTruncated") == "true",
        "NextContinuationToken": root.findtext(f"{start}NextContinuationToken"),
    }
