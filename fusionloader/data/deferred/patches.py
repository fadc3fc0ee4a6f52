"""What is replaced of Pillow and other libraries: one table, checked before it is installed."""

from __future__ import annotations

import functools
import logging
import sys
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch._ops import OpOverloadPacket

from fusionloader.data.deferred.guard import guarded
from fusionloader.transforms.plan.patches import REPLACED, is_defined_by

log = logging.getLogger("fusionloader.loader")

_SUPPORTED = range(11, 14)  # releases of Pillow
_MODULES = (
    "PIL.Image",
    "torchvision.transforms.functional",
    "torchvision.transforms.v2",
    "torchvision.io",
    "cv2",
    "webdataset.filters",
)


@dataclass(frozen=True, slots=True)
class Patch:
    """A function of a class or module, or an entry of a dict, and what replaces it.

    Attributes:
        owner: class, module or dict.
        name: of the attribute, or the key.
        attempt: does what the function does, or returns ``guard.PLAIN``; a property's gets its
            value.
        make: makes the replacement of what is there, in place of ``attempt``.
        added: the library has nothing there.
    """

    owner: Any
    name: Any
    attempt: Callable[..., Any] | None = None
    make: Callable[[Any], Any] | None = None
    added: bool = False

    def get(self) -> Any:
        """Returns what is there now; ``None`` for nothing."""
        found = self.owner if isinstance(self.owner, dict) else vars(self.owner)
        return found.get(self.name)

    def set(self, value: Any) -> None:
        """Puts a value there; ``None`` removes it."""
        if isinstance(self.owner, dict):
            self.owner[self.name] = value
        elif value is None:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, value)

    def replacement(self, original: Any) -> Any:
        """Returns what replaces the original."""
        if self.make is not None:
            return self.make(original)
        assert self.attempt is not None
        if isinstance(original, property):
            assert original.fget is not None
            get = guarded(self.attempt, original.fget)
            return property(get, original.fset, original.fdel, original.__doc__)
        return guarded(self.attempt, original)


def _pillow() -> list[Patch]:
    from PIL import Image, ImageEnhance, ImageFile, ImageOps
    from PIL.WebPImagePlugin import WebPImageFile

    from fusionloader.data.deferred import decoding, enhancing, methods, opening

    image = Image.Image
    recorded = ("copy", "convert", "crop", "resize", "transpose", "transform", "filter")
    functions: dict[str, enhancing.Recorder] = {
        "posterize": enhancing.posterize,
        "solarize": enhancing.solarize,
        "invert": enhancing.without_arguments("invert"),
        "autocontrast": enhancing.without_arguments("autocontrast"),
        "equalize": enhancing.without_arguments("equalize"),
    }
    kinds, base = enhancing.ENHANCERS, ImageEnhance._Enhance
    return [
        Patch(image, "im", make=methods.core_property),
        Patch(image, "load", opening.load),
        Patch(ImageFile.ImageFile, "load", opening.load_file),
        Patch(WebPImageFile, "_open", make=decoding.opening_webp),
        Patch(WebPImageFile, "load", decoding.load_webp),
        Patch(image, "__array_interface__", methods.array_interface),
        Patch(image, "tobytes", methods.tobytes),
        *(Patch(image, name, methods.recording(getattr(methods, name))) for name in recorded),
        *(Patch(kind, "__init__", make=enhancing.enhancer) for kind in kinds),
        Patch(base, "enhance", enhancing.enhance),
        Patch(base, "degenerate", make=lambda _: enhancing.Degenerate(), added=True),
        Patch(base, "__getstate__", make=lambda _: enhancing.state_of_enhancer, added=True),
        *(Patch(ImageOps, name, enhancing.recording(each)) for name, each in functions.items()),
        Patch(ImageOps, "expand", enhancing.expand),
    ]


def _torchvision() -> list[Patch]:
    from torchvision import transforms
    from torchvision.transforms import _functional_pil, functional

    from fusionloader.data.deferred import functionals
    from fusionloader.data.deferred.composed import compose

    names = ("adjust_hue", "to_grayscale", "pad")
    return [
        *(
            Patch(_functional_pil, name, functionals.recording(getattr(functionals, name)))
            for name in names
        ),
        Patch(functional, "gaussian_blur", functionals.recording(functionals.gaussian_blur)),
        Patch(functional, "to_tensor", make=functionals.converting(functionals.to_tensor)),
        Patch(functional, "pil_to_tensor", make=functionals.converting(functionals.pil_to_tensor)),
        Patch(transforms.Compose, "__call__", make=compose.calling),
    ]


def _torchvision_v2() -> list[Patch]:
    from PIL import Image
    from torchvision.transforms import v2
    from torchvision.transforms.v2 import functional
    from torchvision.transforms.v2.functional import _type_conversion, _utils

    from fusionloader.data.deferred import functionals
    from fusionloader.data.deferred.composed import compose

    def kernel(name: str, recorder: Any) -> Patch:
        kernels = _utils._KERNEL_REGISTRY[getattr(functional, name)]
        return Patch(kernels, Image.Image, functionals.recording(recorder))

    pil_to_tensor = functionals.converting(functionals.pil_to_tensor)
    return [
        kernel("adjust_hue", functionals.adjust_hue),
        kernel("pad", functionals.pad),
        kernel("gaussian_blur", functionals.gaussian_blur),
        Patch(_type_conversion, "pil_to_tensor", make=pil_to_tensor),
        Patch(functional, "pil_to_tensor", make=pil_to_tensor),
        Patch(v2.Compose, "forward", make=compose.calling),
    ]


