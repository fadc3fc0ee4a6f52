"""What training scripts do with batches on a CUDA device, for each kind of data."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from support.batches import same_batches
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import fusionloader
from fusionloader import FusionLoader

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
BUSY = 100_000_000  # cycles of a kernel, about 50 ms


def transform():
    return v1.Compose(
        [v1.RandomResizedCrop(48), v1.ToTensor(), v1.Normalize((0.5,) * 3, (0.25,) * 3)]
    )


class OwnImages(Dataset):
    """Reads and transforms in Python of its own."""

    def __init__(self, folder):
        self.paths = sorted(Path(folder).rglob("*.jpg"))
        self.transform = transform()

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        image = Image.open(self.paths[index]).convert("RGB")
        return {"image": self.transform(image), "path": str(self.paths[index]), "at": (index, 0.5)}


class Stream(IterableDataset):
    """Variable shapes are the collate function's affair."""

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for number in range(first, 120, step):
            yield torch.full((3, 8), float(number)), number


def mixed(samples):
    images, labels = default_collate(samples)
    return v2.MixUp(num_classes=2)(images, labels)


def ragged(samples):
    """Not of one shape a batch, with what is no tensor."""
    return [image[:, :, : 8 + label] for image, label in samples], [label for _, label in samples]


KINDS = {
    "image folder": lambda folder: (ImageFolder(str(folder), transform()), {}),
    "own images": lambda folder: (OwnImages(folder), {}),
    "stream": lambda folder: (Stream(), {"shuffle": None}),
    "collated": lambda folder: (ImageFolder(str(folder), transform()), {"collate_fn": mixed}),
    "ragged": lambda folder: (ImageFolder(str(folder), transform()), {"collate_fn": ragged}),
}


def host(batch):
    if isinstance(batch, torch.Tensor):
        return batch.cpu()
    if isinstance(batch, dict):
        return {name: host(value) for name, value in batch.items()}
    return type(batch)(map(host, batch)) if isinstance(batch, (list, tuple)) else batch


def tensors(batch):
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)):
        for part in batch:
            yield from tensors(part)


def options_of(arguments, workers):
    options = {"shuffle": True, "num_workers": workers, "seed": 3, **arguments}
    return {name: value for name, value in options.items() if value is not None}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_batches_on_the_device_are_those_of_the_host(image_folder, kind, workers):
    dataset, arguments = KINDS[kind](image_folder)
    options = options_of(arguments, workers)
    torch.manual_seed(0)
    plain = FusionLoader(dataset, 8, persistent_workers=workers > 0, **options)
    wanted = [list(plain), list(plain)]
    torch.manual_seed(0)
    with FusionLoader(dataset, 8, device="cuda", persistent_workers=workers > 0, **options) as it:
        for right in wanted:
            batches = list(it)
            assert all(part.is_cuda for batch in batches for part in tensors(batch))
            assert same_batches(map(host, batches), right)


@pytest.mark.parametrize("kind", KINDS)
def test_pinned_batches_are_those_of_dataloader(image_folder, kind):
    """And are copied right when nothing holds them any more but the copy."""
    dataset, arguments = KINDS[kind](image_folder)
    options = options_of(arguments, 2)
    torch.manual_seed(0)
    wanted, copied = list(FusionLoader(dataset, 8, **options)), []
    torch.manual_seed(0)
    for batch in FusionLoader(dataset, 8, pin_memory=True, **options):
        assert all(part.is_pinned() for part in tensors(batch))
        torch.cuda._sleep(BUSY)
        copied.append([part.to("cuda", non_blocking=True) for part in tensors(batch)])
    assert same_batches(map(host, copied), ([*tensors(batch)] for batch in wanted))
    other = {name: value for name, value in options.items() if name != "seed"}
    theirs = next(iter(DataLoader(dataset, 8, pin_memory=True, **other)))
    assert [part.is_pinned() for part in tensors(theirs)] == [True] * len([*tensors(theirs)])


