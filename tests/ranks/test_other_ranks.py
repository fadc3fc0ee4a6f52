"""A job of another number of ranks goes on in an epoch: each sample comes exactly once."""

import importlib.util
import json
import os
import signal
import threading
from itertools import islice, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.batches import same_batches
from support.datasets import Numbers
from support.images import NORMALIZE, photo
from support.waiting import wait_until
from torch.utils.data import BatchSampler
from torch.utils.data.distributed import DistributedSampler
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader, GpuWorker


def loader_of(dataset, ranks, rank, batch_size=3, workers=0, sampling=None, **options):
    """The loader of one rank; ``sampling`` are its sampler's arguments, and the epoch."""
    sampling = {"epoch": 0, **(sampling or {})}
    epoch = sampling.pop("epoch")
    sampler = DistributedSampler(dataset, ranks, rank, **sampling)
    sampler.set_epoch(epoch)
    return FusionLoader(
        dataset, batch_size, sampler=sampler, num_workers=workers, seed=5, **options
    )


def begin(loader, batches):
    """The samples of the first batches, and the state after them, as a checkpoint would hold it."""
    found = [sample for batch in islice(iter(loader), batches) for sample in batch.tolist()]
    return found, json.loads(json.dumps(loader.state_dict()))


def rest(loader, state):
    loader.load_state_dict(state, ranks="reshard")
    return [sample for batch in loader for sample in batch.tolist()]


def check_once(size, before, after, ranks):
    """Every sample is delivered before or after; a few are repeated to make shares equal."""
    assert set(before) | set(after) == set(range(size))
    assert not set(before) & set(after)
    left = size - len(set(before))
    assert len(after) == -(-left // ranks) * ranks


RANKS = st.integers(1, 6)
SAMPLING = st.fixed_dictionaries(
    {"shuffle": st.booleans(), "seed": st.integers(0, 9), "epoch": st.integers(0, 3)}
)


@settings(deadline=None, max_examples=60)
@given(st.data(), st.integers(1, 70), st.permutations(range(1, 7)), SAMPLING)
def test_ranks_at_different_positions_leave_each_sample_once(data, size, ranks, sampling):
    old, new, *_ = ranks
    dataset, batch_sizes = Numbers(size), st.integers(1, 6)
    batch_size = data.draw(batch_sizes)
    before, states = [], []
    for rank in range(old):
        loader = loader_of(dataset, old, rank, batch_size, sampling=sampling)
        found, state = begin(loader, data.draw(st.integers(0, len(loader))))
        before += found
        states.append(state)
    states = data.draw(st.permutations(states))
    sampling["epoch"] = 0  # which epoch it was is in the states
    batch_size = data.draw(batch_sizes)
    loaders = [loader_of(dataset, new, rank, batch_size, sampling=sampling) for rank in range(new)]
    after = [sample for loader in loaders for sample in rest(loader, states)]
    check_once(size, before, after, new)


@settings(deadline=None, max_examples=60)
@given(st.data(), st.integers(1, 90), st.lists(RANKS, min_size=1, max_size=4), SAMPLING)
def test_the_state_of_one_rank_suffices_where_all_are_at_one_position(data, size, jobs, sampling):
    jobs = [first for first, second in pairwise([*jobs, 7]) if first != second]
    dataset, seen, state = Numbers(size), [], None
    for ranks in jobs:
        batches, now, states = data.draw(st.integers(0, 3)), [], []
        for rank in range(ranks):
            loader = loader_of(dataset, ranks, rank, sampling=sampling)
            if state is not None:
                loader.load_state_dict(state, ranks="reshard")
            found, after = begin(loader, batches)
            now += found
            states.append(after)
        assert not set(seen) & set(now)
        seen += now
        if states[0]["finished"]:
            assert set(seen) == set(range(size))
            return
        state = data.draw(st.sampled_from(states))
    loaders = [loader_of(dataset, 7, rank, sampling=sampling) for rank in range(7)]
    after = [sample for loader in loaders for sample in rest(loader, state)]
    check_once(size, seen, after, 7)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 90), RANKS, RANKS, st.integers(0, 4))
def test_a_sampler_that_drops_the_last_samples_leaves_out_less_than_one_a_rank(
    size, old, new, batches
):
    dataset = Numbers(size)
    old, new = old, new + (old == new)
    begun = [
        begin(loader_of(dataset, old, r, sampling={"drop_last": True}), batches) for r in range(old)
    ]
    before = [sample for found, _ in begun for sample in found]
    states = [state for _, state in begun]
    if states[0]["finished"]:
        assert size - len(set(before)) < old
        return
    loaders = [loader_of(dataset, new, rank, sampling={"drop_last": True}) for rank in range(new)]
    after = [sample for loader in loaders for sample in rest(loader, states)]
    assert len(set(before + after)) == len(before + after)
    assert 0 <= size - len(before + after) < new


