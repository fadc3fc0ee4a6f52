"""The replaced functions of Pillow and other libraries: a table, checked before it is installed."""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import threading
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch._jit_internal import boolean_dispatched
from torch._ops import OpOverload, OpOverloadPacket

from fusionloader.data.deferred.guard import guarded
from fusionloader.system.processes import renewed_in_children
from fusionloader.transforms.plan.patches import REPLACED, find_open, is_defined_by

log = logging.getLogger("fusionloader.loader")

_SUPPORTED = range(11, 14)  # releases of Pillow
_MODULES = (
    "PIL.Image",
    "torchvision.transforms.functional",
    "torchvision.transforms.v2",
    "torchvision.transforms._functional_tensor",
    "torchvision.transforms.v2.functional._color",
    "torchvision.io",
    "torchcodec.decoders._image_decoders",
    "cv2",
    "webdataset.filters",
    "transformers.image_processing_backends",
)


@dataclass(frozen=True, slots=True)
class Patch:
    """An attribute of a class or module, or an entry of a dict, and its replacement.

    Attributes:
        owner: class, module or dict.
        name: name of the attribute, or key of the entry.
        attempt: does the same as the original function, or returns ``guard.PLAIN``; for a property,
            it computes the value.
        make: used in place of ``attempt``; makes the replacement from the original.
        added: whether the library has no such attribute.
        library: module of the package that defines the original, if that is not the owner's.
    """

    owner: Any
    name: Any
    attempt: Callable[..., Any] | None = None
    make: Callable[[Any], Any] | None = None
    added: bool = False
    library: types.ModuleType | None = None

    def get(self) -> Any:
        """Returns the current value; ``None`` if there is none."""
        found = self.owner if isinstance(self.owner, dict) else vars(self.owner)
        return found.get(self.name)

    def set(self, value: Any) -> None:
        """Sets the value; ``None`` removes the attribute."""
        if isinstance(self.owner, dict):
            self.owner[self.name] = value
        elif value is None:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, value)

    def replacement(self, original: Any) -> Any:
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

    from fusionloader.data.deferred import canvas, enhancing, formats, methods, opening, unparsed

    image = Image.Image
    recorded = (
        *("copy", "convert", "crop", "resize", "reduce", "transpose", "transform", "filter"),
        "getchannel",
    )
    functions: dict[str, enhancing.Recorder] = {
        "posterize": enhancing.posterize,
        "solarize": enhancing.solarize,
        "invert": enhancing.without_arguments("invert"),
        "autocontrast": enhancing.without_arguments("autocontrast"),
        "equalize": enhancing.without_arguments("equalize"),
    }
    kinds, base = enhancing.ENHANCERS, ImageEnhance._Enhance
    opened = [
        Patch(*find_open(Image), opening.open_image, library=Image),
        Patch(image, "__getattr__", make=lambda _: unparsed.missing_attribute, added=True),
    ]
    if hasattr(ImageOps, "_new_with_fill"):  # since Pillow 13
        opened.append(Patch(ImageOps, "_new_with_fill", canvas.new_like))
    return [
        *(opened if unparsed.is_expected() else []),
        Patch(image, "im", make=methods.core_property),
        Patch(image, "load", formats.load),
        Patch(ImageFile.ImageFile, "load", formats.load_file),
        Patch(WebPImageFile, "_open", make=formats.opening_webp),
        Patch(WebPImageFile, "load", formats.load_webp),
        Patch(image, "__array_interface__", methods.array_interface),
        Patch(image, "tobytes", methods.tobytes),
        *(Patch(image, name, methods.recording(getattr(methods, name))) for name in recorded),
        Patch(image, "split", methods.split),
        Patch(image, "point", make=methods.pointing),
        Patch(image, "thumbnail", make=methods.making_thumbnails),
        Patch(image, "paste", canvas.paste),
        Patch(Image, "new", canvas.new),
        Patch(Image, "merge", methods.merge),
        *(Patch(kind, "__init__", make=enhancing.enhancer) for kind in kinds),
        Patch(base, "enhance", enhancing.enhance),
        Patch(base, "degenerate", make=lambda _: enhancing.Degenerate(), added=True),
        Patch(base, "__getstate__", make=lambda _: enhancing.get_enhancer_state, added=True),
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
    import torchvision
    from PIL import Image
    from torchvision.transforms import v2
    from torchvision.transforms.v2 import functional
    from torchvision.transforms.v2.functional import _type_conversion, _utils

    from fusionloader.data.deferred import functionals
    from fusionloader.data.deferred.composed import compose, trials

    trials.patched = installed

    def kernel(name: str, recorder: Any) -> Patch:
        kernels = _utils._KERNEL_REGISTRY[getattr(functional, name)]
        return Patch(kernels, Image.Image, functionals.recording(recorder), library=torchvision)

    pil_to_tensor = functionals.converting(functionals.pil_to_tensor)
    return [
        kernel("adjust_hue", functionals.adjust_hue),
        kernel("pad", functionals.pad),
        kernel("gaussian_blur", functionals.gaussian_blur),
        Patch(_type_conversion, "pil_to_tensor", make=pil_to_tensor),
        Patch(functional, "pil_to_tensor", make=pil_to_tensor),
        Patch(v2.Compose, "forward", make=compose.calling),
    ]


def _plain_tensors() -> list[Patch]:
    import torch
    from torchvision.transforms import _functional_tensor

    from fusionloader.data.deferred.tensors.native_kernels import kernel
    from fusionloader.data.deferred.tensors.native_operations import V1

    return [Patch(_functional_tensor, name, kernel(name, torch.Tensor, "torch_v1")) for name in V1]


def _plain_tensors_v2() -> list[Patch]:
    import torch
    import torchvision
    from torchvision import tv_tensors
    from torchvision.transforms.v2 import functional
    from torchvision.transforms.v2.functional import _geometry, _utils

    from fusionloader.data.deferred.tensors.native_kernels import kernel
    from fusionloader.data.deferred.tensors.native_operations import RESIZE, V2, WARP

    registries = {name: _utils._KERNEL_REGISTRY[getattr(functional, name)] for name in V2}
    return [
        *(
            Patch(kernels, kind, kernel(name, kind, "torch_v2"), library=torchvision)
            for name, kernels in registries.items()
            for kind in (torch.Tensor, tv_tensors.Image, tv_tensors.Video)
            if kind in kernels  # there is none of rgb_to_grayscale for videos
        ),
        *(
            Patch(_geometry, name, kernel(name, torch.Tensor, "torch_v2"))
            for name in (WARP, RESIZE)
        ),
    ]


def _tensors() -> list[Patch]:
    import torch
    import torchvision
    from torchvision import tv_tensors
    from torchvision.transforms.v2 import functional
    from torchvision.transforms.v2.functional import _type_conversion, _utils

    from fusionloader.data.deferred.tensors import deferred_image, recorded
    from fusionloader.data.deferred.tensors.deferred_tensor import taking_plain

    def constructor(name: str, wrap: Callable[[Any], Any] = lambda made: made) -> Patch:
        made = wrap(taking_plain(getattr(torch.Tensor, name)))
        return Patch(torch.Tensor, name, make=lambda _: made, added=True)

    def kernels(kind: type, recorders: dict[str, Any]) -> list[Patch]:
        registry = {name: _utils._KERNEL_REGISTRY[getattr(functional, name)] for name in recorders}
        return [
            Patch(registry[name], kind, recorded.kernel(recorder), library=torchvision)
            for name, recorder in recorders.items()
        ]

    return [
        *kernels(torch.Tensor, recorded.KERNELS),
        *kernels(tv_tensors.Image, recorded.IMAGE_KERNELS),
        Patch(_type_conversion, "to_image", deferred_image.to_image),
        Patch(functional, "to_image", deferred_image.to_image),
        constructor("as_subclass"),
        constructor("__new__", staticmethod),
        constructor("_make_subclass", staticmethod),
    ]


def _torchvision_io() -> list[Patch]:
    import torch
    import torchvision  # noqa: F401  registers the operators

    from fusionloader.data.deferred import array_decoders

    operators, operator = torch.ops.image, array_decoders.vision_operator
    makers = {
        "decode_jpeg": operator("JPEG"),
        "decode_png": operator("PNG"),
        "decode_image": operator("JPEG", "PNG"),
    }
    for name in makers:
        getattr(operators, name)  # torch adds the operator to vars(operators) on first access
    return [Patch(operators, name, make=make) for name, make in makers.items()]


def _torchcodec() -> list[Patch]:
    from fusionloader.data.deferred import array_decoders

    decoders = sys.modules["torchcodec.decoders._image_decoders"]
    return [
        Patch(decoders, "_source_to_tensor", make=array_decoders.reading),
        Patch(decoders, "_detect_image_format", make=array_decoders.detecting),
        Patch(decoders, "_decode_jpeg", make=array_decoders.codec_operator("JPEG")),
        Patch(decoders, "_decode_png", make=array_decoders.codec_operator("PNG")),
    ]


def _opencv() -> list[Patch]:
    import cv2

    from fusionloader.data.deferred import array_decoders

    return [
        Patch(cv2, "imread", array_decoders.imread),
        Patch(cv2, "imdecode", array_decoders.imdecode),
    ]


def _webdataset() -> list[Patch]:
    from webdataset import autodecode, filters, pipeline  # type: ignore[import-untyped]

    from fusionloader.data.deferred import array_decoders, collating

    return [
        Patch(autodecode.ImageHandler, "__call__", array_decoders.handle_image),
        Patch(filters, "combine_values", collating.combine_values),
        Patch(pipeline.DataPipeline, "invoke", make=collating.invoking),
    ]


def _transformers() -> list[Patch]:
    import torch
    from torchvision.transforms.v2 import functional
    from torchvision.transforms.v2.functional import _utils
    from transformers.image_processing_backends import TorchvisionBackend
    from transformers.image_processing_utils import BaseImageProcessor

    from fusionloader.data.deferred import image_processors, image_stack_functions
    from fusionloader.data.deferred.image_stacks import ImageStack

    def kernel(name: str) -> Patch:
        kernels = _utils._KERNEL_REGISTRY[getattr(functional, name)]
        made = image_stack_functions.kernel(name, kernels[torch.Tensor])
        return Patch(kernels, ImageStack, make=lambda _: made, added=True)

    return [
        *map(kernel, image_stack_functions.KERNELS),
        Patch(BaseImageProcessor, "preprocess", make=image_processors.preprocessing),
        Patch(TorchvisionBackend, "process_image", image_processors.process_image),
    ]


_MAKERS = (
    *(_pillow, _torchvision, _torchvision_v2, _plain_tensors, _plain_tensors_v2),
    *(_torchvision_io, _torchcodec, _opencv, _webdataset, _transformers),
)
# In torchvision's v2, over the patches for plain tensors, if a loader asks for them.
_TENSORS = "torchvision.transforms.v2 for deferred tensors"
_TABLES = {**dict(zip(_MODULES, _MAKERS, strict=True)), _TENSORS: _tensors}

# Types of compiled functions. A replacement by the program would be a Python function.
_COMPILED = (types.BuiltinFunctionType, OpOverload, OpOverloadPacket)

_lock = renewed_in_children(threading.RLock())
_users: dict[object, bool] = {}  # each with whether it defers tensors
seen_modules = 0  # number of loaded modules at the last check
_installed: list[str] = []  # keys of _TABLES, in the order in which they were installed


@dataclass(frozen=True, slots=True)
class _Made:
    """A patch with the original and its replacement."""

    patch: Patch
    original: Any
    replacement: Any


def install(user: object = None, tensors: bool = False) -> None:
    """Installs the patches of all imported modules, in a worker for good.

    ``tensors`` is whether those of deferred tensors are installed, too.
    """
    with _lock:
        _users[user] = _users.get(user, False) or tensors
        if len(_users) == 1 or len(_installed) < len(_TABLES):
            _install_imported()


@contextlib.contextmanager
def installed(tensors: bool) -> Iterator[None]:
    """Installs the patches for a block."""
    user = object()
    try:
        install(user, tensors)
        yield
    finally:
        _uninstall(user)


def prepare() -> None:
    """Makes the patches of all imported modules now, so that forked workers inherit them."""
    with _lock:
        for module in filter(sys.modules.__contains__, _MODULES):
            _made(module)


def install_imported() -> None:
    """Installs the patches of modules that were imported since the last call."""
    global seen_modules
    if seen_modules != len(sys.modules) and len(_installed) < len(_TABLES):
        seen_modules = len(sys.modules)
        with _lock:
            _install_imported()


def fit_pillow() -> bool:
    """Whether the patches are for this Pillow; it may also be imported later."""
    pillow = _MODULES[0]
    return pillow not in sys.modules or bool(_made(pillow))


def _uninstall(user: object) -> None:
    """Undoes ``install``; the last call restores what the program has not replaced since."""
    global seen_modules
    with _lock:
        _users.pop(user, None)
        seen_modules = 0
        wanted = _wanted() if _users else []
        for module in [module for module in reversed(_installed) if module not in wanted]:
            _installed.remove(module)  # before its functions: an exception may end this
            for made in _made(module):
                if made.patch.get() is made.replacement:
                    made.patch.set(made.original)


def _wanted() -> list[str]:
    """Returns the keys of the tables to be installed, in their order."""
    wanted = [module for module in _MODULES if module in sys.modules]
    if any(_users.values()) and "torchvision.transforms.v2" in wanted:
        wanted.append(_TENSORS)
    return wanted


def _install_imported() -> None:
    for module in _wanted():
        if module not in _installed:
            _installed.append(module)  # before its patches, which may be interrupted
            for made in _made(module):
                if made.patch.get() is made.original:
                    made.patch.set(made.replacement)


@functools.cache
def _made(module: str) -> list[_Made]:
    """Returns the patches of a module; an empty list if one of them does not fit the library."""
    if module != _MODULES[0] and not _made(_MODULES[0]):
        return []  # no patch is of use if Pillow itself is not patched
    patches: list[Patch] = []
    why = _unexpected_release()
    try:
        patches = [] if why else _TABLES[module]()
    except (ImportError, AttributeError, KeyError) as error:
        why = f"{type(error).__name__}: {error}"
    why = why or next((text for text in map(_unexpected, patches) if text), "")
    if why:
        others = f"images are deferred, but functions of {module} run as they are"
        none = "images are not deferred, and user code runs as it is"
        log.warning("%s: %s", none if module == _MODULES[0] else others, why)
        return []
    return [_replaced(patch) for patch in patches]


def _replaced(patch: Patch) -> _Made:
    original = patch.get()
    replacement = patch.replacement(original)
    if callable(replacement):
        setattr(replacement, REPLACED, original)
    if isinstance(patch.owner, types.ModuleType) and isinstance(replacement, types.FunctionType):
        # torch.jit.script compiles what this returns.
        vars(replacement)["__prepare_scriptable__"] = lambda: original
        # So does what it compiles a call of to; or it would look for the original's overloads.
        dispatch: dict[str, Any] = {"if_true": original, "if_false": original}
        dispatch.update(index=sys.maxsize, arg_name="", default=True)
        boolean_dispatched[replacement] = dispatch
    return _Made(patch, original, replacement)


def _unexpected_release() -> str:
    import PIL

    release = PIL.__version__
    if int(release.split(".")[0]) in _SUPPORTED:
        return ""
    return f"Pillow {release} is not one of {_SUPPORTED.start} to {_SUPPORTED.stop - 1}"


def _unexpected(patch: Patch) -> str:
    """Returns how the current value differs from the library's own; ``""`` if it does not."""
    found = patch.get()
    where = getattr(patch.owner, "__qualname__", getattr(patch.owner, "__name__", "a registry"))
    if (found is None) is not patch.added:
        return f"{where} has {'already a' if patch.added else 'no'} {patch.name}"
    if patch.added:
        return ""
    function = found.fget if isinstance(found, property) else found
    if not (
        isinstance(function, _COMPILED)
        or is_defined_by(function, patch.library or patch.owner)
        or _is_torchs(function, patch.name)
    ):
        return f"{patch.name} of {where} was replaced by the program"
    return ""


def _is_torchs(function: Any, name: object) -> bool:
    """Whether it is torch's function of that name, which torchvision's modules have by it, too.

    Torch's decorators also make functions that are defined in torch, of those of a program.
    """
    scope = vars(sys.modules["torch.nn.functional"])
    return getattr(function, "__globals__", None) is scope and function.__name__ == name
