"""Loaders over a stream: saved in mid-shard, resumed by as many ranks or others."""

from __future__ import annotations

import itertools
import json
import random

import pytest
from support.campaigns import examples
from support.images import eval_transform
from support.tar_shards import image_shards

from fusionloader import FusionLoader
from fusionloader.data.sources import TarStream

COUNTS = (130, 70, 95)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    for name, data in image_shards(COUNTS).items():
        (folder / name).write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        yield TarStream(
            f"file://{folder}/train-{{000..002}}.tar", transform=eval_transform(), shuffle_window=64
        )


def loader_of(images, rank=0, ranks=1, batch_size=16, num_workers=0, epoch=0):
    sampler = images.sampler(seed=5, num_replicas=ranks, rank=rank)
    loader = FusionLoader(images, batch_size=batch_size, sampler=sampler, num_workers=num_workers)
    loader.set_epoch(epoch)
    return loader


def targets_of(batches):
    return [target for _, targets in batches for target in targets.tolist()]


@pytest.mark.few(1)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_goes_on_with_the_very_batches(images, num_workers):
    whole = targets_of(loader_of(images, num_workers=num_workers))
    first = loader_of(images, num_workers=num_workers)
    begun = targets_of(itertools.islice(first, 5))
    state = json.loads(json.dumps(first.state_dict()))
    again = loader_of(images, num_workers=num_workers)
    again.load_state_dict(state)
    assert begun + targets_of(again) == whole
    assert sorted(whole) == list(range(sum(COUNTS)))
    again.set_epoch(1)
    other = targets_of(again)
    assert sorted(other) == sorted(whole) and other != whole


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (4, 2), (2, 8)])
def test_another_number_of_ranks_delivers_what_is_left(images, before, after):
    delivered, states = [], []
    for rank in range(before):
        loader = loader_of(images, rank, before, epoch=1)
        delivered += targets_of(itertools.islice(loader, 2 + rank % 2))
        states.append(loader.state_dict())
    for rank in range(after):
        loader = loader_of(images, rank, after, batch_size=10, epoch=1)
        loader.load_state_dict(states, ranks="reshard")
        share = targets_of(loader)
        delivered += share
    assert sorted(delivered) == list(range(sum(COUNTS)))


@pytest.mark.few(2)
@pytest.mark.parametrize("trial", range(examples(6, 60)))
def test_ranks_that_die_behind_their_last_states_lose_and_repeat_nothing(images, trial):
    """What a rank was given behind its last state is lost with it, and delivered again."""
    chance = random.Random(trial)
    delivered, states = [], None
    while len(delivered) < len(images):
        saved, ranks = [], chance.randint(1, 8)
        for rank in range(ranks):
            loader = loader_of(images, rank, ranks, batch_size=chance.randint(1, 12))
            if states is not None:
                loader.load_state_dict(states, ranks="reshard")
            state, given = loader.state_dict(), []
            for _, batch in zip(range(chance.randint(1, 7)), loader, strict=False):
                given += targets_of([batch])
                if chance.random() < 0.5:
                    state, delivered, given = loader.state_dict(), delivered + given, []
            saved.append(json.loads(json.dumps(state)))
        states = saved
    assert sorted(delivered) == list(range(sum(COUNTS)))


def test_a_rank_with_nothing_left_is_at_its_end(images):
    loader = loader_of(images, batch_size=100)
    assert len(targets_of(itertools.islice(loader, 2))) == 200
    state = loader.state_dict()
    left = []
    for rank in range(8):
        other = loader_of(images, rank, 8, batch_size=100)
        other.load_state_dict([state], ranks="reshard")
        left.append(targets_of(other))
    assert sum(map(len, left)) == 95
    states = []
    for rank in range(8):  # all of them have delivered everything, and are resharded once more
        other = loader_of(images, rank, 8, batch_size=100)
        other.load_state_dict([state], ranks="reshard")
        run = iter(other)
        next(run)
        states.append(other.state_dict())
    last = loader_of(images)
    last.load_state_dict(states, ranks="reshard")
    assert targets_of(last) == []


def test_states_between_epochs_lead_other_ranks_to_a_whole_epoch(images):
    states = []
    for rank in range(3):
        loader = loader_of(images, rank, 3)
        list(loader)
        states.append(loader.state_dict())
    delivered = []
    for rank in range(2):
        loader = loader_of(images, rank, 2)
        loader.load_state_dict(states, ranks="reshard")
        loader.set_epoch(1)
        delivered += targets_of(loader)
    assert sorted(delivered) == list(range(sum(COUNTS)))


def test_a_rank_that_has_not_begun_has_its_whole_share_left(images):
    begun, waiting = (loader_of(images, rank, 2, epoch=1) for rank in range(2))
    delivered = targets_of(itertools.islice(begun, 4))
    states = [waiting.state_dict(), begun.state_dict()]
    for rank in range(3):
        loader = loader_of(images, rank, 3)
        loader.load_state_dict(states, ranks="reshard")
        delivered += targets_of(loader)
    assert sorted(delivered) == list(range(sum(COUNTS)))


def test_one_rank_goes_on_with_the_very_batches_from_a_list_of_its_state(images):
    loader = loader_of(images)
    begun = targets_of(itertools.islice(loader, 3))
    again = loader_of(images)
    again.load_state_dict([loader.state_dict()], ranks="reshard")
    assert begun + targets_of(again) == targets_of(loader_of(images))


def test_a_state_of_another_number_of_ranks_is_refused_with_what_to_do(images):
    loader = loader_of(images, 0, 3)
    next(iter(loader))
    with pytest.raises(ValueError, match='world_size = 3.*ranks="reshard"'):
        loader_of(images, 0, 2).load_state_dict(loader.state_dict())


def test_states_that_are_not_whole_are_refused(images):
    states = []
    for rank in range(3):
        loader = loader_of(images, rank, 3)
        next(iter(loader))
        states.append(loader.state_dict())
    loader = loader_of(images)
    with pytest.raises(ValueError, match="a state of each is needed"):
        loader.load_state_dict(states[:2], ranks="reshard")
