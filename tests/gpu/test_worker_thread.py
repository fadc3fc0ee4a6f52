"""The GPU worker as a thread of this process, through the same loop, on the CPU."""

import gc
import os
import signal
import threading
import warnings

import numpy as np
import pytest
import torch
from support import bad_decoders, warm_start
from support.cropped_epochs import BATCHES, assert_epoch, assert_epochs_until
from support.fake_device import FakeDevice
from support.waiting import PATIENCE, wait_until

from fusionloader import FusionLoader, GpuWorker
from fusionloader.engine.delivery.device_ring import DeviceRing
from fusionloader.gpu import control, worker_thread
from fusionloader.gpu.worker_thread import Fence, GivenUp, relax_captures
from fusionloader.system.gpu_memory.errors import CudaError
from fusionloader.transforms.executors.decoders import by_name
from fusionloader.transforms.executors.device.fused_augment import FusedAugment
from fusionloader.transforms.executors.device.task import GpuTask
from fusionloader.workers import worker_set

NAME = "fusionloader-gpu-worker"


def threaded(dataset, persistent=True, **options):
    if options.get("decoder") == "dali" and by_name.missing_package(GpuWorker()):
        pytest.skip("DALI is not installed")
    options = {"sharing": "spatial", "decoder": bad_decoders.PillowDecoder(), **options}
    return FusionLoader(
        dataset,
        batch_sampler=BATCHES,
        num_workers=1,
        seed=5,
        persistent_workers=persistent,
        gpu_worker=GpuWorker(device="cpu", where="thread", **options),
    )


def threads():
    return [thread for thread in threading.enumerate() if thread.name == NAME]


@pytest.mark.parametrize(
    ("decoder", "sharing"),
    [("dali", "spatial"), ("torchvision", "spatial"), (bad_decoders.PillowDecoder(), "auto")],
)
def test_a_thread_writes_the_same_bits_as_cpu_workers(dataset, expected, decoder, sharing):
    before = len(threads())
    with threaded(dataset, decoder=decoder, sharing=sharing) as loader:
        assert_epochs_until(loader, expected, lambda told: told["samples"] > 40)
        told = loader.stats().gpu_worker
        assert (told["where"], told["restarts"], told["memory"]) == ("thread", 0, {})
        assert len(threads()) == before + 1
        assert len(loader._iterator._workers) == 2
    assert len(threads()) == before
    assert "in a thread of this process, takes the largest samples" in loader.explain()


def test_profiling_compares_off_and_beside_training_only(dataset):
    with threaded(dataset, sharing="auto") as loader:
        wanted = {"off", "spatial"}  # on a busy machine CPU workers may keep up for a while
        wait_until(lambda: list(loader) and set(loader.stats().gpu_worker["rates"]) == wanted)


@pytest.mark.matrix
def test_a_thread_for_every_epoch_leaves_none(dataset, expected):
    before = len(threads())
    loader = threaded(dataset, persistent=False)
    descriptors = []
    for _ in range(5):
        assert_epoch(loader, expected)
        wait_until(lambda: len(threads()) == before, "a thread is left")
        gc.collect()
        descriptors.append(len(os.listdir("/proc/self/fd")))
    assert descriptors[1] == descriptors[-1]


def test_an_epoch_left_early_and_a_dropped_loader_end_the_thread(dataset):
    before = len(threads())
    loader = threaded(dataset)
    iterator = iter(loader)
    next(iterator)
    assert len(threads()) == before + 1
    del iterator, loader
    wait_until(lambda: len(threads()) == before, "a thread is left")


def test_an_error_ends_the_thread_and_the_next_one_has_half_the_samples(
    dataset, expected, monkeypatch
):
    real, calls = FusedAugment.run, []

    def failing(self, images, operations, rows):
        calls.append(len(rows))
        if len(calls) == 3:  # not in the warm-up
            raise RuntimeError("the kernel was lost")
        return real(self, images, operations, rows)

    monkeypatch.setattr(FusedAugment, "run", failing)
    with threaded(dataset) as loader:
        with pytest.warns(RuntimeWarning, match="(?s)started again.*32 samples.*kernel was lost"):
            assert_epochs_until(loader, expected, lambda told: told["restarts"])
        assert_epochs_until(loader, expected, lambda told: told["samples"] > 20)


def test_a_decoder_that_leaves_by_exit_ends_the_thread_alone(dataset, expected, tmp_path):
    decoder = bad_decoders.Exits(tmp_path / "flag")
    with threaded(dataset, decoder=decoder) as loader:
        assert_epochs_until(loader, expected, lambda told: told["samples"])
        (tmp_path / "flag").touch()
        with pytest.warns(RuntimeWarning, match="GPU worker.*started again"):
            assert_epochs_until(loader, expected, lambda told: told["restarts"])
        (tmp_path / "flag").unlink()


