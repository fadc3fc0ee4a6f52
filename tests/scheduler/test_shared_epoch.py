"""An epoch of several jobs: each gets each mini-batch once, and nothing is recycled under it."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fusionloader.scheduler.shared_epoch import Delivery, SharedEpoch

STAGING = 4
BATCHES = 12
MEMBERS = st.integers(0, 3)


class Jobs(RuleBasedStateMachine):
    """Jobs that submit, take and release in any order, with workers that finish in any order."""

    def __init__(self):
        super().__init__()
        self.begin()

    def begin(self):
        self.epoch = SharedEpoch()
        self.ever = set()
        self.submitted = {}  # next number, by member
        self.preparing = []
        self.sent = {}  # by member, not taken
        self.held = {}  # taken, not released
        self.got = {}
        self.recycled = set()

    @rule(member=MEMBERS)
    def join(self, member):
        if not self.epoch:  # without members and mini-batches it has ended, as a group's run
            self.begin()
        if self.epoch.gathering and member not in self.ever:
            self.ever.add(member)
            self.epoch.join(member)
            self.submitted[member] = 0
            self.sent[member], self.held[member], self.got[member] = [], [], []

    @rule(member=MEMBERS, count=st.integers(1, 3))
    def submit(self, member, count):
        for _ in range(count):
            if member in self.epoch.members and self.submitted[member] < BATCHES:
                number = self.submitted[member]
                assert self.epoch.submit(member, number, bytes([number])) is None
                self.submitted[member] += 1

    @rule()
    def publish(self):
        for number in self.epoch.publishable(STAGING):
            self.epoch.published(number)
            self.preparing.append(number)

    @precondition(lambda self: self.preparing)
    @rule(data=st.data())
    def complete(self, data):
        number = data.draw(st.sampled_from(self.preparing))
        self.preparing.remove(number)
        self.epoch.completed(number)

    @rule()
    def deliver(self):
        for member, number in self.epoch.deliveries():
            assert number not in self.got[member] + self.sent[member]
            assert number not in self.recycled
            self.sent[member].append(number)

    @rule(member=MEMBERS)
    def take(self, member):
        if member in self.epoch.members and self.sent[member]:
            number = min(self.sent[member])
            self.sent[member].remove(number)
            self.epoch.taken(member, number)
            self.got[member].append(number)
            self.held[member].append(number)

    @rule(member=MEMBERS)
    def release(self, member):
        if self.held.get(member):
            self.epoch.released(member, self.held[member].pop())

    @rule(member=MEMBERS, keeps=st.booleans())
    def leave(self, member, keeps):
        if member in self.epoch.members:
            self.epoch.leave(member, keeps)
            if not keeps:
                self.held[member], self.sent[member] = [], []
            self.held[member] += self.sent[member]
            self.sent[member] = []

    @rule()
    def close(self):
        self.epoch.gathering = False

    @rule()
    def recycle(self):
        for number in self.epoch.recycle():
            assert number not in self.recycled
            assert not any(number in held for held in self.held.values())
            assert all(number in self.got[member] for member in self.epoch.members)
            self.recycled.add(number)
            if number in self.preparing:
                self.preparing.remove(number)

    @invariant()
    def staging_is_bounded(self):
        assert self.epoch.staged <= STAGING

    @invariant()
    def nobody_waits_for_itself(self):
        waiting, blocking = self.epoch.held_up(STAGING)
        assert not waiting & blocking
        assert all(self.epoch.untaken(member) == 0 for member in waiting)

    def teardown(self):
        """Whoever has stayed gets all mini-batches, once."""
        self.close()
        for _ in range(4 * BATCHES):
            for member in self.epoch.members:
                self.submit(member, 3)
            self.recycle()
            self.publish()
            for number in list(self.preparing):
                self.preparing.remove(number)
                self.epoch.completed(number)
            self.deliver()
            for member in list(self.epoch.members):
                self.take(member)
                self.release(member)
        for member in self.epoch.members:
            assert sorted(self.got[member]) == list(range(BATCHES))
        for member in list(self.epoch.members):
            self.epoch.leave(member, keeps=False)
        for member, held in self.held.items():
            for number in held:
                self.epoch.released(member, number)
        self.held.clear()
        self.recycle()
        assert not self.epoch


TestJobs = Jobs.TestCase
TestJobs.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


def epoch_of(*members):
    epoch = SharedEpoch()
    for member in members:
        epoch.join(member)
    return epoch


def prepare(epoch, count, staging=STAGING):
    for member in epoch.members:
        for number in range(count):
            epoch.submit(member, number, b"")
    for number in epoch.publishable(staging):
        epoch.published(number)
        epoch.completed(number)
    return epoch.deliveries()


def test_a_mini_batch_that_differs_is_told_with_that_of_the_others():
    epoch = epoch_of(1, 2)
    assert epoch.submit(1, 0, b"these") is None
    assert epoch.submit(2, 0, b"those") == b"these"
    for number in epoch.publishable(STAGING):
        epoch.published(number)
        epoch.completed(number)
    assert epoch.deliveries() == [Delivery(1, 0)]  # not to who has another one


def test_who_joins_gets_what_was_there_before():
    epoch = epoch_of(1)
    prepare(epoch, 2)
    epoch.taken(1, 0)
    epoch.released(1, 0)
    assert epoch.recycle() == []
    epoch.join(2)
    for number in range(2):
        epoch.submit(2, number, b"")
    assert epoch.deliveries() == [Delivery(2, 0), Delivery(2, 1)]


def test_others_wait_for_who_takes_nothing_when_all_is_staged():
    epoch = epoch_of(1, 2, 3)
    epoch.gathering = False
    prepare(epoch, STAGING + 1)
    for number in range(STAGING):
        epoch.taken(1, number)
    assert epoch.held_up(STAGING) == (frozenset({1}), frozenset({2, 3}))
    epoch.taken(2, 0)
    assert epoch.held_up(STAGING) == (frozenset({1}), frozenset({3}))
    epoch.taken(3, 0)
    assert epoch.held_up(STAGING) == (frozenset(), frozenset())
