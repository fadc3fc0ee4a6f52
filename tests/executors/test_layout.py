"""Rows in memory become the batches of ``default_collate``, for any nesting of fixed leaves."""

import collections
import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.campaigns import examples
from torch.utils.data._utils.collate import default_collate, default_collate_fn_map

from fusionloader.transforms.executors.layout import Layout
from fusionloader.transforms.executors.row_writer import LayoutMismatch, make_writer

One = collections.namedtuple("One", "only")
Pair = collections.namedtuple("Pair", "left right")

TENSOR_TYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
]
NUMBERS = {
    np.bool_: st.booleans(),
    np.uint8: st.integers(0, 255),
    np.int8: st.integers(-128, 127),
    np.int16: st.integers(-(1 << 15), (1 << 15) - 1),
    np.int32: st.integers(-(1 << 31), (1 << 31) - 1),
    np.int64: st.integers(-(1 << 63), (1 << 63) - 1),
    np.float16: st.floats(width=16),
    np.float32: st.floats(width=32),
    np.float64: st.floats(),
    np.complex64: st.complex_numbers(width=64),
    bool: st.booleans(),
    int: st.integers(-(1 << 63), (1 << 63) - 1),
    float: st.floats(),
}
ARRAY_TYPES = [kind for kind in NUMBERS if issubclass(kind, np.generic)] + [
    np.uint16,
    np.complex128,
]

# A schema is ("tensor", dtype, shape), ("array", dtype, shape), ("number", type), or a container
# of schemas: ("dict", {key: schema}), ("list" | "tuple" | "One" | "Pair", [schema, ...]).
shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
leaves = st.one_of(
    st.tuples(st.just("tensor"), st.sampled_from(TENSOR_TYPES), shapes),
    st.tuples(st.just("array"), st.sampled_from(ARRAY_TYPES), shapes),
    st.tuples(st.just("number"), st.sampled_from(list(NUMBERS))),
    st.tuples(st.just("text"), st.sampled_from([str, bytes])),
)
keys = st.one_of(st.text(max_size=3), st.integers(), st.tuples(st.integers(), st.text(max_size=1)))


def containers(parts):
    return st.one_of(
        st.tuples(st.just("dict"), st.dictionaries(keys, parts, max_size=3)),
        st.tuples(st.sampled_from(["list", "tuple"]), st.lists(parts, min_size=1, max_size=3)),
        st.tuples(st.just("One"), st.lists(parts, min_size=1, max_size=1)),
        st.tuples(st.just("Pair"), st.lists(parts, min_size=2, max_size=2)),
    )


schemas = st.recursive(leaves, containers, max_leaves=6)
MAKE = {"list": list, "tuple": tuple, "One": One._make, "Pair": Pair._make}


def values(schema):
    """The samples of a schema."""
    kind, what, *shape = schema
    if kind == "number":
        return NUMBERS[what].map(what)
    if kind == "text":
        return st.text(st.characters(codec=None)) if what is str else st.binary()
    if kind == "dict":
        found = st.fixed_dictionaries({key: values(part) for key, part in what.items()})
        return found.map(lambda parts: {key: parts[key] for key in what})  # in one order
    if kind in MAKE:
        return st.tuples(*map(values, what)).map(MAKE[kind])
    make = _tensor if kind == "tensor" else _array
    return st.integers(0, 1 << 32).map(lambda seed: make(what, *shape, seed))


def _array(dtype, shape, seed):
    """Any bits, and axes in another order in memory."""
    generator = np.random.default_rng(seed)
    if dtype is np.bool_:
        return generator.integers(0, 2, shape[::-1]).astype(bool).T
    size = math.prod(shape) * np.dtype(dtype).itemsize
    bits = generator.integers(0, 256, size, dtype=np.uint8)
    return np.frombuffer(bits.tobytes(), dtype).reshape(shape[::-1]).T.copy(order="K")


def _tensor(dtype, shape, seed):
    if dtype is torch.bool:
        return torch.from_numpy(_array(np.bool_, shape, seed))
    if 0 in shape:
        return torch.empty(shape, dtype=dtype)
    bits = _array(np.uint8, (math.prod(shape) * dtype.itemsize,), seed)
    flat = torch.from_numpy(bits).view(dtype)
    return flat.reshape(shape[::-1]).permute(tuple(range(len(shape)))[::-1])


def same(first, second):
    """Whether structure, types, dtypes, shapes and every bit are the same.

    Which NaN a number is is not compared.
    """
    if type(first) is not type(second):
        return False
    if isinstance(first, torch.Tensor):
        if first.dtype != second.dtype or first.shape != second.shape:
            return False
        if first.numel() == 0:
            return True
        bits = [part.contiguous().reshape(-1).view(torch.uint8) for part in (first, second)]
        return torch.equal(*bits)
    if isinstance(first, np.ndarray):
        alike = first.dtype == second.dtype and first.shape == second.shape
        return alike and first.tobytes() == second.tobytes()
    if isinstance(first, dict):
        return list(first) == list(second) and all(same(first[k], second[k]) for k in first)
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(same, first, second))
    return repr(first) == repr(second)