class Prefetcher:
    """Prepares the next batch on a stream of its own, as many scripts do."""

    def __init__(self, loader):
        self.batches, self.stream = iter(loader), torch.cuda.Stream()
        self.fetch()

    def fetch(self):
        with torch.cuda.stream(self.stream):
            self.batch = next(self.batches, None)
            if self.batch is not None:
                images, labels = (part.to("cuda", non_blocking=True) for part in self.batch)
                self.batch = images.mul(2), labels

    def __iter__(self):
        while self.batch is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
            batch = self.batch
            for part in batch:
                part.record_stream(torch.cuda.current_stream())
            self.fetch()
            yield batch


@pytest.mark.parametrize("options", [{"device": "cuda"}, {"pin_memory": True}])
def test_a_prefetcher_on_a_stream_of_its_own_reads_right_batches(image_folder, options):
    dataset = ImageFolder(str(image_folder), transform())
    wanted = [images.mul(2) for images, _ in FusionLoader(dataset, 4, num_workers=2, seed=3)]
    seen = []
    loader = FusionLoader(dataset, 4, num_workers=2, seed=3, **options)
    for images, _ in Prefetcher(loader):
        torch.cuda._sleep(BUSY)
        seen.append(images.clone())
        del images
    assert same_batches(map(host, seen), wanted)


@pytest.mark.parametrize("options", [{"device": "cuda"}, {"pin_memory": True}])
def test_a_graph_captured_amid_an_epoch_trains_on_right_batches(image_folder, options):
    dataset = ImageFolder(str(image_folder), transform())
    wanted = [images.sum() for images, _ in FusionLoader(dataset, 4, num_workers=2, seed=3)]
    static, sums, graph = torch.empty(4, 3, 48, 48, device="cuda"), [], None
    for images, _ in FusionLoader(dataset, 4, num_workers=2, seed=3, **options):
        static.copy_(images, non_blocking=True)
        if graph is None:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                total = static.double().sum()
        graph.replay()
        sums.append(total.clone())
    got = torch.stack(sums).cpu()
    assert torch.allclose(got, torch.stack(wanted).double(), atol=0.05)


def test_training_that_runs_out_of_memory_goes_on(image_folder):
    dataset = ImageFolder(str(image_folder), transform())
    wanted = list(FusionLoader(dataset, 4, num_workers=2, seed=3))
    seen = []
    for number, batch in enumerate(FusionLoader(dataset, 4, num_workers=2, seed=3, device="cuda")):
        if number % 3 == 1:
            with pytest.raises(torch.cuda.OutOfMemoryError):
                torch.empty(1 << 45, dtype=torch.uint8, device="cuda")
            torch.cuda.empty_cache()
        seen.append(batch)
    assert same_batches(map(host, seen), wanted)


def test_batches_that_were_left_and_loaders_that_were_dropped_leave_no_memory(image_folder):
    """Also iterators that were left in the middle of an epoch."""
    dataset = ImageFolder(str(image_folder), transform())

    def used(times):
        for _ in range(times):
            loader = FusionLoader(dataset, 4, num_workers=2, device="cuda")
            for number, _ in enumerate(loader):
                if number == 3:
                    break
            del loader
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        return total - free

    before = used(3)
    assert used(12) <= before + (8 << 20)


TRAINING = """
import sys, torch, torch.distributed as dist
from torch.utils.data.distributed import DistributedSampler
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from fusionloader import FusionLoader

dist.init_process_group("gloo")
rank = dist.get_rank()
steps = v1.Compose([v1.Resize((32, 32)), v1.ToTensor()])
dataset = ImageFolder(sys.argv[1], steps)
sampler = DistributedSampler(dataset, shuffle=True)
loader = FusionLoader(dataset, 4, sampler=sampler, num_workers=2, device="cuda", seed=1)
model = torch.nn.Linear(3 * 32 * 32, 2).cuda()
for epoch in range(2):
    sampler.set_epoch(epoch)
    seen = 0
    for images, labels in loader:
        assert images.is_cuda and images.isfinite().all()
        model(images.flatten(1)).sum().backward()
        seen += len(labels)
    count = torch.tensor(seen)
    dist.all_reduce(count)
    assert int(count) == len(dataset), count
print("trained", flush=True)
dist.destroy_process_group()
"""


def test_two_ranks_train_on_one_device(image_folder, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    root = str(Path(fusionloader.__file__).parents[1])
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node=2", str(script), str(image_folder)),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("trained") == 2
