"""Predicted epochs where the answer is known."""

import pytest

from fusionloader.cli.analysis.drains import Drain
from fusionloader.cli.analysis.files import FileCacheLimit, ReadRates
from fusionloader.cli.analysis.findings import LoaderShape
from fusionloader.cli.analysis.service import SampleCost, SampleService
from fusionloader.cli.analysis.verdict import share_for
from fusionloader.cli.analysis.what_if.model import Model
from fusionloader.cli.analysis.what_if.questions import Question

SAMPLES, BATCH, SAMPLE_SECONDS, FILE_BYTES = 6400, 64, 1e-3, 100_000


def drain_of(seconds, workers=1, **more):
    """A drain of workers each of whom takes so many seconds for a sample."""
    return Drain(workers, 1000, 1000 * seconds / max(1, workers), **more)


def model_of(step=1e-6, workers=1, cores=8.0, training_cores=0.0, service=None, **shape):
    arguments = {
        "samples": SAMPLES,
        "steps": SAMPLES // BATCH,
        "batch_size": BATCH,
        "workers": workers,
        "prefetch_factor": 2,
        "tiny_batch_size": 4,
        "on_device": False,
        "cores": cores,
        "memory_bytes": 1 << 40,
        "cache_bytes": 0,
        "jpeg_index": False,
    }
    service = service or SampleService(
        drain_of(SAMPLE_SECONDS, workers),
        reads=ReadRates(FILE_BYTES, 1e9, 1e8, 0.0, 1.0),
        costs=[SampleCost(FILE_BYTES, 1e-3, 0.0), SampleCost(FILE_BYTES, 3e-3, 0.0)],
        cached=drain_of(SAMPLE_SECONDS / 10, workers, stored_bytes=600_000),
    )
    return Model(LoaderShape(**arguments | shape), service, step, training_cores)


def test_a_training_that_is_slower_than_its_loader_takes_its_steps():
    predicted = model_of(step=0.2).predict(Question())
    assert predicted.seconds == pytest.approx(SAMPLES / BATCH * 0.2, rel=0.01)
    assert predicted.wait_share < 0.01


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_a_starved_training_takes_what_its_workers_take(workers):
    predicted = model_of().predict(Question(workers=workers))
    assert predicted.seconds == pytest.approx(SAMPLES * SAMPLE_SECONDS / workers, rel=0.02)
    assert predicted.rate == pytest.approx(workers / SAMPLE_SECONDS, rel=0.02)
    assert predicted.wait_share > 0.99


def test_more_workers_than_cores_bring_nothing():
    model = model_of(cores=2.0)
    two, eight = (model.predict(Question(workers=workers)).seconds for workers in (2, 8))
    assert eight == pytest.approx(two, rel=0.03)


def test_workers_whose_code_waits_are_as_many_times_as_fast_as_there_are_until_cores_are_busy():
    """A sample computes 1 ms and waits 9 ms for something else."""
    service = SampleService(drain_of(10e-3, workers=2), costs=[SampleCost(0, 1e-3, 9e-3)])
    model = model_of(cores=2.0, workers=2, service=service)
    rates = [model.predict(Question(workers=workers)).rate for workers in (2, 8, 16, 64)]
    assert rates == pytest.approx([200, 800, 1600, 2000], rel=0.1)


def test_what_delays_samples_that_wait_is_no_computing_if_workers_have_counted_less():
    """A sample computes 0.2 ms, waits 6 ms, and is late by 0.8 ms, as on a busy machine."""
    warm = Drain(2, 1000, 3.5, cpu_seconds=0.2)
    service = SampleService(warm, costs=[SampleCost(0, 0.1e-3, 6e-3)])
    model = model_of(cores=1.0, workers=2, service=service)
    rates = [model.predict(Question(workers=workers)).rate for workers in (2, 8, 16)]
    assert rates == pytest.approx([2 / 7e-3, 8 / 7e-3, 16 / 7e-3], rel=0.1)


def test_cached_samples_cost_what_was_measured_of_them_though_others_wait():
    service = SampleService(
        drain_of(8e-3),
        costs=[SampleCost(FILE_BYTES, 3e-3, 5e-3)],
        cached=drain_of(2e-3, stored_bytes=600_000),
    )
    model = model_of(service=service)
    rates = [model.predict(Question(cache=share)).rate for share in (0.0, 1.0)]
    assert rates == pytest.approx([1 / 8e-3, 1 / 2e-3], rel=0.1)


def test_training_that_computes_on_the_cores_takes_them_from_the_workers():
    step = BATCH * SAMPLE_SECONDS
    waiting = model_of(step, cores=1.0).predict(Question())
    computing = model_of(step, cores=1.0, training_cores=1.0).predict(Question())
    assert waiting.seconds == pytest.approx(SAMPLES * SAMPLE_SECONDS, rel=0.05)
    assert computing.seconds == pytest.approx(2 * SAMPLES * SAMPLE_SECONDS, rel=0.05)


