"""Traces of loaders of every kind: all that workers do is in them, and nothing is left on."""

import os
import signal

import pytest
import torch
from loaders import assert_whole, chrome_tracks, overlaps, traced
from support.datasets import Numbers, Words
from support.waiting import wait_until
from torch.utils.data import Dataset

from fusionloader import FusionLoader, WorkerPool
from fusionloader.observe.trace.files import read_timeline


class KillsItsWorkerOnce(Dataset):
    """Numbers; the first worker that is asked for one of them dies."""

    def __init__(self, flag, size=24):
        self.flag, self.size = flag, size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if index == 9 and not self.flag.exists():
            self.flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.tensor(index)


# ---- what is seen ------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["pftrace", "json"])
def test_native_workers_tell_everything(train_set, tmp_path, ending):
    loader = FusionLoader(train_set, batch_size=7, num_workers=2, seed=1)
    timeline = traced(loader, tmp_path / f"run.{ending}", epochs=2)
    assert_whole(timeline, len(train_set), epochs=2)
    assert {span.iterator for span in timeline.spans} == {0, 1}  # each with workers of its own
    assert all(span.read_ns and span.decode_ns and not span.python_ns for span in timeline.spans)
    sizes = sum(os.path.getsize(path) for path, _ in train_set.samples)
    assert sum(span.nbytes for span in timeline.spans) == 2 * sizes
    assert [worker.kind for worker in timeline.meta.workers] == ["cpu", "cpu"]
    assert timeline.meta.batch_size == 7
    assert {counter.name for counter in timeline.counters} >= {"ready mini-batches"}


def test_each_epoch_begins_with_iter_and_the_processors_are_those_of_the_trace(tmp_path):
    loader = FusionLoader(Numbers(), batch_size=8, num_workers=1)
    list(loader)
    timeline = traced(loader, tmp_path / "a.json", epochs=2)
    began = [step.began_ns is not None for step in timeline.steps]
    assert began == [step.batch == 0 for step in timeline.steps]
    assert all(step.began_ns < step.asked_ns for step in timeline.steps if step.began_ns)
    use, whole = timeline.meta.processors, loader.stats().processors
    assert 0 < use.seconds < whole.seconds
    assert 0 < use.busy_seconds < whole.busy_seconds


def test_a_trace_says_of_which_rank_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    timeline = traced(FusionLoader(Numbers(), batch_size=9), tmp_path / "a.json")
    assert (timeline.meta.rank, timeline.meta.pid) == (3, os.getpid())


def test_python_workers_tell_everything(tmp_path):
    timeline = traced(FusionLoader(Numbers(50), batch_size=9, num_workers=2), tmp_path / "a.json")
    assert_whole(timeline, 50)
    assert all(span.python_ns and span.write_ns for span in timeline.spans)
    assert not any(span.decode_ns or span.nbytes for span in timeline.spans)


def test_persistent_workers_are_one_iterator(tmp_path):
    loader = FusionLoader(Numbers(), batch_size=8, num_workers=1, persistent_workers=True)
    list(loader)
    timeline = traced(loader, tmp_path / "a.json", epochs=3)
    assert_whole(timeline, 24, epochs=3)
    assert {step.iterator for step in timeline.steps} == {0}
    loader.close()


def test_a_cache_that_fills_is_a_counter(train_set, tmp_path):
    from fusionloader import DecodedCache

    cache = DecodedCache("64MiB")
    loader = FusionLoader(train_set, batch_size=8, num_workers=1, cache=cache)
    with loader.trace(tmp_path / "a.json", steps=1):
        list(loader)  # the trace has ended with the first batch, and began its counters there
    counters = {counter.name for counter in read_timeline(tmp_path / "a.json").counters}
    assert "images in the decoded cache" in counters


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"num_workers": 0}, "num_workers=0"),
        ({"num_workers": 0, "collate_fn": list}, "whole batches"),
    ],
)
def test_loaders_without_workers_of_their_own_tell_their_steps(train_set, tmp_path, arguments, why):
    timeline = traced(FusionLoader(train_set, batch_size=16, **arguments), tmp_path / "a.pftrace")
    assert [step.samples for step in timeline.steps] == [16, 16, 8]
    assert [step.batch for step in timeline.steps] == [0, 1, 2]
    assert why in timeline.meta.steps_only and not timeline.spans


