"""Loaders with remote workers: the batches, and what is said of them."""

import shutil

import numpy as np
import pytest
import torch
from support.images import NORMALIZE, train_transform
from support.remote_workers import assert_same, batches_of, folder_loader, remote_loader
from support.waiting import wait_until
from torch.utils.data import Dataset
from torchvision import transforms
from torchvision.datasets import CIFAR10, ImageFolder

from fusionloader import FusionLoader, Remote
from fusionloader.observe.trace.files import read_timeline

_CROP = [transforms.RandomResizedCrop(32), transforms.RandomHorizontalFlip()]
TRANSFORMS = {
    "float32": train_transform(),
    "uint8": transforms.Compose([*_CROP, transforms.PILToTensor()]),
    "float64": transforms.Compose(
        [*_CROP, transforms.ToTensor(), transforms.ConvertImageDtype(torch.float64)]
    ),
    "grey": transforms.Compose([transforms.Grayscale(), *_CROP, transforms.ToTensor()]),
    "erased": transforms.Compose(
        [
            *_CROP,
            transforms.ToTensor(),
            transforms.Normalize(*NORMALIZE),
            transforms.RandomErasing(0.7),
        ]
    ),
    "randaugment": transforms.Compose([*_CROP, transforms.RandAugment(), transforms.ToTensor()]),
}


def until_served(loader):
    """Goes through epochs until a remote worker has made something; returns their batches."""
    found = []

    def served():
        found.extend(batches_of(loader, 1))
        return loader.stats().remote.samples

    wait_until(served, "no remote worker has made anything", pause=0.05)
    return found


def expected(loader, batches):
    """As many batches of a loader by itself."""
    epochs = len(batches) // len(loader)
    return batches_of(loader, epochs)


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.few(3)
def test_batches_are_those_without(name, image_folder, start_worker, token_file):
    worker = start_worker()
    with remote_loader(image_folder, [worker], token_file, TRANSFORMS[name]) as loader:
        found = until_served(loader)
        stats = loader.stats().remote
    with folder_loader(image_folder, TRANSFORMS[name]) as alone:
        assert_same(found, expected(alone, found))
    assert stats.samples and stats.bytes_received
    assert loader.stats().remote.samples >= stats.samples  # of a loader that was closed


@pytest.mark.few(2)
@pytest.mark.parametrize("data", ["shared", "ship"])
@pytest.mark.parametrize("augment_per", ["sample", "tiny_batch"])
def test_files_are_read_there_or_sent(data, augment_per, image_folder, start_worker, token_file):
    transform = TRANSFORMS["randaugment"]
    worker = start_worker()
    options = {"augment_per": augment_per, "transform": transform}
    with remote_loader(image_folder, [worker], token_file, data=data, **options) as loader:
        found = until_served(loader)
        sent = loader.stats().remote.bytes_sent / loader.stats().remote.samples
    with folder_loader(image_folder, **options) as alone:
        assert_same(found, expected(alone, found))
    assert (sent > 1000) == (data == "ship")


class Pixels(CIFAR10):
    """Random images in the place of the ones to download."""

    def __init__(self, transform):
        self.data = np.random.default_rng(0).integers(0, 256, (60, 32, 32, 3), dtype=np.uint8)
        self.targets = list(range(60))
        self.transform, self.target_transform = transform, None
        self.root, self.transforms = "", None


def test_images_in_memory_are_sent(start_worker, token_file):
    transform = transforms.Compose([transforms.RandomCrop(32, 4), transforms.ToTensor()])
    dataset = Pixels(transform)
    remote = Remote(servers=[start_worker().address], token_file=str(token_file), offload="all")
    with FusionLoader(
        dataset, 10, num_workers=1, seed=1, persistent_workers=True, remote=remote
    ) as loader:
        found = until_served(loader)
    with FusionLoader(dataset, 10, num_workers=1, seed=1, persistent_workers=True) as alone:
        assert_same(found, expected(alone, found))


@pytest.mark.parametrize("data", ["shared", "auto"])
def test_a_worker_without_the_data_is_left_alone_or_sent_it(
    data, image_folder, start_worker, token_file, tmp_path, monkeypatch, caplog
):
    """A path by which each process finds a folder of its own, as on another machine."""
    for place in ("here", "there"):
        shutil.copytree(image_folder, tmp_path / place / "images")
    for path in (tmp_path / "there").rglob("*.jpg"):
        path.write_bytes(path.read_bytes()[:-2] + b"xx")  # as long, and damaged
    path = next((tmp_path / "there").rglob("*.jpg"))
    path.write_bytes(path.read_bytes()[::-1])
    worker = start_worker(cwd=tmp_path / "there")
    monkeypatch.chdir(tmp_path / "here")
    folder = "/proc/self/cwd/images"
    # A proxy that ends with a short epoch may not have said yet why its worker refused.
    with remote_loader(folder, [worker], token_file, data=data, persistent_workers=True) as loader:
        if data == "auto":
            found = until_served(loader)
        else:
            try:
                wait_until(lambda: batches_of(loader, 1) and "has not the same data" in caplog.text)
            except AssertionError as error:
                said = f"{loader.explain()}\n{loader.stats().remote}\nlogged: {caplog.text}"
                raise AssertionError(said) from error
            found = batches_of(loader, 1)
            assert loader.stats().remote.samples == 0
            assert loader.stats().remote.workers[0].state == "refused"
    if data == "auto":
        with folder_loader(folder) as alone:
            assert_same(found, expected(alone, found))


