"""A training with MONAI's transforms on dictionaries, its collate function and its loader.

python monai_training.py FOLDER_OF_IMAGES
"""

import sys

import torch
from monai.data import DataLoader, Dataset
from monai.transforms import (
    Compose,
    EnsureChannelFirstd,
    LoadImaged,
    RandFlipd,
    RandGaussianNoised,
    Resized,
    ScaleIntensityd,
)
from torch import nn
from torchvision.datasets import ImageFolder


def main() -> None:
    items = [{"image": path, "label": label} for path, label in ImageFolder(sys.argv[1]).samples]
    load = [
        LoadImaged("image", reader="PILReader"),
        EnsureChannelFirstd("image", channel_dim=-1),
        ScaleIntensityd("image"),
        Resized("image", (64, 64)),
    ]
    drawn = [RandFlipd("image", prob=0.5, spatial_axis=0), RandGaussianNoised("image", prob=0.3)]
    loaders = {
        "train": DataLoader(
            Dataset(items, Compose([*load, *drawn])), batch_size=8, shuffle=True, num_workers=2
        ),
        "val": DataLoader(Dataset(items, Compose(load)), batch_size=8, num_workers=2),
    }
    net = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = nn.Sequential(net, nn.Linear(8, 10))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        for name, loader in loaders.items():
            for batch in loader:
                loss = nn.functional.cross_entropy(model(batch["image"]), batch["label"])
                if name == "train":
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
            print(name, float(loss))


if __name__ == "__main__":
    main()
