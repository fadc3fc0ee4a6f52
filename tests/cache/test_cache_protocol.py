"""The holder's answers, without sockets: any message, and any order of users."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.cache_jobs import inodes, request

from fusionloader.cache.protocol import answer
from fusionloader.cache.requests import CacheRequest, ledger_token
from fusionloader.cache.stores import CacheStores, RequestRefused, ServedBudget, User, readable
from fusionloader.system.fd_messages import package_version

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)
NAMES = list(CacheRequest.__dataclass_fields__)


def message(do, **changes):
    return {"do": do, "version": package_version(), **request().fields(), **changes}


@pytest.fixture(scope="module")
def stores():
    made = CacheStores()
    yield made
    made.close()


# Numbers are small enough to be allowed, and texts likely to be wrong.
odd = json_values | st.sampled_from(["all", "\0", "/", "\ud800", 1 << 62, 1 << 70, -1, True, []])


@given(
    st.sampled_from(["attach", "list", "drop"]),
    st.dictionaries(st.sampled_from([*NAMES, "do", "version"]), odd),
    st.sets(st.sampled_from([*NAMES, "do", "version"]), max_size=2),
)
def test_a_message_with_odd_values_is_answered(stores, do, changes, missing):
    if "memory" in changes:
        changes.pop("files", None)  # the budget is what keeps tables small
    fields = message(do) | changes
    user = User(1)
    found = answer(stores, user, {key: fields[key] for key in fields.keys() - missing})
    assert len(found.fields.keys() & {"attached", "ledgers", "dropped", "refused"}) == 1
    assert ("attached" in found.fields) == stores.is_used_by(user) == bool(found.fds)
    stores.leave(user)
    assert stores.is_empty()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"files": 0}, "files should be an int from 1 to"),
        ({"files": True}, "files should be an int"),
        ({"memory": -1}, "memory should be an int from 0 to"),
        ({"memory": "1GiB"}, "memory should be an int .* not '1GiB'"),
        ({"fingerprint": ""}, "fingerprint should be text of at most 128"),
        ({"token": "x" * 129}, "token should be text"),
        ({"fingerprint": "\x1b[2J"}, "fingerprint should be printable, not '.x1b"),
        ({"tiers": []}, "1 to 6 different names"),
        ({"tiers": ["index", "index"]}, "different names"),
        ({"tiers": [[]]}, "tuple of names"),
        ({"path": "data"}, "path should be absolute, not 'data'"),
        ({"path": "/\0"}, "path should be absolute"),
    ],
)
def test_a_request_out_of_range_is_refused_with_what_was_found(stores, changes, why):
    found = answer(stores, User(1), message("attach", **changes))
    assert found.fields["refused"].startswith("the request cannot be read: ")
    with pytest.raises(ValueError, match=why):
        CacheRequest.of({**request().fields(), **changes})


def test_a_budget_larger_than_the_machines_memory_is_refused(stores):
    found = answer(stores, User(1), message("attach", memory=1 << 60))
    assert f"budget is {1 << 60} bytes of memory, and this machine has" in found.fields["refused"]
    assert stores.is_empty()


def test_a_budget_too_small_for_the_tables_is_refused_and_leaves_nothing(stores):
    before = len(os.listdir("/proc/self/fd"))
    found = answer(stores, User(1), message("attach", memory=1 << 20, files=1 << 20))
    assert found.fields["refused"].startswith("its memory cannot be made: ")
    assert stores.is_empty() and len(os.listdir("/proc/self/fd")) == before


def test_a_value_that_is_missing_is_named():
    with pytest.raises(ValueError, match="tiers is missing"):
        CacheRequest.of({key: value for key, value in request().fields().items() if key != "tiers"})


def test_a_connection_has_one_dataset(stores):
    user = User(1)
    stores.attach(user, request())
    with pytest.raises(RequestRefused, match="uses a dataset already"):
        stores.attach(user, request(fingerprint="another"))
    stores.leave(user)


def test_one_token_has_one_folder(stores, tmp_path):
    user = User(1)
    stores.attach(user, request())
    with pytest.raises(RequestRefused, match="for the folder None, not '/"):
        stores.attach(User(2), request(path=str(tmp_path)))
    stores.leave(user)


def test_a_name_cannot_command_a_terminal():
    assert readable("/data/\x1b[2J\udcff\n" + "ü") == "/data/?[2J??ü"


def test_ranks_have_one_token_for_a_cache_and_other_processes_their_own():
    job = {"LOCAL_RANK": "0", "TORCHELASTIC_RUN_ID": "a", "MASTER_PORT": "1"}
    token = ledger_token("mine", "32GiB", job)
    assert token == ledger_token("other", "32GiB", {**job, "LOCAL_RANK": "1"})
    assert token != ledger_token("mine", "16GiB", job)
    assert token != ledger_token("mine", "32GiB", {**job, "MASTER_PORT": "2"})
    assert ledger_token("mine", "32GiB", {}) == "mine"
    assert ledger_token("mine", "32GiB", {"LOCAL_RANK": "0"}) == "mine"


# ---- any order -----------------------------------------------------------------------------------

TOKENS, FINGERPRINTS = st.sampled_from("ABC"), st.sampled_from("xyz")


class Orders(RuleBasedStateMachine):
    """Users that come and go; a model says which datasets there are, and under which ledger."""

    @initialize(served=st.booleans())
    def begin(self, served):
        self.descriptors = len(os.listdir("/proc/self/fd"))
        self.served = served
        self.stores = CacheStores(ServedBudget(1 << 20) if served else None)
        self.users = {}  # user: fingerprint
        self.ledger_of = {}  # fingerprint: token
        self.memory = {}  # fingerprint: inodes

    @rule(token=TOKENS, fingerprint=FINGERPRINTS)
    def attach(self, token, fingerprint):
        user = User(len(self.users))
        dataset = self.stores.attach(user, request(token=token, fingerprint=fingerprint, files=9))
        self.users[user] = fingerprint
        self.ledger_of.setdefault(fingerprint, "" if self.served else token)
        memory = inodes(dataset.memory.fds())
        assert self.memory.setdefault(fingerprint, memory) == memory

    @rule(data=st.data())
    def leave(self, data):
        if not self.users:
            return
        user = data.draw(st.sampled_from(list(self.users)))
        self.stores.leave(user)
        token = self.ledger_of[self.users.pop(user)]
        in_use = {self.ledger_of[fingerprint] for fingerprint in self.users.values()}
        if not self.served and token not in in_use:
            self.forget([name for name, of in self.ledger_of.items() if of == token])

    @rule(fingerprint=FINGERPRINTS | st.just("all"))
    def drop(self, fingerprint):
        found = [name for name in self.ledger_of if fingerprint in (name, "all")]
        used = set(found) & set(self.users.values())
        if used or not (found or fingerprint == "all"):
            with pytest.raises(RequestRefused, match="is used by pid" if used else "no dataset"):
                self.stores.drop(fingerprint)
        else:
            assert len(self.stores.drop(fingerprint)) == len(found)
            self.forget(found)

    def forget(self, names):
        for name in names:
            del self.ledger_of[name], self.memory[name]

    @invariant()
    def what_is_held_is_what_was_asked_for(self):
        if not hasattr(self, "stores"):
            return
        held = self.stores.describe()
        found = {each["fingerprint"]: each for ledger in held for each in ledger["datasets"]}
        assert found.keys() == self.ledger_of.keys()
        for name, dataset in found.items():
            users = sorted(user.pid for user, used in self.users.items() if used == name)
            assert dataset["users"] == sorted(set(users))
        assert len(held) == len(set(self.ledger_of.values()) | ({""} if self.served else set()))
        for ledger in held:
            assert (ledger["memory"]["used"] > 0) == bool(ledger["datasets"])

    def teardown(self):
        if hasattr(self, "stores"):
            self.stores.close()
            assert len(os.listdir("/proc/self/fd")) == self.descriptors


TestOrders = Orders.TestCase
TestOrders.settings = settings(max_examples=40, stateful_step_count=15)
