"""Verdicts on trainings whose limit is known."""

from dataclasses import replace

import pytest
from support.datasets import Numbers

from fusionloader import Cache, DecodedCache, FusionLoader
from fusionloader.cli.analysis.drains import Drain
from fusionloader.cli.analysis.files import ReadRates
from fusionloader.cli.analysis.findings import LoaderFindings, LoaderShape, of_job
from fusionloader.cli.analysis.phases import Phase, PhaseResult
from fusionloader.cli.analysis.ranks import AnalyzedRanks
from fusionloader.cli.analysis.service import SampleService
from fusionloader.cli.analysis.verdict import verdict_on
from fusionloader.observe.statistics.processor_use import ProcessorUse
from fusionloader.observe.statistics.stages import StageStats

BATCH, STEPS = 64, 100
STAGES = (StageStats("read", 1000, 0.1, 1e4), StageStats("decode", 1000, 0.9, 1.1e3))


def phase(rate, memory=2000.0, cpu=0.0):
    """Steps that train at the rate of data in memory, and wait for the rest of the time."""
    seconds = 6400 / rate
    return PhaseResult(STEPS, 6400, seconds, seconds - 6400 / memory, cpu)


def findings(today, warm, cold, workers=1, cores=8.0, cpu=0.0, **service):
    rates = {Phase.TODAY: today, Phase.MEMORY: 2000.0, Phase.WARM: warm, Phase.COLD: cold}
    shape = LoaderShape(
        samples=6400,
        steps=STEPS,
        batch_size=BATCH,
        workers=workers,
        prefetch_factor=2,
        tiny_batch_size=4,
        on_device=False,
        cores=cores,
        memory_bytes=1 << 40,
        cache_bytes=0,
        jpeg_index=False,
    )
    measured = SampleService(
        Drain(workers, 1000, 1.0 / max(1, workers), stages=STAGES),
        reads=ReadRates(100_000.0, 5e9, 1e8, 0.0, 1.0),
        **service,
    )
    phases = {each: phase(rate, cpu=cpu) for each, rate in rates.items()}
    return LoaderFindings("train.py:1", "FusionLoader", phases, {}, shape, measured)


def changes(verdict):
    return {remedy.change: remedy.reaches for remedy in verdict.remedies}


def test_a_training_that_hardly_waits_is_its_own_limit():
    verdict = verdict_on(findings(1990.0, 1990.0, 1990.0))
    assert verdict.limit == "training" and not verdict.remedies
    assert "a faster loader would change nothing" in verdict.sentences[-1]


def test_decoding_is_named_and_the_workers_that_are_enough():
    verdict = verdict_on(findings(1000.0, 1000.0, 980.0))
    assert (verdict.limit, verdict.stage) == ("preparation", "decode")
    assert verdict.wait_share == pytest.approx(0.5)
    assert "waits 50%" in verdict.sentences[0] and "decode: 90%" in verdict.sentences[0]
    assert changes(verdict) == {"num_workers=2": True}
    assert not verdict.out_of_cores


def busy_machine(found, **values):
    """The same findings, with workers of which others take the cores in the window of today."""
    use = ProcessorUse(
        **{"cores": 8.0, "quota": None, "seconds": 1.0, "busy_seconds": 1.0, **values}
    )
    today = replace(found.phases[Phase.TODAY], processors=use)
    return replace(found, phases={**found.phases, Phase.TODAY: today})


def test_workers_without_cores_are_named_and_nothing_is_advised_for_their_work():
    found = busy_machine(findings(1000.0, 1000.0, 980.0), cpu_seconds=0.2, delay_seconds=0.8)
    verdict = verdict_on(found)
    assert (verdict.limit, verdict.stage, verdict.remedies) == ("processors", "", ())
    assert verdict.sentences[0] == (
        "Training waits 50% of its time for data: workers got 20% of a core each, and other "
        "processes take the rest."
    )
    assert "top shows them" in verdict.sentences[1]


def test_a_training_that_hardly_waits_is_the_limit_on_a_busy_machine_too():
    found = busy_machine(findings(1990.0, 1990.0, 1990.0), cpu_seconds=0.2, delay_seconds=0.8)
    assert verdict_on(found).limit == "training"


def test_what_is_predicted_to_be_slower_than_today_is_not_advised():
    # The model makes today's loader slower than it was measured, and a cache a little faster.
    cached = Drain(1, 1000, 0.8, hit_share=1.0, stored_bytes=600_000.0)
    verdict = verdict_on(findings(1500.0, 1000.0, 1000.0, cached=cached))
    assert all(remedy.rate > 1500.0 for remedy in verdict.remedies)


