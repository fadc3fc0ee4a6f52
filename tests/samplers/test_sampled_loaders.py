"""FusionLoader with batch samplers: torch's batches, exact resume, other ranks."""

import json
from collections import Counter

import numpy as np
import pytest
import torch
from support.batches import same_batches
from support.datasets import Numbers
from support.images import photo
from torch.utils.data import ConcatDataset, DataLoader, Subset
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader
from fusionloader.data.samplers import BucketSampler, MixSampler, image_sizes

SHAPES = [(64, 96), (96, 64), (64, 64), (120, 60)]


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """48 images of four aspect ratios, of several sizes each."""
    root = tmp_path_factory.mktemp("photos")
    generator = np.random.default_rng(0)
    for number in range(48):
        folder = root / f"class{number % 3}"
        folder.mkdir(exist_ok=True)
        width, height = (side * (1 + number % 2) for side in SHAPES[number % 4])
        photo(generator, width, height).save(folder / f"{number:03}.jpg")
    return str(root)


def folder(photos, *steps):
    return ImageFolder(photos, transforms.Compose([*steps, transforms.ToTensor()]))


def by_ratio(sizes, **its):
    return BucketSampler(sizes, batch_size=5, boundaries=[0.8, 1.2, 1.8], seed=1, **its)


def test_sizes_are_read_from_headers_in_the_order_of_indices(photos):
    dataset = folder(photos)
    sizes = image_sizes(dataset)
    assert sizes.shape == (48, 2)
    assert sizes.tolist() == [list(dataset.loader(path).size) for path, _ in dataset.samples]
    part = Subset(dataset, [40, 3, 7])
    assert image_sizes(part, threads=1).tolist() == sizes[[40, 3, 7]].tolist()
    assert image_sizes([path for path, _ in dataset.samples[:2]]).tolist() == sizes[:2].tolist()


def test_sizes_are_read_without_decoding(photos, tmp_path):
    path, _ = folder(photos).samples[0]
    with open(path, "rb") as file:
        (tmp_path / "cut.jpg").write_bytes(file.read(800))  # its header and little more
    assert image_sizes([tmp_path / "cut.jpg"]).tolist() == image_sizes([path]).tolist()


def test_what_is_no_image_is_named(tmp_path):
    (tmp_path / "notes.txt").write_text("no image")
    with pytest.raises(ValueError, match=r"sample 0 .*notes.txt. is no image that Pillow knows"):
        image_sizes([tmp_path / "notes.txt"])
    with pytest.raises(FileNotFoundError, match="gone.jpg"):
        image_sizes([tmp_path / "gone.jpg"])
    with pytest.raises(TypeError, match="a Numbers does not name its files"):
        image_sizes(Numbers())


def test_batches_of_images_are_those_of_torchs_loader(photos):
    dataset = folder(photos, transforms.Resize((40, 40)))
    sizes = image_sizes(dataset)
    torchs = DataLoader(dataset, batch_sampler=by_ratio(sizes), num_workers=2)
    with FusionLoader(dataset, batch_sampler=by_ratio(sizes), num_workers=2) as loader:
        assert len(loader) == len(torchs)
        assert "BucketSampler: 12 batches an epoch from 4 buckets" in loader.explain()
        for _ in range(2):
            assert same_batches(list(torchs), list(loader))
        torchs.batch_sampler.set_epoch(7)
        loader.set_epoch(7)
        assert same_batches(list(torchs), list(loader))


@pytest.mark.few(1)
@pytest.mark.parametrize("taken", [0, 1, 5, 12])
def test_images_of_mixed_ratios_are_resumed_bit_for_bit(photos, taken):
    dataset = folder(photos, transforms.RandomResizedCrop(32), transforms.RandomHorizontalFlip())
    sizes = image_sizes(dataset)

    def make(workers):
        return FusionLoader(dataset, batch_sampler=by_ratio(sizes), num_workers=workers, seed=3)

    with make(2) as loader:
        list(loader)  # the second epoch is interrupted
        iterator = iter(loader)
        for _ in range(taken):
            next(iterator)
        state = json.loads(json.dumps(loader.state_dict()))
        expected, following = list(iterator), list(loader)
    for workers in (0, 2):
        with make(workers) as again:
            again.load_state_dict(state)
            assert same_batches(expected, list(again))
            assert same_batches(following, list(again))


def test_a_state_after_the_last_batch_leads_to_the_next_epoch():
    def make():
        return FusionLoader(Numbers(40), batch_sampler=BucketSampler(range(40), batch_size=7))

    loader = make()
    list(loader)
    state = loader.state_dict()
    again = make()
    again.load_state_dict(state)
    assert same_batches(list(loader), list(again))


class Draws(Numbers):
    """Each sample has its random draws."""

    def __getitem__(self, index):
        return torch.tensor([index, int(torch.randint(1 << 40, ()))])


