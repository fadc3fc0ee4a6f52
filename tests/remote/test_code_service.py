"""What a worker answers to a loader that wants user code: here only where it is refused."""

import contextlib

import pytest
from support.worker_client import TOKEN, Refused, WorkerClient

import fusionloader
from fusionloader.sharing.remote import protocol
from fusionloader.sharing.remote.protocol import CodeSetup, DataMode
from fusionloader.sharing.remote.user_code.bundle import CodeBundle, installed
from fusionloader.sharing.remote.user_code.store import CodeStore
from fusionloader.sharing.remote.worker.service import WorkerService
from fusionloader.system.transport.address import Address
from fusionloader.system.transport.identity import Identity

MISSING = CodeBundle(b"cno_such_module\nDataset\n.", ())


def setup(**others):
    fields = {
        "version": fusionloader.__version__,
        "digest": MISSING.digest,
        "packages": installed(),
        "base_seed": 1,
        "workers": 2,
    }
    return CodeSetup(**(fields | others)).encode()


@contextlib.contextmanager
def asked(code):
    service = WorkerService(Address("127.0.0.2", 0), Identity.of(TOKEN), 1, code=code)
    with contextlib.closing(service), contextlib.closing(WorkerClient(service.address)) as client:
        yield client


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({}, "cannot load the dataset: ModuleNotFoundError: No module named 'no_such_module'"),
        ({"version": "0"}, r"and the loader has 0: install the same"),
        ({"packages": {"numpy": "0.1"}}, r"has numpy \S+, and training has numpy 0\.1: install"),
        ({"packages": {"no such": "2"}}, r"has no no such, and training has no such 2"),
        ({"workers": 0}, "fields of other types"),
    ],
)
def test_what_does_not_run_here_is_refused_by_name(fields, why):
    store = CodeStore(0)
    store.bring(MISSING)
    with asked(store) as client, pytest.raises(Refused, match=why):
        client.ask(protocol.SETUP_CODE, setup(**fields))


def test_a_worker_of_the_command_line_takes_no_user_code():
    with asked(None) as client:
        with pytest.raises(Refused, match="runs plans only"):
            client.ask(protocol.SETUP_CODE, setup())
        with pytest.raises(Refused, match="comes after SETUP_CODE"):
            head = protocol.WorkRequest(
                1, 2, 3, DataMode.INDICES, [protocol.WantedSample(0, 0, 0, 0, 8)]
            )
            client.ask(protocol.PREPARE, head.encode(), bytes(protocol.LAYOUT_BYTES + 8))