def memory(layout, rows):
    return bytearray(b"\xa5" * max(layout.batch_bytes(rows), 1))


def layout_of(sample):
    layout = Layout.of(sample)
    if layout == "a sample contains texts and no tensor":
        assume(False)
    assert isinstance(layout, Layout), layout
    return layout


@pytest.mark.properties
@settings(max_examples=examples(80, 250), deadline=None)
@given(st.data())
def test_batches_are_those_of_default_collate(data):
    schema = data.draw(schemas)
    samples = data.draw(st.lists(values(schema), min_size=1, max_size=5))
    count = len(samples)
    rows = count + data.draw(st.integers(0, 2))
    layout = layout_of(data.draw(st.sampled_from(samples)))
    buffer = memory(layout, rows)
    write = make_writer(layout, buffer, rows)
    size = data.draw(st.integers(1, count))
    for first in data.draw(st.permutations(range(0, count, size))):
        write(first, samples[first : first + size])
    batch = layout.batch(buffer, rows, count)
    assert same(batch, default_collate(samples))
    positions = data.draw(st.permutations(range(count)))
    rebuilt = layout.samples(buffer, rows, positions)
    assert same(rebuilt, [samples[position] for position in positions])


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_a_row_that_is_written_changes_no_other(data):
    schema = data.draw(schemas)
    samples = data.draw(st.lists(values(schema), min_size=3, max_size=3))
    replaced = data.draw(values(schema))
    layout = layout_of(samples[0])
    buffer = memory(layout, 3)
    write = make_writer(layout, buffer, 3)
    write(0, samples)
    write(1, [replaced])
    expected = default_collate([samples[0], replaced, samples[2]])
    assert same(layout.batch(buffer, 3, 3), expected)


def everywhere(schema, change):
    """The schemas that differ from ``schema`` in one node, which ``change`` maps to others."""
    yield from change(schema)
    kind, what, *_ = schema
    if kind in ("tensor", "array", "number", "text"):
        return
    for key in what if kind == "dict" else range(len(what)):
        for part in everywhere(what[key], change):
            copy = what.copy()
            copy[key] = part
            yield kind, copy


def near(schema):
    """Schemas that are not this one, and almost are."""
    kind, what, *rest = schema
    if kind in ("tensor", "array"):
        shape = rest[0]
        yield kind, what, (*shape, 1)
        if shape:
            yield kind, what, (shape[0] + 1, *shape[1:])
            yield kind, what, shape[1:]
        for dtype in TENSOR_TYPES if kind == "tensor" else ARRAY_TYPES:
            if dtype is not what:
                yield kind, dtype, shape
        yield ("tensor", torch.float32, shape) if kind == "array" else ("array", np.float32, shape)
    elif kind == "text":
        yield kind, bytes if what is str else str
        yield "number", int
    elif kind == "number":
        yield from (("number", other) for other in NUMBERS if other is not what)
        yield "array", np.int64, ()
        yield "tensor", torch.int64, ()
    elif kind == "dict":
        yield kind, {**what, "one more": ("number", int)}
        for key in what:
            yield kind, {k: part for k, part in what.items() if k != key}
            yield kind, {("another", k) if k == key else k: part for k, part in what.items()}
        yield "list", [("number", int), *what.values()]
    else:
        if kind in ("list", "tuple"):
            yield kind, [*what, ("number", int)]
            yield ("tuple" if kind == "list" else "list"), what
        if kind in ("list", "tuple") and len(what) > 1:
            yield kind, what[:-1]
        if len(what) == 2:
            yield ("tuple" if kind == "Pair" else "Pair"), what
        yield "dict", dict(enumerate(what))


@pytest.mark.properties
@settings(max_examples=examples(60, 150), deadline=None)
@given(st.data())
def test_a_sample_of_another_layout_is_refused(data):
    schema = data.draw(schemas)
    other = data.draw(st.sampled_from(list(everywhere(schema, near))))
    good, bad = data.draw(values(schema)), data.draw(values(other))
    layout = layout_of(good)
    assert layout != Layout.of(bad)
    write = make_writer(layout, memory(layout, 2), 2)
    write(0, [good])
    for samples in ([bad], [good, bad]):
        with pytest.raises(LayoutMismatch):
            write(0, samples)


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        (1, 1 << 63),
        (1, -(1 << 63) - 1),
        (1, "1"),
        (1.0, None),
        (torch.zeros(2, 2), torch.zeros(2, 2).to_sparse()),
        (torch.zeros(2), torch.zeros(2, requires_grad=True)),
        (torch.zeros(2), torch.nn.Parameter(torch.zeros(2), requires_grad=False)),
        (torch.zeros(2), torch.zeros(2, device="meta")),
        (np.zeros(2), np.zeros(2).astype(">f8")),
        (np.zeros(2), np.ma.zeros(2)),
        ({"a": 1}, collections.OrderedDict(a=1)),
        ([1], ["1"]),
        ([np.zeros(1), "a"], [np.zeros(1), "a" * 5000]),
        ([np.zeros(1), "a"], [np.zeros(1), np.str_("a")]),
    ],
    ids=repr,
)
def test_what_can_never_be_written_is_refused(good, bad):
    layout = layout_of(good)
    write = make_writer(layout, memory(layout, 2), 2)
    with pytest.raises(LayoutMismatch):
        write(0, [good, bad])


