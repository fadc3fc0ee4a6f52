"""FusionLoader yields what DataLoader yields."""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from support import warm_start
from support.batches import equal, same_batches
from support.datasets import MadeRows, Nested, Random, Words
from support.waiting import wait_until
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Subset,
    WeightedRandomSampler,
    get_worker_info,
)

from fusionloader import FusionLoader


class Growing(Dataset):
    """Samples of the first mini-batch have one shape, later ones another."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return torch.full((3 if index < 4 else 5,), index)


class Unreadable(NamedTuple):
    number: int

    def __iter__(self):
        raise ValueError("no parts")


class OfUnreadable(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return Unreadable(index)


class Counting(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        yield from range(info.id, 20, info.num_workers)


class WithInfo(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        info = get_worker_info()
        return torch.tensor([info.id, info.num_workers, int(info.dataset is self)])


class Pairs(Dataset):
    """Indices are tuples, as some samplers of timm make them."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return torch.tensor(index)


def both(dataset, **arguments):
    loaders = []
    for kind in (DataLoader, FusionLoader):
        generator = torch.Generator().manual_seed(7)
        loaders.append(kind(dataset, generator=generator, **arguments))
    return loaders


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("dataset", [Nested(), Words()], ids=["fixed", "strings"])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.few(2)
def test_batches_are_those_of_dataloader(dataset, workers, drop_last):
    theirs, ours = both(
        dataset, batch_size=4, shuffle=True, num_workers=workers, drop_last=drop_last
    )
    assert len(theirs) == len(ours)
    for _ in range(2):
        assert same_batches(theirs, ours)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_every_start_method_works(method):
    dataset, given = MadeRows(torch.arange(30.0)), {"batch_size": 8, "shuffle": True}
    theirs, _ = both(dataset, **given)
    _, ours = both(dataset, **given, num_workers=1, multiprocessing_context=method)
    assert same_batches(theirs, ours)


UNGUARDED = """
import sys
from PIL import Image
from torchvision.datasets import ImageFolder
from torchvision.transforms import Compose, Resize, ToTensor
from fusionloader import FusionLoader

plan = ImageFolder(sys.argv[1], Compose([Resize((8, 8)), ToTensor()]))
list(FusionLoader(plan, 1, num_workers=1, multiprocessing_context=sys.argv[2]))
print("trained", flush=True)
list(FusionLoader(range(4), 1, num_workers=1, multiprocessing_context=sys.argv[2]))
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.few(1)
def test_a_script_without_a_guard_does_not_train_in_its_workers(method, image_folder, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(UNGUARDED)
    done = warm_start.completed(script, image_folder, method)
    assert done.returncode != 0
    assert done.stdout.split() == ["trained"]
    assert "if __name__ == '__main__':" in done.stderr


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_compiled_folder_has_the_pixels_of_torchvision(eval_set, method):
    theirs = DataLoader(eval_set, 6)
    ours = FusionLoader(eval_set, 6, num_workers=2, multiprocessing_context=method)
    assert "python" not in ours.explain()
    assert same_batches(theirs, ours)


def test_a_subset_of_a_folder_is_compiled(eval_set):
    subset = Subset(eval_set, [5, 3, 30, 31, 32, 2])
    ours = FusionLoader(subset, 4, num_workers=2)
    assert "Subset" not in ours.explain()
    assert same_batches(DataLoader(subset, 4), ours)


def test_what_follows_an_unknown_transform_runs_in_python(image_folder):
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    steps = [
        transforms.Resize(40),
        transforms.CenterCrop(32),
        transforms.Lambda(_invert),
        transforms.ToTensor(),
    ]
    dataset = ImageFolder(str(image_folder), transforms.Compose(steps))
    ours = FusionLoader(dataset, 6, num_workers=2)
    assert "Lambda" in ours.explain() and "python" in ours.explain()
    assert same_batches(DataLoader(dataset, 6), ours)


def _invert(image):
    from PIL import ImageOps

    return ImageOps.invert(image)


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_random_pixels_do_not_depend_on_the_workers(train_set, workers):
    reference = list(FusionLoader(train_set, 8, num_workers=2, seed=3))
    again = FusionLoader(train_set, 8, num_workers=workers, seed=3, tiny_batch_size=3)
    assert same_batches(reference, again)


def test_own_options_take_numbers_of_numpy(train_set):
    given = {"tiny_batch_size": 4, "seed": 3, "max_shared_bytes": 1 << 30}
    theirs = {name: np.int64(value) for name, value in given.items()}
    reference = FusionLoader(train_set, 8, num_workers=1, **given)
    assert same_batches(reference, FusionLoader(train_set, 8, num_workers=1, **theirs))


@pytest.mark.parametrize("size", [0, 2**31, 2**32 - 1])
def test_tiny_batches_that_cannot_be_counted_are_refused(eval_set, size):
    with pytest.raises(ValueError, match="tiny_batch_size should be a positive int below"):
        FusionLoader(eval_set, 8, num_workers=1, tiny_batch_size=size)


def test_epochs_differ_and_a_set_epoch_comes_again(train_set):
    loader = FusionLoader(train_set, 8, num_workers=2, seed=3)
    first, second = list(loader), list(loader)
    assert not equal(first, second)
    loader.set_epoch(0)
    assert same_batches(first, loader)


def test_a_repeated_index_gets_other_draws(train_set):
    loader = FusionLoader(train_set, batch_sampler=[[4, 4, 4], [4]], num_workers=2, seed=3)
    images = torch.cat([images for images, _ in loader])
    assert len({image.numpy().tobytes() for image in images}) == 4


def test_changing_shapes_are_collated_all_the_same():
    sampler = BatchSampler(range(12), 4, False)
    theirs = DataLoader(Growing(), batch_sampler=sampler)
    ours = FusionLoader(Growing(), batch_sampler=sampler, num_workers=2)
    assert same_batches(theirs, ours)


class Turned(Dataset):
    """Dicts whose keys are in another order from the fourth on."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        inner = {"c": torch.tensor(index), "d": index}
        turned = dict(reversed(inner.items())) if index > 2 else inner
        sample = {"a": torch.tensor(index), "b": turned}
        return dict(reversed(sample.items())) if index > 2 else sample


