"""What a loader's reading of URLs has done: counters in memory that its processes share."""

from __future__ import annotations

import mmap
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class StreamStats:
    """What was read of URLs since the loader was made.

    Attributes:
        requests: sent to the server, the second ones among them.
        samples: that workers took.
        bytes: of all answers.
        hedged: requests that were sent a second time, since the first answer was late.
        hedges_won: of these, answered before the first.
        retries: attempts after a failed one.
        failures: requests that were given up.
        on_demand: samples that workers wanted before they were asked for.
        waited: samples that workers waited for.
        wait_seconds: that workers waited for them, all together.
        held_bytes: of samples that are asked for or held now.
        restarts: of the process, after it died.
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


class StreamCounters:
    """The fields of ``StreamStats``, in memory of a descriptor. One process adds to each of them.

    They are doubles, which hold whole numbers up to 2 ** 53.
    """

    nbytes = mmap.PAGESIZE

    def __init__(self, fd: int) -> None:
        """Maps the memory of ``fd``, which may be closed then."""
        self._memory = mmap.mmap(fd, self.nbytes)
        self._words = memoryview(self._memory).cast("d")

    @classmethod
    def create(cls) -> tuple[int, StreamCounters]:
        """Returns a descriptor of new memory, which the caller closes, and the counters in it."""
        from fusionloader.system.shm import objects

        fd = objects.create(cls.nbytes, "stream")
        return fd, cls(fd)

    def add(self, name: str, amount: float) -> None:
        """Adds to a counter."""
        self._words[_FIELDS.index(name)] += amount

    def set(self, name: str, value: int) -> None:
        """Sets what is no sum."""
        self._words[_FIELDS.index(name)] = value

    def stats(self) -> StreamStats:
        """Returns all of them."""
        found = zip(_FIELDS, self._words.tolist(), strict=False)
        whole = {name: int(value) for name, value in found if name != "wait_seconds"}
        return StreamStats(**whole, wait_seconds=self._words[_FIELDS.index("wait_seconds")])
