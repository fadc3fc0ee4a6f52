"""Batches packed and unpacked: the same values, and tensors that share memory still share it."""

import ctypes
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.campaigns import examples
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fusionloader.data.deferred.collating import joining
from fusionloader.data.deferred.counts import uncounted
from fusionloader.transforms.executors import batch_transport
from fusionloader.transforms.executors.batch_transport import (
    BatchReceiver,
    Sender,
    pack_into,
    read_packed,
    unpickled,
)

DTYPES = [torch.float32, torch.uint8, torch.bfloat16, torch.bool, torch.complex64]


@pytest.fixture(scope="module")
def ends():
    receiver = BatchReceiver()
    return Sender(receiver.add_worker(4, 0)), receiver


def received(receiver, packed):
    owner = receiver.view(packed)
    if owner is not None:
        receiver.slots.lease(owner)
    return receiver.batch(packed, owner)


def crossed(ends, batch):
    sender, receiver = ends
    packed = unpickled(sender.pack(batch).pickled_apart())
    return received(receiver, packed)


def crossed_in(memory, batch):
    """The batch through memory of the receiver."""
    pack_into(batch, memoryview(memory).cast("B"))
    return BatchReceiver.batch(read_packed(memory), memory)


@st.composite
def tensors(draw):
    """Some tensors that look into fewer memories, small ones and large ones."""
    made = []
    for _ in range(draw(st.integers(1, 3))):
        dtype, count = draw(st.sampled_from(DTYPES)), draw(st.sampled_from([0, 1, 6, 3000]))
        base = torch.randint(0, 2, (count,)).to(dtype)
        looks = {
            "itself": base,
            "rows": base.reshape(-1, count // 2 or 1),
            "columns": base.reshape(-1, count // 2 or 1).t(),
            "part": base[count // 3 :],
            "first": base[0] if count else base,
            "again": base.expand(2, count),
        }
        kinds = draw(st.lists(st.sampled_from(list(looks)), min_size=1, max_size=4))
        made.append([looks[kind] for kind in kinds])
    return draw(st.permutations([tensor for group in made for tensor in group]))


@settings(max_examples=examples(50, 1000), deadline=None)
@given(batch=tensors(), in_given_memory=st.booleans())
def test_tensors_are_the_same_and_share_what_they_shared(ends, batch, in_given_memory):
    got = crossed_in(room(1 << 20), batch) if in_given_memory else crossed(ends, batch)
    for sent, came in zip(batch, got, strict=True):
        assert (came.dtype, came.shape, came.stride()) == (sent.dtype, sent.shape, sent.stride())
        assert torch.equal(came, sent)
    for first in range(len(batch)):
        for second in range(first):
            shared = [_memory(each[first]) == _memory(each[second]) for each in (batch, got)]
            assert shared[0] == shared[1] or not batch[first].untyped_storage().nbytes()


def room(nbytes):
    return (ctypes.c_char * nbytes)()


@pytest.mark.parametrize("text", ["text", "text" * 50_000], ids=["short", "long"])
def test_a_batch_that_does_not_fit_given_memory_is_refused(text):
    batch = {"a": torch.arange(9000), "b": np.arange(9000), "c": text}
    refused = 0
    for nbytes in range(143_000 + len(text), 146_000 + len(text), 16):
        try:
            got = crossed_in(room(nbytes), batch)
        except ValueError:
            refused += 1
        else:
            break
    assert nbytes > 144_000 + len(text) and refused > 50 and got["c"] == text
    assert torch.equal(got["a"], batch["a"]) and np.array_equal(got["b"], batch["b"])


def test_memory_that_torch_shares_is_copied_for_a_process_that_is_no_relative():
    shared = torch.arange(2000).share_memory_()
    got = crossed_in(room(1 << 16), [shared, shared])
    assert torch.equal(got[0], shared) and not got[0].is_shared()
    assert got[0] is got[1]


def _memory(tensor):
    return tensor.untyped_storage().data_ptr()


@pytest.mark.parametrize("count", [2, 5000])
def test_arrays_and_tensors_over_their_memory_come_by_themselves(ends, count):
    array = np.arange(count, dtype=np.float64)
    found, tensor, view = crossed(ends, [array, torch.from_numpy(array), array[1:]])
    assert np.array_equal(found, array) and np.array_equal(view, array[1:])
    assert torch.equal(tensor, torch.from_numpy(array))
    found[:], tensor[:] = 1, 2  # both can be written to


@pytest.mark.parametrize("count", [20, 5000])
@pytest.mark.parametrize("order", [1, -1])
def test_tensors_over_parts_of_an_array_need_not_be_of_one_storage(ends, count, order):
    array = np.arange(count, dtype=np.float64)
    batch = [torch.from_numpy(array[: count // 2]), torch.from_numpy(array)][::order]
    for sent, came in zip(batch, crossed(ends, batch), strict=True):
        assert torch.equal(sent, came)


def scripted(samples: list[torch.Tensor]):
    return torch.cat(samples) + 1


JOINS = {
    "cat": lambda samples: torch.cat(samples),
    "stack": lambda samples: {"whole": torch.stack(samples), "sizes": torch.tensor([1, 2])},
    "both": lambda samples: [torch.cat(samples), torch.stack(tensors=samples)],
    "used again": lambda samples: (torch.cat([torch.cat(samples), *samples]) * 2).half(),
    "scripted": lambda samples: torch.jit.script(scripted)(samples),
    "columns": lambda samples: torch.cat(samples, dim=-1),
    "given memory": lambda samples: torch.stack(samples, 0, out=torch.empty(4, 300, 40)),
    "types": lambda samples: torch.cat([*samples, samples[0].double()]),
    "small": lambda samples: torch.cat([sample[:2] for sample in samples]),
    "turned": lambda samples: torch.stack([sample.t() for sample in samples]),
    "gradients": lambda samples: torch.stack(
        [sample.requires_grad_() for sample in samples]
    ).detach(),
    "scalars": lambda samples: torch.stack([sample.sum() for sample in samples]),
    "one channel, channels last": lambda samples: torch.cat(
        [sample[None, None].to(memory_format=torch.channels_last) for sample in samples]
    ),
}
IN_PLACE = ("cat", "stack")


@pytest.mark.parametrize("name", JOINS)
def test_tensors_that_a_collate_function_joins_lie_in_the_slot_of_the_batch(name, monkeypatch):
    receiver = BatchReceiver()
    sender = Sender(receiver.add_worker(4, 0))
    cat, copied = torch.cat, []
    copy = batch_transport._copy
    monkeypatch.setattr(
        batch_transport, "_copy", lambda *given: (copied.append(given), copy(*given))
    )
    for seed in range(5):
        samples = list(torch.rand(4, 300, 40, generator=torch.Generator().manual_seed(seed)))
        made = joining(JOINS[name], sender.storage)(samples)
        assert torch.cat is cat
        expected = JOINS[name](samples)
        packed = unpickled(sender.pack(made).pickled_apart())
        got = received(receiver, packed)
        torch.testing.assert_close(got, expected, rtol=0, atol=0, check_stride=True)
    assert name not in IN_PLACE or not copied


class Comparing(torch.Tensor):
    """A class that asks which function it is given."""

    calls: list[bool] = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, function, types, given=(), named=None):
        cls.calls.append(function is torch.cat)
        return super().__torch_function__(function, types, given, named or {})


def compared(samples):
    Comparing.calls.clear()
    torch.cat([sample.as_subclass(Comparing) for sample in samples])
    return list(Comparing.calls)


class Noting(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.called = []

    def __torch_function__(self, function, types, given=(), named=None):
        self.called.append(function.__name__)
        return function(*given, **(named or {}))


class NotingDispatch(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.called = []

    def __torch_dispatch__(self, function, types, given=(), named=None):
        self.called.append(str(function))
        return function(*given, **(named or {}))


def noted(mode, samples):
    with mode:
        torch.cat(samples)
    return mode.called


def traced(samples):
    function = torch.jit.trace(lambda *given: torch.cat(given), tuple(samples), check_trace=False)
    return [node.kind() for node in function.graph.nodes()]


def with_tangents(samples):
    with forward_ad.dual_level():
        joined = torch.cat([forward_ad.make_dual(sample, sample) for sample in samples])
        return forward_ad.unpack_dual(joined).tangent is not None


def compiled(samples):
    calls = []
    torch._dynamo.reset()

    def count(module, _):
        calls.extend(node.op for node in module.graph.nodes)
        return module.forward

    return torch.compile(torch.cat, backend=count, fullgraph=True)(samples).sum().item(), calls


SEEN = {
    "a class compares": compared,
    "a function mode": lambda samples: noted(Noting(), samples),
    "a dispatch mode": lambda samples: noted(NotingDispatch(), samples),
    "a trace": traced,
    "a symbolic trace": lambda samples: str(
        torch.fx.symbolic_trace(lambda x: torch.cat([x])).graph
    ),
    "forward gradients": with_tangents,
    "a transform": lambda samples: (
        torch.func.vmap(lambda x: torch.cat([x, x]))(torch.stack(samples)).shape
    ),
    "a pickle": lambda samples: pickle.loads(pickle.dumps(torch.cat)) is torch.cat,
}


@pytest.mark.parametrize("name", [*SEEN, pytest.param("dynamo", marks=pytest.mark.matrix)])
def test_nothing_of_torch_sees_where_tensors_are_joined(name, monkeypatch):
    monkeypatch.setenv("FUSIONLOADER_STRICT", "1")
    collate = SEEN.get(name, compiled)
    samples = list(torch.rand(4, 300, 400))
    receiver = BatchReceiver()
    sender = Sender(receiver.add_worker(4, 0))
    assert joining(collate, sender.storage)(samples) == collate(samples)


def test_batches_that_a_collate_function_keeps_leave_slots_for_the_next_ones():
    kept, receiver = [], BatchReceiver()
    sender = Sender(receiver.add_worker(6, 0))
    collate = joining(lambda samples: kept.append(torch.stack(samples)) or kept[-1], sender.storage)
    for seed in range(12):
        packed = unpickled(sender.pack(collate([torch.full((300, 400), seed)])).pickled_apart())
        assert packed.needs_slot
        assert received(receiver, packed).eq(seed).all()
    assert all(each.eq(seed).all() for seed, each in enumerate(kept))


def test_a_collate_function_may_replace_the_function_that_joins(monkeypatch):
    monkeypatch.setattr(torch, "cat", torch.cat)  # for its end
    other = lambda samples: "other"  # noqa: E731

    def collate(samples):
        torch.cat = other
        return torch.cat(samples)

    assert joining(collate, lambda nbytes: None)([]) == "other"
    assert torch.cat is other and joining(torch.cat, lambda nbytes: None)([]) == "other"


def test_what_cannot_be_joined_raises_as_in_torch():
    def collate(samples):
        return torch.cat(samples)

    bad = [torch.zeros(300, 200), torch.zeros(300, 201)]
    with pytest.raises(RuntimeError) as expected:
        collate(bad)
    with uncounted(), pytest.raises(RuntimeError) as found:
        joining(collate, lambda nbytes: torch.UntypedStorage(nbytes))(bad)
    assert str(found.value) == str(expected.value)


def test_what_is_one_object_stays_one(ends):
    small, large = torch.ones(2), torch.ones(4000)
    first, second, third, fourth = crossed(ends, [small, large, small, large])
    assert first is third and second is fourth


def test_many_small_tensors_need_no_slot_and_no_classes_of_torchs(ends):
    sender, _ = ends
    batch = [{"boxes": torch.rand(5, 4), "labels": torch.ones(5)} for _ in range(16)]
    packed = sender.pack(batch)
    assert packed.where is None and b"rebuild" not in packed.pickled
    got = crossed(ends, batch)
    assert all(
        torch.equal(sent[name], came[name])
        for sent, came in zip(batch, got, strict=True)
        for name in sent
    )


def test_a_batch_keeps_small_tensors_apart_from_large_ones(ends):
    images, labels = crossed(ends, [torch.ones(3000), torch.ones(3)])
    sender = ends[0]
    held = [slot for slot in sender._slots._slots if not slot.is_free()]
    assert len(held) == 1
    del images  # and what is left does not keep the slot
    ends[1].slots.collect()
    assert held[0].is_free() and torch.equal(labels, torch.ones(3))


def test_slots_of_dropped_batches_come_again_although_batches_come_without_slots(ends):
    sender, receiver = ends
    large = torch.zeros(1 << 20)
    kept = [crossed(ends, large) for _ in range(8)]
    assert unpickled(sender.pack(large).pickled_apart()).where is None  # its four slots are in use
    kept.clear()
    for _ in range(2):
        packed = unpickled(sender.pack(large).pickled_apart())
        received(receiver, packed)
    assert packed.where is not None
