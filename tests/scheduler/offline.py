"""The offline problem of preparing an epoch, and how short it can be at best.

Given are all tiny-batches with their seconds on a CPU worker and on the device, ``workers`` CPU
workers that do one tiny-batch at a time, and one GPU worker that does groups of at most ``largest``
tiny-batches, each group for ``launch`` seconds more. Everything may begin at once, in any order and
across mini-batches. Sought is the shortest time until all is done.
"""

import itertools


def shortest(work, workers, launch, largest):
    """A time that no schedule can beat: tiny-batches may be split, and all groups are full."""
    prices = [(cpu / workers, gpu + launch / largest) for cpu, gpu in work]
    prices.sort(key=lambda price: price[0] / price[1], reverse=True)
    on_cpu, on_gpu = sum(cpu for cpu, _ in prices), 0.0
    for cpu, gpu in prices:  # to the GPU worker first what it saves the most by
        if on_gpu + gpu >= on_cpu - cpu:
            return on_gpu + gpu * (on_cpu - on_gpu) / (cpu + gpu)
        on_cpu, on_gpu = on_cpu - cpu, on_gpu + gpu
    return on_gpu


def exact(work, workers, launch, largest):
    """The optimum, by trying everything: for a handful of tiny-batches."""
    best = float("inf")
    for places in itertools.product(range(workers + 1), repeat=len(work)):
        loads = [0.0] * (workers + 1)
        for (cpu, gpu), place in zip(work, places, strict=True):
            loads[place] += cpu if place else gpu
        loads[0] += launch * -(-places.count(0) // largest)
        best = min(best, max(loads))
    return best
