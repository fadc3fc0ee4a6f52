"""What worker_init_fn does to the dataset and to the generators holds, as in DataLoader."""

import random

import numpy as np
import pytest
import torch
from support.batches import same_batches
from torch.utils.data import DataLoader, Dataset, Subset, get_worker_info
from torchvision import transforms as v1

from fusionloader import FusionLoader


def _dataset():
    dataset = get_worker_info().dataset
    return dataset.dataset if isinstance(dataset, Subset) else dataset


def _replace(worker):
    _dataset().transform = v1.Compose([v1.Resize(30), v1.CenterCrop(20), v1.PILToTensor()])


def _alter(worker):
    _dataset().transform.transforms[1].size = (12, 8)


def _to_python(worker):
    _dataset().transform = _thumbnail


def _thumbnail(image):
    return -v1.functional.to_tensor(image.resize((8, 8)))


def _relabel(worker):
    _dataset().target_transform = _half


def _half(target):
    return target / 2


def _shorten(worker):
    _dataset().samples.reverse()


def _only_second(worker):
    if worker == 1:
        _dataset().transform.transforms[2] = _negative


def _negative(image):
    return -v1.functional.to_tensor(image)


CHANGES = [_replace, _alter, _to_python, _relabel, _shorten]


@pytest.mark.parametrize("init", CHANGES)
@pytest.mark.parametrize("subset", [False, True])
@pytest.mark.few(3)
def test_a_dataset_changed_in_the_workers_is_the_one_that_they_read(eval_set, init, subset):
    dataset = Subset(eval_set, range(20)) if subset else eval_set
    given = {"batch_size": 6, "num_workers": 2, "worker_init_fn": init}
    theirs, ours = DataLoader(dataset, **given), FusionLoader(dataset, **given)
    assert "python" not in ours.explain()
    for _ in range(2):
        assert same_batches(theirs, ours)


@pytest.mark.parametrize("method", ["forkserver", pytest.param("spawn", marks=pytest.mark.matrix)])
def test_the_same_with_persistent_workers_that_are_no_forks(eval_set, method):
    given = {"num_workers": 1, "multiprocessing_context": method, "persistent_workers": True}
    with FusionLoader(eval_set, 6, worker_init_fn=_alter, **given) as ours:
        for _ in range(2):
            assert same_batches(DataLoader(eval_set, 6, worker_init_fn=_alter, num_workers=1), ours)


def test_a_change_in_one_worker_only_holds_there(eval_set):
    found = list(FusionLoader(eval_set, 1, num_workers=2, worker_init_fn=_only_second))
    expected = list(DataLoader(eval_set, 1))
    assert len(found) == len(expected)
    assert all(
        targets.equal(other) for (_, targets), (_, other) in zip(found, expected, strict=True)
    )


def test_what_leaves_the_dataset_alone_leaves_the_plan_alone(eval_set):
    loader = FusionLoader(eval_set, 8, num_workers=2, worker_init_fn=_note)
    assert same_batches(DataLoader(eval_set, 8), loader)
    assert loader._iterator_factory._learned.changed_by_init is None


def _note(worker):
    _dataset().opened_by = worker


class Draws(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        return random.random(), np.random.rand(), torch.rand(())


def _seed_numpy(worker):
    np.random.seed(5)


def _seed_python(worker):
    random.seed(5)


def _seed_torch(worker):
    torch.manual_seed(5)


def _seed_all(worker):
    _seed_numpy(worker), _seed_python(worker), _seed_torch(worker)


SEEDS = {_seed_python: [0], _seed_numpy: [1], _seed_torch: [2], _seed_all: [0, 1, 2]}


@pytest.mark.parametrize("init", SEEDS)
def test_generators_that_were_seeded_go_on_from_there_and_others_do_not(init):
    given = {"batch_size": 4, "num_workers": 1, "worker_init_fn": init}
    theirs = list(DataLoader(Draws(), **given))
    first, second = (list(FusionLoader(Draws(), **given, seed=seed)) for seed in (1, 2))
    for number in range(3):
        drawn = [torch.cat([batch[number] for batch in each]) for each in (theirs, first, second)]
        if number in SEEDS[init]:
            assert drawn[0].equal(drawn[1]) and drawn[0].equal(drawn[2])
        else:
            assert not drawn[0].equal(drawn[1]) and not drawn[1].equal(drawn[2])


def _seed_by_the_notes(worker):
    seed = torch.initial_seed() % 2**32
    np.random.seed(seed)
    random.seed(seed)


def _draw(worker):
    random.random(), np.random.rand(3), torch.rand(2)


@pytest.mark.parametrize("init", [_seed_by_the_notes, _draw])
def test_draws_do_not_depend_on_the_workers_where_the_seeds_are_torchs(init):
    expected = list(FusionLoader(Draws(), 4, num_workers=1, seed=3))
    for workers in (1, 2):
        given = {"num_workers": workers, "worker_init_fn": init, "seed": 3}
        assert same_batches(expected, FusionLoader(Draws(), 4, **given))


class LateDraws(Dataset):
    """Samples of which only later ones draw from Python's generator."""

    def __len__(self):
        return 120

    def __getitem__(self, index):
        return random.random() if index >= 80 else 0.0


def _seed_python(worker):
    random.seed(42)


def test_a_generator_that_worker_init_fn_has_seeded_is_left_alone_however_late_it_is_used():
    options = {"batch_size": 8, "num_workers": 1, "worker_init_fn": _seed_python}
    expected = list(DataLoader(LateDraws(), **options))
    assert same_batches(expected, list(FusionLoader(LateDraws(), **options)))
