"""Imported first by tests that need DALI: skips them with the way to install it."""

import pytest

from benchmarks.fidelity.gpu_worker import INSTALL

pytest.importorskip("nvidia.dali", reason=f"DALI is not installed: {INSTALL}")
