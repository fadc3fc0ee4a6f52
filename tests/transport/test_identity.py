"""Who may speak: what follows from a token, and who may read the file that it is in."""

import os
import subprocess
import sys

import pytest

from fusionloader.system.transport.identity import Identity, draw_token, read_token

TOKEN = b"0123456789abcdef"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "token"
    path.write_bytes(TOKEN + b"\n")
    path.chmod(0o600)
    return path


def pem(identity):
    return os.pread(identity.fd, 1 << 16, 0)


def test_the_same_token_gives_the_same_key_and_certificate():
    assert pem(Identity.of(TOKEN)) == pem(Identity.of(TOKEN)) != pem(Identity.of(TOKEN + b"!"))
    assert draw_token() != draw_token()


def test_the_token_is_what_is_in_the_file(file):
    assert read_token(file) == TOKEN


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o601])
def test_a_file_that_others_may_read_is_refused(file, mode):
    file.chmod(mode)
    with pytest.raises(ValueError, match="others may read the token file .*chmod 600"):
        read_token(file)


def test_a_token_that_is_too_short_is_refused(file):
    file.write_bytes(b" short\n")
    with pytest.raises(ValueError, match="has 5 bytes, and should have 16"):
        read_token(file)


def test_a_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(ValueError, match="cannot be read: .*nowhere"):
        read_token(tmp_path / "nowhere")


def test_without_cryptography_the_error_names_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(ImportError, match=r"pip install fusionloader\[servers\]"):
        Identity.of(TOKEN)


@pytest.mark.parametrize("heavy", ["torch", "numpy", "cryptography"])
def test_a_process_that_is_given_an_identity_imports_little(heavy):
    """Workers have many processes: they get the certificate, not what makes it."""
    identity = Identity.of(TOKEN)
    code = f"""
import sys
from fusionloader.cache.servers import fetcher
from fusionloader.system.transport.identity import Identity
Identity({identity.fd}).for_client
sys.exit({heavy!r} in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], pass_fds=[identity.fd], check=True, timeout=60)
