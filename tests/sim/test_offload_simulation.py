"""Simulated remote workers: what the policies reach, and what none of them may cost."""

from pathlib import Path

import pytest

from fusionloader.cli.simulator import offload_figure
from fusionloader.cli.simulator.offload import simulate_offload
from fusionloader.cli.simulator.offload_setup import (
    FAST,
    SLOW,
    Network,
    OffloadSetup,
    OffloadShare,
    Policy,
    Transport,
    Workload,
    fastflow_workloads,
    share_of_code,
)
from fusionloader.cli.simulator.times import load
from fusionloader.scheduler.offload.decision import Candidate, Metrics

FILE = Path(__file__).parents[2] / "benchmarks" / "service_times" / "torchvision-randaugment.json"
TIMES = load(FILE)
WORKLOADS = {workload.name: workload for workload in fastflow_workloads(TIMES)}


def simulated(workload, policy, lanes, **changes):
    changes = {"profile_steps": 25, **changes}
    return simulate_offload(OffloadSetup(TIMES, workload, policy, lanes, **changes))


def test_there_are_the_papers_seven_workloads_and_one_of_our_own():
    assert len(WORKLOADS) == 8
    assert {w.cores for w in WORKLOADS.values() if "measured" not in w.name} <= set(range(7, 31))


@pytest.mark.few(6)
@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("lanes", [2, 64])
def test_balance_comes_near_the_best_possible(name, lanes):
    outcome = simulated(WORKLOADS[name], Policy.BALANCE, lanes)
    assert outcome.rate >= 0.96 * outcome.setup.best_rate


@pytest.mark.parametrize("lanes", [2, 16])
def test_balance_offloads_no_more_than_fastflow(lanes):
    workload = WORKLOADS["CTC ASR"]
    balance, fastflow = (
        simulated(workload, policy, lanes) for policy in (Policy.BALANCE, Policy.FASTFLOW)
    )
    assert fastflow.rate >= 0.95 * fastflow.setup.best_rate
    assert balance.rate >= 0.98 * fastflow.rate
    assert balance.remote_share <= fastflow.remote_share + 0.02


def test_nothing_is_offloaded_where_local_workers_keep_up():
    idle = Workload("light", 5)
    for policy in (Policy.BALANCE, Policy.FASTFLOW):
        outcome = simulated(idle, policy, 16)
        assert outcome.remote_share < 0.01
        assert outcome.rate == pytest.approx(outcome.setup.training_rate, rel=0.01)


HARSH = {
    "slow network": ({"network": Network(8e6, 0.025), "in_flight": 4}, 4),
    "long way": ({"network": Network(60e6, 0.6), "in_flight": 4}, 16),
    "costly requests": ({"transport": Transport(0.02)}, 16),
    "many workers, slow network": ({"network": Network(20e6, 0.001)}, 64),
}


@pytest.mark.few(4)
@pytest.mark.parametrize("policy", [Policy.BALANCE, Policy.FASTFLOW])
@pytest.mark.parametrize("name", HARSH)
def test_remote_workers_that_do_not_help_make_training_no_slower(name, policy):
    changes, lanes = HARSH[name]
    workload = Workload("heavy", 26, row_bytes=6e5)
    alone = simulated(workload, Policy.NONE, lanes, **changes)
    outcome = simulated(workload, policy, lanes, **changes)
    assert outcome.rate >= 0.96 * alone.rate


def test_taking_all_they_can_makes_training_slower_on_a_slow_network():
    changes, lanes = HARSH["slow network"]
    workload = Workload("heavy", 26, row_bytes=6e5)
    alone = simulated(workload, Policy.NONE, lanes, **changes)
    assert simulated(workload, Policy.ALL, lanes, **changes).rate < 0.5 * alone.rate
    # The limit on leases is what helps: balance without it is no better.
    without = simulated(workload, Policy.BALANCE, lanes, limited=False, **changes)
    assert without.rate < 0.5 * alone.rate


def test_encoded_bytes_are_shipped_where_remote_workers_read_slowly():
    disk = Network(20e9 / 8, 2e-4, storage=2e7)
    outcome = simulated(WORKLOADS["CTC ASR"], Policy.FASTFLOW, 16, network=disk)
    assert outcome.candidate is Candidate.SHIP
    fast = simulated(WORKLOADS["CTC ASR"], Policy.FASTFLOW, 16)
    assert fast.candidate is Candidate.TINY_BATCH


@pytest.mark.parametrize(("lanes", "network"), [(8, FAST), (64, SLOW)])
def test_everything_remote_is_limited_by_remote_workers_and_the_network(lanes, network):
    workload = WORKLOADS["Transformer ASR"]
    outcome = simulated(workload, Policy.ONLY_REMOTE, lanes, network=network)
    by_cores = lanes / outcome.setup.sample_seconds
    by_network = network.bandwidth / workload.row_bytes
    assert outcome.rate == pytest.approx(min(by_cores, by_network), rel=0.03)
    assert outcome.remote_share == 1


@pytest.mark.parametrize("machines", [0, 4, 64])
@pytest.mark.few(1)
def test_eight_gpus_and_many_machines_come_within_a_tenth_of_the_best(machines):
    setup = offload_figure.machine_setup(TIMES, machines, Policy.BALANCE, seed=0)
    outcome = simulate_offload(setup)
    assert outcome.rate >= 0.9 * setup.best_rate


def test_the_share_of_the_published_code_is_lower_where_local_workers_are_faster():
    metrics = Metrics(1000, 600, 500, 0.0, 0.1)
    assert share_of_code(metrics) == pytest.approx((500 + 400) / 2 / 1000)
    assert share_of_code(Metrics(1000, 300, 400, 0.0, 0.1)) == pytest.approx(400 / 700)
    assert share_of_code(Metrics(1000, 400, 800, 0.0, 0.1)) == pytest.approx(0.8)


def test_both_shares_reach_the_same_where_the_network_is_fast():
    workload = WORKLOADS["GAN ADA"]
    rates = [simulated(workload, Policy.FASTFLOW, 4, share=share).rate for share in OffloadShare]
    assert min(rates) >= 0.93 * max(rates)


def test_the_same_seed_gives_the_same_training():
    workload = WORKLOADS["GAN ADA"]
    first, again, other = (
        simulated(workload, Policy.FASTFLOW, 2, seed=seed, profile_steps=10) for seed in (3, 3, 4)
    )
    assert (first.rate, first.remote_share) == (again.rate, again.remote_share)
    assert first.rate != other.rate
