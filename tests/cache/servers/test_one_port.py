"""A remote worker and a cache server that are one process with one port."""

import contextlib

import numpy as np
import pytest
from support.cache_machines import FINGERPRINT, DictStore
from support.images import photo
from support.waiting import PATIENCE, wait_until
from support.worker_client import TOKEN, WorkerClient, prepared_here, setup_of

from fusionloader.cache.range_reading import FileStamp
from fusionloader.cache.servers import requests
from fusionloader.cache.servers.requests import Status, WantedFile
from fusionloader.cache.servers.server import SERVICE, CacheService
from fusionloader.sharing.remote import protocol
from fusionloader.sharing.remote.protocol import DataMode
from fusionloader.sharing.remote.worker.service import WorkerService
from fusionloader.system.transport.address import Address
from fusionloader.system.transport.connection import connect
from fusionloader.system.transport.identity import Identity
from fusionloader.system.transport.messages import Outgoing
from fusionloader.transforms.plan.stages import Plan, RandomHorizontalFlip, RandomResizedCrop

ANYWHERE = Address("127.0.0.2", 0)
CROP = RandomResizedCrop(32, 24, (0.3, 1.0), (0.75, 1.33), ("bilinear",))
PLAN = Plan((CROP, RandomHorizontalFlip(0.5)), None, 32, 24)


@pytest.fixture
def image(tmp_path):
    path = tmp_path / "photograph.jpg"
    photo(np.random.default_rng(0), 90, 70).save(path)
    return path.read_bytes()


def test_what_is_given_to_the_cache_is_prepared_by_the_worker(image):
    cache = CacheService({FINGERPRINT: DictStore()}.get)
    identity = Identity.of(TOKEN)
    service = WorkerService(ANYWHERE, identity, 1, others=cache.services)
    with contextlib.closing(service), contextlib.ExitStack() as stack:
        worker = stack.enter_context(contextlib.closing(WorkerClient(service.address)))
        peer = connect(service.address, identity, SERVICE, PATIENCE)
        stack.enter_context(contextlib.closing(peer))
        wanted = requests.encode(FINGERPRINT, [WantedFile(3, FileStamp(len(image), 1))])
        peer.send(Outgoing(requests.GIVE, wanted, [image]), PATIENCE)
        wait_until(lambda: cache.counts.taken == 1)
        peer.send(Outgoing(requests.GET, wanted), PATIENCE)
        answer = peer.receive(PATIENCE, PATIENCE)
        assert (answer.head, answer.body) == (bytes([Status.HIT]), image)
        worker.set_up(setup_of(PLAN))
        made = worker.prepare(DataMode.ENCODED, [bytes(answer.body)])
        assert made == prepared_here(PLAN, [image])
        # Other machines' caches have their share here until the process ends.
        assert service.drain(PATIENCE)
        peer.send(Outgoing(requests.GET, wanted), PATIENCE)
        assert peer.receive(PATIENCE, PATIENCE).body == image


def test_a_service_with_the_workers_name_is_refused():
    (service,) = CacheService({}.get).services.values()
    with pytest.raises(ValueError, match="is the worker itself"):
        WorkerService(ANYWHERE, Identity.of(TOKEN), 1, others={protocol.SERVICE: service})
