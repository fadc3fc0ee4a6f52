import pytest
from support.remote_trials import Expected
from support.remote_workers import RemoteWorker

from fusionloader.sharing.remote.worker.service import WorkerService
from fusionloader.system.transport.address import Address
from fusionloader.system.transport.identity import Identity, read_token


@pytest.fixture
def token_file(tmp_path):
    path = tmp_path / "token"
    path.write_text("a token that loader and workers know")
    path.chmod(0o600)
    return path


@pytest.fixture
def start_worker(token_file):
    """Starts workers that end with the test."""
    started = []

    def start(*arguments, **options):
        started.append(RemoteWorker(token_file, *arguments, **options))
        return started[-1]

    yield start
    for worker in started:
        worker.end()


@pytest.fixture(scope="module")
def expected(image_folder):
    """The batches without remote workers."""
    found = Expected(image_folder)
    yield found
    found.close()


@pytest.fixture
def worker(token_file):
    """One with two cores, in this process."""
    service = WorkerService(Address("127.0.0.3", 0), Identity.of(read_token(token_file)), 2)
    yield service
    service.close()
