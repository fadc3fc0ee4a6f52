"""A real fault for each row but one of docs/guide/troubleshooting.md, and what is said of it."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from PIL import Image
from support.images import eval_transform
from torch.utils.data import Dataset, IterableDataset, Sampler
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader, WorkerPool
from fusionloader.data.sources import TarFolder

Fault = Callable[[Path], object]
"""Fails, in a folder of its own that has images under ``images``."""


def folder(at: Path) -> ImageFolder:
    return ImageFolder(str(at / "images"), eval_transform())


def path_of(at: Path, number: int = 5) -> str:
    return str(folder(at).samples[number][0])


class Own(Dataset):
    """Numbers; sample 5 is as the given function makes it."""

    def __init__(self, make: Callable[[], object]) -> None:
        self.make = make

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> object:
        return self.make() if index == 5 else index


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hang() -> None:
    signal.pause()


def wrong() -> None:
    raise ValueError("no such label")


def longer() -> torch.Tensor:
    return torch.zeros(3)


def not_an_image(at: Path) -> None:
    Path(path_of(at)).write_bytes(b"<html>not found</html>")
    list(FusionLoader(folder(at), 4, num_workers=1))


def cut_off(at: Path) -> None:
    path = Path(path_of(at))
    path.write_bytes(path.read_bytes()[:600])
    list(FusionLoader(folder(at), 4, num_workers=1))


def removed(at: Path) -> None:
    dataset = folder(at)
    os.unlink(dataset.samples[5][0])
    list(FusionLoader(dataset, 4, num_workers=1))


def too_large(at: Path) -> None:
    image = Image.new("1", (1 << 14, 1 << 14))
    image.save(path_of(at), "PNG")
    list(FusionLoader(folder(at), 4, num_workers=1))


def cut_shard(at: Path) -> None:
    shard = at / "train.tar"
    shard.write_bytes(b"cat/1.jpg" + bytes(700))
    TarFolder(str(shard))


def dies(at: Path) -> None:
    list(FusionLoader(Own(killed), 4, num_workers=1))


def hangs(at: Path) -> None:
    list(FusionLoader(Own(hang), 4, num_workers=1, stall_timeout=0.2))


def times_out(at: Path) -> None:
    list(FusionLoader(Own(hang), 4, num_workers=1, timeout=0.5))


def raises(at: Path) -> None:
    list(FusionLoader(Own(wrong), 4, num_workers=1))


def differs(at: Path) -> None:
    list(FusionLoader(Own(longer), 4, num_workers=1))


def dies_at_start(at: Path) -> None:
    list(FusionLoader(Own(wrong), 4, num_workers=1, worker_init_fn=ends))


def ends(worker: int) -> None:
    os._exit(3)


def fails_at_start(at: Path) -> None:
    list(FusionLoader(Own(wrong), 4, num_workers=1, worker_init_fn=refuses))


def refuses(worker: int) -> None:
    raise OSError("no licence for worker")


def cannot_be_pickled(at: Path) -> None:
    list(FusionLoader(Own(lambda: 0), 4, num_workers=1, multiprocessing_context="spawn"))


def too_little_memory(at: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 20, before[1]))  # counts for shared memory
    try:
        list(FusionLoader(Large(), 8, num_workers=1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class Large(Dataset):
    """Samples of a MB each."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(1 << 20, dtype=torch.uint8)


def forked(at: Path) -> None:
    iterator = iter(FusionLoader(folder(at), 2, num_workers=1))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            next(iterator)
        except RuntimeError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with open(read, "rb") as pipe:
        raise RuntimeError(pipe.read().decode())


def within_next(at: Path) -> None:
    iterator = iter(FusionLoader(Own(lambda: next(iterator)), 8))
    next(iterator)


def left(batches: Iterator[object]) -> None:
    """Has KeyboardInterrupt leave the generator that the batches are made of, and goes on."""
    try:
        list(batches)
    except KeyboardInterrupt:
        list(batches)


def interrupted() -> Iterator[int]:
    yield from [0] * 80  # more than are drawn ahead
    raise KeyboardInterrupt


class Interrupted(IterableDataset, Sampler):
    def __iter__(self) -> Iterator[int]:
        return interrupted()


def leaves_a_sampler(at: Path) -> None:
    left(iter(FusionLoader(Own(wrong), 4, num_workers=1, sampler=Interrupted())))


def leaves_a_dataset(at: Path) -> None:
    left(iter(FusionLoader(Interrupted(), 4)))


def other_state(at: Path) -> None:
    state = FusionLoader(folder(at), 4).state_dict()
    FusionLoader(folder(at), 2).load_state_dict(state)


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[int]:
        return iter(range(8))


def state_of_other_workers(at: Path) -> None:
    loader = FusionLoader(Stream(), 2, num_workers=1)
    next(iter(loader))
    other = FusionLoader(Stream(), 2, num_workers=2)
    other.load_state_dict(loader.state_dict())
    list(other)


def no_state(at: Path) -> None:
    FusionLoader(folder(at), 2).load_state_dict({"_snapshot": {}})


def skips_in_a_stream(at: Path) -> None:
    iter(FusionLoader(Stream(), 4, on_error="skip"))


def pool_of_a_stream(at: Path) -> None:
    with WorkerPool(1) as pool:
        iter(FusionLoader(Stream(), 4, pool=pool))


IMAGE = "Caught {} in DataLoader worker process …. Sample: index … (…)"
FAULTS: dict[str, Fault] = {
    IMAGE.format("UnidentifiedImageError"): not_an_image,
    f"{IMAGE.format('OSError')} … Truncated File Read": cut_off,
    IMAGE.format("FileNotFoundError"): removed,
    f"{IMAGE.format('DecompressionBombError')} … exceeds limit of … pixels": too_large,
    "Caught ValueError in DataLoader worker process …. Sample: index …": raises,
    "index … is …, index … is …. Samples of a mini-batch need one structure and shape": differs,
    "…/train.tar, byte …: no tar header here … the archive is damaged or no tar": cut_shard,
    "DataLoader worker (pid …) is killed by signal: Killed. 3 workers died on the same samples; "
    "one of these is the cause: index …": dies,
    "DataLoader worker (pid …) made no progress for … s (stall_timeout) at index … and was "
    "killed": hangs,
    "DataLoader timed out after … seconds. … worker … (pid …) at index … for … s": times_out,
    "DataLoader worker (pid(s) …) exited unexpectedly: three in a row ended before they asked for "
    "work (the last one …)": dies_at_start,
    "Caught OSError in DataLoader worker process …. Original Traceback … worker_init_fn": (
        fails_at_start
    ),
    "dataset.… cannot be sent to workers that are started by 'spawn'": cannot_be_pickled,
    "this iterator belongs to process …, from which this one was forked": forked,
    "next() was called within next() of the same iterator, by a signal handler or a finalizer": (
        within_next
    ),
    "the sampler was left by …, and draws no more batches of this epoch": leaves_a_sampler,
    "the dataset's iterator was left by …, and may have lost a sample. This iterator cannot go "
    "on": leaves_a_dataset,
    "FusionLoader needs … of shared memory for …, but … are free by …": too_little_memory,
    "the state was saved by a loader with …, and this one has …": other_state,
    "the state was saved with num_workers = …, and this loader has …": state_of_other_workers,
    "this is not a state of FusionLoader.state_dict(), or one of another version": no_state,
    "on_error=… needs samples that are made one by one, and this loader has none: …": (
        skips_in_a_stream
    ),
    "a WorkerPool serves map-style datasets without a state, and not this loader's: …": (
        pool_of_a_stream
    ),
}
"""By the message's pattern in the documentation."""
