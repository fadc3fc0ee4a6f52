"""Headers, members, samples and indexes of tar archives, against Python's own tarfile."""

from __future__ import annotations

import contextlib
import io
import tarfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tar_shards import jpeg, tar_of

from fusionloader.data.sources.shards.tar_index import TarIndex
from fusionloader.data.sources.shards.tar_members import (
    BadTarSample,
    CorruptTar,
    ShardError,
    TarMember,
    UnreadableIndex,
    UnsupportedTar,
    scan,
)
from fusionloader.data.sources.shards.tar_samples import MemberChoice, group_samples

FORMATS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
IMAGES = MemberChoice.of("jpg;png", "cls")


def members_of(archive: bytes, inline: frozenset[bytes] = IMAGES.inline) -> list[TarMember]:
    walk = scan("a.tar", len(archive), inline)
    try:
        wanted = next(walk)
        while True:
            wanted = walk.send(archive[wanted.offset : wanted.offset + wanted.nbytes])
    except StopIteration as end:
        return end.value


NAMES = st.text(
    st.characters(blacklist_characters="/\0", blacklist_categories=("Cs",)), min_size=1, max_size=70
).filter(lambda name: name not in (".", ".."))


@settings(max_examples=60, deadline=None)
@given(
    names=st.lists(st.lists(NAMES, min_size=1, max_size=4).map("/".join), max_size=8, unique=True),
    sizes=st.lists(st.integers(0, 3000), min_size=8, max_size=8),
    format=st.sampled_from(FORMATS[1:]),
)
def test_members_are_where_tarfile_finds_them(names, sizes, format):
    archive = tar_of(
        [(name, b"x" * size) for name, size in zip(names, sizes, strict=False)], format
    )
    with tarfile.open(fileobj=io.BytesIO(archive)) as known:
        expected = [(each.name, each.offset_data, each.size) for each in known.getmembers()]
    found = [(each.name.decode(), each.offset, each.nbytes) for each in members_of(archive)]
    assert found == expected


def test_a_name_in_two_parts_is_put_together():
    name = "/".join(["d" * 50] * 4) + "/5.jpg"
    assert members_of(tar_of([(name, b"1")]))[0].name.decode() == name


def test_directories_and_links_are_no_members():
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        folder = tarfile.TarInfo("cats")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        link = tarfile.TarInfo("cats/link.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "5.jpg"
        archive.addfile(link)
        image = tarfile.TarInfo("cats/5.jpg")
        image.size = 4
        archive.addfile(image, io.BytesIO(b"abcd"))
    (member,) = members_of(file.getvalue())
    assert member.name == b"cats/5.jpg"
    assert file.getvalue()[member.offset : member.offset + 4] == b"abcd"


def test_a_member_of_more_than_eight_gigabytes_has_its_size():
    info = tarfile.TarInfo("large.bin")
    info.size = 9 << 30
    header = info.tobuf(tarfile.GNU_FORMAT)
    walk = scan("a.tar", 10 << 30)
    next(walk)
    wanted = walk.send(header)
    assert wanted.offset == 512 + (9 << 30)


def test_only_headers_and_small_targets_are_looked_at():
    archive = tar_of([("1.jpg", b"i" * 5000), ("1.cls", b"7")])
    walk, asked = scan("a.tar", len(archive), IMAGES.inline), []
    wanted = next(walk)
    with pytest.raises(StopIteration):
        while True:
            asked.append(wanted.nbytes)
            wanted = walk.send(archive[wanted.offset : wanted.offset + wanted.nbytes])
    assert asked == [512, 512, 1, 512]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda tar: tar[:700], CorruptTar, "ends after 188 of them: it was cut off"),
        (lambda tar: tar[:10] + b"?" + tar[11:], CorruptTar, "byte 0: no tar header here"),
        (lambda tar: tar[:1536] + tar[1600:], CorruptTar, "no tar header"),
        (lambda tar: b"\x1f\x8b" + tar[2:], UnsupportedTar, "compressed .gzip."),
        (lambda tar: tar[:512] + tar[512:800], CorruptTar, "it was cut off"),
        (lambda tar: tar[:1536] + b"\1" * 100, CorruptTar, "ends within a header"),
    ],
)
def test_a_damaged_archive_is_refused_with_its_place(change, error, message):
    archive = change(tar_of([("1.jpg", b"i" * 1000), ("1.cls", b"7")]))
    with pytest.raises(error, match=message) as caught:
        members_of(archive)
    assert "a.tar" in str(caught.value)


