"""Who may speak: a key and a certificate that follow from a shared token.

Everybody who has the token makes the same Ed25519 key and the same self-signed certificate from it,
shows it, and trusts no other. So TLS authenticates both ends, and agrees on session keys that the
token does not give away later.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import os
import secrets
import ssl
import stat
import weakref
from pathlib import Path

from fusionloader.system.limits import anonymous_memory

TOKEN_BYTES = 32
_LEAST_BYTES = 16
_PERSON = b"fusionloader-tls"


def draw_token() -> bytes:
    """Returns a new token."""
    return secrets.token_bytes(TOKEN_BYTES)


def read_token(path: str | os.PathLike[str]) -> bytes:
    """Returns the token in a file, which nobody but its owner may read.

    Raises:
        ValueError: there is no such file, others may read or own it, or it is too short to be one.
    """
    try:
        with Path(path).expanduser().open("rb") as file:
            found = os.fstat(file.fileno())
            token = file.read().strip()
    except OSError as error:
        raise ValueError(f"the token file cannot be read: {error}") from None
    if found.st_uid not in (os.geteuid(), 0) or stat.S_IMODE(found.st_mode) & 0o077:
        raise ValueError(f"others may read the token file {path}: `chmod 600` it, as its owner")
    if len(token) < _LEAST_BYTES:
        raise ValueError(
            f"the token file {path} has {len(token)} bytes, and should have {_LEAST_BYTES} at "
            "least: `openssl rand -hex 32` makes one"
        )
    return token


class Identity:
    """The key and the certificate, in memory that other processes may be given.

    Attributes:
        fd: descriptor of the memory; another process makes ``Identity(fd)`` of it.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._closes = weakref.finalize(self, os.close, fd)

    @classmethod
    def of(cls, token: bytes) -> Identity:
        """Returns what follows from a token.

        Raises:
            ImportError: cryptography is not installed.
        """
        pem = _pem(token)
        fd = anonymous_memory.create("identity", len(pem))
        os.write(fd, pem)
        return cls(fd)

    @functools.cached_property
    def for_server(self) -> ssl.SSLContext:
        """Settings of the end that listens."""
        context = self._context(ssl.PROTOCOL_TLS_SERVER)
        context.num_tickets = 0  # sessions are not resumed
        return context

    @functools.cached_property
    def for_client(self) -> ssl.SSLContext:
        """Settings of the end that connects."""
        return self._context(ssl.PROTOCOL_TLS_CLIENT)

    def _context(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # the token says who may speak, not the name
        context.verify_mode = ssl.CERT_REQUIRED
        path = f"/proc/self/fd/{self.fd}"  # ssl reads keys from files alone
        context.load_cert_chain(path)
        context.load_verify_locations(path)
        return context

    def close(self) -> None:
        """Closes the descriptor; connections go on."""
        self._closes()


def _pem(token: bytes) -> bytes:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError as error:
        raise ImportError(
            "connections between machines need cryptography: pip install fusionloader[servers]"
        ) from error
    seed = hashlib.blake2b(token, digest_size=32, person=_PERSON).digest()
    key = Ed25519PrivateKey.from_private_bytes(seed)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "fusionloader")])
    # The same everywhere and always, so nothing in it is drawn, and no clock decides about it.
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), serial_number=1)
        .not_valid_before(datetime.datetime(2000, 1, 1))
        .not_valid_after(datetime.datetime(9999, 1, 1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, None)
    )
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ) + certificate.public_bytes(serialization.Encoding.PEM)
