"""Loaders of user code, which Ray brings to the workers that it starts, on a real cluster."""

import contextlib
import re
import resource

import numpy as np
import pytest
import torch
from support.ray_cluster import FleetClient, wait_for
from support.user_datasets import Augmented, Locked
from support.waiting import wait_until
from support.worker_client import Refused
from torch.utils.data.datapipes.map import SequenceWrapper

import fusionloader
from fusionloader import FusionLoader, Remote
from fusionloader.sharing.remote import protocol
from fusionloader.sharing.remote.protocol import CodeSetup
from fusionloader.sharing.remote.user_code.bundle import bundle, installed
from fusionloader.transforms.executors.python import DatasetSource


def loader_of(dataset, cluster=None, **options):
    if cluster is not None:
        options["remote"] = Remote(
            workers=1, address=cluster.address, offload="all", user_code=True
        )
    generator = torch.Generator().manual_seed(7)
    settings = {"num_workers": 1, "seed": 3, "shuffle": True} | options
    return FusionLoader(dataset, 10, generator=generator, **settings)


def leaves(batch):
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)):
        return [leaf for part in batch for leaf in leaves(part)]
    return [batch.numpy().copy() if isinstance(batch, torch.Tensor) else batch]


def epoch(loader):
    return [leaves(batch) for batch in loader]


def assert_same(ours, wanted):
    assert len(ours) == len(wanted)
    for batch, other in zip(ours, wanted, strict=True):
        for one, two in zip(batch, other, strict=True):
            assert type(one) is type(two)
            assert getattr(one, "dtype", None) == getattr(two, "dtype", None)
            np.testing.assert_array_equal(one, two)


@pytest.mark.ray
def test_batches_are_those_without(cluster):
    """Also of a tiny-batch that is declined, since a text in it is longer than its room."""
    found, dataset = [], Augmented(odd={7: "text"})
    with loader_of(dataset, cluster, persistent_workers=True) as loader:

        def taken_part():
            found.extend(epoch(loader))
            stats = loader.stats().remote
            return stats.samples and stats.declined

        wait_until(taken_part, "no worker has taken part", pause=0.5)
        stats = loader.stats().remote
        assert f"on the Ray cluster at {cluster.address}" in loader.explain()
        assert "no part" not in loader.explain()
    assert stats.bytes_received / stats.samples == 3 * 24 * 24 * 4 + 16 * 4 + 48 + 8 + 8 + 1028
    with loader_of(dataset, persistent_workers=True) as alone:
        assert_same(found, [batch for _ in range(len(found) // 4) for batch in epoch(alone)])


@pytest.mark.ray
def test_what_is_wrong_with_samples_is_said_as_without(cluster):
    dataset, seen = Augmented(odd={7: "raises", 8: "shape"}), set()
    with loader_of(dataset, cluster, persistent_workers=True) as loader:

        def raised_and_declined():
            with pytest.raises((ValueError, RuntimeError)) as caught:
                epoch(loader)
            raises = caught.type is ValueError
            text = "this sample is bad" if raises else "Samples of a mini-batch need one"
            assert text in str(caught.value)
            assert f"index {7 if raises else 8}" in str(caught.value)
            seen.add(caught.type)
            return len(seen) == 2 and loader.stats().remote.declined

        wait_until(raised_and_declined, "no worker was asked for an odd sample", pause=0.5)


@pytest.mark.ray
def test_a_dataset_that_has_changed_is_brought_again(cluster, start):
    fleet = start(workers=1, address=cluster.address, user_code=True)
    (address,) = wait_for(fleet, 1)
    first, second = (bundle(DatasetSource(Augmented(length))) for length in (3, 4))
    client = FleetClient(fleet, address)
    for brought, other in ((first, second), (second, first)):
        fleet.bring(brought)
        ready = client.ask(protocol.SETUP_CODE, setup_of(brought).encode())
        assert ready.kind == protocol.READY
        with pytest.raises(Refused, match=protocol.NO_CODE):
            client.ask(protocol.SETUP_CODE, setup_of(other).encode())
    client.close()


@pytest.mark.ray
def test_code_that_found_no_memory_is_brought_by_the_next_call(cluster, start):
    fleet = start(workers=1, address=cluster.address, user_code=True)
    (address,) = wait_for(fleet, 1)
    code = bundle(DatasetSource(Augmented(3)))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(code.pickled) - 1, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            fleet.bring(code)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    fleet.bring(code)
    with contextlib.closing(FleetClient(fleet, address)) as client:
        assert client.ask(protocol.SETUP_CODE, setup_of(code).encode()).kind == protocol.READY


def setup_of(code):
    return CodeSetup(fusionloader.__version__, code.digest, installed(), base_seed=1, workers=1)


def test_what_cannot_be_sent_is_said_before_training():
    remote = Remote(address="127.0.0.9:1", user_code=True)  # not even asked
    with (
        FusionLoader(Locked(), 2, num_workers=1, remote=remote) as loader,
        pytest.raises(TypeError, match=r"dataset\.state\['lock'\] cannot be sent to remote worker"),
    ):
        iter(loader)


@pytest.mark.parametrize(
    ("user_code", "options", "why"),
    [
        (False, {}, r"made by Python code; with Remote\(user_code=True\)"),
        (True, {"worker_init_fn": print}, "worker_init_fn may change"),
        (True, {"collate_fn": list}, "these batches are made whole"),
        (True, {"dataset": SequenceWrapper(range(6))}, "a DataPipe may be sharded"),
    ],
)
def test_what_stays_here_is_said(user_code, options, why):
    remote = Remote(address="127.0.0.9:1", user_code=user_code)  # not even asked
    options = {"dataset": range(6), "num_workers": 1, "remote": remote, **options}
    with FusionLoader(batch_size=3, **options) as loader:
        assert [list(map(int, batch)) for batch in loader] == [[0, 1, 2], [3, 4, 5]]
        found = loader.explain()
    assert "remote workers have no part: " in found
    assert re.search(why, found)


def test_servers_run_no_user_code():
    with pytest.raises(ValueError, match="leave servers or user_code out"):
        Remote(servers=["cpu1:1"], user_code=True)
