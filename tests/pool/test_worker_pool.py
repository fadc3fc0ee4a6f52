"""One pool of workers for several loaders: the same batches, and no more processes than it has."""

import copy
import pickle
import threading

import psutil
import pytest
import torch
from PIL import Image
from support import warm_start
from support.batches import equal, same_batches
from support.waiting import PATIENCE, Flag, gone
from torch.utils.data import Dataset, IterableDataset, get_worker_info
from torchvision import transforms

from fusionloader import DecodedCache, FusionLoader, WorkerPool

WORKERS = 2
KINDS = ["plan", "user code"]


class Noise(Dataset):
    """Samples whose draws depend on the generators that a worker seeds for each."""

    def __init__(self, size=48, scale=1.0):
        self.size = size
        self.scale = scale

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return torch.rand(20) * self.scale, index


class Marked(Noise):
    """Samples that say which dataset ``get_worker_info`` knows."""

    def __getitem__(self, index):
        info = get_worker_info()
        return torch.tensor([info.dataset.scale, info.num_workers])


class Odd(Noise):
    """Samples of which some do not fit the layout, and are large: they go through the pipe."""

    def __getitem__(self, index):
        return (
            {"a": torch.full((200, 200), index)} if index // 4 % 2 else {"a": torch.tensor(index)}
        )


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(8))


@pytest.fixture
def pool():
    with WorkerPool(WORKERS) as made:
        yield made


@pytest.fixture
def sets(train_set, eval_set):
    """A dataset for training and one for validation, by what makes their samples."""
    return {"plan": (train_set, eval_set), "user code": (Noise(), Noise(24, 2.0))}


def alone(dataset, **options):
    """The batches of a loader without a pool."""
    return list(FusionLoader(dataset, 4, num_workers=WORKERS, seed=3, timeout=PATIENCE, **options))


def pooled(dataset, pool, **options):
    return FusionLoader(dataset, 4, pool=pool, seed=3, timeout=PATIENCE, **options)


def pids(iterator):
    return {process.pid for process in iterator._workers}


@pytest.mark.parametrize("validation", KINDS)
@pytest.mark.parametrize("training", KINDS)
@pytest.mark.few(2)
def test_epoch_after_epoch_the_batches_are_those_without_a_pool(sets, pool, training, validation):
    train_set, val_set = sets[training][0], sets[validation][1]
    train, val = pooled(train_set, pool), pooled(val_set, pool)
    expected = FusionLoader(train_set, 4, num_workers=WORKERS, seed=3)
    for _ in range(2):
        assert same_batches(list(expected), list(train))
        assert same_batches(alone(val_set), list(FusionLoader(val_set, 4, pool=pool, seed=3)))
    assert same_batches(alone(val_set), list(val))
    assert train.stats().worker_restarts == val.stats().worker_restarts == 0


@pytest.mark.parametrize("validation", KINDS)
@pytest.mark.parametrize("training", KINDS)
@pytest.mark.few(1)
def test_a_training_goes_on_after_a_validation_in_mid_epoch(sets, pool, training, validation):
    train_set, val_set = sets[training][0], sets[validation][1]
    iterator = iter(pooled(train_set, pool))
    batches = [next(iterator) for _ in range(3)]
    for _ in range(2):
        assert same_batches(alone(val_set), list(pooled(val_set, pool)))
        batches.append(next(iterator))
    assert same_batches(alone(train_set), [*batches, *iterator])


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", KINDS)
def test_a_loader_that_was_begun_first_may_be_asked_last(sets, pool, kind):
    train_set, val_set = sets[kind]
    train = iter(pooled(train_set, pool))
    assert same_batches(alone(val_set), list(pooled(val_set, pool)))
    assert same_batches(alone(train_set), list(train))


@pytest.mark.few(1)
@pytest.mark.parametrize("kinds", [KINDS, ["plan", "plan"], ["user code", "user code"]])
def test_two_loaders_may_be_iterated_alternately(sets, pool, kinds):
    first, second = sets[kinds[0]][0], sets[kinds[1]][0]
    pairs = list(zip(pooled(first, pool), pooled(second, pool), strict=False))
    assert len(pairs) >= 10
    for position, expected in enumerate((alone(first), alone(second))):
        found = [pair[position] for pair in pairs]
        assert same_batches(expected[: len(found)], found)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", KINDS)
