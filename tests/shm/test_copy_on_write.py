"""Mappings that keep what is written to them."""

import os

import numpy as np
import pytest

from fusionloader import _native
from fusionloader.system.shm import objects

NBYTES = 5 * 4096 + 100


@pytest.fixture
def object_fd():
    fd = objects.create(NBYTES)
    yield fd
    os.close(fd)


def bytes_of(mapping):
    return np.frombuffer(memoryview(mapping), np.uint8)


def test_writes_stay_here_until_they_are_discarded(object_fd):
    shared = _native.SharedMapping(object_fd, 0, NBYTES)
    own = _native.SharedMapping(object_fd, 0, NBYTES, copy_on_write=True)
    bytes_of(shared)[:] = 1
    assert (bytes_of(own) == 1).all()
    bytes_of(own)[4096:8192] = 2
    bytes_of(own)[-1] = 3
    assert (bytes_of(shared) == 1).all()
    bytes_of(shared)[:] = 4
    assert (bytes_of(own)[4096:8192] == 2).any()
    own.discard_writes()
    assert (bytes_of(own) == 4).all()


@pytest.mark.parametrize("place", [0, 4096, 2 * 4096 + 7, NBYTES - 1])
def test_one_written_byte_is_discarded_wherever_it_is(object_fd, place):
    own = _native.SharedMapping(object_fd, 0, NBYTES, copy_on_write=True)
    bytes_of(own)[place] = 9
    own.discard_writes()
    assert not bytes_of(own).any()


def test_what_others_write_shows_without_discarding_anything(object_fd):
    shared = _native.SharedMapping(object_fd, 0, NBYTES)
    own = _native.SharedMapping(object_fd, 0, NBYTES, copy_on_write=True)
    for value in (1, 2, 3):
        bytes_of(shared)[:] = value
        own.discard_writes()
        assert (bytes_of(own) == value).all()