def test_slow_reading_of_warm_files_is_called_reading():
    slow = (StageStats("read", 1000, 0.9, 1.1e3), StageStats("decode", 1000, 0.1, 1e4))
    found = findings(1000.0, 1000.0, 980.0)
    found = replace(found, service=replace(found.service, warm=Drain(1, 1000, 1.0, stages=slow)))
    verdict = verdict_on(found)
    assert (verdict.limit, verdict.stage) == ("reading", "read")
    assert "reading files limits it (read: 90% of the workers' time)" in verdict.sentences[0]


@pytest.mark.parametrize(("cpu", "words"), [(0.95, "compute 95%"), (0.1, "wait 90%")])
def test_of_torchs_workers_it_is_said_whether_they_compute(cpu, words):
    found = busy_machine(findings(1000.0, 1000.0, 980.0), cpu_seconds=cpu)
    found = replace(found, service=replace(found.service, warm=Drain(1, 1000, 1.0)))
    assert f"(workers {words} of their time" in verdict_on(found).sentences[0]


def test_a_cache_and_an_index_are_advised_as_far_as_they_help():
    cached = Drain(1, 1000, 0.1, hit_share=1.0, stored_bytes=600_000.0)
    indexed = Drain(1, 1000, 0.8)
    verdict = verdict_on(findings(1000.0, 1000.0, 1000.0, cached=cached, indexed=indexed))
    found = changes(verdict)
    assert found['cache=DecodedCache("2.7GiB") (75% of the images)'] is True
    assert found['jpeg_index="auto"'] is False
    assert "jpeg_index" not in verdict.sentences[-1]


def test_without_a_free_core_more_workers_are_not_advised():
    verdict = verdict_on(findings(1000.0, 1000.0, 1000.0, cores=1.0))
    assert verdict.out_of_cores
    assert not any("num_workers" in change for change in changes(verdict))
    assert "more workers would not help" in " ".join(verdict.sentences)


def test_a_loader_without_workers_is_advised_to_have_some():
    verdict = verdict_on(findings(700.0, 700.0, 700.0, workers=0))
    assert changes(verdict) == {"num_workers=2": True}


def test_reading_is_the_limit_where_cold_files_make_the_difference():
    verdict = verdict_on(findings(1000.0, 1900.0, 1000.0, workers=4))
    assert verdict.limit == "reading"
    assert "Reading keeps up if" in verdict.sentences[-1]
    assert "190 MB/s" in verdict.sentences[-1]


def job_of(*waits, rate=1000.0):
    """A job of so many ranks, each of which waits such a share of its time for its own data."""
    ranks = []
    for share in waits:
        found = findings(rate, rate, rate)
        today = found.phases[Phase.TODAY]
        today = replace(today, waited=share * today.seconds)
        ranks.append(replace(found, phases={**found.phases, Phase.TODAY: today}))
    whole = {
        phase: replace(result, samples=len(ranks) * result.samples)
        for phase, result in ranks[-1].phases.items()
    }
    return of_job(ranks, whole)


def test_the_rank_that_the_others_wait_for_is_named():
    verdict = verdict_on(job_of(0.05, 0.5))
    assert verdict.limit == "preparation" and verdict.wait_share == pytest.approx(0.5)
    assert verdict.sentences[1] == (
        "The other ranks wait for rank 1: it waits for its own data in 100% of that time, the "
        "others for theirs in at most 10%."
    )
    assert changes(verdict) == {"num_workers=2": True}
    assert verdict.remedies[0].rate == pytest.approx(2 * 2000.0, rel=0.05)


def test_of_ranks_that_wait_alike_none_is_named():
    assert not any("other ranks" in each for each in verdict_on(job_of(0.4, 0.5)).sentences)


def test_a_loader_with_too_few_steps_has_no_verdict():
    few = LoaderFindings("train.py:1", "DataLoader", {Phase.TODAY: phase(1000.0)})
    verdict = verdict_on(few)
    assert verdict.limit == "unknown" and not verdict.remedies
    assert "Too few steps" in verdict.sentences[-1]


def test_the_cache_of_a_loader_is_known():
    def cached(cache):
        loader = FusionLoader(Numbers(), 4, cache=cache)
        return LoaderShape.of(loader, 4, AnalyzedRanks()).cache_bytes

    assert cached(None) == cached(Cache("1GiB", tiers=("encoded",))) == 0
    assert cached(DecodedCache("1GiB")) == 1 << 30