def test_two_threads_may_ask_two_loaders_at_the_same_time(sets, pool, kind):
    found = {}

    def consume(number, dataset):
        found[number] = [list(pooled(dataset, pool)) for _ in range(3)]

    threads = [threading.Thread(target=consume, args=pair) for pair in enumerate(sets[kind])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    for number, dataset in enumerate(sets[kind]):
        expected = alone(dataset)
        assert all(same_batches(expected, batches) for batches in found[number])


def test_there_are_no_more_processes_than_the_pool_has(sets, pool):
    before = {child.pid for child in psutil.Process().children()}
    seen = set()
    for _ in range(2):
        train = iter(pooled(sets["plan"][0], pool))
        for _ in range(2):
            next(train)
            val = iter(pooled(sets["user code"][1], pool))
            for _ in val:
                now = {child.pid for child in psutil.Process().children()} - before
                assert now == pids(train) == pids(val)
                seen |= now
    assert len(seen) == WORKERS


def test_processes_begin_with_the_first_iterator(train_set, pool):
    before = {child.pid for child in psutil.Process().children()}
    loaders = [pooled(train_set, pool) for _ in range(3)]
    assert {child.pid for child in psutil.Process().children()} <= before
    assert len(pids(iter(loaders[0]))) == WORKERS


def test_persistent_workers_are_those_of_the_pool_too(sets, pool):
    loaders = [pooled(dataset, pool, persistent_workers=True) for dataset in sets["plan"]]
    expected = [
        FusionLoader(dataset, 4, num_workers=WORKERS, seed=3, persistent_workers=True)
        for dataset in sets["plan"]
    ]
    for _ in range(3):
        for ours, theirs in zip(loaders, expected, strict=True):
            assert same_batches(list(theirs), list(ours))
    assert pids(loaders[0]._iterator) == pids(loaders[1]._iterator)


def test_an_iterator_at_its_end_asks_nothing_of_the_pool(train_set):
    with WorkerPool(WORKERS) as pool:
        ended = iter(pooled(train_set, pool))
        assert list(ended)
        other = iter(pooled(train_set, pool))
        next(other)
        assigned = pool._processes._assigned_to
        assert next(ended, None) is None
        assert pool._processes._assigned_to == assigned
    assert next(ended, None) is None


def test_user_code_finds_the_worker_info_of_its_own_loader(pool):
    ones, twos = Marked(16, 1.0), Marked(16, 2.0)
    for first, second in zip(pooled(ones, pool), pooled(twos, pool), strict=True):
        assert first.tolist() == [[1.0, WORKERS]] * 4
        assert second.tolist() == [[2.0, WORKERS]] * 4


def _seed(worker):
    torch.manual_seed(100 + worker)


def test_generators_that_worker_init_fn_seeds_are_kept_per_loader():
    with WorkerPool(1) as pool:
        for expected, found, _ in zip(
            FusionLoader(Noise(), 4, num_workers=1, worker_init_fn=_seed),
            FusionLoader(Noise(), 4, pool=pool, worker_init_fn=_seed),
            pooled(Noise(), pool),  # which seeds them for every sample
            strict=True,
        ):
            assert equal(expected, found)


class Gated(Noise):
    """Noise whose first sample waits for a flag."""

    def __init__(self, begun, go_on):
        super().__init__()
        self.begun, self.go_on = begun, go_on

    def __getitem__(self, index):
        if index == 0:
            self.begun.set()
            self.go_on.wait()
        return super().__getitem__(index)


def test_samples_made_in_vain_for_another_loaders_sake_draw_nothing(tmp_path):
    begun, go_on, found = Flag(tmp_path / "begun"), Flag(tmp_path / "go on"), []
    with WorkerPool(1) as pool:
        loader = FusionLoader(Gated(begun, go_on), 4, pool=pool, worker_init_fn=_seed)
        training = threading.Thread(target=found.extend, args=[loader])
        training.start()
        begun.wait()
        # Were it set before the other loader asks, nothing would be in vain.
        threading.Timer(1.0, go_on.set).start()
        assert len(list(pooled(Noise(), pool))) == 12
        training.join(PATIENCE)
    assert equal(found, list(FusionLoader(Noise(), 4, num_workers=1, worker_init_fn=_seed)))


def _crop(worker):
    get_worker_info().dataset.transform.transforms[0].size = (12, 8)


def test_a_dataset_that_worker_init_fn_changes_is_read_as_it_left_it(train_set, pool):
    expected = alone(train_set, worker_init_fn=_crop)
    assert expected[0][0].shape[2:] == (12, 8)
    assert same_batches(expected, list(pooled(train_set, pool, worker_init_fn=_crop)))


def test_samples_that_do_not_fit_block_no_other_loader(pool):
    train = iter(pooled(Odd(320), pool))
    next(train)  # what workers make ahead now does not fit in a pipe
    assert same_batches(alone(Noise()), list(pooled(Noise(), pool)))
    assert same_batches(alone(Odd(320))[1:], list(train))


def test_an_epoch_that_was_begun_without_a_pool_is_resumed_with_one(train_set, pool):
    own = FusionLoader(train_set, 4, shuffle=True, num_workers=1, seed=3)
    iterator = iter(own)
    for _ in range(4):
        next(iterator)
    state = own.state_dict()
    rest = list(iterator)
    loader = pooled(train_set, pool, shuffle=True)
    loader.load_state_dict(state)
    first = next(iter(loader))
    assert equal(rest[0], first)
    own.load_state_dict(loader.state_dict())
    assert same_batches(rest[1:], own)


def test_what_is_kept_of_files_is_kept_per_loader(sets, pool):
    train_set, val_set = sets["plan"]
    train = pooled(train_set, pool, cache=DecodedCache("64MiB"), jpeg_index="auto")
    val = pooled(val_set, pool)
    expected = FusionLoader(train_set, 4, num_workers=WORKERS, seed=3)
    for _ in range(2):
        assert same_batches(list(expected), list(train))
        assert same_batches(alone(val_set), list(FusionLoader(val_set, 4, pool=pool, seed=3)))
    assert list(val) and train.stats().decoded_cache.images == len(train_set)


@pytest.mark.parametrize("method", ["forkserver", pytest.param("spawn", marks=pytest.mark.matrix)])
@pytest.mark.few(1)
def test_user_code_may_come_to_a_pool_of_plans_that_was_spawned(sets, method):
    train_set, val_set = sets["plan"][0], sets["user code"][1]
    with WorkerPool(WORKERS, multiprocessing_context=method) as pool:
        loader = pooled(train_set, pool)
        train = iter(loader)
        batches = [next(train)]
        native = pids(train)
        assert same_batches(alone(val_set), list(pooled(val_set, pool)))
        assert same_batches(alone(train_set), [*batches, *train])
        assert all(map(gone, native))
        assert loader.stats().worker_restarts == 0  # these are no failures


def test_explain_says_that_the_workers_are_a_pools(train_set, pool):
    assert "2 workers of a pool write samples" in pooled(train_set, pool).explain()


# ---- copies -------------------------------------------------------------------------------------


def test_a_copy_of_a_loader_has_the_same_pool(train_set, pool):
    loader = pooled(train_set, pool)
    assert copy.copy(loader).pool is copy.deepcopy(loader).pool is pool


def test_pickled_loaders_share_a_pool_of_the_same_size(train_set, pool):
    loaders = [pooled(train_set, pool), pooled(train_set, pool)]
    first, second = pickle.loads(pickle.dumps(loaders))
    assert first.pool is second.pool is not pool
    assert first.num_workers == first.pool.num_workers == WORKERS
    with first.pool:
        assert same_batches(alone(train_set), list(first))


def test_a_loader_can_be_made_again_from_its_attributes(train_set, pool):
    loader = pooled(train_set, pool)
    again = FusionLoader(
        train_set, 4, num_workers=loader.num_workers, pool=loader.pool, seed=loader.seed,
        multiprocessing_context=loader.multiprocessing_context,
    )  # fmt: skip
    assert same_batches(alone(train_set), list(again))


# ---- bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, -1, 1.5, None, True, "2"])
def test_what_is_no_number_of_workers_is_refused(size):
    with pytest.raises(ValueError, match="a WorkerPool has a positive int of workers"):
        WorkerPool(size)


def test_what_is_no_pool_is_refused(train_set):
    with pytest.raises(ValueError, match="pool should be a WorkerPool or None, not 2"):
        FusionLoader(train_set, pool=2)


def test_another_number_of_workers_than_the_pools_is_refused(train_set, pool):
    with pytest.raises(ValueError, match="num_workers is 3, and the pool has 2 workers"):
        FusionLoader(train_set, num_workers=3, pool=pool)
    assert FusionLoader(train_set, num_workers=2, pool=pool).num_workers == 2


def test_so_is_one_that_is_set_later(train_set, pool):
    loader = pooled(train_set, pool)
    loader.num_workers = 3
    with pytest.raises(ValueError, match="num_workers is 3, and the pool has 2 workers"):
        iter(loader)


@pytest.mark.parametrize("context", ["thread", 3, torch])
def test_what_is_no_way_to_start_processes_is_refused(context):
    with pytest.raises(ValueError, match=r"context"):
        WorkerPool(2, multiprocessing_context=context)


def test_a_context_beside_a_pool_is_refused(train_set, pool):
    with pytest.raises(ValueError, match="give multiprocessing_context to the WorkerPool"):
        FusionLoader(train_set, pool=pool, multiprocessing_context="fork")


def test_the_number_of_a_pools_workers_does_not_change(train_set, pool):
    with pytest.raises(ValueError, match="those of a pool, whose number does not change"):
        pooled(train_set, pool).resize_workers(3)


def _collate(samples):
    return samples


def test_a_stream_is_told_to_have_its_own_workers(pool):
    loader = FusionLoader(Stream(), 4, pool=pool)
    with pytest.raises(ValueError, match=r"IterableDataset.*num_workers=\.\.\. instead of pool"):
        iter(loader)


class Named(Noise):
    def __getitem__(self, index):
        return f"sample {index}", torch.rand(()).item()


@pytest.mark.parametrize("options", [{}, {"collate_fn": _collate}], ids=["default", "own"])
def test_a_pool_makes_whole_batches_beside_samples(pool, options):
    others = iter(pooled(Noise(), pool))
    loader = pooled(Named(), pool, **options)
    assert same_batches(alone(Named(), **options), list(loader))
    assert "2 workers of a pool make whole batches" in loader.explain()
    assert same_batches(alone(Noise()), list(others))


class Large(Noise):
    def __getitem__(self, index):
        return torch.full((300, 400), index + 1)


_kept: list[torch.Tensor] = []


def _keeping(samples):
    zeros = sum(each.eq(0).any().item() for each in _kept)
    _kept.append(torch.stack(samples))
    return _kept[-1], zeros, len(_kept)


def test_what_a_collate_function_keeps_stays_when_its_loader_ends(pool):
    for _ in range(2):
        found = [batch[1:] for batch in pooled(Large(), pool, collate_fn=_keeping)]
    assert max(kept for _, kept in found) > len(found) // 2 and not any(n for n, _ in found)


class Photographs(Dataset):
    """Grey images, opened in whole batches; their tensors are kept."""

    def __init__(self, path):
        self.path = str(path)
        self.transform = transforms.Compose([transforms.CenterCrop(224), transforms.ToTensor()])

    def __len__(self):
        return 64

    def __getitems__(self, indices):
        zeros = sum(each.eq(0).any().item() for each in _kept)
        made = [self.transform(Image.open(self.path).convert("RGB")) for _ in indices]
        _kept.extend(made)
        return [(each, zeros) for each in made]


def test_tensors_of_images_that_a_dataset_keeps_stay_when_its_loader_ends(pool, tmp_path):
    Image.new("RGB", (256, 256), (90, 120, 150)).save(tmp_path / "grey.jpg")
    for _ in range(2):
        loader = pooled(Photographs(tmp_path / "grey.jpg"), pool, deferred_images="auto")
        assert not any(zeros.any() for _, zeros in loader)
        assert loader.stats().deferred_images["files"] == 64
        loader.close()
        del loader


def test_a_dataset_that_cannot_be_pickled_is_named(pool):
    dataset = Noise()
    dataset.function = lambda: None
    with pytest.raises(
        pickle.PicklingError, match=r"dataset\.function cannot be sent to the workers of"
    ):
        iter(pooled(dataset, pool))


def test_a_lock_in_a_dataset_is_named(pool):
    dataset = Noise()
    dataset.lock = torch.multiprocessing.get_context("fork").Lock()
    with pytest.raises(
        pickle.PicklingError, match=r"dataset\.lock.* cannot be sent to the workers of a Work"
    ):
        iter(pooled(dataset, pool))


FORKED = """
import atexit, os, sys
pipe = os.pipe()
atexit.register(lambda: os.write(1, b"open" if is_open(number) else b"closed"))
from fusionloader.sharing.pool.pool_processes import Payload

def is_open(fd):
    try:
        return bool(os.fstat(fd))
    except OSError:
        return False

payload = Payload(None, {}, False)
number = payload.fds["config_fd"]
if os.fork() == 0:
    os.dup2(pipe[0], number)  # another file, as in a daemon that closes all files first
    sys.exit()
os.wait()
os._exit(0)
"""


def test_a_forked_child_closes_no_other_file_at_its_exit():
    done = warm_start.completed("-c", FORKED)
    assert (done.stdout, done.stderr) == ("open", "")