def test_a_job_with_as_many_ranks_continues_with_the_same_batches():
    dataset = Numbers(50)
    states, expected = [], []
    for rank in range(3):
        loader = loader_of(dataset, 3, rank)
        iterator = iter(loader)
        for _ in range(rank + 1):
            next(iterator)
        states.append(loader.state_dict())
        expected.append(list(iterator))
    for rank in range(3):
        loader = loader_of(dataset, 3, rank)
        loader.load_state_dict(states, ranks="reshard")
        assert same_batches(expected[rank], loader)
    loader = loader_of(dataset, 3, 1)
    loader.load_state_dict(states[1], ranks="reshard")
    assert same_batches(expected[1], loader)


def test_a_resharded_epoch_is_resumed_by_the_same_ranks_batch_by_batch():
    dataset = Numbers(50)
    _, state = begin(loader_of(dataset, 2, 0), 3)
    loader = loader_of(dataset, 3, 2)
    loader.load_state_dict(state, ranks="reshard")
    iterator = iter(loader)
    next(iterator)
    halfway = loader.state_dict()
    expected = list(iterator)
    again = loader_of(dataset, 3, 2)
    again.load_state_dict(halfway)
    assert again.state_dict() == halfway
    assert len(expected) > 1 and same_batches(expected, again)


def test_the_epochs_after_a_resharded_one_are_whole():
    dataset = Numbers(48)
    _, state = begin(loader_of(dataset, 2, 0, sampling={"epoch": 1}), 3)
    after = []
    for rank in range(3):
        loader = loader_of(dataset, 3, rank)
        assert len(rest(loader, state)) == 10
        loader.set_epoch(2)
        after += [sample for batch in loader for sample in batch.tolist()]
    assert sorted(after) == list(range(48))


def test_setting_the_epoch_after_iter_does_not_lose_what_is_left():
    dataset = Numbers(48)
    before, state = begin(loader_of(dataset, 1, 0, sampling={"epoch": 1}), 5)
    after = []
    for rank in range(2):
        loader = loader_of(dataset, 2, rank, workers=1)
        loader.load_state_dict(state, ranks="reshard")
        iterator = iter(loader)
        loader.batch_sampler.sampler.set_epoch(1)
        after += [sample for batch in iterator for sample in batch.tolist()]
    check_once(48, before, after, 2)


def test_after_a_finished_epoch_any_number_of_ranks_begins_the_next():
    dataset = Numbers(48)
    loader = loader_of(dataset, 2, 1)
    list(loader)
    state = loader.state_dict()
    with pytest.raises(ValueError, match='world_size = 2.*ranks="reshard"'):
        loader_of(dataset, 3, 0).load_state_dict(state)
    assert len(rest(loader_of(dataset, 3, 0, sampling={"epoch": 1}), state)) == 16


def test_whole_batches_and_slots_share_what_is_left_alike():
    dataset = Numbers(40)
    _, state = begin(loader_of(dataset, 2, 0), 2)
    expected = rest(loader_of(dataset, 3, 1), state)
    assert rest(loader_of(dataset, 3, 1, workers=2), state) == expected
    assert rest(loader_of(dataset, 3, 1, workers=2, collate_fn=torch.stack), state) == expected
    given = loader_of(dataset, 3, 1)
    batches = BatchSampler(given.batch_sampler.sampler, 3, False)
    assert rest(FusionLoader(dataset, batch_sampler=batches), state) == expected


def test_what_was_delivered_out_of_order_is_not_repeated():
    dataset = Numbers(40)
    state = begin(loader_of(dataset, 2, 0), 4)[1]
    state.update(delivered=1, ahead=[3])  # as with in_order=False
    other = begin(loader_of(dataset, 2, 1), 2)[1]
    sampler = list(loader_of(dataset, 2, 0).sampler), list(loader_of(dataset, 2, 1).sampler)
    before = sampler[0][:3] + sampler[0][9:12] + sampler[1][:6]
    loaders = [loader_of(dataset, 3, rank) for rank in range(3)]
    after = [sample for loader in loaders for sample in rest(loader, [state, other])]
    check_once(40, before, after, 3)
    with pytest.raises(ValueError, match="in_order=False.*states of all"):
        rest(loader_of(dataset, 3, 0), state)


