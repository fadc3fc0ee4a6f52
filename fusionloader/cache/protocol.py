"""The holder's answers to messages, without sockets.

A message is a JSON object with the request in ``do`` and the client's ``version``. ``attach`` is
answered with descriptors, and makes the connection a user until it ends. After ``list`` and
``drop`` the connection is closed. Other messages are refused with a reason, and change nothing.
"""

from __future__ import annotations

import os

from fusionloader.cache.requests import CacheRequest
from fusionloader.cache.stores import CacheStores, RequestRefused, User
from fusionloader.cache.tiers.store_handles import ALWAYS
from fusionloader.system.fd_messages import FdMessage, Fields, package_version


def answer(stores: CacheStores, user: User, fields: Fields) -> FdMessage:
    """Executes a request and returns the answer. The holder still owns the descriptors in it."""
    try:
        _check_version(fields)
        request = fields.get("do")
        if request == "attach":
            return _attach(stores, user, fields)
        if request == "list":
            return FdMessage({"pid": os.getpid(), "ledgers": stores.describe()})
        if request == "drop":
            return FdMessage({"dropped": stores.drop(_fingerprint(fields))})
    except RequestRefused as refusal:
        return FdMessage({"refused": str(refusal)})
    return FdMessage({"refused": f"the cache holder knows no request {request!r:.100}"})


def _check_version(fields: Fields) -> None:
    version, asking = package_version(), fields.get("version")
    if asking != version:
        raise RequestRefused(
            f"the cache holder (pid {os.getpid()}) runs fusionloader {version}, and this process "
            f"{asking!r:.100}: end the jobs or the `cache serve` of one of them first"
        )


def _attach(stores: CacheStores, user: User, fields: Fields) -> FdMessage:
    try:
        request = CacheRequest.of(fields)
    except ValueError as error:
        raise RequestRefused(f"the request cannot be read: {error}") from error
    dataset = stores.attach(user, request)
    memory = dataset.memory
    # A disk may have tiers of other jobs that this one did not request.
    names = [name for name in memory.stores if name.removeprefix("disk_") in request.tiers]
    fds = {name: fd for name, fd in memory.fds().items() if name in (*names, *ALWAYS)}
    limits = dataset.held.ledger
    attached = {
        "names": list(fds),
        "nbytes": {name: memory.nbytes[name] for name in names},
        "served": dataset.held.served,
        "memory": limits.memory.limit,
        "disk": limits.disk.limit,
        "path": dataset.held.path,
    }
    return FdMessage({"attached": attached}, b"", tuple(fds.values()))


def _fingerprint(fields: Fields) -> str:
    fingerprint = fields.get("fingerprint")
    if not isinstance(fingerprint, str) or not fingerprint:
        raise RequestRefused(f"a fingerprint is text, not {fingerprint!r:.100}")
    return fingerprint
