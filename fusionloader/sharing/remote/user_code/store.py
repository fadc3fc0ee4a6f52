"""A worker's side: the dataset that Ray brought, until a loader asks for its samples."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

from fusionloader.sharing.remote.protocol import CodeSetup
from fusionloader.sharing.remote.user_code.bundle import CodeBundle, difference

if TYPE_CHECKING:
    from fusionloader.sharing.remote.user_code.samples import SampleMaker

_BRING_SECONDS = 3.0  # that Ray is given to bring it


class NotBrought(Exception):
    """The dataset is not there; the text says so, about the worker."""


class NotLoaded(Exception):
    """The dataset does not run there; the text says why, about the worker."""


class NotMade(Exception):
    """Samples are left to the loader's machine; the text says why."""


class CodeStore:
    """Keeps the dataset that was brought last. Imports no torch before samples are wanted."""

    def __init__(self, number: int) -> None:
        """``number`` tells this worker from others of the loader, as ``get_worker_info`` does."""
        self._number = number
        self._bundle: CodeBundle | None = None
        self._brought = threading.Condition()

    def bring(self, bundle: CodeBundle) -> None:
        """Takes the dataset in the place of the one before."""
        with self._brought:
            self._bundle = bundle
            self._brought.notify_all()

    def obtain(self, digest: str) -> CodeBundle:
        """Returns the dataset that a loader means, and waits for it a little.

        Raises:
            NotBrought: it is not here, or another one is.
        """
        with self._brought:
            if not self._brought.wait_for(lambda: self._has(digest), _BRING_SECONDS):
                raise NotBrought("Ray has not brought it")
            assert self._bundle is not None
            return self._bundle

    def _has(self, digest: str) -> bool:
        return self._bundle is not None and self._bundle.digest == digest

    def maker(self, bundle: CodeBundle, setup: CodeSetup) -> SampleMaker:
        """Returns what makes samples of a copy of the dataset that is not used yet.

        Raises:
            NotLoaded: a module is missing, or the dataset does not take being copied.
        """
        why = difference(setup.packages)
        if why is not None:
            raise NotLoaded(f"{why}: install the same on both machines")
        sys.path.extend(path for path in bundle.search_path if path not in sys.path)
        try:
            from fusionloader.sharing.remote.user_code.samples import SampleMaker

            return SampleMaker(bundle.pickled, self._number, setup.workers, setup.base_seed)
        except Exception as error:  # whatever user code raises when it is imported and unpickled
            raise NotLoaded(
                f"cannot load the dataset: {type(error).__name__}: {error}; what it imports has to "
                "be there, too: see ray.init(runtime_env=...)"
            ) from None