def rate_with_cache(share, cached, uncached):
    """Equation (2) of CoorDL's paper."""
    return 1 / (share / cached + (1 - share) / uncached)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9])
def test_a_slow_storage_gives_the_rate_of_the_papers_equation(share):
    storage = 50e6
    predicted = model_of(workers=8).predict(Question(cache=share, storage=storage))
    expected = rate_with_cache(share, 1e9, storage / FILE_BYTES)
    assert predicted.rate == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("limit", ["0", "50%", f"{SAMPLES * FILE_BYTES * 4 // 5}B"])
def test_a_file_cache_of_a_limit_gives_the_rate_of_the_papers_equation(limit):
    limit, storage = FileCacheLimit.parse(limit), 50e6
    predicted = model_of(workers=8).predict(Question(storage=storage, file_cache=limit))
    share = limit.share_of(SAMPLES * FILE_BYTES)
    expected = rate_with_cache(share, 1e9, storage / FILE_BYTES)
    assert predicted.rate == pytest.approx(expected, rel=0.05)


def test_a_file_cache_holds_all_of_a_dataset_of_empty_files():
    assert FileCacheLimit.parse("1GiB").share_of(0) == 1


def test_a_file_cache_has_the_measured_storage_behind_it_unless_another_is_asked_for():
    half = Question(file_cache=FileCacheLimit(share=0.5))
    assert model_of(workers=8).predict(half).rate == pytest.approx(2 * 1e8 / FILE_BYTES, rel=0.05)
    unmeasured = ReadRates(FILE_BYTES, 1e9, None, 0.0, 0.0, "tmpfs")
    model = model_of(service=SampleService(drain_of(SAMPLE_SECONDS), reads=unmeasured))
    assert "storage was not measured, tmpfs: give storage=" in model.why_not(half)
    assert not model.why_not(Question(storage=1e8, file_cache=half.file_cache))


def test_without_workers_training_waits_for_the_files_that_are_not_cached():
    service = SampleService(drain_of(SAMPLE_SECONDS, 0), reads=ReadRates(1e5, 1e9, 1e8, 0.0, 1.0))
    asked = Question(file_cache=FileCacheLimit(share=0.25))
    predicted = model_of(workers=0, service=service).predict(asked)
    assert predicted.seconds == pytest.approx(SAMPLES * (SAMPLE_SECONDS + 0.75e-3), rel=0.01)


def test_with_all_images_in_the_cache_neither_storage_nor_decoding_matters():
    model = model_of()
    for storage in (1e6, 0.0):
        rate = model.predict(Question(cache=1.0, storage=storage)).rate
        assert rate == pytest.approx(10 / SAMPLE_SECONDS, rel=0.02)


def test_twice_the_gpu_halves_the_steps():
    model = model_of(step=0.2)
    assert model.predict(Question(gpu=2.0)).seconds == pytest.approx(
        SAMPLES / BATCH * 0.1, rel=0.02
    )


def test_a_loader_without_workers_prepares_and_trains_in_turn():
    service = SampleService(drain_of(SAMPLE_SECONDS, 0))
    predicted = model_of(step=0.1, workers=0, service=service).predict(Question())
    assert predicted.seconds == pytest.approx(SAMPLES / BATCH * (0.1 + BATCH * SAMPLE_SECONDS))


def test_files_that_do_not_fit_in_memory_come_from_storage():
    """Half of the files have 70 % of the memory."""
    memory = int(SAMPLES * FILE_BYTES / 2 / 0.7)
    rate = model_of(workers=8, memory_bytes=memory).predict(Question()).rate
    assert rate == pytest.approx(2 * 1e8 / FILE_BYTES, rel=0.05)


def test_workers_beside_each_other_are_as_slow_as_measured():
    service = SampleService(drain_of(1.5e-3, 2), alone=drain_of(1e-3, 1))
    model = model_of(workers=2, cores=4.0, service=service)
    for workers, each in ((1, 1e-3), (2, 1.5e-3), (4, 1.5e-3)):
        rate = model.predict(Question(workers=workers)).rate
        assert rate == pytest.approx(workers / each, rel=0.03)


def test_the_share_of_a_cache_follows_from_the_rate():
    share = share_for(2000.0, 10_000.0, 1000.0)
    assert rate_with_cache(share, 10_000.0, 1000.0) == pytest.approx(2000.0)
    assert share_for(500.0, 10_000.0, 1000.0) == 0.0
    assert share_for(20_000.0, 10_000.0, 1000.0) is None
