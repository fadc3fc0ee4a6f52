"""Counters of a loader's reads from URLs, in memory that its processes share."""

from __future__ import annotations

import mmap
from dataclasses import dataclass, fields

from fusionloader.system.shm.descriptor import OwnedDescriptor


@dataclass(frozen=True, slots=True)
class StreamStats:
    """Reads from URLs since the loader was made.

    Attributes:
        requests: requests sent to the server, including hedged ones.
        samples: samples that workers received.
        bytes: bytes of all answers.
        hedged: requests that were sent a second time because the first answer was late.
        hedges_won: hedged requests that were answered before the first one.
        retries: attempts after a failed one.
        failures: requests that failed in all attempts.
        on_demand: samples that workers requested before they were read ahead.
        waited: samples that workers waited for.
        wait_seconds: time that workers waited for samples, summed over workers, in seconds.
        held_bytes: bytes of samples that are being read or held now.
        restarts: number of times that the process was replaced after it died.
    """

    requests: int
    samples: int
    bytes: int
    hedged: int
    hedges_won: int
    retries: int
    failures: int
    on_demand: int
    waited: int
    wait_seconds: float
    held_bytes: int
    restarts: int

    def explain(self) -> str:
        """Returns the line of ``explain()``."""
        a_request = self.samples / self.requests if self.requests else 0.0
        text = (
            f"from URLs: {self.samples} samples with {self.requests} "
            f"requests ({a_request:.1f} each), {self.bytes / 2**20:,.0f} MiB; {self.retries} "
            f"retries, {self.hedged} hedged; workers waited {self.wait_seconds:.1f} s"
        )
        return f"{text}; the process was replaced {self.restarts} times" if self.restarts else text


_FIELDS = tuple(each.name for each in fields(StreamStats))


class StreamCounters(OwnedDescriptor):
    """The fields of ``StreamStats`` in the memory of a descriptor, as doubles.

    Only one process may write each field. Doubles hold whole numbers up to 2 ** 53.
    """

    nbytes = mmap.PAGESIZE

    def __init__(self, fd: int) -> None:
        """Maps the memory of ``fd``, and takes ownership of ``fd``."""
        self.fd = fd
        self._memory = mmap.mmap(fd, self.nbytes)
        self._words = memoryview(self._memory).cast("d")

    @classmethod
    def create(cls) -> StreamCounters:
        from fusionloader.system.shm import objects

        return cls(objects.create(cls.nbytes, "stream"))

    def add(self, name: str, amount: float) -> None:
        self._words[_FIELDS.index(name)] += amount

    def set(self, name: str, value: int) -> None:
        self._words[_FIELDS.index(name)] = value

    def stats(self) -> StreamStats:
        found = zip(_FIELDS, self._words.tolist(), strict=False)
        whole = {name: int(value) for name, value in found if name != "wait_seconds"}
        return StreamStats(**whole, wait_seconds=self._words[_FIELDS.index("wait_seconds")])
