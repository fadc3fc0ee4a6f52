"""Fleets that are large, mostly gone, or others every second."""

import itertools
import os
import signal

import pytest
from support.remote_trials import trial
from support.waiting import is_stopped, wait_until

from fusionloader.sharing.remote import remote_workers
from fusionloader.sharing.remote.fleet import Fleet
from fusionloader.system.transport.address import Address
from fusionloader.system.transport.identity import Identity, read_token


def nobody(count):
    """Addresses at which nothing listens."""
    return [Address(f"127.1.{number // 250}.{number % 250 + 1}", 9) for number in range(count)]


@pytest.fixture
def fleet(token_file, monkeypatch):
    """A fleet whose addresses a test may change."""

    class Changing(Fleet):
        wanted, asked = (), 0

        def addresses(self):
            self.asked += 1
            return list(self.wanted)

    made = Changing((), Identity.of(read_token(token_file)))
    monkeypatch.setattr(remote_workers, "make_fleet", lambda *_: made)
    return made


def test_workers_beyond_the_first_64_have_their_turn(image_folder, expected, token_file, worker):
    workers = [*map(str, nobody(100)), str(worker.address)]
    with trial(image_folder, expected, workers, token_file) as trained:
        trained.serves()
        trained.finish()
        served = {each.address for each in trained.remote.workers if each.samples}
    assert served == {str(worker.address)}


def test_a_fleet_changes_all_the_time(image_folder, expected, token_file, worker, fleet):
    with trial(image_folder, expected, ["127.0.0.3:9"], token_file) as trained:
        for number in itertools.count():
            fleet.wanted = [*nobody(number % 7), worker.address][:: 1 if number % 2 else -1]
            trained.serves()
            fleet.wanted = nobody(number % 5)
            trained.until(lambda: all(w.state == "away" for w in trained.remote.workers))
            if number == 5:
                break
        trained.finish()


def test_training_does_not_wait_for_a_proxy_that_reads_no_orders(
    image_folder, expected, token_file, worker, fleet
):
    with trial(image_folder, expected, ["127.0.0.3:9"], token_file) as trained:
        fleet.wanted = nobody(1)
        trained.until(lambda: trained.proxies)
        (proxy,) = trained.proxies
        os.kill(proxy, signal.SIGSTOP)
        wait_until(lambda: is_stopped(proxy))
        fleet.wanted, asked = nobody(5000), fleet.asked  # more than a pipe takes
        trained.until(lambda: fleet.asked > asked)
        trained.steps(30)
        os.kill(proxy, signal.SIGCONT)
        fleet.wanted = [worker.address]
        trained.serves()
        trained.finish()