def test_whole_batches_are_seen_from_their_workers(train_set, tmp_path):
    loader = FusionLoader(train_set, batch_size=16, num_workers=1, collate_fn=list)
    timeline = traced(loader, tmp_path / "a.json")
    assert [step.samples for step in timeline.steps] == [16, 16, 8]
    assert [span.samples for span in timeline.spans] == [16, 16, 8]


def test_a_loader_that_goes_over_to_whole_batches_tells_its_steps(tmp_path):
    timeline = traced(FusionLoader(Words(), batch_size=4, num_workers=1), tmp_path / "a.json")
    assert [step.samples for step in timeline.steps] == [4, 4, 3]


def test_a_pools_workers_are_seen_by_each_loader(tmp_path):
    with WorkerPool(1) as pool:
        first, second = (FusionLoader(Numbers(), batch_size=4, pool=pool) for _ in range(2))
        with first.trace(tmp_path / "a.json"), second.trace(tmp_path / "b.json"):
            for _ in zip(first, second, strict=True):
                pass
        for name in ("a.json", "b.json"):
            assert_whole(read_timeline(tmp_path / name), 24)


# ---- what happens meanwhile --------------------------------------------------------------------


def test_a_killed_worker_leaves_an_instant_and_no_gap(tmp_path):
    dataset = KillsItsWorkerOnce(tmp_path / "flag")
    loader = FusionLoader(dataset, batch_size=8, num_workers=1)
    timeline = traced(loader, tmp_path / "a.json")
    done = {
        (span.batch, n)
        for span in timeline.spans
        for n in range(span.first, span.first + span.count)
    }
    assert done == {(batch, n) for batch in range(3) for n in range(2)}
    restarts = [instant for instant in timeline.instants if instant.kind == "restart"]
    assert [instant.worker for instant in restarts] == [0]


def test_another_number_of_workers_is_an_instant(tmp_path):
    loader = FusionLoader(Numbers(400), batch_size=4, num_workers=1, prefetch_factor=1)
    with loader.trace(tmp_path / "a.json"):
        for number, _ in enumerate(loader):
            if number == 3:
                loader.resize_workers(2)
            if number > 3:
                wait_until(lambda: loader.stats().workers)
    kinds = [instant.text for instant in read_timeline(tmp_path / "a.json").instants]
    assert "2 workers instead of 1" in kinds


def test_an_interrupted_epoch_is_as_far_as_it_came(train_set, tmp_path):
    loader = FusionLoader(train_set, batch_size=4, num_workers=2, persistent_workers=True)
    with loader.trace(tmp_path / "a.json"):
        for number, _ in enumerate(loader):
            if number == 2:
                break
        list(loader)
    timeline = read_timeline(tmp_path / "a.json")
    assert [step.batch for step in timeline.steps] == [0, 1, 2, *range(10)]
    assert not [
        w for slices in chrome_tracks(tmp_path / "a.json").values() for w in overlaps(slices)
    ]
    loader.close()


def test_an_exception_ends_the_block_and_the_trace(tmp_path):
    loader = FusionLoader(Numbers(), batch_size=4, num_workers=1)
    with pytest.raises(KeyError), loader.trace(tmp_path / "a.json"):
        for _ in loader:
            raise KeyError
    assert len(read_timeline(tmp_path / "a.json").steps) == 1


# ---- when it ends ------------------------------------------------------------------------------


def test_it_ends_by_itself_after_its_steps(tmp_path):
    loader = FusionLoader(Numbers(), batch_size=4, num_workers=1)
    batches = iter(loader)
    next(batches)
    trace = loader.trace(tmp_path / "a.json", steps=2)
    assert trace.is_on
    next(batches)
    assert trace.is_on and not (tmp_path / "a.json").stat().st_size
    next(batches)
    assert not trace.is_on
    assert [step.batch for step in read_timeline(tmp_path / "a.json").steps] == [1, 2]
    assert len(list(batches)) == 3
    trace.stop()  # does nothing more


