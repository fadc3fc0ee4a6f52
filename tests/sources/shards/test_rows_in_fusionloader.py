"""Datasets of Hugging Face with a transform of rows: the decoding of their images is deferred."""

import pytest
import torch
from support.batches import same_batches
from support.images import eval_transform
from support.shard_writers import hugging_face_rows
from torch.utils.data import DataLoader

from fusionloader import FusionLoader


def test_a_dataset_with_a_transform_has_its_images_deferred(eval_set, tmp_path):
    pytest.importorskip("datasets")
    transform = eval_transform()

    def transformed(rows):
        images = torch.stack([transform(image.convert("RGB")) for image in rows["image"]])
        return {"image": list(images), "label": rows["label"]}

    rows = hugging_face_rows(eval_set, tmp_path / "rows").with_transform(transformed)
    loader = FusionLoader(rows, 8, num_workers=1)
    assert same_batches(DataLoader(rows, 8), loader)
    assert "40 files opened by user code were decoded natively" in loader.explain()
