"""Settings of reading a stream: fsspec's options, read-ahead, retries."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

_LEAST_AHEAD = 1 << 20


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """Settings of the process that reads a stream.

    Attributes:
        storage_options: options of fsspec's file system: credentials, endpoints.
        ahead_bytes: largest number of bytes that are requested or held before workers take them.
        in_flight: largest number of concurrent requests.
        request_bytes: largest size of a request, unless a single sample is larger.
        gap_bytes: largest gap in bytes between two samples that are read by one request.
        retries: number of attempts after the first one.
        timeout: timeout of one attempt, in seconds.
        hedge: whether late requests are sent a second time.
        window: shuffle window of the sampler, in samples. At least twice as many samples are
            announced, so that the samples of one request are known together.
    """

    storage_options: dict[str, Any] = field(default_factory=dict)
    ahead_bytes: int = 256 << 20
    in_flight: int = 16
    request_bytes: int = 8 << 20
    gap_bytes: int = 64 << 10
    retries: int = 5
    timeout: float = 30.0
    hedge: bool = True
    window: int = 0

    def __post_init__(self) -> None:
        """Checks the values.

        Raises:
            ValueError: a value is out of range.
        """
        checks = (
            ("read_ahead", self.ahead_bytes, _LEAST_AHEAD, "bytes, or text as '256MiB'"),
            ("requests_in_flight", self.in_flight, 1, "requests"),
            ("request_bytes", self.request_bytes, 1, "bytes"),
            ("gap_bytes", self.gap_bytes, 0, "bytes"),
            ("retries", self.retries, 0, "attempts after the first"),
        )
        for name, found, least, what in checks:
            if found < least:
                raise ValueError(f"{name} should be at least {least} {what}, not {found!r}")
        if not self.timeout > 0:
            raise ValueError(f"timeout should be seconds above 0, not {self.timeout!r}")