def test_a_full_disk_ends_the_trace_and_not_training(tmp_path, caplog):
    path = tmp_path / "a.json"
    path.symlink_to("/dev/full")
    loader = FusionLoader(Numbers(), batch_size=4, num_workers=1)
    for steps in (2, None):  # written within an epoch, and when the loader is closed
        trace = loader.trace(path, steps=steps)
        assert len(list(loader)) == 6
        loader.close()
        assert not trace.is_on and f"No space left on device: '{path}'" in caplog.text
        caplog.clear()
    with pytest.raises(OSError, match="No space left on device: .*a.json"):
        loader.trace(path).stop()


def test_closing_the_loader_ends_it(tmp_path):
    loader = FusionLoader(Numbers(), batch_size=4, num_workers=1)
    loader.trace(tmp_path / "a.json", steps=100)
    list(loader)
    loader.close()
    assert len(read_timeline(tmp_path / "a.json").steps) == 6


def test_it_is_written_when_its_loader_is_gone(tmp_path):
    loader = FusionLoader(Numbers(), batch_size=4, num_workers=0)
    loader.trace(tmp_path / "a.json")
    list(loader)
    del loader
    assert len(read_timeline(tmp_path / "a.json").steps) == 6


def test_the_next_trace_of_a_loader_knows_nothing_of_the_last(train_set, tmp_path):
    loader = FusionLoader(train_set, batch_size=4, num_workers=2, persistent_workers=True)
    first = traced(loader, tmp_path / "a.json")
    list(loader)
    second = traced(loader, tmp_path / "b.json")
    assert_whole(first, len(train_set))
    assert_whole(second, len(train_set))
    assert {span.epoch for span in second.spans} == {2}
    loader.close()


def test_a_forked_child_leaves_the_trace_to_its_parent(tmp_path):
    loader = FusionLoader(Numbers(), batch_size=4, num_workers=0)
    trace = loader.trace(tmp_path / "a.json")
    pid = os.fork()
    if pid == 0:
        done = 1
        try:
            list(loader)
            trace.stop()
            loader.close()
            done = int((tmp_path / "a.json").stat().st_size != 0)
        finally:
            os._exit(done)
    assert os.waitpid(pid, 0)[1] == 0
    list(loader)
    trace.stop()
    assert len(read_timeline(tmp_path / "a.json").steps) == 6


# ---- what is refused ---------------------------------------------------------------------------


@pytest.fixture
def numbers():
    return FusionLoader(Numbers(), batch_size=4)


def test_a_path_that_cannot_be_written_is_an_error_at_once(numbers, tmp_path):
    with pytest.raises(FileNotFoundError):
        numbers.trace(tmp_path / "missing" / "a.json")
    with pytest.raises(IsADirectoryError):
        (tmp_path / "folder.json").mkdir()
        numbers.trace(tmp_path / "folder.json")
    with pytest.raises(ValueError, match=r"says its format by its end: \.pftrace"):
        numbers.trace(tmp_path / "a.trace")
    assert len(list(numbers)) == 6
    numbers.trace(tmp_path / "a.json").stop()  # none of these is on


@pytest.mark.parametrize("steps", [0, -1, 1.5, "2", True])
def test_a_number_of_steps_that_is_none_is_refused(numbers, tmp_path, steps):
    with pytest.raises(ValueError, match="steps should be a positive int or None"):
        numbers.trace(tmp_path / "a.json", steps=steps)
    assert not os.listdir(tmp_path)


def test_a_second_trace_of_a_loader_is_refused(numbers, tmp_path):
    with numbers.trace(tmp_path / "a.json"):
        with pytest.raises(RuntimeError, match=r"being traced already, into .*a\.json"):
            numbers.trace(tmp_path / "b.json")
        assert not (tmp_path / "b.json").exists()
