"""fusionloader.plan.compile: draws and results one can look at, those of a loader."""

import pickle

import numpy as np
import pytest
import torch
from conftest import photo
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader, plan

IMAGE = photo(np.random.default_rng(1), 90, 70)
TRAIN = [v1.RandomResizedCrop(32), v1.RandAugment(), v1.ToTensor(), v1.RandomErasing(0.5)]


def test_what_is_drawn_and_applied_is_what_a_loader_gives(image_folder):
    dataset = ImageFolder(str(image_folder), v1.Compose(TRAIN))
    loader = FusionLoader(dataset, 1, shuffle=True, num_workers=1, seed=9)
    loader.set_epoch(4)
    compiled = plan.compile(dataset.transform)
    seen = []
    for images, _ in loader:
        seen.append(images[0])
    for index, (path, _) in enumerate(dataset.samples):
        image = dataset.loader(path)
        operations = compiled.draw(*image.size, seed=9, epoch=4, index=index)
        result = compiled.apply(image, operations)
        assert any(torch.equal(result, one) for one in seen)


def test_operations_can_be_written_by_hand():
    compiled = plan.compile(v1.Compose([v1.Resize((70, 90)), v1.ToTensor()]))
    dark = compiled.apply(IMAGE, [("brightness", 0.0)])
    assert dark.shape == (3, 70, 90) and dark.abs().max() == 0
    with pytest.raises(ValueError, match="unknown"):
        compiled.apply(IMAGE, [("brightnes", 0.0)])
    with pytest.raises(ValueError, match="the plan says"):
        compiled.apply(IMAGE, [("resize", 10, 10, "bilinear")])
    with pytest.raises(ValueError, match="more arguments"):
        compiled.apply(IMAGE, [("resize", 10)])


def test_a_tail_runs_on_the_native_result():
    compiled = plan.compile(v1.Compose([v1.CenterCrop(20), v1.Lambda(lambda image: image.size)]))
    assert compiled.apply(IMAGE, compiled.draw(90, 70)) == (20, 20)
    assert compiled.picture(IMAGE, compiled.draw(90, 70)).size == (20, 20)
    assert "python" in compiled.explain() and "python" in repr(compiled)


def test_results_of_any_size_and_arrays():
    compiled = plan.compile(v1.Compose([v1.Resize(30), v1.ToTensor()]))
    assert compiled.apply(np.asarray(IMAGE), compiled.draw(90, 70)).shape == (3, 30, 38)
    with pytest.raises(ValueError, match="uint8"):
        compiled.apply(np.zeros((5, 5, 3), np.float32), [])


def test_a_compiled_plan_is_pickled():
    compiled = pickle.loads(pickle.dumps(plan.compile(v1.Compose(TRAIN))))
    operations = compiled.draw(90, 70, index=3)
    assert compiled.apply(IMAGE, operations).shape == (3, 32, 32)