def test_a_decoder_that_breaks_the_rules_is_given_up(dataset, expected, tmp_path):
    with threaded(dataset, decoder=bad_decoders.Twice(tmp_path / "flag")) as loader:
        assert_epochs_until(loader, expected, lambda told: told["samples"])
        (tmp_path / "flag").touch()
        with pytest.warns(RuntimeWarning, match=r"goes on without.*finished the ticket \d+ twice"):
            assert_epochs_until(loader, expected, lambda told: told["gone"])
        assert_epoch(loader, expected)


def test_a_thread_that_hangs_while_it_decodes_is_given_up_and_writes_nothing_more(
    dataset, expected, tmp_path, monkeypatch
):
    before = len(threads())
    real, written = FusedAugment.run, []

    def counting(self, images, operations, rows):
        written.append(len(rows))
        return real(self, images, operations, rows)

    monkeypatch.setattr(FusedAugment, "run", counting)
    with threaded(dataset, decoder=bad_decoders.Hangs(tmp_path / "flag")) as loader:
        assert_epochs_until(loader, expected, lambda told: told["samples"])
        monkeypatch.setattr(control, "HUNG_SECONDS", 0.5)
        (tmp_path / "flag").touch()
        with pytest.warns(RuntimeWarning, match='given up.*where="process"') as warned:
            assert_epochs_until(loader, expected, lambda told: told["gone"])
        assert len([each for each in warned if "GPU worker" in str(each.message)]) == 1
        assert len(threads()) == before + 1  # it hangs
        assert_epoch(loader, expected)
        so_far = len(written)
        (tmp_path / "flag").unlink()  # now it could go on
        wait_until(lambda: len(threads()) == before, "the thread is left")
        assert len(written) == so_far
        assert_epoch(loader, expected)


def test_a_batch_waits_for_a_thread_that_hangs_while_it_writes_rows(
    dataset, expected, monkeypatch, caplog
):
    monkeypatch.setattr(worker_thread, "_CLOSE_SECONDS", 0.01)
    real, hangs, may_go_on = FusedAugment.run, threading.Event(), threading.Event()

    def slow(self, images, operations, rows):
        if hangs.is_set() and not may_go_on.is_set():
            monkeypatch.setattr(control, "HUNG_SECONDS", 0.3)
            may_go_on.wait()
        return real(self, images, operations, rows)

    def go_on():
        wait_until(lambda: "cannot be" in caplog.text or "hangs while it writes" in caplog.text)
        monkeypatch.setattr(control, "HUNG_SECONDS", PATIENCE)
        may_go_on.set()

    monkeypatch.setattr(FusedAugment, "run", slow)
    with threaded(dataset) as loader:
        assert_epochs_until(loader, expected, lambda told: told["samples"])
        hangs.set()
        going_on = threading.Thread(target=go_on)
        going_on.start()
        wait_until(lambda: (assert_epoch(loader, expected), may_go_on.is_set())[1])
        going_on.join()
        assert "hangs while it writes rows of a batch, which waits for it" in caplog.text
        assert loader.stats().gpu_worker["gone"] is None
        assert_epoch(loader, expected)


def test_nothing_gets_through_a_closed_fence():
    fence = Fence()
    entered, leave = threading.Event(), threading.Event()

    def hang():
        with fence.inside():
            entered.set()
            leave.wait()

    hanging = threading.Thread(target=hang)
    hanging.start()
    entered.wait()
    assert not fence.close(0.01)
    leave.set()
    hanging.join()
    assert fence.close(0.01)
    with pytest.raises(GivenUp), fence.inside():
        raise AssertionError("it got through")


def test_a_fork_waits_for_a_thread_that_is_being_built(dataset, monkeypatch):
    building, go_on, built = threading.Event(), threading.Event(), []
    real = GpuTask.warm_up

    def slow(self, *given):
        building.set()
        go_on.wait()
        real(self, *given)
        built.append(True)

    monkeypatch.setattr(GpuTask, "warm_up", slow)
    with threaded(dataset) as loader:
        iterator = iter(loader)
        building.wait()
        threading.Timer(0.2, go_on.set).start()
        pid = os.fork()
        if pid == 0:
            os._exit(7 if built else 8)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        list(iterator)


