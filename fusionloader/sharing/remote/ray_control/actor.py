"""A remote worker inside a Ray actor. Ray starts and ends it; samples do not pass through Ray."""

from __future__ import annotations

import threading

import ray

import fusionloader
from fusionloader.sharing.remote.user_code.bundle import CodeBundle
from fusionloader.sharing.remote.user_code.store import CodeStore
from fusionloader.sharing.remote.worker.service import WorkerService
from fusionloader.system.transport.address import Address
from fusionloader.system.transport.identity import Identity


class WorkerActor:
    """A worker of one core, on the address that its node has in the cluster."""

    def __init__(self) -> None:
        self._ended = threading.Event()

    def start(self, version: str, token: bytes, number: int) -> tuple[Address, str]:
        """Listens on any free port; returns the address, and Ray's id of the node.

        Args:
            version: version of fusionloader in the training process.
            token: token from which the loader's credentials are made.
            number: number of this worker among those of the loader.

        Raises:
            RuntimeError: this node has another version of fusionloader than training has.
        """
        host = ray.util.get_node_ip_address()
        if version != fusionloader.__version__:
            raise RuntimeError(
                f"the node {host} has fusionloader {fusionloader.__version__}, and training has "
                f"{version}: install the same on both"
            )
        self._code = CodeStore(number)
        self._service = WorkerService(
            Address(host, 0), Identity.of(token), cores=1, code=self._code
        )
        return self._service.address, ray.get_runtime_context().get_node_id()

    def bring(self, code: CodeBundle) -> None:
        """Stores user code, which is loaded when the loader requests its samples."""
        self._code.bring(code)

    def serve(self) -> None:
        """Returns when the worker has drained; while the call is under way, the worker is alive."""
        self._ended.wait()

    def drain(self) -> None:
        """Answers the requests under way, and refuses others."""
        self._service.drain()
        self._ended.set()
