"""Augmentation policies that torchvision does not have, for PIL images.

They are callables on PIL images that draw from torch's global generator. ``FusionLoader`` compiles
them; with the same parameters drawn, the pixels are the same.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

import torch
from PIL import Image

from fusionloader import _native
from fusionloader.transforms.executors.native import make_executor
from fusionloader.transforms.executors.replay import replay
from fusionloader.transforms.plan import deep_autoaugment
from fusionloader.transforms.plan.arguments import (
    Argument,
    Context,
    NotCompiled,
    color,
    interpolation_name,
)
from fusionloader.transforms.plan.registry import register_stage_transform
from fusionloader.transforms.plan.stages import (
    Channels,
    Color,
    Interpolation,
    Magnitude,
    Plan,
    PolicyStep,
    RandomApply,
    Stage,
)
from fusionloader.transforms.plan.torchvision.policies import rand_augment_policy

__all__ = ["DeepAutoAugment", "ExtendedRandAugment"]

_MODES: dict[str, Channels] = {"RGB": 3, "L": 1}
_LARGEST_MAGNITUDE = 30


class _Policy:
    """Draws operations as the compiled form does, and applies them with torchvision on Pillow."""

    def __init__(self, interpolation: Argument, fill: Argument) -> None:
        self.interpolation: Argument = interpolation
        self.fill: Argument = fill
        self._executors: dict[str, _native.Executor] = {}
        try:
            interpolation_name(interpolation)
            color(fill, 3)
        except NotCompiled as why:
            raise ValueError(f"{type(self).__name__}: {why}") from None

    def stage(self, context: Context) -> Stage:
        """Returns the policy as a stage of a plan."""
        raise NotImplementedError

    def __call__(self, image: Image.Image) -> Image.Image:
        """Returns the augmented image; its mode must be ``"RGB"`` or ``"L"``."""
        if not isinstance(image, Image.Image):
            raise TypeError(f"a PIL image is expected, not {type(image).__name__}")
        if image.mode not in _MODES:
            raise ValueError(f"an image of mode RGB or L is expected, not {image.mode}")
        executor = self._executors.get(image.mode)
        if executor is None:
            executor = self._executors[image.mode] = self._executor(_MODES[image.mode])
        seed = int(torch.randint(2**63 - 1, (), device="cpu"))
        return replay(image, executor.draw(seed, 0, 0, 0, *image.size))

    def _executor(self, channels: Channels) -> _native.Executor:
        try:
            stage = self.stage(Context(channels, "pil"))
        except NotCompiled as why:
            raise ValueError(f"{type(self).__name__}: {why}") from None
        plan = Plan((stage,), None, None, None, channels=channels, result_channels=channels)
        return make_executor(plan)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_executors": {}}

    def _warp_options(self, context: Context) -> tuple[Interpolation, Color]:
        context.require_pil()
        return interpolation_name(self.interpolation), color(self.fill, context.channels)


@register_stage_transform
class ExtendedRandAugment(_Policy):
    """RandAugment with ``SolarizeAdd`` and ``Cutout`` besides torchvision's 14 operations.

    One of the operations, all equally likely, is applied ``num_ops`` times. torchvision's have the
    strength that they have in torchvision with 31 bins of magnitudes. ``SolarizeAdd`` adds up to
    110 to the levels below 128. ``Cutout`` fills a square of up to a fifth of the shorter side,
    with its center anywhere. Cubuk et al., "RandAugment: Practical automated data augmentation with
    a reduced search space" (2020).

    Args:
        num_ops: number of operations for each image, at least 1.
        magnitude: strength of the operations, 0 to 30.
        interpolation: interpolation of geometric operations, as in torchvision.
        fill: level, or one for each channel, of pixels outside of the image, and of ``Cutout``.
    """

    def __init__(
        self,
        num_ops: int = 2,
        magnitude: int = 9,
        interpolation: Argument = "nearest",
        fill: Argument = 0,
    ) -> None:
        if not _is_whole(num_ops) or num_ops < 1:
            raise ValueError(f"num_ops is to be a whole number of at least 1: {num_ops!r}")
        if not _is_whole(magnitude) or not 0 <= magnitude <= _LARGEST_MAGNITUDE:
            raise ValueError(
                f"magnitude is to be a whole number from 0 to {_LARGEST_MAGNITUDE}: {magnitude!r}"
            )
        super().__init__(interpolation, fill)
        self.num_ops: int = num_ops
        self.magnitude: int = magnitude

    def stage(self, context: Context) -> Stage:
        interpolation, fill = self._warp_options(context)
        part = self.magnitude / _LARGEST_MAGNITUDE
        made = rand_augment_policy(self.num_ops, self.magnitude, _LARGEST_MAGNITUDE + 1)
        added = Magnitude(levels=(part,), scale=110.0, truncate=True)
        further = (
            (PolicyStep("solarize_add", 1.0, added),),
            (PolicyStep("cutout", 1.0, Magnitude(levels=(part,), scale=0.2)),),
        )
        return replace(
            made, policies=(*made.policies, *further), interpolations=(interpolation,), fill=fill
        )

    def __repr__(self) -> str:
        return (
            f"ExtendedRandAugment(num_ops={self.num_ops}, magnitude={self.magnitude}, "
            f"interpolation={self.interpolation!r}, fill={self.fill!r})"
        )


@register_stage_transform
class DeepAutoAugment(_Policy):
    """Applies one operation of each layer in turn, drawn by its probability.

    Zheng et al., "Deep AutoAugment" (2022). ``docs/guide/policies.md`` lists the operations, and
    what a magnitude of 1 is for each.

    Args:
        layers: entries of each layer: (operation, magnitude, probability). The probabilities of a
            layer add up to 1.
        interpolation: interpolation of geometric operations, as in torchvision.
        fill: level, or one for each channel, of pixels outside of the image, and of cutouts.

    Raises:
        ValueError: an entry is invalid; the message says which.
    """

    def __init__(
        self,
        layers: Sequence[Sequence[tuple[str, float, float]]],
        interpolation: Argument = "nearest",
        fill: Argument = 0,
    ) -> None:
        super().__init__(interpolation, fill)
        self.layers: deep_autoaugment.Layers = deep_autoaugment.checked_layers(
            layers, "DeepAutoAugment"
        )

    @classmethod
    def from_file(
        cls, path: str | os.PathLike[str], interpolation: Argument = "nearest", fill: Argument = 0
    ) -> DeepAutoAugment:
        """Returns the policy in a file.

        A ``.json`` file has an object with a list ``"layers"`` of lists of entries. Each entry is
        an object with ``"operation"``, ``"magnitude"`` (0 if left out) and ``"probability"``. An
        ``.npz`` file has arrays of these names, of shape layers x entries; entries with an empty
        name and a probability of 0 fill up short layers.

        Raises:
            ValueError: the file is invalid; the message says where.
        """
        layers = deep_autoaugment.read_layers(path)
        return cls(deep_autoaugment.as_tuples(layers), interpolation, fill)

    def stage(self, context: Context) -> Stage:
        return RandomApply(1.0, deep_autoaugment.stages(self.layers, *self._warp_options(context)))

    def __repr__(self) -> str:
        entries = sum(map(len, self.layers))
        return (
            f"DeepAutoAugment({len(self.layers)} layers of {entries} entries, "
            f"interpolation={self.interpolation!r}, fill={self.fill!r})"
        )


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
