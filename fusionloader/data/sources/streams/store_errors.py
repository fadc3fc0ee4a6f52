"""Errors of requests to object storage, and which of them are retried."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator

from fusionloader.data.sources.http_ranges import RangesIgnored, WrongLength
from fusionloader.data.sources.url_reading import ABSENT, DENIED, RANGES_NEEDED, UrlUnreadable


class UrlDenied(UrlUnreadable):
    """The server needs credentials, or other ones."""


class UrlAbsent(UrlUnreadable):
    """Nothing exists at the URL."""


class ServerFailed(UrlUnreadable):
    """The server did not answer, or answered every attempt with an error."""


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
    url: str, start: int, stop: int, error: BaseException, attempts: int
) -> UrlUnreadable:
    """Returns the error for the user.

    Args:
        url: URL of the shard.
        start: first byte of the request.
        stop: end of the request, exclusive.
        error: error of the last attempt.
        attempts: number of attempts.
    """
    status = find_status(error)
    kind, remedy = _kind(url, error, status)
    status_text = f"status {status}, " if status is not None else ""
    times = f"{attempts} attempts" if attempts > 1 else "1 attempt"
    made = kind(
        f"{url!r}, bytes {start} to {stop - 1} cannot be read ({status_text}{times}; "
        f"{type(error).__name__}: {error}): {remedy}"
    )
    made.status = status
    return made


def _kind(url: str, error: BaseException, status: int | None) -> tuple[type[UrlUnreadable], str]:
    if status in ABSENT or isinstance(error, FileNotFoundError):
        return UrlAbsent, "check the URL; if the shard was replaced or removed, index it again"
    if status in DENIED or isinstance(error, PermissionError) or _has_name(error, _NO_CREDENTIALS):
        protocol = url.partition(":")[0].lower()
        how = _CREDENTIALS.get(_ALIASES.get(protocol, protocol), "storage_options={...}")
        return UrlDenied, f"give credentials as fsspec takes them: {how}"
    if isinstance(error, RangesIgnored):
        return ServerFailed, RANGES_NEEDED
    if isinstance(error, WrongLength):
        return ServerFailed, "the shard may have been replaced by another one: index it again"
    if isinstance(error, ImportError):
        return UrlUnreadable, "install the package of this file system that fsspec names"
    if is_worth_another_try(error):
        return ServerFailed, "see that the server answers; retries= and timeout= say how patient"
    return UrlUnreadable, "the request itself is refused; see what the file system says"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _has_name(error: BaseException, names: frozenset[str]) -> bool:
    return any(base.__name__ in names for each in _chain(error) for base in type(each).__mro__)
