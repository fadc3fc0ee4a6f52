"""Hugging Face datasets, WebDataset shards, and a plain loop with torch.compile."""

import io
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image
from support.batches import same_batches
from torch.utils.data import DataLoader
from toy import Points

from fusionloader import FusionLoader


def image(number):
    return Image.fromarray(np.full((8, 8, 3), number, dtype=np.uint8))


def to_tensors(rows):
    pixels = [torch.from_numpy(np.array(picture)) for picture in rows["image"]]
    return {"image": pixels, "label": rows["label"]}


@pytest.fixture
def pictures():
    datasets = pytest.importorskip("datasets", reason="pip install datasets")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    columns = {"image": [image(number) for number in range(20)], "label": list(range(20))}
    return datasets.Dataset.from_dict(columns, features=features)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_hugging_face_dataset_with_set_transform(pictures, workers):
    pictures.set_transform(to_tensors)
    expected = list(DataLoader(pictures, 6))
    assert same_batches(expected, FusionLoader(pictures, 6, num_workers=workers))


def test_a_hugging_face_stream_goes_on_where_it_was(pictures):
    def loader():
        stream = pictures.to_iterable_dataset(num_shards=4).with_format("torch")
        return FusionLoader(stream, 3, num_workers=2)

    first = loader()
    iterator = iter(first)
    before = [batch["label"].tolist() for batch in (next(iterator), next(iterator))]
    state = first.state_dict()
    after = [batch["label"].tolist() for batch in iterator]
    second = loader()
    second.load_state_dict(state)
    assert [batch["label"].tolist() for batch in second] == after
    assert sorted(sum(before + after, [])) == list(range(20))


def test_webdataset_shards_are_read_once_by_all_workers(tmp_path):
    webdataset = pytest.importorskip("webdataset", reason="pip install webdataset")
    for shard in range(4):
        with tarfile.open(tmp_path / f"{shard}.tar", "w") as tar:
            for number in range(5):
                data = str(shard * 5 + number).encode()
                entry = tarfile.TarInfo(f"{shard}-{number}.cls")
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
    shards = sorted(str(path) for path in tmp_path.glob("*.tar"))
    dataset = webdataset.WebDataset(shards, shardshuffle=False).decode().to_tuple("cls")
    seen = [int(i) for (numbers,) in FusionLoader(dataset, 3, num_workers=2) for i in numbers]
    assert sorted(seen) == list(range(20))


def test_a_plain_loop_with_torch_compile():
    model = torch.nn.Linear(3, 1)
    compiled = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    seen = []
    for points, numbers in FusionLoader(Points(24), 4, shuffle=True, num_workers=2):
        loss = compiled(points).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen += numbers.tolist()
    assert sorted(seen) == list(range(24))
    assert torch.isfinite(model.weight).all()
