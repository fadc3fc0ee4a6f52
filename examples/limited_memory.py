"""Shows how much memory batches may take, and limits the batches that are made ahead.

    python examples/limited_memory.py

Batches need no ``/dev/shm``. The free memory is that of the machine, the container and ``ulimit``.
"""

from __future__ import annotations

from sample_images import data_folder, parser_of
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader


def main() -> None:
    parser = parser_of(__doc__, images=600)
    parser.add_argument("--limit", default="4MiB", help="of batches in flight (4MiB)")
    options = parser.parse_args()
    transform = transforms.Compose([transforms.RandomResizedCrop(128), transforms.ToTensor()])
    dataset = ImageFolder(str(data_folder(options)), transform)
    for limit in (None, options.limit):
        loader = FusionLoader(
            dataset, batch_size=16, num_workers=2, prefetch_factor=4, max_shared_bytes=limit
        )
        samples = sum(len(images) for images, _ in loader)
        stats = loader.stats()
        taken, most = stats.shared_memory_bytes, stats.shared_memory_limit_bytes
        print(f"{samples} samples: {taken >> 20} MiB of at most {most >> 20} MiB were taken")


if __name__ == "__main__":
    main()