def test_a_batch_of_dicts_has_the_order_of_its_first_sample():
    theirs, ours = both(Turned(), batch_size=2, num_workers=1)
    assert same_batches(theirs, ours)
    orders = [[(list(batch), list(batch["b"])) for batch in each] for each in (theirs, ours)]
    assert orders[0] == orders[1]


def test_shapes_that_differ_in_a_batch_are_the_error_of_collate():
    with pytest.raises(RuntimeError, match="equal size"):
        list(FusionLoader(Growing(), batch_size=6, num_workers=2))


def test_a_sample_whose_parts_raise_is_the_error_of_collate():
    for loader in (DataLoader, FusionLoader):
        with pytest.raises(ValueError, match="no parts"):
            list(loader(OfUnreadable(), batch_size=2, num_workers=1))


def test_indices_are_passed_on_as_they_are():
    batches = [[(0, 1), (2, 3)], [(4, 5)]]
    ours = FusionLoader(Pairs(), batch_sampler=batches, num_workers=2)
    assert [batch.tolist() for batch in ours] == [[[0, 1], [2, 3]], [[4, 5]]]


def test_iterable_datasets_and_no_batching_work():
    ours = FusionLoader(Counting(), batch_size=5, num_workers=2)
    theirs = DataLoader(Counting(), batch_size=5, num_workers=2)
    assert same_batches(theirs, ours)
    single = FusionLoader(Nested(), batch_size=None, num_workers=2)
    assert same_batches(DataLoader(Nested(), batch_size=None), single)


def test_worker_info_is_there():
    rows = torch.cat(list(FusionLoader(WithInfo(), 2, num_workers=2)))
    assert set(rows[:, 0].tolist()) <= {0, 1}
    assert rows[:, 1:].unique(dim=0).tolist() == [[2, 1]]


def _write_info(path, number):
    info = get_worker_info()
    (path / f"{info.id}").write_text(f"{number} {info.num_workers} {len(info.dataset)}")


