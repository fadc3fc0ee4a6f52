"""What a worker keeps of files: within its budget, and never of a file that has changed."""

from hypothesis import given
from hypothesis import strategies as st

from fusionloader.cache.range_reading import FileStamp
from fusionloader.sharing.remote.worker.reading import EncodedCache

PUTS = st.lists(
    st.tuples(st.sampled_from([b"/a", b"/b", b"/c"]), st.integers(0, 2), st.binary(max_size=9)),
    max_size=20,
)


@given(st.integers(0, 20), PUTS)
def test_what_is_kept_is_what_was_given_last_and_fits(budget, puts):
    cache = EncodedCache(budget)
    kept = {}
    for path, modified, data in puts:
        stamp = FileStamp(len(data), modified)
        cache.put(path, stamp, memoryview(data))
        others = sum(len(each) for other, (_, each) in kept.items() if other != path)
        if others + len(data) <= budget:
            kept[path] = (stamp, data)
        for name, (found, each) in kept.items():
            assert cache.get(name, found) == each
            assert cache.get(name, FileStamp(found.nbytes, found.mtime_ns + 1)) is None
        assert cache.used == sum(len(each) for _, each in kept.values()) <= budget
