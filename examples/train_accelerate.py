"""Accelerate: one changed line puts a FusionLoader into its wrapper.

python examples/train_accelerate.py
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from sample_images import data_folder, parser_of
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader
from fusionloader.addons.integrations.accelerate import prepare


def main() -> None:
    options = parser_of(__doc__).parse_args()
    accelerator = Accelerator()
    transform = transforms.Compose([transforms.RandomResizedCrop(32), transforms.ToTensor()])
    dataset = ImageFolder(data_folder(options), transform)
    classes = len(dataset.classes)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, classes))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = FusionLoader(dataset, 16, shuffle=True, num_workers=2)
    # Instead of accelerator.prepare(model, optimizer, loader).
    model, optimizer, loader = prepare(accelerator, model, optimizer, loader)
    for epoch in range(2):
        for images, targets in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images), targets)
            accelerator.backward(loss)
            optimizer.step()
        accelerator.print(f"epoch {epoch}: loss {loss.item():.2f}")


if __name__ == "__main__":
    main()