def test_formats_that_pillow_decodes_are_made_here(
    image_folder, start_worker, token_file, tmp_path
):
    folder = tmp_path / "images"
    dataset = ImageFolder(str(image_folder))
    for number, (path, _) in enumerate(dataset.samples[:20]):
        place = folder / f"class{number % 2}"
        place.mkdir(parents=True, exist_ok=True)
        image = dataset.loader(path)
        image.save(place / f"{number:02}.{'bmp' if number % 4 == 0 else 'jpg'}")
    with remote_loader(folder, [start_worker()], token_file, batch_size=20) as loader:
        found = until_served(loader)
        wait_until(lambda: batches_of(loader, 1) and loader.stats().remote.declined)
    with folder_loader(folder, batch_size=20) as alone:
        assert_same(found, expected(alone, found))


@pytest.mark.few(1)
@pytest.mark.parametrize("on_error", ["raise", "skip", "substitute"])
def test_a_bad_file_is_reported_as_without(
    on_error, image_folder, start_worker, token_file, tmp_path
):
    folder = shutil.copytree(image_folder, tmp_path / "images")
    bad = folder / "class0" / "000.jpg"
    bad.write_bytes(b"no image")
    with remote_loader(folder, [start_worker()], token_file, on_error=on_error) as loader:
        if on_error == "raise":
            with pytest.raises(OSError, match="000.jpg"):
                batches_of(loader)
            return
        found = until_served(loader)
        assert str(bad) in loader.stats().errors[0]
    with folder_loader(folder, on_error=on_error) as alone:
        assert_same(found, expected(alone, found))


def test_resumed_epochs_go_on(image_folder, start_worker, token_file):
    worker = start_worker()
    with folder_loader(image_folder) as alone:
        whole = batches_of(alone, 1)
    with remote_loader(image_folder, [worker], token_file) as loader:
        iterator = iter(loader)
        next(iterator), next(iterator)
        state = loader.state_dict()
    with remote_loader(image_folder, [worker], token_file) as loader:
        loader.load_state_dict(state)
        assert_same(batches_of(loader, 1), whole[2:])


def test_what_remote_workers_do_is_seen(image_folder, start_worker, token_file):
    worker = start_worker()
    with remote_loader(image_folder, [worker], token_file) as loader:
        until_served(loader)
        stats = loader.stats()
        text = loader.explain()
    (counted,) = stats.remote.workers
    assert counted.address == worker.address and counted.state == "serving"
    assert counted.samples == stats.remote.samples and counted.round_trip_seconds > 0
    assert any(each.kind == "remote" and each.samples for each in stats.workers)
    assert f"remote workers at {worker.address}" in text and "1 of 1 serve" in text
    assert stats.scalars()["fusionloader/remote/samples"] == stats.remote.samples
    assert stats.as_dict()["remote"]["workers"][0]["address"] == worker.address


def test_a_trace_shows_what_they_did(image_folder, start_worker, token_file, tmp_path):
    path = tmp_path / "run.pftrace"
    with remote_loader(image_folder, [start_worker()], token_file) as loader:
        until_served(loader)
        with loader.trace(path):
            before = loader.stats().remote.samples
            wait_until(lambda: batches_of(loader, 1) and loader.stats().remote.samples > before)
    timeline = read_timeline(path)
    kinds = {worker.number: worker.kind for worker in timeline.meta.workers}
    assert any(kinds[span.worker] == "remote" and span.samples for span in timeline.spans)


@pytest.mark.few(1)
@pytest.mark.parametrize("offload", ["balance", "fastflow"])
def test_every_policy_gives_the_same_batches(
    offload, image_folder, start_worker, token_file, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with remote_loader(image_folder, [start_worker()], token_file, offload=offload) as loader:
        found = batches_of(loader, 60)
        stats = loader.stats().remote
    assert stats.offload == offload and (stats.off_ratio is None) == (offload == "balance")
    with folder_loader(image_folder) as alone:
        assert_same(found, expected(alone, found))


class Squares(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        return index * index


def test_user_code_stays_here_and_it_is_said(token_file):
    remote = Remote(servers=["127.0.0.3:1"], token_file=str(token_file))
    with FusionLoader(Squares(), 5, num_workers=1, remote=remote) as loader:
        assert sum(int(batch.sum()) for batch in loader) == sum(i * i for i in range(20))
        assert "remote workers have no part: they run plans" in loader.explain()
        assert loader.stats().remote is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"remote": "everywhere"}, "remote should be addresses"),
        ({"remote": ["cpu1"]}, "host:port"),
        ({"remote": ["cpu1:1", "cpu1:1"]}, "given twice"),
        ({"remote": ["cpu1:1"], "num_workers": 0}, "num_workers > 0"),
        ({"remote": ["cpu1:1"], "share": "word"}, "leave share out"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        FusionLoader(Squares(), **({"num_workers": 1} | options))


def test_a_missing_token_is_said_before_training(image_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    loader = folder_loader(image_folder, remote=["127.0.0.3:1"])
    with pytest.raises(ValueError, match=r"the token file cannot be read"):
        iter(loader)
