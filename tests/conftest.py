"""Fixtures that tests of several folders share."""

import gc
import itertools
import logging
import multiprocessing
import os
import shutil
import signal
import tempfile

import numpy as np
import pytest
from support import commanding_format
from support.images import eval_transform, photo, train_transform

pytest_plugins = [
    "support.cache_fixtures",
    "support.control_blocks",
    "support.fake_cuda",
    "support.fake_device",
    "support.few_cases",
    "support.lending_fixtures",
    "support.property_tests",
]


# An error in what stands in for other libraries' code is raised, in workers as well.
os.environ["FUSIONLOADER_STRICT"] = "1"

# Half of what a worker of a fork server costs is that import; that of spawned ones stays.
multiprocessing.set_forkserver_preload(["torchvision.datasets", "torchvision.transforms"])

_runs = itertools.count()


def pytest_configure():
    """Jobs of a user share caches. Those of another checkout's tests may be of another version."""
    os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="fusionloader-tests-")


def pytest_unconfigure():
    shutil.rmtree(os.environ["XDG_RUNTIME_DIR"], ignore_errors=True)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
    """A collection of garbage looks at what a test has made, not at a million older objects."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    """Nor does it look at what the tests of other modules have imported and kept."""
    result = yield
    if nextitem is None or nextitem.module is not item.module:
        gc.collect()
        gc.freeze()
    return result


@pytest.fixture(autouse=True)
def _own_caches(tmp_path_factory, monkeypatch):
    """No test finds what another one has kept of the same files."""
    folder = tmp_path_factory.getbasetemp() / f"run-{next(_runs)}"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))


@pytest.fixture(autouse=True)
def _no_signal_stays_blocked():
    """What a test starts would inherit it, and could not be ended."""
    yield
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
    assert not blocked


@pytest.fixture(autouse=True)
def _warnings_are_logged():
    """Packages that set up logging silence the loggers there are; tests after that see nothing."""
    yield
    loggers = [each for name, each in logging.root.manager.loggerDict.items() if _ours(name)]
    silent = [
        each.name
        for each in loggers
        if isinstance(each, logging.Logger)
        and (each.disabled or not each.propagate or not each.isEnabledFor(logging.WARNING))
    ]
    assert not silent, f"these loggers are silent from now on: {silent}"


def _ours(name):
    return name.partition(".")[0] == "fusionloader"


@pytest.fixture(scope="session")
def image_folder(tmp_path_factory):
    """40 JPEGs of different sizes in two classes."""
    root = tmp_path_factory.mktemp("images")
    generator = np.random.default_rng(0)
    for number in range(40):
        folder = root / f"class{number % 2}"
        folder.mkdir(exist_ok=True)
        width, height = (int(side) for side in generator.integers(40, 220, 2))
        photo(generator, width, height).save(folder / f"{number:03}.jpg", quality=90)
    return root


@pytest.fixture
def train_set(image_folder):
    from torchvision.datasets import ImageFolder

    return ImageFolder(str(image_folder), train_transform())


@pytest.fixture
def eval_set(image_folder):
    from torchvision.datasets import ImageFolder

    return ImageFolder(str(image_folder), eval_transform())


@pytest.fixture
def one_thread():
    """As in workers: with more of them torch adds up parts of a large image, and these."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def any_may_die(monkeypatch):
    """Lets a test kill workers at any moment.

    Otherwise it is an error when three in a row end before they ask for work, and when three end
    at the same samples: on a busy machine random kills come to that.
    """
    from fusionloader.engine.manager import publications
    from fusionloader.workers import worker_set

    monkeypatch.setattr(worker_set, "_FRUITLESS_DEATHS", 1 << 30)
    monkeypatch.setattr(publications, "MOST_DEATHS", 1 << 30)


@pytest.fixture
def image_that_hangs(tmp_path):
    """The bytes of a file that makes the worker wait which reads it."""
    commanding_format.register()
    yield commanding_format.Gate(tmp_path / "gate").image
    commanding_format.unregister()
