"""Accelerate: the prepared model is validated while the next epoch trains."""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator
from overlapped_validation import evaluate, images
from sample_images import image_folder
from torchvision import transforms

from fusionloader import FusionLoader
from fusionloader.integrations.accelerate import prepare
from fusionloader.validation import OverlappedValidation


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--images", type=int, default=200, help="images to make (200)")
    options = parser.parse_args()
    accelerator = Accelerator()
    dataset = images(image_folder(options.images), transforms.RandomResizedCrop(32))
    val_set = images(image_folder(20, "val"), transforms.Resize(32), transforms.CenterCrop(32))
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, len(dataset.classes))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = FusionLoader(dataset, 16, shuffle=True, num_workers=2)
    model, optimizer, loader = prepare(accelerator, model, optimizer, loader)
    val = FusionLoader(val_set, 16, num_workers=1)
    with OverlappedValidation(evaluate, val, device=accelerator.device) as validation:
        for epoch in range(2):
            for x, y in loader:
                optimizer.zero_grad()
                accelerator.backward(torch.nn.functional.cross_entropy(model(x), y))
                optimizer.step()
            # All ranks are here: what they found is added up, and the next one begins.
            for result in validation.finish():
                whole = result.all_reduce() if accelerator.num_processes > 1 else result
                accelerator.print(f"epoch {whole.epoch}: {whole.metrics}")
            validation.start(model, epoch)
    for result in validation.results():
        whole = result.all_reduce() if accelerator.num_processes > 1 else result
        accelerator.print(f"epoch {whole.epoch}: {whole.metrics}")


if __name__ == "__main__":
    main()