@pytest.mark.parametrize("kind", ["compiled", "objects"])
def test_worker_init_fn_runs_in_every_worker(tmp_path, train_set, kind):
    import functools

    dataset = train_set if kind == "compiled" else Nested()
    expected = {str(n): f"{n} 2 {len(dataset)}" for n in range(2)}
    init = functools.partial(_write_info, tmp_path)
    with FusionLoader(
        dataset, 4, num_workers=2, worker_init_fn=init, persistent_workers=True
    ) as loader:
        list(loader)  # one of them may have made it all
        wait_until(lambda: {p.name: p.read_text() for p in tmp_path.iterdir()} == expected)


def _refuse(number):
    raise OSError("no licence for this worker")


def test_an_error_of_worker_init_fn_arrives():
    with pytest.raises(OSError, match="no licence for this worker"):
        next(iter(FusionLoader(Nested(), 4, num_workers=2, worker_init_fn=_refuse)))


def test_delivered_batches_are_never_overwritten(train_set):
    loader = FusionLoader(train_set, 2, num_workers=2, seed=5, prefetch_factor=2)
    copies = [(images.clone(), targets.clone()) for images, targets in loader]
    loader.set_epoch(0)
    kept = list(loader)
    del loader
    for (images, targets), (kept_images, kept_targets) in zip(copies, kept, strict=True):
        assert torch.equal(images, kept_images) and torch.equal(targets, kept_targets)
    kept[0][0].zero_()
    assert torch.equal(kept[1][0], copies[1][0])


def test_weighted_sampling_with_replacement_matches_dataloader():
    weights = torch.arange(1.0, 24.0)
    batches = []
    for kind in (DataLoader, FusionLoader):
        sampler = WeightedRandomSampler(weights, 30, generator=torch.Generator().manual_seed(1))
        batches.append(list(kind(Nested(), 7, sampler=sampler, num_workers=2)))
    assert same_batches(*batches)


def test_out_of_order_delivery_loses_nothing():
    loader = FusionLoader(Nested(), 2, num_workers=3, in_order=False)
    seen = torch.cat([batch["numbers"][0] for batch in loader])
    assert sorted(seen.tolist()) == list(range(23))


def test_two_loaders_and_nested_iterators_do_not_meet(train_set):
    loader = FusionLoader(Nested(), 4, num_workers=2)
    expected = list(loader)
    for (outer, inner), batch in zip(zip(loader, loader, strict=True), expected, strict=True):
        assert equal(outer, batch) and equal(inner, batch)
    other = FusionLoader(train_set, 8, num_workers=2)
    assert sum(1 for _ in zip(other, loader, strict=False)) == 5


def test_persistent_workers_serve_epoch_after_epoch():
    loader = FusionLoader(Random(), 8, num_workers=2, persistent_workers=True, seed=2)
    first = list(loader)
    pids = [process.pid for process in loader._iterator._workers]
    second = list(loader)
    assert [process.pid for process in loader._iterator._workers] == pids
    plain = FusionLoader(Random(), 8, num_workers=1, seed=2)
    assert same_batches(first, plain) and same_batches(second, plain)
    loader.close()


def test_reiterating_before_the_end_begins_a_new_epoch():
    loader = FusionLoader(Nested(), 4, num_workers=2, persistent_workers=True)
    next(iter(loader))
    assert same_batches(DataLoader(Nested(), 4), loader)
    loader.close()


def test_an_epoch_set_on_the_sampler_after_iter_is_honoured():
    from torch.utils.data.distributed import DistributedSampler

    def sampler():
        return DistributedSampler(Nested(), num_replicas=1, rank=0, shuffle=True, seed=3)

    late, early = sampler(), sampler()
    iterator = iter(FusionLoader(Nested(), 4, sampler=late, num_workers=2))
    late.set_epoch(5)
    early.set_epoch(5)
    assert same_batches(DataLoader(Nested(), 4, sampler=early), iterator)


def test_random_sampler_order_follows_the_global_generator():
    torch.manual_seed(11)
    theirs = list(DataLoader(Nested(), 4, sampler=RandomSampler(Nested()), num_workers=2))
    torch.manual_seed(11)
    assert same_batches(
        theirs, FusionLoader(Nested(), 4, sampler=RandomSampler(Nested()), num_workers=2)
    )
