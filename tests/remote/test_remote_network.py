"""Networks that are slow, cut or frozen, and workers that answer what they should not."""

import shutil

import pytest
from support.hostile_worker import MISDEEDS, HostileWorker
from support.remote_trials import trial
from support.remote_workers import assert_same, batches_of, folder_loader, remote_loader
from support.shaped_relay import ShapedRelay
from support.waiting import wait_until
from torchvision import transforms


@pytest.fixture
def relay(worker):
    between = ShapedRelay(str(worker.address))
    yield between
    between.close()


@pytest.fixture
def trained(image_folder, expected, token_file, relay):
    with trial(image_folder, expected, [relay], token_file) as begun:
        begun.serves()
        yield begun
        begun.finish()


def test_a_slow_and_distant_worker_is_of_use(trained, relay):
    relay.rate, relay.delay = 200_000, 0.02
    trained.serves(8)


def test_large_files_are_sent_while_large_answers_come(image_folder, token_file, relay, tmp_path):
    """What is sent and what is answered are more than the buffers of connections take."""
    shutil.copytree(image_folder, tmp_path / "images")
    comments = (b"\xff\xfe\xff\xff" + bytes(65533)) * 32
    for path in (tmp_path / "images").rglob("*.jpg"):
        image = path.read_bytes()
        path.write_bytes(image[:2] + comments + image[2:])
    relay.buffer = 1 << 14
    transform = transforms.Compose([transforms.Resize((768, 768)), transforms.PILToTensor()])
    options = {"tiny_batch_size": 4, "batch_size": 8, "prefetch_factor": 4}
    ours = remote_loader(
        tmp_path / "images", [relay], token_file, transform, data="ship", **options
    )
    with folder_loader(tmp_path / "images", transform, **options) as alone, ours as loader:

        def served():
            assert_same(batches_of(loader, 1), batches_of(alone, 1))
            return loader.stats().remote.samples >= 40

        wait_until(served, "too little is made there")


def test_answers_that_trickle_are_not_waited_for(trained, relay):
    """Each byte comes in time, and all of them never do."""
    relay.rate = 1024
    trained.until(lambda: trained.remote.leases_lost)
    relay.rate = None
    trained.serves()


def test_a_connection_is_cut_in_the_middle_of_an_answer(trained, relay):
    for _ in range(2):
        relay.cut_after = relay.forwarded + 20_000
        trained.until(lambda: relay.cut_after is None)
        trained.serves()


def test_a_network_is_frozen_and_heals(trained, relay):
    relay.freeze()
    trained.until(lambda: trained.remote.leases_lost)
    trained.finish()
    relay.heal()
    trained.serves()


def test_garbage_is_no_answer(trained, relay):
    for garbage in (b"HTTP/1.1 200 OK\r\n\r\n" * 10, bytes(100), b"FuL1" + b"\xff" * 100):
        relay.garbage = garbage  # instead of an answer, or of a greeting
        trained.until(lambda: relay.garbage is None)
        trained.serves()


def test_workers_that_answer_nonsense_harm_nothing(image_folder, expected, token_file, worker):
    hostile = [HostileWorker(token_file, misdeed) for misdeed in MISDEEDS]
    addresses = [str(worker.address), *hostile]
    with trial(image_folder, expected, addresses, token_file) as trained:
        trained.until(lambda: all(each.asked for each in hostile), "one is never asked")
        trained.serves()
        trained.finish()
        made = {each.address: each.samples for each in trained.remote.workers}
    for each in hostile:
        assert made[each.address] == 0
        each.close()


def test_a_worker_that_offers_too_many_cores_takes_no_lane_from_others(
    image_folder, expected, token_file, worker
):
    hostile = HostileWorker(token_file, "declines all", cores=1 << 39)
    with trial(image_folder, expected, [hostile, str(worker.address)], token_file) as trained:
        trained.serves()
        trained.until(lambda: hostile.asked, "it is never asked")
        trained.until(lambda: lanes(trained)[str(worker.address)] == 2)
        trained.finish()
        assert lanes(trained)[hostile.address] <= 62
    hostile.close()


def lanes(trained):
    return {each.address: each.lanes for each in trained.remote.workers}
