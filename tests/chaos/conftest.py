"""The laboratory of all tests of the campaign: what it costs is one import of torch."""

import pytest
from support.campaigns import KILLS

from chaos.campaign import laboratory


@pytest.fixture(scope="session")
def place():
    with laboratory(80 if KILLS else 10) as made:
        yield made
