"""torch.set_default_device in the training process: host batches stay in host memory."""

import sys
import threading

import pytest
import torch
from support.batches import same_batches
from support.datasets import MadeRows
from support.images import eval_transform
from support.waiting import PATIENCE
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader, compile_plan
from fusionloader.addons.validation.threads import limited


class Rows(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return torch.full((2,), index, device="cpu"), torch.empty(0, device="cpu")


class Elsewhere(TorchFunctionMode):
    """As the mode of ``torch.set_default_device``, but for what torch's iterators draw with it."""

    def __torch_function__(self, function, types, arguments=(), named=None):
        named = dict(named or {})
        made = torch.utils._device._device_constructors()
        of_torch = sys._getframe(1).f_code.co_filename == torch.utils.data.dataloader.__file__
        if function in made and not of_torch and "device" not in named:
            named["device"] = "meta"
        return function(*arguments, **named)


@pytest.fixture
def elsewhere():
    with Elsewhere():
        assert torch.empty(3).is_meta
        yield


@pytest.mark.parametrize("python", [False, True])
def test_a_compiled_folder_is_delivered_in_host_memory(image_folder, elsewhere, python):
    steps = [eval_transform(), *[v1.Lambda(torch.neg)] * python]
    dataset = ImageFolder(str(image_folder), v1.Compose(steps))
    ours = FusionLoader(dataset, 8, num_workers=2)
    images = torch.cat([images for images, _ in ours])
    assert images.device.type == "cpu"
    assert torch.equal(images, torch.stack([image for image, _ in dataset]))


def test_without_workers_images_stay_and_targets_are_made_as_torch_makes_them(eval_set, elsewhere):
    images, targets = next(iter(DataLoader(eval_set, 4)))
    assert images.device.type == "cpu" and targets.is_meta
    ours = next(iter(FusionLoader(eval_set, 4)))
    assert torch.equal(ours[0], images) and ours[1].is_meta


def test_rows_of_the_users_are_delivered_in_host_memory(elsewhere):
    ours = FusionLoader(Rows(), 4, num_workers=1)
    assert same_batches(DataLoader(Rows(), 4), ours)
    assert same_batches(
        DataLoader(TensorDataset(torch.ones(3, device="cpu"))),
        FusionLoader(MadeRows(torch.ones(3, device="cpu")), num_workers=1),
    )


@pytest.mark.parametrize(
    "collate",
    [
        lambda samples: torch.arange(8, device="cpu")[2:4],
        lambda samples: torch.empty(0, 4, device="cpu"),
        lambda samples: torch.arange(9000, device="cpu")[::2],
    ],
)
def test_batches_of_a_collate_fn_are_delivered_in_host_memory(collate):
    ours = iter(FusionLoader(range(4), 2, num_workers=1, collate_fn=collate))
    with Elsewhere():
        assert all(torch.equal(batch, collate([])) for batch in ours)


@pytest.mark.parametrize("elements", [3, 9000])
def test_gathered_tensors_are_delivered_in_host_memory(elsewhere, elements):
    rows = torch.arange(6 * elements, device="cpu").view(6, elements)
    dataset = TensorDataset(rows, rows.to(torch.bfloat16))
    assert same_batches(DataLoader(dataset, 4), FusionLoader(dataset, 4, num_workers=1))


def test_an_epoch_can_be_resumed(eval_set, elsewhere):
    loader = FusionLoader(eval_set, 8, num_workers=1)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    rest = list(iterator)
    loader.load_state_dict(state)
    assert same_batches(rest, loader)


def test_a_plan_is_applied_in_host_memory(image_folder, elsewhere):
    from PIL import Image

    compiled = compile_plan(eval_transform())
    image = Image.open(min(image_folder.glob("*/*.jpg"))).convert("RGB")
    operations = compiled.draw(*image.size)
    assert torch.equal(compiled.apply(image, operations), eval_transform()(image))


def test_policies_and_erasing_are_compiled_to_the_same_plan():
    steps = [
        v1.Resize((32, 32)),
        v1.RandAugment(),
        v1.ToTensor(),
        v1.RandomErasing(value=(1, 2, 3)),
    ]
    expected = compile_plan(v1.Compose(steps))
    with Elsewhere():
        found = compile_plan(v1.Compose(steps))
    assert found.plan == expected.plan and found.tail is None


def test_a_state_between_epochs_is_loaded(elsewhere):
    dataset = TensorDataset(torch.arange(6, device="cpu"))
    loader = FusionLoader(dataset, 2)
    list(loader)
    again = FusionLoader(dataset, 2)
    state = loader.state_dict()
    torch.manual_seed(5)  # another state than that of the global generator
    again.load_state_dict(state)
    assert same_batches(list(again), list(loader))


def test_a_bare_cuda_is_the_device_of_the_thread_that_calls_iter(monkeypatch):
    """Another thread may call next(), as a prefetcher's does."""
    asked, main = [], threading.current_thread()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(
        torch.cuda, "current_device", lambda: int(threading.current_thread() is main)
    )
    monkeypatch.setattr(torch.Tensor, "to", lambda self, device, **_: asked.append(device) or self)
    for dataset in TensorDataset(torch.arange(4)), range(4), MadeRows(torch.arange(4.0)):
        iterator = iter(FusionLoader(dataset, 2, device="cuda"))
        thread = threading.Thread(target=list, args=(iterator,))
        thread.start()
        thread.join()
    assert asked == [torch.device("cuda", 1)] * 6


def test_threads_of_a_validation_have_the_callers_device(monkeypatch):
    devices = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", devices.append)
    for thread in limited(["a", "b"], 1):
        thread.end()
        thread.join(PATIENCE)
    assert devices == [2, 2]
