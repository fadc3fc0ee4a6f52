"""The dataset that Ray brought to a worker, until a loader requests its samples."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

from fusionloader.sharing.remote.protocol import CodeSetup
from fusionloader.sharing.remote.user_code.bundle import CodeBundle, compare_packages

if TYPE_CHECKING:
    from fusionloader.sharing.remote.user_code.samples import SampleMaker

_BRING_SECONDS = 3.0  # time for Ray to bring a dataset


class NotBrought(Exception):
    """Ray has not brought the dataset to this worker."""


class NotLoaded(Exception):
    """The dataset does not run here; the text completes "the remote worker ..."."""


class CodeStore:
    """Holds the dataset that was brought last. Imports torch only when samples are requested."""

    def __init__(self, number: int) -> None:
        """``number`` identifies this worker among the loader's, for ``get_worker_info``."""
        self._number = number
        self._bundle: CodeBundle | None = None
        self._brought = threading.Condition()

    def bring(self, bundle: CodeBundle) -> None:
        """Replaces the dataset."""
        with self._brought:
            self._bundle = bundle
            self._brought.notify_all()

    def obtain(self, digest: str) -> CodeBundle:
        """Returns the dataset with a digest; waits up to 3 s for it.

        Raises:
            NotBrought: it is not here.
        """
        with self._brought:
            if not self._brought.wait_for(lambda: self._has(digest), _BRING_SECONDS):
                raise NotBrought("Ray has not brought it")
            assert self._bundle is not None
            return self._bundle

    def _has(self, digest: str) -> bool:
        return self._bundle is not None and self._bundle.digest == digest

    def maker(self, bundle: CodeBundle, setup: CodeSetup) -> SampleMaker:
        """Loads a new copy of the dataset, and returns what makes samples of it.

        Raises:
            NotLoaded: a package differs, a module is missing, or the dataset cannot be unpickled.
        """
        why = compare_packages(setup.packages)
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
