"""WebP files that are not as an encoder writes them."""

from __future__ import annotations


def shortened(webp: bytes) -> bytes:
    """A lossy file whose pixels end early, with lengths that say so."""
    body = webp[20 : len(webp) // 2 & ~1]
    sized = b"VP8 " + len(body).to_bytes(4, "little") + body
    return b"RIFF" + (len(sized) + 4).to_bytes(4, "little") + b"WEBP" + sized
