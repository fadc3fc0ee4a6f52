"""Errors of requests to servers and object storage, and which of them are retried.

Native workers import this module, so it imports neither numpy nor torch.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterator

from fusionloader.data.sources.http_ranges import RangesIgnored, WrongLength
from fusionloader.system.amounts import counted


class UrlUnreadable(OSError):
    """A range of a URL cannot be read. The message has the URL, the status and a remedy.

    Attributes:
        status: HTTP status; ``None`` without an answer, or with another protocol.
    """

    status: int | None = None


class UrlDenied(UrlUnreadable):
    """The server needs credentials, or other ones."""


class UrlAbsent(UrlUnreadable):
    """Nothing exists at the URL."""


class ServerFailed(UrlUnreadable):
    """The server did not answer, or answered every attempt with an error."""


_DENIED = (401, 403)
_ABSENT = (404, 410)
_AGAIN = (408, 425, 429)
_CONNECTION_ERRNOS = frozenset(
    (
        errno.ECONNABORTED,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.EHOSTUNREACH,
        errno.ENETUNREACH,
        errno.EPIPE,
        errno.ETIMEDOUT,
    )
)
# Classes of aiohttp and botocore by name, so that these packages need not be imported.
_CONNECTION_ERRORS = frozenset(
    (
        "ClientConnectionError",
        "ClientPayloadError",
        "ConnectionClosedError",
        "ConnectTimeoutError",
        "EndpointConnectionError",
        "HTTPClientError",
        "IncompleteReadError",
        "ReadTimeoutError",
        "ResponseStreamingError",
        "ServerDisconnectedError",
    )
)
_NO_CREDENTIALS = frozenset(("NoCredentialsError", "PartialCredentialsError", "ProfileNotFound"))
_CREDENTIALS = {
    "s3": "storage_options={'key': ..., 'secret': ...}, or {'anon': True} for a public bucket",
    "gs": "storage_options={'token': ...}, or {'token': 'anon'} for a public bucket",
    "hf": "storage_options={'token': ...}",
    "http": "storage_options={'headers': {'Authorization': ...}}",
}
_ALIASES = {"https": "http", "s3a": "s3", "gcs": "gs"}


def find_status(error: BaseException) -> int | None:
    """Returns the HTTP status in a file system's error; ``None`` if it has none."""
    if _has_name(error, _CONNECTION_ERRORS):
        return None  # aiohttp gives a cut-off answer the code 400
    for each in _chain(error):
        for name in ("status", "code"):
            if isinstance(found := getattr(each, name, None), int) and 100 <= found < 600:
                return found
        response = getattr(each, "response", None)
        if isinstance(response, dict):
            found = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            if isinstance(found, int):
                return found
    return None


def is_worth_another_try(error: BaseException) -> bool:
    """Whether the same request may succeed later: timeouts, resets, cut answers, 429 and 5xx."""
    status = find_status(error)
    if status is not None:
        return status in _AGAIN or status >= 500
    if isinstance(error, (TimeoutError, asyncio.TimeoutError, ConnectionError, WrongLength)):
        return True
    if isinstance(error, OSError) and error.errno in _CONNECTION_ERRNOS:
        return True
    return _has_name(error, _CONNECTION_ERRORS)


def unreadable(
    url: str,
    start: int,
    stop: int,
    error: BaseException,
    attempts: int = 0,
    name: Callable[[], str] | None = None,
) -> UrlUnreadable:
    """Returns the error for the user.

    Args:
        url: URL of the shard.
        start: first byte of the request.
        stop: end of the request, exclusive.
        error: error of the last attempt.
        attempts: number of attempts, 0 where none is repeated.
        name: returns the sample's name.
    """
    status = find_status(error)
    kind, remedy = _kind(url, error, status, attempts > 0)
    sample = "" if name is None else f", of the sample {name()},"
    status_text = f"status {status}, " if status is not None else ""
    times = f"{counted(attempts, 'attempt')}; " if attempts else ""
    made = kind(
        f"{url!r}, bytes {start} to {stop - 1}{sample} cannot be read ({status_text}{times}"
        f"{type(error).__name__}: {error}): {remedy}"
    )
    made.status = status
    return made


def _kind(
    url: str, error: BaseException, status: int | None, repeats: bool
) -> tuple[type[UrlUnreadable], str]:
    if status in _ABSENT or isinstance(error, FileNotFoundError):
        return UrlAbsent, "check the URL; if the shard was replaced or removed, index it again"
    if status in _DENIED or isinstance(error, PermissionError) or _has_name(error, _NO_CREDENTIALS):
        protocol = url.partition(":")[0].lower()
        how = _CREDENTIALS.get(_ALIASES.get(protocol, protocol), "storage_options={...}")
        return UrlDenied, f"give credentials as fsspec takes them: {how}"
    if isinstance(error, RangesIgnored):
        how = "copy the shard to one that answers them, or to a disk"
        return ServerFailed, f"the server ignores ranges: {how}"
    if isinstance(error, WrongLength):
        return ServerFailed, "the shard may have been replaced by another one: index it again"
    if isinstance(error, ImportError):
        return UrlUnreadable, "install the package of this file system that fsspec names"
    if is_worth_another_try(error):
        how = "; retries= and timeout= say how patient" if repeats else ", and try again"
        return ServerFailed, f"see that the server answers{how}"
    return UrlUnreadable, "the request itself is refused; see what the file system says"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _has_name(error: BaseException, names: frozenset[str]) -> bool:
    return any(base.__name__ in names for each in _chain(error) for base in type(each).__mro__)