def _torchvision_io() -> list[Patch]:
    import torch
    import torchvision  # noqa: F401  registers the operators

    from fusionloader.data.deferred.decoders import arrays

    operators = torch.ops.image
    names = ("decode_jpeg", "decode_image")
    for name in names:
        getattr(operators, name)  # found from now on among its attributes
    return [Patch(operators, name, make=arrays.DecodingOperator) for name in names]


def _opencv() -> list[Patch]:
    import cv2

    from fusionloader.data.deferred.decoders import arrays

    return [Patch(cv2, "imread", arrays.imread), Patch(cv2, "imdecode", arrays.imdecode)]


def _webdataset() -> list[Patch]:
    from webdataset import filters, pipeline  # type: ignore[import-untyped]

    from fusionloader.data.deferred.rows import collating

    return [
        Patch(filters, "combine_values", collating.combine_values),
        Patch(pipeline.DataPipeline, "invoke", make=collating.invoking),
    ]


_MAKERS = (_pillow, _torchvision, _torchvision_v2, _torchvision_io, _opencv, _webdataset)
_TABLES = dict(zip(_MODULES, _MAKERS, strict=True))

# A program's replacement would be a function of Python's.
_COMPILED = (types.BuiltinFunctionType, OpOverloadPacket)

_lock = threading.RLock()
_users = 0
_loaded = 0  # modules, when they were last looked through
_installed: set[str] = set()  # of _MODULES


@dataclass(frozen=True, slots=True)
class _Made:
    """A patch, what was there, and what replaces it."""

    patch: Patch
    original: Any
    replacement: Any


def install() -> None:
    """Replaces what the table has of the modules that are imported; undone by ``uninstall``."""
    global _users
    with _lock:
        _users += 1
        if _users == 1 or len(_installed) < len(_MODULES):
            _install_imported()


def prepare() -> None:
    """Imports what ``install`` needs, so that each worker that is forked need not."""
    with _lock:
        for module in filter(sys.modules.__contains__, _MODULES):
            _made(module)


def install_imported() -> None:
    """Does the same for modules that were imported meanwhile."""
    global _loaded
    if _loaded != len(sys.modules) and len(_installed) < len(_MODULES):
        _loaded = len(sys.modules)
        with _lock:
            _install_imported()


def uninstall() -> None:
    """Puts everything back, once for every ``install()``; what others replaced since stays."""
    global _users, _loaded
    with _lock:
        _users -= 1
        _loaded = 0
        if _users:
            return
        for module in _installed:
            for made in _made(module):
                if made.patch.get() is made.replacement:
                    made.patch.set(made.original)
        _installed.clear()


def _install_imported() -> None:
    for module in _MODULES:
        if module in sys.modules and module not in _installed:
            for made in _made(module):
                if made.patch.get() is made.original:
                    made.patch.set(made.replacement)
            _installed.add(module)


@functools.cache
def _made(module: str) -> list[_Made]:
    """Returns the patches of a module; none of them where something is not as expected."""
    if module != _MODULES[0] and not _made(_MODULES[0]):
        return []  # torchvision's are of no use where Pillow is left alone
    patches: list[Patch] = []
    why = _unexpected_release()
    try:
        patches = [] if why else _TABLES[module]()
    except (ImportError, AttributeError, KeyError) as error:
        why = f"{type(error).__name__}: {error}"
    why = why or next((text for text in map(_unexpected, patches) if text), "")
    if why:
        log.warning("images are not deferred, and user code runs as it is: %s", why)
        return []
    return [_replaced(patch) for patch in patches]


def _replaced(patch: Patch) -> _Made:
    original = patch.get()
    replacement = patch.replacement(original)
    if callable(replacement):
        setattr(replacement, REPLACED, original)
    return _Made(patch, original, replacement)


def _unexpected_release() -> str:
    import PIL

    release = PIL.__version__
    if int(release.split(".")[0]) in _SUPPORTED:
        return ""
    return f"Pillow {release} is not one of {_SUPPORTED.start} to {_SUPPORTED.stop - 1}"


def _unexpected(patch: Patch) -> str:
    """Returns what is not as the library has it."""
    found = patch.get()
    where = getattr(patch.owner, "__qualname__", getattr(patch.owner, "__name__", "a registry"))
    if (found is None) is not patch.added:
        return f"{where} has {'already a' if patch.added else 'no'} {patch.name}"
    if patch.added:
        return ""
    function = found.fget if isinstance(found, property) else found
    owner = patch.owner
    if isinstance(owner, dict):
        owner = sys.modules["torchvision"]
    if not isinstance(function, _COMPILED) and not is_defined_by(function, owner):
        return f"{patch.name} of {where} was replaced by the program"
    return ""
