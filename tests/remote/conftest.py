import pytest
from support.remote_workers import RemoteWorker


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
