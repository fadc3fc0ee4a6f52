"""How many lanes each remote worker has."""

from __future__ import annotations

from collections.abc import Mapping

from fusionloader.system.transport.address import Address


def allot(cores: Mapping[Address, int], lanes: int) -> dict[Address, int]:
    """Returns a lane for each core, or where there are too few, the same number to each worker.

    Where ``lanes`` are fewer than workers, the first ones have one each.
    """
    allotted = dict.fromkeys(cores, 0)
    while lanes:
        lacking = [address for address, count in allotted.items() if count < cores[address]]
        if not lacking:
            break
        for address in lacking[:lanes]:
            allotted[address] += 1
        lanes -= len(lacking[:lanes])
    return allotted
