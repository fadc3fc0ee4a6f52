"""Service times made for tests: sizes, times that grow with them, and tails."""

import random

from fusionloader.cli.simulator.times import GpuTimes, ServiceTimes


def made_times(
    *, spread=0.4, noise=0.2, gpu_speed=6.0, launch=0.5, growth=0.5, beside=1.0, models=None
):
    """Times around 2.4 ms a sample on a CPU worker.

    ``spread`` and ``noise`` are those of log-normal sizes and times, ``gpu_speed`` the GPU worker's
    samples to one of a CPU worker, ``launch`` the cost of a launch in tiny-batches of 4, ``growth``
    how much of a sample's GPU time grows with its size, ``beside`` the speeds of training and GPU
    worker while both are on the device.
    """
    source = random.Random(11)
    measured = []
    for _ in range(400):
        nbytes = int(1e5 * source.lognormvariate(0, spread))
        measured.append((nbytes, (8e-4 + 1.6e-8 * nbytes) * source.lognormvariate(0, noise)))
    sample = 2.4e-3 / gpu_speed
    gpu = GpuTimes(
        launch=4 * launch * sample,
        build=0.0046,
        sample=(1 - growth) * sample,
        byte=growth * sample / 1e5,
        beside_training=beside,
        training_beside=beside,
    )
    return ServiceTimes("made", tuple(measured), gpu, models or {"quick": 8000.0, "slow": 1000.0})
