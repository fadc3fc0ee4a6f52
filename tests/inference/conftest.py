"""Encoded images, and preprocessors of them that end with their test."""

import numpy as np
import psutil
import pytest
from support import commanding_format
from support.encoded_images import encoded
from support.images import eval_transform, photo
from support.waiting import gone

from fusionloader.addons.inference import Preprocessor

_GENERATOR = np.random.default_rng(5)


@pytest.fixture(scope="session")
def jpegs():
    sides = _GENERATOR.integers(40, 220, (40, 2)).tolist()
    return [encoded(photo(_GENERATOR, *side), quality=90) for side in sides]


@pytest.fixture(scope="session")
def picture():
    return photo(_GENERATOR, 90, 70)


@pytest.fixture
def make():
    made = []

    def preprocessor(transform=None, num_workers=2, **options):
        made.append(Preprocessor(transform or eval_transform(), num_workers=num_workers, **options))
        return made[-1]

    yield preprocessor
    for each in made:
        each.close(wait=False)


@pytest.fixture
def gate(tmp_path):
    commanding_format.register()
    made = commanding_format.Gate(tmp_path / "gate")
    yield made
    made.open()
    commanding_format.unregister()


@pytest.fixture
def children():
    """Returns what gives the processes that this one has started and that run."""

    def pids():
        return {child.pid for child in psutil.Process().children() if not gone(child.pid)}

    return pids