def test_a_sparse_file_is_refused():
    info = tarfile.TarInfo("1.jpg")
    info.type = b"S"
    with pytest.raises(UnsupportedTar, match="sparse"):
        members_of(info.tobuf(tarfile.GNU_FORMAT) + bytes(1024))


# ---- samples -----------------------------------------------------------------------------------


def test_members_of_a_key_are_a_sample():
    image = jpeg(1)
    archive = tar_of(
        [
            ("cats/1.jpg", image),
            ("cats/1.cls", b"3\n"),
            ("cats/1.json", b"{}"),
            ("cats/.hidden.jpg", b"no"),
            ("README", b"no"),
            ("dogs/1.CLS", b"4"),
            ("dogs/1.PNG", b"png"),
        ]
    )
    found = group_samples(members_of(archive), IMAGES, "a.tar")
    assert found.targets.tolist() == [3, 4] and found.targets.dtype == np.int64
    assert found.nbytes.tolist() == [len(image), 3]
    assert archive[int(found.offset[0]) :][: len(image)] == image


def test_the_extension_that_is_named_first_counts():
    archive = tar_of([("1.png", b"png"), ("1.jpg", b"jpeg"), ("1.cls", b"0")])
    assert group_samples(members_of(archive), IMAGES, "a.tar").nbytes.tolist() == [4]


def test_an_integer_that_is_too_large_is_a_target_as_it_is():
    archive = tar_of([("1.jpg", b"i"), ("1.cls", b"%d" % (1 << 70))])
    assert group_samples(members_of(archive), IMAGES, "a.tar").targets == [1 << 70]


class Counted(bytes):
    """Bytes that count how many of them are copied."""

    copied = 0

    def __getitem__(self, where):
        found = super().__getitem__(where)
        Counted.copied += len(found) if isinstance(where, slice) else 0
        return found


