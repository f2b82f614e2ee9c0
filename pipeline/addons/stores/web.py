"""Limits on web servers: where they may redirect requests, and how long an index may be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from penstock.errors import DataError

if TYPE_CHECKING:
    import aiohttp

MOST_OF_A_PAGE = 64 * 2**20  # bytes of an index
_OURS = frozenset({"accept", "accept-encoding", "host", "range", "user-agent"})


def checked_redirects() -> aiohttp.TraceConfig:
    """Refuses the redirects that `check_redirect` refuses."""
    import aiohttp

    async def look(_: Any, __: Any, redirect: aiohttp.TraceRequestRedirectParams) -> None:
        headers = redirect.response.headers
        given = headers.get("Location") or headers.get("URI") or ""
        check_redirect(str(redirect.url), given, list(redirect.response.request_info.headers))

    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(look)
    return trace


def check_redirect(address: str, location: str, headers: list[str]) -> None:
    """Raise DataError for a redirect that discloses headers, or the content by another scheme.

    Args:
        address: of the request.
        location: of the redirect; may be relative.
        headers: names of the request's.
    """
    here, there = urlsplit(address), urlsplit(location)
    scheme = there.scheme.lower() or here.scheme
    if scheme != here.scheme and scheme != "https":
        raise DataError(
            f"{address!r} is redirected to {scheme}://{there.netloc}, past the protection of "
            f"{here.scheme}. Give its real address."
        )
    own = [name for name in headers if name.lower() not in _OURS]
    if own and there.netloc and there.netloc.lower() != here.netloc.lower():
        raise DataError(
            f"{address!r} is redirected to {there.netloc}, which would get the headers "
            f"{', '.join(own)} of dataset.files.options. Give its real address."
        )


def bounded_pages() -> type[aiohttp.ClientResponse]:
    """The class of responses whose text, an index, is bounded."""
    import aiohttp

    class Bounded(aiohttp.ClientResponse):
        async def text(self, encoding: str | None = None, errors: str = "strict") -> str:
            if self._body is None:
                pieces, size = [], 0
                async for piece in self.content.iter_chunked(2**16):
                    size += len(piece)
                    if size > MOST_OF_A_PAGE:
                        raise DataError(
                            f"{str(self.url)!r} is an index of more than {MOST_OF_A_PAGE} bytes, "
                            "and perhaps does not end. Check the address."
                        )
                    pieces.append(piece)
                self._body = b"".join(pieces)
            return await super().text(encoding, errors)

    return Bounded