@pytest.mark.parametrize("workers", [1, 2])
def test_repeats_of_an_exhausted_source_are_drawn_anew_and_resumed_so(workers):
    def make():
        mix = MixSampler([4, 30], [1, 1], batch_size=6, stop="all_exhausted")
        return FusionLoader(
            ConcatDataset([Draws(4), Draws(30)]), batch_sampler=mix, num_workers=workers, seed=1
        )

    loader = make()
    iterator = iter(loader)
    begun = [next(iterator) for _ in range(4)]
    state = loader.state_dict()
    expected = list(iterator)
    again = make()
    again.load_state_dict(state)
    assert same_batches(expected, list(again))
    drawn = [int(draw) for batch in [*begun, *expected] for _, draw in batch]
    assert len(set(drawn)) == len(drawn)


def rank_loader(ranks, rank, lengths, **its):
    sampler = BucketSampler(lengths, max_tokens=60, num_replicas=ranks, rank=rank, seed=4)
    return FusionLoader(Numbers(len(lengths)), batch_sampler=sampler, seed=0, **its)


@pytest.mark.parametrize("all_states", [True, False])
def test_other_ranks_go_on_with_the_batches_that_are_left(all_states):
    lengths = np.random.default_rng(0).integers(1, 20, 120)
    whole = [batch.tolist() for batch in rank_loader(1, 0, lengths)]
    taken, states = [], []
    for rank in range(3):
        loader = rank_loader(3, rank, lengths, num_workers=2 * (rank == 0))
        iterator = iter(loader)
        taken += [next(iterator).tolist() for _ in range(3)]
        states.append(loader.state_dict())
        del iterator
    with pytest.raises(ValueError, match='world_size = 3.*ranks="reshard"'):
        rank_loader(2, 0, lengths).load_state_dict(states[0])
    shared, again = [], []
    for rank in range(2):
        loader = rank_loader(2, rank, lengths)
        loader.load_state_dict(states if all_states else states[1], ranks="reshard")
        iterator = iter(loader)
        shared.append([next(iterator).tolist()])
        state = loader.state_dict()
        shared[rank] += [batch.tolist() for batch in iterator]
        resumed = rank_loader(2, rank, lengths)
        resumed.load_state_dict(state)
        again.append([*shared[rank][:1], *(batch.tolist() for batch in resumed)])
    assert again == shared
    assert len(shared[0]) == len(shared[1]) == -(-(len(whole) - 9) // 2)
    found = Counter(tuple(batch) for batch in [*taken, *shared[0], *shared[1]])
    assert found.keys() == {tuple(batch) for batch in whole}
    assert found.total() - len(whole) == (len(whole) - 9) % 2  # the first one again


def test_ranks_that_delivered_other_numbers_of_batches_are_not_resharded():
    lengths = list(range(1, 30))
    states = []
    for rank in range(2):
        loader = rank_loader(2, rank, lengths)
        iterator = iter(loader)
        for _ in range(1 + rank):
            next(iterator)
        states.append(loader.state_dict())
    with pytest.raises(ValueError, match="do not stand at the same batch"):
        rank_loader(3, 0, lengths).load_state_dict(states, ranks="reshard")


class Pairs:
    """A user's batch sampler: ranks take turns with pairs of numbers; it merges its states."""

    def __init__(self, ranks, rank):
        self.ranks, self.rank, self.taken = ranks, rank, 0

    def __iter__(self):
        while self.taken < 40:
            first = 2 * (self.taken + self.rank)
            self.taken += self.ranks
            yield [first, first + 1]

    def __len__(self):
        return 40 // self.ranks

    def state_dict(self):
        return {"taken": self.taken}

    def load_state_dict(self, state):
        self.taken = state["taken"]

    def merge_states(self, states):
        assert len({state["taken"] for state in states}) == 1
        return states[0]


def test_a_sampler_of_the_user_shares_what_is_left_by_its_own_merge_states():
    def make(ranks, rank):
        sampler = Pairs(ranks, rank)
        return FusionLoader(Numbers(80), batch_sampler=sampler, num_workers=rank % 2)

    found, states = [], []
    for rank in range(2):
        loader = make(2, rank)
        iterator = iter(loader)
        found += [next(iterator).tolist() for _ in range(6)]
        states.append(loader.state_dict())
    for rank in range(4):
        loader = make(4, rank)
        loader.load_state_dict(states, ranks="reshard")
        found += [batch.tolist() for batch in loader]
    assert sorted(found) == [[number, number + 1] for number in range(0, 80, 2)]


def test_nothing_left_to_other_ranks_is_an_empty_pass_and_not_the_next_epoch():
    lengths = list(range(1, 30))
    loader = rank_loader(1, 0, lengths)
    iterator = iter(loader)
    for _ in range(len(loader)):
        next(iterator)
    state = loader.state_dict()
    for rank in range(2):
        other = rank_loader(2, rank, lengths)
        other.load_state_dict([state], ranks="reshard")
        assert list(other) == []
        assert len(list(other)) == -(-len(loader) // 2)