@pytest.mark.parametrize(
    ("sample", "why"),
    [
        ("word", "texts and no tensor"),
        (b"word", "texts and no tensor"),
        (None, "a NoneType"),
        ({"a": [1, "word"]}, "texts and no tensor"),
        (Pair(1, None), "a NoneType"),
        ([], "an empty list"),
        ((1, ()), "an empty tuple"),
        ({1, 2}, "a set"),
        (collections.OrderedDict(a=1), "an OrderedDict"),
        (1 + 2j, "a complex"),
        (torch.eye(2).to_sparse(), "sparse"),
        (torch.zeros(2, requires_grad=True), "requires grad"),
        (torch.zeros(2, device="meta"), "on meta"),
        (torch.nn.Parameter(torch.zeros(2)), "a Parameter"),
        (np.array(["word"]), "type <U4"),
        (np.array([None]), "type object"),
        (np.zeros(2, ">f4"), "type >f4"),
        (np.datetime64("2024-01-01"), "a datetime64"),
        (np.timedelta64(1), "type timedelta64"),
        (np.ma.zeros(2), "a MaskedArray"),
    ],
    ids=repr,
)
def test_what_has_no_fixed_layout_has_a_reason(sample, why):
    for nested in (sample, {"key": [1, sample]}):
        reason = Layout.of(nested)
        assert isinstance(reason, str) and why in reason


def test_a_type_with_a_collate_function_of_its_own_has_no_layout(monkeypatch):
    assert isinstance(Layout.of(One(1)), Layout)
    monkeypatch.setitem(default_collate_fn_map, One, lambda batch, *, collate_fn_map: batch)
    assert "custom collate function" in Layout.of([One(1)])


def halved(batch, *, collate_fn_map=None):
    return torch.stack([torch.as_tensor(sample) for sample in batch]) / 2


@pytest.mark.parametrize(
    ("key", "sample"),
    [
        (torch.Tensor, torch.ones(2)),
        (torch.Tensor, np.ones(2)),  # whose collate function goes on with tensors
        (np.ndarray, np.ones(2)),
        (int, 3),
        (int, True),
        (float, 0.5),
        (float, np.float64(0.5)),
        (dict, {"a": 1}),
        (list, [1]),
    ],
)
def test_a_collate_function_in_the_place_of_torchs_is_not_passed_over(monkeypatch, key, sample):
    assert isinstance(Layout.of(sample), Layout)
    monkeypatch.setitem(default_collate_fn_map, key, halved)
    found = Layout.of(sample)
    # numpy's numbers are looked up before Python's floats
    assert isinstance(found, Layout) == (type(sample) is np.float64)


def test_a_function_of_torchs_for_another_type_is_not_passed_over(monkeypatch):
    monkeypatch.setitem(default_collate_fn_map, int, default_collate_fn_map[float])
    assert "custom collate function" in Layout.of(3)


tv_tensors = pytest.importorskip("torchvision.tv_tensors")
TV = [
    tv_tensors.Image(torch.arange(12, dtype=torch.uint8).view(3, 2, 2)),
    tv_tensors.Mask(torch.arange(4).view(2, 2)),
    tv_tensors.Video(torch.rand(2, 3, 2, 2)),
    tv_tensors.BoundingBoxes([[0.0, 1, 2, 3]], format="XYXY", canvas_size=(4, 4)),
]


@pytest.mark.parametrize("tensor", TV, ids=lambda tensor: type(tensor).__name__)
def test_torchvisions_tensors_are_rows_and_batches_of_plain_tensors(tensor):
    samples = [(tensor.clone(), 0), (tensor.clone() + 1, 1)]
    samples[1] = (tv_tensors.wrap(samples[1][0], like=tensor), 1)
    layout = Layout.of(samples[0])
    memory = bytearray(layout.batch_bytes(2))
    make_writer(layout, memory, 2)(0, samples)
    batch, expected = layout.batch(memory, 2, 2), default_collate(samples)
    assert type(batch[0]) is type(expected[0]) is torch.Tensor
    assert torch.equal(batch[0], expected[0]) and batch[0].dtype == expected[0].dtype
    with pytest.raises(LayoutMismatch):
        make_writer(layout, memory, 2)(0, [(tensor.as_subclass(torch.Tensor), 0)])


def test_torchvisions_tensors_have_no_layout_where_batches_keep_their_type():
    with tv_tensors.set_return_type("TVTensor"):
        assert type(default_collate([TV[0]])) is tv_tensors.Image
        assert isinstance(Layout.of(TV[0]), str)


class Counted(torch.Tensor):
    pass


def test_other_subclasses_of_tensors_have_no_layout():
    assert "a Counted" in Layout.of(torch.ones(2).as_subclass(Counted))
