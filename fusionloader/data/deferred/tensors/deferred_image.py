"""Deferred tensors of the class ``tv_tensors.Image``, and torchvision's conversions to it."""

from __future__ import annotations

from typing import Any

from torchvision import tv_tensors

from fusionloader.data.deferred.core import deferred_core
from fusionloader.data.deferred.guard import PLAIN
from fusionloader.data.deferred.pillow import Argument
from fusionloader.data.deferred.tensors.deferred_tensor import (
    DeferredTensor,
    LikePlain,
    Unmade,
    deferred_tensor,
    find_view,
    tensor_of,
)
from fusionloader.data.deferred.tensors.tensor_view import TensorView


class DeferredImage(Unmade, tv_tensors.Image, metaclass=LikePlain):  # type: ignore[misc]
    """An image whose pixels are not made yet; afterwards a plain ``tv_tensors.Image``."""

    recorders = DeferredTensor.recorders


DeferredImage.become(tv_tensors.Image)


def to_image(inpt: Argument) -> Any:
    """Records ``to_image`` of a deferred image of Pillow or of a deferred tensor."""
    view = find_view(inpt)
    if view is not None:
        same = TensorView(view.memory, view.core, view.offset)
        return deferred_tensor(same, DeferredImage)
    core = deferred_core(inpt)
    return PLAIN if core is None else tensor_of(core, DeferredImage)
