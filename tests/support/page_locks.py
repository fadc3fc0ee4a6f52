"""A driver that page-locks memory, as far as it can be counted without a device."""

from pathlib import Path


def mapped(address):
    lines = Path("/proc/self/maps").read_text().splitlines()
    spans = [line.split()[0].split("-") for line in lines]
    return any(int(s[0], 16) <= address < int(s[1], 16) for s in spans)


class Point:
    passed = True

    def query(self):
        return self.passed


class Driver:
    """Counts as a CUDA driver does; ``locked`` are the bytes that it takes for locked."""

    def __init__(self):
        self.locked = {}
        self.unlocked = 0
        self.marks = []

    def lock(self, address, nbytes):
        assert mapped(address) and not self.has(address)
        self.locked[address] = nbytes

    def has(self, address):
        return any(begin <= address < begin + size for begin, size in self.locked.items())

    def unlock(self, address):
        # Called by a finalizer, which cannot fail a test: the tests compare the counts.
        if mapped(address) and address in self.locked:
            del self.locked[address]
            self.unlocked += 1

    def mark(self):
        self.marks.append(Point())
        return self.marks[-1]
