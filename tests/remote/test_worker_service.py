"""A worker's service in this process, asked over real connections."""

import contextlib
import os
import threading
from dataclasses import replace

import numpy as np
import pytest
from support.images import photo
from support.waiting import PATIENCE, wait_until
from support.worker_client import (
    EPOCH,
    PILLOW,
    SEED,
    TOKEN,
    Refused,
    WorkerClient,
    prepared_here,
    setup_of,
)

from fusionloader import __version__ as VERSION
from fusionloader.sharing.remote import protocol
from fusionloader.sharing.remote.protocol import DataMode, Reason
from fusionloader.sharing.remote.worker.known_files import known_file
from fusionloader.sharing.remote.worker.service import WorkerService
from fusionloader.system.transport.address import Address
from fusionloader.system.transport.errors import TransportError
from fusionloader.system.transport.identity import Identity
from fusionloader.system.transport.messages import Outgoing
from fusionloader.transforms.executors.native import make_executor
from fusionloader.transforms.plan.stages import (
    Convert,
    Fixed,
    Plan,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
)

HOST = "127.0.0.2"
CROP = RandomResizedCrop(32, 24, (0.3, 1.0), (0.75, 1.33), ("bilinear",))
PLAN = Plan((CROP, RandomHorizontalFlip(0.5)), None, 32, 24)
FLOATS = replace(PLAN, convert=Convert("float32", np.arange(768, dtype=np.float32).tobytes()))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Four photographs, as JPEG files."""
    folder = tmp_path_factory.mktemp("photographs")
    drawn = np.random.default_rng(0)
    paths = [folder / f"ü {number}.jpg" for number in range(4)]
    for path in paths:
        photo(drawn, 90, 70).save(path)
    return paths


@pytest.fixture
def service():
    with contextlib.closing(WorkerService(Address(HOST, 0), Identity.of(TOKEN), 2)) as found:
        yield found


@pytest.fixture
def client(service):
    with contextlib.closing(WorkerClient(service.address)) as found:
        yield found


def contents(paths):
    return [path.read_bytes() for path in paths]


# ---- what is made ------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", [PLAN, FLOATS], ids=["levels", "floats"])
def test_results_are_those_of_the_machine_that_asks(service, client, files, plan):
    ready = client.set_up(setup_of(plan))
    assert ready.cores == 2 and str(os.getpid()) in ready.name
    encoded = contents(files)
    sizes = list(map(len, encoded))
    wanted = prepared_here(plan, encoded)
    assert client.prepare_files(files, file_bytes=sizes) == wanted
    assert client.prepare_files(files) == wanted
    assert client.prepare(DataMode.ENCODED, encoded) == wanted
    counts = service.counts
    assert (counts.requests, counts.samples, counts.declined) == (3, 12, 0)
    assert counts.bytes_read == 2 * sum(sizes) and counts.bytes_sent == 3 * len(wanted)


@pytest.mark.parametrize("channels", [1, 3])
def test_pixels_that_are_sent_are_prepared(client, channels):
    shape = (9, 11, channels)
    images = np.random.default_rng(1).integers(0, 256, (3, *shape), np.uint8)
    plan = replace(PLAN, channels=channels, result_channels=channels)
    client.set_up(setup_of(plan, image=shape))
    found = client.prepare(DataMode.PIXELS, [image.tobytes() for image in images])
    executor = make_executor(plan, PILLOW)
    wanted = [bytearray(executor.result_bytes) for _ in images]
    for key, (image, out) in enumerate(zip(images, wanted, strict=True)):
        executor.run_pixels(image, SEED, EPOCH, key, 0, out)
    assert found == b"".join(wanted)


def test_a_connection_may_change_its_plan(client, files):
    encoded = contents(files)
    for plan in (PLAN, FLOATS, PLAN):
        client.set_up(setup_of(plan))
        assert client.prepare(DataMode.ENCODED, encoded) == prepared_here(plan, encoded)


def test_requests_that_are_sent_ahead_are_answered_in_turn(client, files):
    client.set_up(setup_of(PLAN))
    encoded = contents(files)
    numbers = [client.send(DataMode.ENCODED, [each]) for each in encoded]
    for number, each in zip(numbers, encoded, strict=True):
        answer = client.hear()
        assert protocol.Rows.decode(answer.head).number == number
        assert bytes(answer.body) == prepared_here(PLAN, [each])


def test_several_loaders_have_different_plans_at_once(service, files):
    plans = [PLAN, FLOATS, Plan((Resize(8, 8, "box"),), None, 8, 8)] * 2
    encoded = contents(files)
    wrong = []

    def ask(plan):
        with contextlib.closing(WorkerClient(service.address)) as client:
            client.set_up(setup_of(plan))
            wanted = prepared_here(plan, encoded)
            wrong.extend(
                plan for _ in range(20) if client.prepare(DataMode.ENCODED, encoded) != wanted
            )

    threads = [threading.Thread(target=ask, args=(plan,)) for plan in plans]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and service.counts.samples == len(plans) * 20 * len(encoded)


def test_files_that_are_kept_are_not_read_again(files, tmp_path):
    paths = [tmp_path / path.name for path in files]
    for path, data in zip(paths, contents(files), strict=True):
        path.write_bytes(data)
    sizes = [path.stat().st_size for path in paths]
    with (
        contextlib.closing(
            WorkerService(Address(HOST, 0), Identity.of(TOKEN), 1, sum(sizes[:2]))
        ) as service,
        contextlib.closing(WorkerClient(service.address)) as client,
    ):
        client.set_up(setup_of(PLAN))
        wanted = prepared_here(PLAN, contents(paths))
        for read in (sum(sizes), sum(sizes[2:])):  # there is room for the first two
            before = service.counts.bytes_read
            assert client.prepare_files(paths) == wanted
            assert service.counts.bytes_read - before == read
        paths[0].write_bytes(contents(files)[1])
        os.utime(paths[0], ns=(0, 0))
        changed = prepared_here(PLAN, contents(paths))
        assert client.prepare_files(paths) == changed != wanted


# ---- what is declined: the connection lives on --------------------------------------------------


def test_data_that_is_not_there_is_declined_by_name(client, service, files, tmp_path):
    client.set_up(setup_of(PLAN))
    size = files[0].stat().st_size
    for paths, sizes, why in (
        ([files[0], tmp_path / "none.jpg"], None, f"'{tmp_path}/none.jpg' cannot be read: No such"),
        ([files[0]], [size + 1], f"{str(files[0])!r} has {size} bytes here, and {size + 1} where"),
        ([tmp_path], None, f"'{tmp_path}' is no regular file"),
    ):
        declined = client.prepare_files(paths, file_bytes=sizes)
        assert declined.reason is Reason.DATA and declined.text.startswith(why)
    assert service.counts.declined == service.counts.requests == 3
    assert client.prepare_files(files) == prepared_here(PLAN, contents(files))


def test_a_pipe_is_not_waited_for(client, tmp_path):
    client.set_up(setup_of(PLAN))
    os.mkfifo(tmp_path / "pipe")
    declined = client.prepare_files([tmp_path / "pipe"])
    assert declined.reason is Reason.DATA and "no regular file" in declined.text


def test_files_that_are_no_images_are_left_to_the_loaders_machine(client, files, tmp_path):
    client.set_up(setup_of(PLAN))
    for data in (b"", b"no image", contents(files)[0][:300]):
        (tmp_path / "file").write_bytes(data)
        for declined in (
            client.prepare_files([tmp_path / "file"], keys=[23]),
            client.prepare(DataMode.ENCODED, [data], keys=[23]),
        ):
            assert declined.reason is Reason.SAMPLES
            assert declined.text == "sample 23 is for Pillow to decode"


def test_a_sample_that_a_plan_cannot_take_is_declined_by_its_key(client, files):
    client.set_up(setup_of(Plan((Fixed(("pad", -60, 0, -60, 0, "edge", (0, 0, 0))),), None, 9, 9)))
    declined = client.prepare(DataMode.ENCODED, contents(files[:1]), keys=[5])
    assert declined.reason is Reason.SAMPLES
    assert declined.text == "sample 5: ValueError: padding leaves nothing of the image"


# ---- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"version": "0.0.9"}, f"has fusionloader {VERSION}, and the loader has 0.0.9"),
        ({"plan": {"type": "Resize"}}, "does not take this plan: plan should be a Plan"),
        ({"pillow": "new"}, "does not take this plan: invalid literal"),
        ({"row_bytes": 5}, "makes results of 2304 bytes of this plan, and 5 are wanted"),
    ],
)
def test_a_setup_that_does_not_fit_is_refused(client, files, change, why):
    with pytest.raises(Refused, match=why):
        client.set_up(replace(setup_of(PLAN), **change))
    with pytest.raises(Refused, match="PREPARE comes after SETUP"):
        client.prepare(DataMode.ENCODED, contents(files))
    client.set_up(setup_of(PLAN))
    assert client.prepare(DataMode.ENCODED, contents(files)) == prepared_here(PLAN, contents(files))


def test_a_plan_without_a_size_of_its_result_is_refused(client):
    with pytest.raises(Refused, match="makes results of 0 bytes"):
        client.set_up(setup_of(Plan((), None, None, None), row_bytes=1))


def test_known_files_tell_other_data(client, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(100_000))
    known = known_file(str(path))
    client.set_up(setup_of(PLAN, known_files=(known,)))
    for changed, why in (
        (b"\1" + bytes(99_999), "has other contents here"),
        (bytes(100_001), "has 100001 bytes here, and 100000 where training is"),
        (None, "cannot be read: No such file"),
    ):
        path.unlink() if changed is None else path.write_bytes(changed)
        with pytest.raises(Refused, match=why) as refused:
            client.set_up(setup_of(PLAN, known_files=(known,)))
        assert str(refused.value).startswith(f"{protocol.OTHER_DATA}: {str(path)!r} ")


@pytest.mark.parametrize(
    ("mode", "data", "why"),
    [
        (DataMode.PATHS, [b"photograph.jpg"], "'photograph.jpg' is no absolute path"),
        (DataMode.PATHS, [b"/" * 5000], "more than 4096 bytes"),
        (DataMode.PIXELS, [bytes(12)], "SETUP says no shape"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(client, mode, data, why):
    client.set_up(setup_of(PLAN))
    with pytest.raises(Refused, match=why):
        client.prepare(mode, data)


def test_pixels_of_another_size_are_refused(client):
    client.set_up(setup_of(PLAN, image=(2, 2, 3)))
    with pytest.raises(Refused, match=r"an image of 11 bytes, which is not \(2, 2, 3\)"):
        client.prepare(DataMode.PIXELS, [bytes(11)])


def test_more_results_than_an_answer_holds_are_refused(client):
    client.set_up(setup_of(Plan((Resize(8000, 8000, "box"),), None, 8000, 8000)))
    with pytest.raises(Refused, match="2 results have 384000000 bytes"):
        client.prepare(DataMode.ENCODED, [b"", b""])


@pytest.mark.parametrize("head", [b"", b"[]", b"[" * 200_000, b"\xff", b"{}"])
def test_messages_of_other_content_are_refused(client, head):
    for kind in (protocol.SETUP, protocol.PREPARE):
        with pytest.raises(Refused, match="refuses what it was asked"):
            client.ask(kind, head)
    with pytest.raises(Refused, match="does not know messages of kind 999"):
        client.ask(999, head)
    client.set_up(setup_of(PLAN))


def test_who_has_another_token_is_not_heard(service):
    with pytest.raises(TransportError, match="has another token"):
        WorkerClient(service.address, b"the token of somebody else")


def test_a_worker_without_cores_is_an_error():
    with pytest.raises(ValueError, match="a worker needs a core, not 0"):
        WorkerService(Address(HOST, 0), Identity.of(TOKEN), 0)


# ---- the end -----------------------------------------------------------------------------------


def test_what_is_under_way_is_answered_before_a_worker_leaves(service, client):
    """The answer is not taken yet, so that the request is under way for as long as we like."""
    plan = Plan((Resize(4000, 4000, "box"),), None, 4000, 4000)  # 48 MB do not fit the sockets
    image = (16, 16, 3)
    client.set_up(setup_of(plan, image=image))
    client.send(DataMode.PIXELS, [bytes(16 * 16 * 3)])
    wait_until(lambda: service.counts.samples == 1)
    assert not service.drain(0.01)
    answer = client.hear()
    assert answer.kind == protocol.ROWS and len(answer.body) == 48_000_000
    assert service.drain()
    with pytest.raises(Refused, match=f"{protocol.LEAVING}: ask another"):
        client.prepare(DataMode.PIXELS, [bytes(16 * 16 * 3)])
    with contextlib.closing(WorkerClient(service.address)) as another, pytest.raises(Refused):
        another.set_up(setup_of(plan))


def test_a_closed_worker_leaves_no_threads(files):
    before = set(threading.enumerate())
    service = WorkerService(Address(HOST, 0), Identity.of(TOKEN), 1)
    with contextlib.closing(WorkerClient(service.address)) as client:
        client.set_up(setup_of(PLAN))
        client.prepare_files(files)
        service.close()
        assert set(threading.enumerate()) <= before
        with pytest.raises(TransportError, match="closed"):
            client.connection.send(Outgoing(protocol.PREPARE), PATIENCE)
            client.connection.receive(PATIENCE, PATIENCE)