def test_a_loader_closes_while_its_thread_is_being_built(dataset, monkeypatch):
    building, go_on, before = threading.Event(), threading.Event(), len(threads())

    def slow(self, *given):
        building.set()
        go_on.wait()

    monkeypatch.setattr(worker_set, "_PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr(GpuTask, "warm_up", slow)
    loader = threaded(dataset)
    iter(loader)
    building.wait()
    loader.close()
    assert len(threads()) == before + 1
    go_on.set()
    wait_until(lambda: len(threads()) == before, "the thread is left")


def test_forks_beside_a_busy_thread_make_the_right_batches(dataset, expected):
    """Each inner loader forks workers while the thread decodes, augments and logs."""
    inner = torch.utils.data.TensorDataset(torch.arange(12))
    with threaded(dataset, decoder="dali") as loader:
        assert_epochs_until(loader, expected, lambda told: told["samples"])
        loader.set_epoch(7)
        for (images, _), (wanted, _) in zip(loader, expected, strict=True):
            assert torch.equal(images, wanted)
            for kind in (torch.utils.data.DataLoader, FusionLoader):
                found = kind(inner, 4, num_workers=1, multiprocessing_context="fork")
                assert torch.equal(torch.cat([batch for (batch,) in found]), torch.arange(12))


SCRIPT = """
import os, signal, sys, threading, time
from torchvision import transforms
from torchvision.datasets import ImageFolder
from fusionloader import FusionLoader, GpuWorker
from support.bad_decoders import PillowDecoder

steps = [transforms.CenterCrop(64), transforms.ToTensor()]
dataset = ImageFolder(sys.argv[1], transforms.Compose(steps))
worker = GpuWorker(device="cpu", where="thread", sharing="spatial", decoder=PillowDecoder())
loader = FusionLoader(dataset, 8, num_workers=1, gpu_worker=worker, persistent_workers=True)
epochs = 0
while not loader.stats().gpu_worker.get("samples"):
    for batch in loader:
        pass
{end}
"""


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("", 0),
        ("iterator = iter(loader); next(iterator)", 0),
        ("iter(loader); sys.exit(3)", 3),
        (
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "try:\n"
            "    for batch in loader: signal.raise_signal(signal.SIGINT)\n"
            "except KeyboardInterrupt: loader.close(); sys.exit(5)",
            5,
        ),
        ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(99)", -signal.SIGTERM),
    ],
    ids=["end", "left early", "exit", "Ctrl-C", "SIGTERM"],
)
@pytest.mark.few(3)
def test_a_script_ends_with_its_thread(dataset, tmp_path, end, code):
    script = SCRIPT.replace("{end}", end)
    status, complaints = warm_start.end_of(script, tmp_path, dataset.root)
    assert status == code, complaints
    assert "Traceback" not in complaints


def test_a_thread_gets_the_buffers_themselves(fake_cuda):
    ring = DeviceRing(FakeDevice(fake_cuda))
    (opened,) = ring.share(1, 64, in_process=True)
    assert ring.share(1, 64, in_process=True) == [opened]  # a worker that is started again
    buffer = ring.acquire(64)
    assert buffer.unreferenced
    memory = opened[0](*opened[1])
    memory[:4] = 7
    assert buffer.memory[:4].tolist() == [7] * 4
    row = memory[8:16]
    assert buffer.unreferenced is False  # as long as the thread has a row of it
    del row
    assert buffer.unreferenced


@pytest.mark.parametrize("relaxed", [True, False])
def test_a_thread_may_wait_for_the_device_while_a_graph_is_captured(fake_cuda, relaxed):
    said = []

    def allocate():
        if relaxed:
            relax_captures(0)
        try:
            fake_cuda.allocate(64)
        except CudaError as error:
            said.append(str(error))

    stream = fake_cuda.stream()
    fake_cuda.capture(stream, True)
    thread = threading.Thread(target=allocate)
    thread.start()
    thread.join()
    if relaxed:
        fake_cuda.capture(stream, False)
        assert said == []
    else:
        with pytest.raises(AssertionError, match="fakeCapture returned"):
            fake_cuda.capture(stream, False)
        assert len(said) == 1


@pytest.mark.usefixtures("fake_library")
def test_one_is_warned_where_captures_cannot_be_left_alone(caplog):
    relax_captures(99)
    assert "may disturb the capture of CUDA graphs" in caplog.text
    assert "cuDeviceGet failed" in caplog.text


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"where": "gpu"}, "where should be one of"),
        ({"where": "thread", "sharing": "temporal"}, 'where="process"'),
        ({"where": "thread", "memory": "share"}, 'where="process"'),
    ],
)
def test_what_a_thread_cannot_do_is_refused(options, told):
    with pytest.raises(ValueError, match=told):
        GpuWorker(**options)


@pytest.mark.kills
def test_random_stops_and_errors_lose_no_sample(dataset, expected, monkeypatch):
    real, generator = FusedAugment.run, np.random.default_rng(3)

    def sometimes(self, images, operations, rows):
        if generator.random() < 0.05:
            raise RuntimeError("now and then")
        return real(self, images, operations, rows)

    monkeypatch.setattr(FusedAugment, "run", sometimes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for trial in range(4):
            with threaded(dataset, group_size=4) as loader:
                for _ in range(6):
                    loader.set_epoch(7)
                    iterator = iter(loader)
                    for number, (images, _) in enumerate(iterator):
                        assert torch.equal(images, expected[number][0])
                        if number == trial:
                            break
                    assert_epoch(loader, expected)