def test_what_one_rank_delivered_out_of_order_does_not_apply_to_another():
    dataset = Numbers(40)
    state = begin(loader_of(dataset, 2, 0), 4)[1]
    state.update(delivered=1, ahead=[3])
    order = list(loader_of(dataset, 2, 0).sampler)
    assert rest(loader_of(dataset, 2, 0), state) == order[3:9] + order[12:]
    with pytest.raises(ValueError, match="in_order=False.*states of all"):
        rest(loader_of(dataset, 2, 1), state)


# ---- the samples themselves --------------------------------------------------------------------


def images_of(batches):
    return [image.numpy().tobytes() for images, _ in batches for image in images]


@pytest.mark.few(1)
@pytest.mark.parametrize("resumed_workers", [0, 1, 3])
def test_samples_are_drawn_as_in_an_uninterrupted_epoch(train_set, resumed_workers):
    expected = images_of(loader_of(train_set, 1, 0, batch_size=4, workers=1))
    found, states = [], []
    for rank in range(2):
        loader = loader_of(train_set, 2, rank, batch_size=4, workers=2)
        found += images_of(islice(iter(loader), 2))
        states.append(loader.state_dict())
    for rank in range(3):
        loader = loader_of(train_set, 3, rank, batch_size=4, workers=resumed_workers)
        loader.load_state_dict(states, ranks="reshard")
        found += images_of(loader)
    assert len(found) == 40 and sorted(found) == sorted(expected)


@pytest.fixture(scope="module")
def without_resize(tmp_path_factory):
    """40 images that all decoders decode alike, for transforms without a resize."""
    root = tmp_path_factory.mktemp("photos")
    generator = np.random.default_rng(1)
    (root / "class").mkdir()
    for number in range(40):
        width, height = (int(side) for side in generator.integers(70, 150, 2))
        photo(generator, width, height).save(root / "class" / f"{number}.jpg")
    steps = [transforms.RandomCrop(64), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    dataset = ImageFolder(str(root), transforms.Compose([*steps, transforms.Normalize(*NORMALIZE)]))
    dataset.samples = dataset.samples * 20
    return dataset


with_dali = pytest.mark.skipif(
    importlib.util.find_spec("nvidia") is None or importlib.util.find_spec("nvidia.dali") is None,
    reason="DALI is not installed: pip install nvidia-dali-cuda120",
)


def images_with_gpu_worker(loader, batches=None):
    """The images of the first batches, of which the GPU worker made some."""
    iterator = iter(loader)
    found = [next(iterator)]
    wait_until(lambda: iterator._manager.queue.gpu_is_ready, "the GPU worker does not begin")
    cpu_workers = [process.pid for process in iterator._workers[:-1]]
    # Stopped, so that the GPU worker gets the work; resumed in case that one makes no sample.
    resumption = threading.Timer(60, signal_all, (cpu_workers, signal.SIGCONT))
    resumption.start()
    signal_all(cpu_workers, signal.SIGSTOP)
    try:
        while not loader.stats().gpu_worker["samples"]:
            found.append(next(iterator))
    finally:
        resumption.cancel()
        signal_all(cpu_workers, signal.SIGCONT)
    more = None if batches is None else batches - len(found)
    return images_of([*found, *islice(iterator, more)])


def signal_all(pids, number):
    for pid in pids:
        os.kill(pid, number)


@with_dali
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("with_gpu", "ranks"),
    [
        ("before", 2),
        ("after", 1),
        pytest.param("before", 1, marks=pytest.mark.matrix),
        pytest.param("after", 2, marks=pytest.mark.matrix),
    ],
)
def test_a_gpu_worker_may_be_added_or_removed(without_resize, with_gpu, ranks):
    def loader(ranks, rank, gpu, workers):
        gpu_worker = GpuWorker(device="cpu", sharing="spatial") if gpu else None
        options = {"batch_size": 20, "workers": workers, "gpu_worker": gpu_worker}
        options["stall_timeout"] = 0  # CPU workers are stopped for a while
        return loader_of(without_resize, ranks, rank, **options)

    expected = images_of(loader(1, 0, gpu=False, workers=1))
    first = loader(1, 0, gpu=with_gpu == "before", workers=1)
    if with_gpu == "before":
        found = images_with_gpu_worker(first, 16)
    else:
        found = images_of(islice(iter(first), 16))
    state = first.state_dict()
    first.close()
    for rank in range(ranks):
        resumed = loader(ranks, rank, gpu=with_gpu == "after", workers=2)
        resumed.load_state_dict(state, ranks="reshard")
        found += images_of(resumed) if with_gpu == "before" else images_with_gpu_worker(resumed)
    assert len(found) == 800 and sorted(found) == sorted(expected)
    if ranks == 1:
        assert found == expected
