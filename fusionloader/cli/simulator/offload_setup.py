"""Trainings with remote workers that are simulated: workloads, network, policies."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from fusionloader.cli.simulator.times import ServiceTimes
from fusionloader.scheduler.offload.decision import Candidate, Metrics

_ROW_BYTES = 3 * 224 * 224


class OffloadShare(Enum):
    """How FastFlow's share follows from its metrics: as the paper has it, or as its code has it."""

    PAPER = "paper"
    CODE = "published code"


class Policy(Enum):
    """Who prepares what."""

    NONE = "none"
    BALANCE = "balance"
    FASTFLOW = "fastflow"
    ALL = "all"  # remote workers claim whenever they can, beside local ones
    ONLY_REMOTE = "only remote"  # local workers do nothing


@dataclass(frozen=True, slots=True)
class Workload:
    """What a training asks of those who prepare its samples.

    Attributes:
        cores: number of cores that keep up with training.
        row_bytes: size of a prepared sample, which a remote worker returns.
        encoded_bytes: size of a file, which is shipped to a worker that does not read by itself.
    """

    name: str
    cores: float
    row_bytes: float = _ROW_BYTES
    encoded_bytes: float = 1e5


@dataclass(frozen=True, slots=True)
class Network:
    """Between the training machine and all remote workers; each direction has this bandwidth.

    Attributes:
        bandwidth: bytes a second.
        round_trip: seconds.
        storage: bytes a second that all remote workers together read; ``None``: as many as asked.
    """

    bandwidth: float
    round_trip: float
    storage: float | None = None


FAST = Network(20e9 / 8, 2e-4)
SLOW = Network(1e9 / 8, 1e-3)


@dataclass(frozen=True, slots=True)
class Transport:
    """CPU seconds of the training machine: for a request, and for a byte that is sent or received.

    For four images of 224 pixels they add up to 102 microseconds, amid the 50 to 150 that were
    measured with TCP on loopback.
    """

    request: float = 3e-5
    byte: float = 1.2e-10


@dataclass(frozen=True, slots=True)
class OffloadSetup:
    """One simulated training.

    Sample times are drawn from ``times``; ``workload`` says how fast training is.

    Attributes:
        local_workers: each with a core that it shares with what remote workers cost here.
        lanes: remote cores.
        depth: requests of a lane that are out at once.
        in_flight: mini-batches; by default two for each local worker, as in the loader.
        limited: whether late answers limit the requests that are out.
        low: ready mini-batches below which balance offloads; by default as the loader decides.
        share: fraction of samples that FastFlow's policy makes remotely.
        steps: number of counted steps, after those in which the policy decides.
        profile_steps: number of steps in each phase of FastFlow's profile.
    """

    times: ServiceTimes
    workload: Workload
    policy: Policy
    lanes: int
    local_workers: int = 7
    network: Network = FAST
    transport: Transport = Transport()
    depth: int = 2
    batch_size: int = 128
    tiny_batch_size: int = 4
    in_flight: int | None = None
    limited: bool = True
    low: int | None = None
    candidates: tuple[Candidate, ...] = tuple(Candidate)
    share: OffloadShare = OffloadShare.PAPER
    steps: int = 100
    profile_steps: int = 50
    seed: int = 0

    @property
    def window(self) -> int:
        """Mini-batches in flight."""
        return self.in_flight or 2 * self.local_workers

    @property
    def sample_seconds(self) -> float:
        """CPU seconds of a worker for a sample, on average."""
        return self.times.mean_seconds

    @property
    def training_rate(self) -> float:
        """Samples per second of training that never waits."""
        return self.workload.cores / self.sample_seconds

    @property
    def local_rate(self) -> float:
        """Samples per second of local workers alone."""
        return self.local_workers / self.sample_seconds

    def trainer_seconds(self, samples: int, candidate: Candidate) -> float:
        """CPU seconds of the training machine for a request of so many samples."""
        nbytes = self.workload.row_bytes
        if candidate is Candidate.SHIP:
            nbytes += self.workload.encoded_bytes
        return self.transport.request + samples * nbytes * self.transport.byte

    @property
    def best_rate(self) -> float:
        """Samples per second that no policy can exceed: min(G, local + remote).

        Remote workers, network and local cores are used fully, by requests of a tiny-batch each.
        """
        samples = self.tiny_batch_size
        cost = self.trainer_seconds(samples, Candidate.TINY_BATCH) / samples / self.sample_seconds
        remote = min(
            self.lanes / self.sample_seconds, self.network.bandwidth / self.workload.row_bytes
        )
        return min(self.training_rate, self.local_rate + remote * max(0.0, 1 - cost))


@dataclass(frozen=True, slots=True)
class OffloadOutcome:
    """The counted steps of a training.

    Attributes:
        rate: samples per second.
        remote_share: fraction of samples made by remote workers.
        candidate: the kind of request at the end; ``None`` where nothing is offloaded.
    """

    setup: OffloadSetup
    rate: float
    remote_share: float
    candidate: Candidate | None


def share_of_code(metrics: Metrics) -> float:
    """Returns the share by FastFlow's published code, which differs from the paper."""
    training, local, remote = metrics.training_rate, metrics.local_rate, metrics.remote_rate
    if local + remote < training:
        return remote / (local + remote)
    middle = (remote + metrics.lower) / 2
    offloaded = middle if local > remote else max(remote, metrics.lower)
    return min(1.0, offloaded / training)


def eight_gpus(times: ServiceTimes) -> Workload:
    """Returns ResNet-50 on eight devices, with the measured sample times."""
    cores = 8 * times.models["ResNet-50"] * times.mean_seconds
    return Workload("8 GPUs", cores, encoded_bytes=times.mean_bytes)


def fastflow_workloads(times: ServiceTimes) -> tuple[Workload, ...]:
    """Returns the seven workloads of the paper's §7, and one of this project.

    How many cores keep up is as far as the text of §7.2 and §7.3 says: 7 to 30, Speaker
    Recognition a stall of 80 % with 7, Transformer ASR 20, GAN ADA 10. RandAugment is between 7 and
    14, CTC ASR above 14: 12 and 16 are assumed. So are the bytes, but for the 410 and 275 MB/s of
    Transformer ASR and Learnable Resizer. The eighth is ResNet-50 with the measured sample times.
    """
    resnet = times.models["ResNet-50"] * times.mean_seconds

    def rows(rate: float, cores: float) -> float:
        return rate * times.mean_seconds / cores

    return (
        Workload("Transformer ASR", 20, rows(410e6, 20)),
        Workload("GAN ADA", 10),
        Workload("CTC ASR", 16),
        Workload("Speaker Recognition", 30),
        Workload("RandAugment", 12),
        Workload("MelGAN", 7),
        Workload("Learnable Resizer", 7, rows(275e6, 7)),
        Workload("ResNet-50, measured", resnet, encoded_bytes=times.mean_bytes),
    )
