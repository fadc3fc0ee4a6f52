"""Authentication by a shared token, from which a key and a certificate are derived.

Every process with the token derives the same Ed25519 key and the same self-signed certificate,
shows that certificate, and trusts no other. So TLS authenticates both ends, and agrees on session
keys that cannot be derived from the token later.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import os
import secrets
import ssl
import stat
from pathlib import Path

from fusionloader.system.finalizers import Finalizer
from fusionloader.system.limits import anonymous_memory

TOKEN_BYTES = 32
_LEAST_BYTES = 16
_PERSON = b"fusionloader-tls"


def draw_token() -> bytes:
    return secrets.token_bytes(TOKEN_BYTES)


def read_token(path: str | os.PathLike[str]) -> bytes:
    """Returns the token in a file, which only its owner may read.

    Raises:
        ValueError: the file is missing, too short, owned by another user, or others may read it.
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
    """The key and the certificate, in shared memory.

    Attributes:
        fd: descriptor of the memory, for ``Identity(fd)`` in another process.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._closes = Finalizer(self, os.close, fd)

    @classmethod
    def of(cls, token: bytes) -> Identity:
        """Derives the identity from a token.

        Raises:
            ImportError: cryptography is not installed.
        """
        pem = _pem(token)
        fd = anonymous_memory.create("identity", len(pem))
        os.write(fd, pem)
        return cls(fd)

    @functools.cached_property
    def for_server(self) -> ssl.SSLContext:
        context = self._context(ssl.PROTOCOL_TLS_SERVER)
        context.num_tickets = 0  # sessions are not resumed
        return context

    @functools.cached_property
    def for_client(self) -> ssl.SSLContext:
        return self._context(ssl.PROTOCOL_TLS_CLIENT)

    def _context(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # the token authenticates, not the name
        context.verify_mode = ssl.CERT_REQUIRED
        path = f"/proc/self/fd/{self.fd}"  # ssl reads keys only from files
        context.load_cert_chain(path)
        context.load_verify_locations(path)
        return context

    def close(self) -> None:
        """Closes the descriptor. Existing connections continue."""
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
    # It must be the same everywhere and always, so it has no random part and no real dates.
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), serial_number=1)
        .not_valid_before(datetime.datetime(2000, 1, 1))
        .not_valid_after(datetime.datetime(9999, 1, 1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, None)
    )
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ) + certificate.public_bytes(serialization.Encoding.PEM)
