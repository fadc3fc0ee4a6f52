"""A loader that begins an epoch while it holds another one, or the same: it has both as alone."""

import contextlib

import pytest
from jobs import alone, digest, make_loader
from support.raised_at import CALLS, Steps, sampled

UNSHUFFLED = {"shuffle": False}
WATCHED = "sharing/jobs", "engine/iterators/slot_iterator.py"


def take(iterator, count):
    return [digest(next(iterator)) for _ in range(count)]


def test_two_iterators_of_a_loader_deliver_their_own_epochs(word, train_set):
    expected = alone(train_set, epochs=3, **UNSHUFFLED)
    loader = make_loader(train_set, word, UNSHUFFLED)
    first = iter(loader)
    found = take(first, 1)
    second = iter(loader)
    assert take(second, 1) == expected[1][:1]
    assert found + take(first, 3) == expected[0][:4]
    assert take(second, 4) == expected[1][1:5]
    assert [digest(batch) for batch in first] == expected[0][4:]  # whose end is not the other's
    assert next(first, None) is None
    assert [digest(batch) for batch in second] == expected[1][5:]
    assert [digest(batch) for batch in loader] == expected[2]
    shared = loader.stats().shared_prep
    assert (shared.alone_batches, shared.outside_batches) == (21, 0)  # without what the first had
    loader.close()


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("held", ["batches", "iterators", "nothing"])
@pytest.mark.few(3)
def test_an_epoch_may_be_begun_again(word, train_set, shuffle, held):
    found = []
    for share in (None, word):
        loader, kept = make_loader(train_set, share, {"shuffle": shuffle}), []
        for count in (2, 3, 10):
            loader.set_epoch(0)
            iterator = iter(loader)
            batches = [next(iterator) for _ in range(count)]
            found.append([digest(batch) for batch in batches])
            kept.append({"batches": batches, "iterators": iterator, "nothing": None}[held])
            del iterator, batches
        loader.close()
    assert found[3:] == found[:3]


# An exception in a callback of the interpreter, as before a fork, cannot reach training.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("most", [4, pytest.param(80, marks=pytest.mark.matrix)])
@pytest.mark.parametrize("where", ["begin", "notice"])
def test_an_exception_between_two_iterators_loses_no_batch(word, train_set, where, most):
    """Either the newer one is interrupted while it begins, or the older one as it notices that."""
    loader, epochs = make_loader(train_set, word, UNSHUFFLED), []

    def begin():
        loader.set_epoch(len(epochs))
        epochs.append([])
        return iter(loader), epochs[-1]

    def step(iterator, found):
        found += take(iterator, 1)

    def interrupted(position):
        steps = Steps(*WATCHED, events=(*CALLS, "c_return"))
        older, newer = begin(), None
        step(*older)
        with contextlib.suppress(KeyboardInterrupt):
            if where == "begin":
                newer = steps.raise_at(position, KeyboardInterrupt(), begin)
        newer = newer or begin()
        step(*newer)
        with contextlib.suppress(KeyboardInterrupt):
            if where == "notice":
                steps.raise_at(position, KeyboardInterrupt(), lambda: step(*older))
        for iterator, found in (newer, older):
            step(iterator, found)
            found += map(digest, iterator)
        return steps

    positions = sampled(interrupted(-1).made, most, seed=0)
    places = [interrupted(position).place for position in positions]
    loader.close()
    expected = alone(train_set, len(epochs), **UNSHUFFLED)
    assert [epoch or right for epoch, right in zip(epochs, expected, strict=True)] == expected, (
        places
    )
