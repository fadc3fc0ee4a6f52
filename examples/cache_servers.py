"""Each machine of a job caches a part of the images: every image is read from storage once.

On each machine of a job:

    torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint HOST:29500 \
        examples/cache_servers.py

It also works with both commands on one machine. Put XDG_RUNTIME_DIR=$(mktemp -d) before each, so
that they do not share the memory of that machine.
"""

from __future__ import annotations

import os

import torch
from sample_images import data_folder, parser_of
from torch.utils.data import DistributedSampler
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fusionloader import Cache, FusionLoader


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    if "RANK" in os.environ:
        torch.distributed.init_process_group("gloo")
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    transform = transforms.Compose([transforms.RandomResizedCrop(64), transforms.ToTensor()])
    dataset = ImageFolder(str(data_folder(options)), transform)
    sampler = DistributedSampler(dataset, ranks, rank)
    cache = Cache("256MiB", servers="auto")
    loader = FusionLoader(dataset, 16, sampler=sampler, num_workers=2, seed=0, cache=cache)
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        for images, _ in loader:
            assert images.shape[1:] == (3, 64, 64)
        if ranks > 1:
            torch.distributed.barrier()
        counts = loader.stats().cache
        assert counts is not None
        hits = {name: tier.hits for name, tier in counts.tiers.items() if tier.hits}
        print(f"rank {rank}, epoch {epoch}: {counts.epoch_misses} read from storage; hits {hits}")
    if ranks > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
