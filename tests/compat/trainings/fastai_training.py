"""A training by fastai's Learner on loaders of torch.utils.data.

python fastai_training.py FOLDER_OF_IMAGES
"""

import sys

import fastai.callback.progress  # noqa: F401  # no_bar
from fastai.data.core import DataLoaders
from fastai.learner import Learner
from fastai.metrics import accuracy
from torch import nn
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder


def main() -> None:
    steps = [transforms.RandomResizedCrop(64), transforms.ToTensor()]
    train = ImageFolder(sys.argv[1], transforms.Compose(steps))
    steps = [transforms.Resize(72), transforms.CenterCrop(64), transforms.ToTensor()]
    val = ImageFolder(sys.argv[1], transforms.Compose(steps))
    loaders = DataLoaders(
        DataLoader(train, batch_size=8, shuffle=True, num_workers=2),
        DataLoader(val, batch_size=8, num_workers=2),
    )
    net = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = nn.Sequential(net, nn.Linear(8, 10))
    learner = Learner(loaders, model, loss_func=nn.CrossEntropyLoss(), metrics=accuracy)
    with learner.no_bar():
        learner.fit(2, 1e-3)


if __name__ == "__main__":
    main()