def pax_archive(records):
    header = tarfile.TarInfo("x")
    header.size, header.type = len(records), tarfile.XHDTYPE
    padded = records.ljust(-(-len(records) // 512) * 512, b"\0")
    return header.tobuf(tarfile.USTAR_FORMAT) + padded + tar_of([("1.jpg", b"i")])


def test_pax_records_are_read_once():
    content = Counted(b"5 a=\n" * 10_000)
    archive = pax_archive(content)
    walk = scan("a.tar", len(archive))
    wanted = next(walk)
    Counted.copied = 0
    with contextlib.suppress(StopIteration):
        while True:
            part = archive[wanted.offset : wanted.offset + wanted.nbytes]
            wanted = walk.send(content if wanted.nbytes == len(content) else part)
    assert Counted.copied < 4 * len(content)


@pytest.mark.parametrize(
    "record", [b"9" * 5000 + b" path=x\n", b"5012 size=" + b"9" * 5001 + b"\n"]
)
def test_odd_numbers_in_pax_records_are_damage(record):
    with pytest.raises(CorruptTar, match=r"cannot be read|has 9+ bytes"):
        members_of(pax_archive(record))


def test_targets_may_be_text_or_json_or_missing():
    archive = tar_of([("1.jpg", b"i"), ("1.txt", b"a cat"), ("1.json", b'{"id": 4}')])
    for target, expected in (("txt", ["a cat"]), ("json", [{"id": 4}]), (None, [-1])):
        found = group_samples(members_of(archive), MemberChoice.of("jpg", target), "a.tar")
        assert list(found.targets) == expected


@pytest.mark.parametrize(
    ("members", "error", "message"),
    [
        ([], ShardError, "a.tar: the archive is empty"),
        ([("1.gif", b"i")], ShardError, r"no member .* \(jpg;png\), there are 'gif'"),
        ([("1.jpg", b"i")], BadTarSample, "a.tar: the sample '1' has an image and no member 'cls'"),
        (
            [("1.jpg", b"i"), ("1.cls", b"1"), ("2.cls", b"1")],
            BadTarSample,
            "the sample '2' has a target 'cls' and no image",
        ),
        ([("1.jpg", b"i"), ("1.jpg", b"j")], BadTarSample, "the sample '1' has two members 'jpg'"),
        ([("1.jpg", b""), ("1.cls", b"1")], BadTarSample, "the image of '1' has 0 bytes"),
        (
            [("1.jpg", b"i"), ("1.cls", b"1" * 2000)],
            BadTarSample,
            "2000 bytes and is not in the index",
        ),
        (
            [("1.jpg", b"i"), ("1.cls", b"\xff\xfe")],
            BadTarSample,
            "the target of '1' cannot be read",
        ),
        (
            [("1.jpg", b"i"), ("1.json", b"[" * 1000)],
            BadTarSample,
            "the target of '1' cannot be read",
        ),
    ],
)
def test_members_that_are_no_samples_are_refused_by_name(members, error, message):
    choice = MemberChoice.of("jpg;png", "json" if ".json" in str(members) else "cls")
    with pytest.raises(error, match=message):
        group_samples(members_of(tar_of(members)), choice, "a.tar")


def test_images_without_an_extension_are_refused():
    with pytest.raises(ValueError, match="extensions with semicolons"):
        MemberChoice.of("jpg;;png", "cls")


# ---- the index ---------------------------------------------------------------------------------


def test_an_index_has_all_members():
    members = members_of(tar_of([("cats/1.jpg", b"i" * 900), ("cats/1.cls", b"3"), ("e.txt", b"")]))
    index = TarIndex.from_bytes(TarIndex.from_members(members, 4096, 77).to_bytes(), "a")
    assert index.members() == members
    assert (index.shard_bytes, index.shard_version) == (4096, 77)
    assert index.name_at(members[1].offset) == "cats/1.cls"
    assert index.name_at(members[1].offset + 1) is None
    assert index.name_at(1 << 40) is None


def test_an_index_that_cannot_be_read_says_what_to_do():
    whole = TarIndex.from_members(members_of(tar_of([("1.jpg", b"i")])), 4096, 0).to_bytes()
    for data in (b"", b"no index", whole[:-30], whole[:100] + b"????" + whole[104:]):
        with pytest.raises(UnreadableIndex, match="x.fusionloader-index is damaged .* write it"):
            TarIndex.from_bytes(data, "x.fusionloader-index")


def forged(change, save=np.savez):
    """The file of an index of two members, with some values replaced."""
    members = members_of(tar_of([("1.jpg", b"i"), ("1.cls", b"2")]))
    index = TarIndex.from_members(members, 4096, 7)
    names = ("names", "name_ends", "offset", "nbytes", "inline", "inline_nbytes")
    arrays = {name: getattr(index, name).copy() for name in names}
    arrays["shard"] = np.array([1, 4096, 7])
    change(arrays)
    file = io.BytesIO()
    save(file, **arrays)
    return file.getvalue()


def header_of(shape):
    """Replaces the shape in the header of an array, in place."""
    plain = forged(lambda arrays: None)
    assert plain.count(b"(2,), }      ") == 4
    return plain.replace(b"(2,), }".ljust(len(shape) + 4), shape + b", }", 1)


@pytest.mark.parametrize(
    "data",
    [
        forged(lambda arrays: arrays.update(shard=np.array([1]))),
        forged(lambda arrays: arrays.update(name_ends=np.int64(3))),
        forged(lambda arrays: arrays.update(offset=arrays["offset"] + 1j)),
        forged(lambda arrays: arrays.update(offset=arrays["offset"].astype(np.int64) - 5000)),
        forged(lambda arrays: arrays.update(nbytes=arrays["nbytes"] + np.uint64(4000))),
        forged(lambda arrays: arrays.update(nbytes=arrays["nbytes"] - np.uint64(2))),
        forged(lambda arrays: arrays.update(name_ends=arrays["name_ends"][::-1])),
        forged(lambda arrays: arrays.update(name_ends=arrays["name_ends"] + 100)),
        forged(lambda arrays: arrays.update(inline_nbytes=arrays["inline_nbytes"] + 100)),
        forged(
            lambda arrays: arrays.update(names=np.zeros(1 << 24, np.uint8)), np.savez_compressed
        ),
        header_of(b"(1000000000000,)"),
        header_of(b"([[[[[[[[[[[[[["),
    ],
)
def test_an_index_is_not_believed_as_it_is(data):
    with pytest.raises(UnreadableIndex, match=r"x.fusionloader-index is .*: write it again"):
        TarIndex.from_bytes(data, "x.fusionloader-index")


def test_an_index_of_another_version_is_refused():
    file = io.BytesIO()
    np.savez(file, shard=np.array([9, 1, 1]))
    with pytest.raises(UnreadableIndex, match="version 9, and this package reads 1"):
        TarIndex.from_bytes(file.getvalue(), "x")
