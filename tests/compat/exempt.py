"""Tests of PyTorch and torchdata that FusionLoader does not pass, by name, with the reason.

``make compliance SUITES=DIR`` fails on any other.
"""

_LAYOUT = "reads torchdata's private layout of a state (_snapshot, fetcher_state)"

_WORKERS = "asserts that mini-batch i is made by worker i modulo their number"

EXEMPT: dict[str, dict[str, str]] = {
    "torch": {"test_ind_worker_queue": _WORKERS},
    "stateful": {
        "TestDatasetIteratorStateDuplication_shard0::test": _LAYOUT,
        "TestDynamicStateIterableDataset_shard0::test": _LAYOUT,
        "test_initial_state": _LAYOUT,
        "test_load_state_after_initial_state_dict": _LAYOUT,
        "test_out_of_order_iterable_ds_no_completed_workers": _LAYOUT,
        "test_out_of_order_iterable_ds_one_completed_worker": _LAYOUT,
        "TestSingleIterCalled_shard0::test_inline": _LAYOUT,
        "TestSingleIterCalled_shard0::test_inline_iter": _LAYOUT,
        "TestSingleIterCalled_shard0::test_mp": _LAYOUT,
        "TestSingleIterCalled_shard0::test_mp_iter": _LAYOUT,
        "test_num_workers_mismatch": "asserts that another number of workers is refused",
        "test_init_error": "asserts that an error of worker_init_fn comes from iter(): torchdata "
        "waits there for a state of every worker; here, as in DataLoader, it comes from next()",
        "test_ind_worker_queue": _WORKERS,
        "TestOutOfOrderDataLoader::test_in_order_index_ds": _WORKERS,
        "TestOutOfOrderDataLoader::test_out_of_order_index_ds": _WORKERS,
    },
}


def reason(suite: str, test: str) -> str | None:
    """Returns why a test (``file::class::name``) is exempt, ``None`` if it is not."""
    for name, why in EXEMPT[suite].items():
        if test.endswith(f"::{name}"):
            return why
    return None
