"""Your own dataset class: JPEG files opened with Pillow are decoded natively.

python examples/own_dataset.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from PIL import Image
from sample_images import data_folder, parser_of
from torch import nn
from torch.utils.data import Dataset
from torchvision import transforms

from fusionloader import FusionLoader

NORMALIZE = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


class Photos(Dataset[dict[str, Any]]):
    """Image files of a folder with a sub-folder per class."""

    def __init__(self, root: Path) -> None:
        self.paths = sorted(root.glob("*/*.jpg"))
        self.classes = sorted({path.parent.name for path in self.paths})
        steps = [transforms.RandomResizedCrop(32), transforms.RandomHorizontalFlip()]
        self.transform = transforms.Compose([*steps, transforms.ToTensor(), NORMALIZE])

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        path = self.paths[index]
        image = Image.open(path).convert("RGB")
        label = self.classes.index(path.parent.name)
        return {"image": self.transform(image), "label": label, "path": str(path)}


def main() -> None:
    parser = parser_of(__doc__)
    options = parser.parse_args()
    photos = Photos(Path(data_folder(options)))
    loader: FusionLoader[Any] = FusionLoader(
        photos,
        16,
        shuffle=True,
        num_workers=2,
        stall_timeout=120,  # a worker that hangs so long at a sample is replaced
    )
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, len(photos.classes)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(2):
        loss = torch.zeros(())
        for batch in loader:
            loss = nn.functional.cross_entropy(model(batch["image"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}")
    print(loader.explain())


if __name__ == "__main__":
    main()
