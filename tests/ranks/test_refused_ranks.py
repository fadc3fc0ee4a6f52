"""States that cannot be resharded are refused by name."""

import pytest
from support.datasets import Counting, Numbers, Stream
from test_other_ranks import begin, loader_of
from torch.utils.data.distributed import DistributedSampler

from fusionloader import FusionLoader


def refused(loader, state, message):
    with pytest.raises(ValueError, match=message):
        loader.load_state_dict(state, ranks="reshard")


def test_without_the_option_another_number_of_ranks_is_refused_and_the_option_named():
    dataset = Numbers()
    state = begin(loader_of(dataset, 2, 0), 1)[1]
    with pytest.raises(ValueError, match='world_size = 2.*3.*ranks="reshard"'):
        loader_of(dataset, 3, 0).load_state_dict(state)
    with pytest.raises(ValueError, match='batch_size = 3.*4.*ranks="reshard"'):
        loader_of(dataset, 2, 0, batch_size=4).load_state_dict(state)
    with pytest.raises(ValueError, match='several ranks.*ranks="reshard"'):
        loader_of(dataset, 2, 0).load_state_dict([state])
    with pytest.raises(ValueError, match="ranks should be one of"):
        loader_of(dataset, 2, 0).load_state_dict(state, ranks="any")


def test_states_of_other_orders_or_datasets_are_refused():
    dataset = Numbers()
    state = begin(loader_of(dataset, 2, 0), 1)[1]
    refused(loader_of(dataset, 3, 0, sampling={"seed": 1}), state, "seed = 0.*has 1")
    refused(
        loader_of(dataset, 3, 0, sampling={"shuffle": False}), state, "shuffle = True.*has False"
    )
    refused(loader_of(Numbers(25), 3, 0), state, "dataset_size")
    refused(FusionLoader(dataset, 4, shuffle=True), state, "DistributedSampler.*has none")
    refused(FusionLoader(dataset, 4, sampler=Counting()), state, "DistributedSampler.*has none")
    of_one = begin(FusionLoader(dataset, 4, shuffle=True), 1)[1]
    refused(loader_of(dataset, 3, 0), of_one, "by a loader that had none")
    refused(loader_of(dataset, 3, 0), [], "list is empty")
    refused(loader_of(dataset, 3, 0), [{"epoch": 3}], "version")


def test_an_epoch_of_another_order_is_refused_where_ranks_are_the_same_too():
    dataset = Numbers()
    state = begin(loader_of(dataset, 3, 0), 1)[1]
    for name, value in {"seed": 7, "shuffle": False}.items():
        other = loader_of(dataset, 3, 0, sampling={name: value})
        refused(other, state, f"Sampler of {name} = .* has {value}")
        with pytest.raises(ValueError, match=f"Sampler of {name} = .* has {value}"):
            other.load_state_dict(state)
    finished = loader_of(dataset, 3, 0)
    list(finished)
    other.load_state_dict(finished.state_dict())
    assert len(list(other)) == len(finished)


@pytest.mark.parametrize("states", [None, 3, "state"])
def test_what_is_neither_a_state_nor_a_list_of_them_is_refused(states):
    refused(loader_of(Numbers(), 3, 0), states, "a list with those of all ranks, not a")


class Shuffled(DistributedSampler):
    def __iter__(self):
        return reversed(list(super().__iter__()))


def test_a_custom_distributed_sampler_is_refused():
    dataset = Numbers()
    state = begin(loader_of(dataset, 2, 0), 1)[1]
    loader = FusionLoader(dataset, 3, sampler=Shuffled(dataset, 3, 0))
    refused(loader, state, "DistributedSampler.*has none")


def test_states_that_do_not_belong_together_are_refused():
    dataset = Numbers()
    first, second = (begin(loader_of(dataset, 3, rank), 1)[1] for rank in range(2))
    refused(loader_of(dataset, 2, 0), [first, second], r"ranks \[0, 1\].*there were 3")
    later = begin(loader_of(dataset, 3, 2, sampling={"epoch": 1}), 1)[1]
    refused(loader_of(dataset, 2, 0), [first, second, later], "not of one epoch")
    finished = loader_of(dataset, 3, 2)
    list(finished)
    states = [first, second, finished.state_dict()]
    refused(loader_of(dataset, 2, 0), states, "not of one epoch")


class Remembering(Numbers):
    def state_dict(self):
        return {"size": self.size}

    def load_state_dict(self, state):
        self.size = state["size"]


def test_stateful_datasets_are_refused():
    dataset = Remembering()
    state = begin(loader_of(dataset, 2, 0), 1)[1]
    refused(loader_of(dataset, 3, 0), state, "keeps a state in every worker")
    stream = FusionLoader(Stream([9]), 2)
    next(iter(stream))
    refused(FusionLoader(Stream([9]), 3), stream.state_dict(), "keeps a state in every worker")
