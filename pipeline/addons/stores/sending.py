"""A folder of files that is copied to an address, and continues where it was killed.

    <folder>/.sending-<hash>.json    which files and which parts of them are there
    <address>/.penstock-sending      that files which lie there already are of this version

To S3, files of more than 16 MiB go in parts, four at a time, each with its MD5; such a file appears
when all of its parts are there. Other stores get whole files. Then the sizes of all are compared
with the store's listing, and the last file follows, so a reader who finds that file finds all.

Memory: 64 MiB. Cost: a request for each part and file, and three for each file in parts.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from penstock.addons.stores.catalog import Catalog
from penstock.addons.stores.retry import RetryPolicy
from penstock.addons.stores.store import Store, parse_address
from penstock.datasets.files import Files, walk
from penstock.errors import ConfigError, DataError, Problem, UnreachableError
from penstock.files.data import size_of
from penstock.files.disk import write_atomically
from penstock.files.paths import join
from penstock.terminal import progress

T = TypeVar("T")

PART = 16 << 20  # bytes; S3 takes no parts below 5 MiB
_MOST_PARTS = 9_000  # of the 10,000 that S3 takes
_AT_ONCE = 4  # parts or files
_MARK = ".penstock-sending"


class _Upload(BaseModel):
    """A file in parts: what it was, its number in the store, what the store calls its parts."""

    state: tuple[int, int]
    upload: str
    parts: dict[int, str] = {}
    is_whole: bool = False


class _Notes(BaseModel):
    """The sent part of files in a state: bytes, and when they were written (ns)."""

    version: str
    whole: dict[str, tuple[int, int]] = {}
    uploads: dict[str, _Upload] = {}


class Sending:
    """One folder on its way.

    Args:
        files: how requests are made.
        catalog: of the stores.
        address: of the folder that files go to.
        key: of the configuration that names it.

    Raises:
        ConfigError: nothing can be written to such addresses.
    """

    def __init__(self, files: Files, catalog: Catalog, address: str, key: str) -> None:
        scheme = parse_address(address)
        self._catalog, self._address, self._key = catalog, address.rstrip("/"), key
        self._store = WritableStore(scheme, dict(files.options or {}), files.timeout, catalog.gate)
        if not self._store.writes:
            reason = f"{scheme}:// is only read; give s3://, gs:// or a folder of this machine"
            raise ConfigError(Problem(key, reason))
        self._retry = RetryPolicy(files.retries, files.first_wait, "written")
        self._at_once = min(_AT_ONCE, files.concurrency)
        self._lock = threading.Lock()
        self._sent = _Notes(version="")

    def has(self, name: str) -> bool:
        """Whether a file is there now."""
        return self._catalog.there(self._address).find(name) is not None

    def claim(self, version: str) -> None:
        """Note that files of this version come.

        Raises:
            ConfigError: others are there.
            DataError: nothing can be written there.
        """
        mark, claim = join(self._address, _MARK), f"{version}\n".encode()
        there = [os.fsdecode(name) for name in self._catalog.there(self._address).names.tolist()]
        if not there:
            self._retry(mark, lambda: self._store.put(mark, claim))
        elif _MARK not in there or self._retry(mark, lambda: self._store.read(mark)) != claim:
            other = next((name for name in sorted(there) if name != _MARK), _MARK)
            reason = f"{self._address!r} holds other files ({other!r}); give an empty folder"
            raise ConfigError(Problem(self._key, reason))
        self._sent = _Notes(version=version)

    def run(self, folder: Path, last: str) -> None:
        """Copy all files but hidden ones, `last` after the others.

        Raises:
            DataError: the store refuses them, or did not answer.
        """
        digest = hashlib.blake2b(self._address.encode(), digest_size=8).hexdigest()
        self._done = 0
        self._folder, self._notes = folder, folder / f".sending-{digest}.json"
        with suppress(OSError, ValueError, ValidationError):
            sent = _Notes.model_validate(json.loads(self._notes.read_bytes()))
            self._sent = sent if sent.version == self._sent.version else self._sent
        names = [name for name in walk(folder) if name != last]
        sizes = {name: size_of(folder / name) for name in [*names, last]}
        with progress(f"sending {self._address}", sum(sizes.values()), "bytes") as show:
            large = [name for name in names if self._store.has_parts and sizes[name] > PART]
            self._many(partial(self._whole, show=show), set(names) - set(large))
            for name in large:
                self._in_parts(name, show)
            listing = self._catalog.there(self._address)
            for name in names:
                info = listing.find(name)
                if info is None or info.size != sizes[name]:
                    self._notes.unlink(missing_ok=True)
                    raise DataError(
                        f"{join(self._address, name)!r} has {info.size if info else 'no'} bytes "
                        f"after {sizes[name]} were sent: something else writes there. Send it "
                        "again when that has stopped."
                    )
            self._whole(last, show)
        mark = join(self._address, _MARK)
        with suppress(DataError):  # whoever may write need not be allowed to delete
            self._retry(mark, lambda: self._store.remove(mark))
        self._notes.unlink(missing_ok=True)

    def _said(self, show: Callable[..., None], more: int) -> None:
        self._done += more
        show(self._done)

    def _whole(self, name: str, show: Callable[..., None]) -> None:
        path, address = self._folder / name, join(self._address, name)
        state = _state(path)
        if self._sent.whole.get(name) != state:
            self._retry(address, lambda: self._store.put_file(address, path))
            with self._noting() as sent:
                sent.whole[name] = state
        self._said(show, state[0])

    def _in_parts(self, name: str, show: Callable[..., None]) -> None:
        known, state = self._sent.uploads.get(name), _state(self._folder / name)
        if known is not None and known.state == state:
            try:
                self._send_parts(name, known, show)
                return
            except UnreachableError:
                raise
            except DataError:  # such as an upload that the store has given up
                pass
        address = join(self._address, name)
        upload = self._retry(address, lambda: self._store.begin(address))
        known = _Upload(state=state, upload=upload)
        with self._noting() as sent:
            sent.uploads[name] = known
        self._send_parts(name, known, show)

    def _send_parts(self, name: str, known: _Upload, show: Callable[..., None]) -> None:
        size = known.state[0]
        if known.is_whole:
            self._said(show, size)
            return
        address = join(self._address, name)
        step = max(PART, -(-size // _MOST_PARTS))
        numbers = range(1, -(-size // step) + 1)

        def send(number: int) -> None:
            start = (number - 1) * step
            if number not in known.parts:
                with (self._folder / name).open("rb") as file:
                    content = os.pread(file.fileno(), step, start)
                tag = self._retry(
                    address, lambda: self._store.put_part(address, known.upload, number, content)
                )
                with self._noting():
                    known.parts[number] = tag
            self._said(show, min(step, size - start))

        self._many(send, numbers)
        tags = [known.parts[number] for number in numbers]

        def finish() -> None:
            try:
                self._store.finish(address, known.upload, tags)
            except FileNotFoundError:  # an earlier attempt has, and its answer was lost
                if self._store.look(address).size != size:
                    raise

        self._retry(address, finish)
        with self._noting():
            known.is_whole = True

    def _many(self, action: Callable[[T], None], items: Iterable[T]) -> None:
        """`action` for each, some at a time; after an error no more are begun."""
        with ThreadPoolExecutor(self._at_once, "penstock-sending") as pool:
            futures = [pool.submit(action, item) for item in items]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    @contextmanager
    def _noting(self) -> Iterator[_Notes]:
        """Notes that are changed inside, and written at the end."""
        with self._lock:
            yield self._sent
            write_atomically(self._notes, self._sent.model_dump_json().encode())


def _state(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


class WritableStore(Store):
    """A store with the requests that write, by fsspec; errors are passed on."""

    @property
    def _open_system(self) -> Any:
        if "access" in self._kind.defaults(self._timeout):  # Google's, which is opened for reading
            self._options["access"] = "read_write"
        return self._system

    def put(self, address: str, content: bytes) -> None:
        """Write a small file."""
        with self._request():
            self._open_system.pipe_file(self._name(address), content)

    def put_file(self, address: str, path: Path) -> None:
        """Write a file from this machine."""
        if self.has_parts:
            with path.open("rb") as file:
                content = file.read()
            with self._request():
                self._call("put_object", address, Body=content, ContentMD5=_md5(content))
            return
        with self._request():
            self._open_system.put_file(str(path), self._name(address))

    def begin(self, address: str) -> str:
        """Begin a file in parts; its number in the store."""
        with self._request():
            return str(self._call("create_multipart_upload", address)["UploadId"])

    def put_part(self, address: str, upload: str, number: int, content: bytes) -> str:
        """Write a part; what the store calls it."""
        with self._request():
            answer = self._call(
                "upload_part",
                address,
                UploadId=upload,
                PartNumber=number,
                Body=content,
                ContentMD5=_md5(content),
            )
        return str(answer["ETag"])

    def finish(self, address: str, upload: str, tags: list[str]) -> None:
        """Make a file of its parts."""
        parts = [{"PartNumber": number, "ETag": tag} for number, tag in enumerate(tags, 1)]
        with self._request():
            self._call(
                "complete_multipart_upload",
                address,
                UploadId=upload,
                MultipartUpload={"Parts": parts},
            )

    def remove(self, address: str) -> None:
        """Delete a file."""
        with self._request():
            self._open_system.rm_file(self._name(address))

    def _call(self, method: str, address: str, **words: Any) -> Any:
        bucket, _, key = self._name(address).partition("/")
        return self._open_system.call_s3(method, Bucket=bucket, Key=key, **words)


def _md5(content: bytes) -> str:
    return base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()
