"""A plain PyTorch loop with a compiled model: nothing but the loader's name changes.

    python examples/train_compiled.py

Every batch has the same shape and strides, so that the model is compiled once. ``drop_last`` leaves
out the smaller batch at the end, for which it would be compiled again.
"""

from __future__ import annotations

import torch
from sample_images import data_folder, parser_of
from torch import nn
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--backend", default="inductor", help="torch.compile's (inductor)")
    options = parser.parse_args()
    transform = transforms.Compose([transforms.RandomResizedCrop(32), transforms.ToTensor()])
    dataset = ImageFolder(str(data_folder(options)), transform)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader = FusionLoader(
        dataset,
        16,
        shuffle=True,
        num_workers=2,
        persistent_workers=True,
        drop_last=True,
        device=device,
    )
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, len(dataset.classes))).to(device)
    compiled = torch.compile(model, backend=options.backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with loader:
        for epoch in range(2):
            loader.set_epoch(epoch)
            for images, targets in loader:
                loss = nn.functional.cross_entropy(compiled(images), targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            print(f"epoch {epoch + 1}: loss {loss.item():.3f}")
        print(f"{loader.stats().batches} batches")


if __name__ == "__main__":
    main()
