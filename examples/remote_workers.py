"""Workers on other machines prepare samples.

With two worker processes that this script starts, on addresses that represent two machines:

    python examples/remote_workers.py

With workers that Ray starts on the machines of a cluster (`ray start`), or on this machine:

    python examples/remote_workers.py --ray
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from sample_images import data_folder, parser_of
from torch import nn
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader, Remote

HOSTS = ("127.0.0.2", "127.0.0.3")


@contextlib.contextmanager
def two_workers(folder: Path) -> Iterator[Remote]:
    """What one would type on two machines, with a copy of the token file on each."""
    token, worker = folder / "token", [sys.executable, "-m", "fusionloader", "worker"]
    subprocess.run([*worker, "--init", str(token)], check=True, stdout=subprocess.DEVNULL)
    processes = [
        subprocess.Popen(
            [*worker, "--listen", f"{host}:0", "--token-file", str(token), "--cores", "1"],
            stdout=subprocess.PIPE,
            text=True,
        )
        for host in HOSTS
    ]
    try:
        yield Remote(servers=[address_of(each) for each in processes], token_file=str(token))
    finally:
        for each in processes:
            each.terminate()
            each.communicate()


def address_of(worker: subprocess.Popen[str]) -> str:
    """Returns the address in a worker's first line: "listening at HOST:PORT, 1 cores"."""
    assert worker.stdout is not None
    return worker.stdout.readline().split()[2].rstrip(",")


def train(remote: Remote | str, folder: Path, epochs: int) -> None:
    transform = transforms.Compose(
        [transforms.RandomResizedCrop(64), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    )
    dataset = ImageFolder(str(folder), transform)
    loader = FusionLoader(
        dataset,
        16,
        shuffle=True,
        num_workers=2,
        seed=0,
        persistent_workers=True,  # remote ones are connected once
        remote=remote,
    )
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(len(dataset.classes))
    )
    model(torch.zeros(1, 3, 64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(epochs):
        for pixels, labels in loader:
            loss = nn.functional.cross_entropy(model(pixels), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}")
    print(loader.explain())
    loader.close()


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--ray", action="store_true", help="have Ray start the workers")
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    images = data_folder(options)
    if options.ray:
        train("auto", images, options.epochs)
        return
    with tempfile.TemporaryDirectory() as folder, two_workers(Path(folder)) as remote:
        train(remote, images, options.epochs)


if __name__ == "__main__":
    main()
