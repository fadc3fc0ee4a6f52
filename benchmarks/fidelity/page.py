"""docs/how/fidelity.md: written from the measurements, and read by the tests."""

from __future__ import annotations

import importlib.metadata
import textwrap
from collections.abc import Iterable, Mapping, Sequence

from PIL import Image

from benchmarks.fidelity.cases import rows
from benchmarks.fidelity.decoding import conversion, exact_decode, fast_decode
from benchmarks.fidelity.differences import Difference, against_pillow, against_tensors
from benchmarks.fidelity.gpu_worker import INSTALL, OFF_SHARE, Distances, worker_rows
from benchmarks.fidelity.perspective import VISIBLE, Coefficients, compare_coefficients
from fusionloader.cli.measure.contenders import dali_is_installed

PILLOW_TITLE = "## Against torchvision on Pillow images"
TENSOR_TITLE = "## Against torchvision on tensors"
WORKER_TITLE = "## The GPU worker against CPU workers"
DECODE_TITLE = "## Decoding"
CONVERT_TITLE = "## Conversion"
PERSPECTIVE_TITLE = "## Perspective coefficients"
PERSPECTIVE_SETS = 100_000

_INTRODUCTION = """\
# Fidelity

You can look up here how far native operations differ from torchvision's, in levels (0 to 255),
measured with {versions}. A script writes this page:

```sh
python -m benchmarks.fidelity --write docs/how/fidelity.md
```

`tests/plan/test_fidelity.py` checks every operation against its row.
"""
_IMAGES = """\
There are {images} images: {names}. Each is tried with a range of parameters for every operation; a
case is one image with one set of parameters.
"""
_PILLOW = """\
A maximum of 0 means the same pixels in every case. `solarize_add` and `cutout`, which torchvision
does not have, are compared with their definition on Pillow images, `box_blur`,
`reduce`, `lookup` and `channels` with Pillow's `GaussianBlur`, `reduce`, `point` and `split`, `mix`
with AugMix's sum in float32 and Pillow's `blend`.
"""
_TENSOR = """\
torchvision has other functions for uint8 tensors than for Pillow images. These are the distances of
Pillow's arithmetic from `torchvision.transforms.v2.functional` on tensors (`affine` and
`perspective` with the same matrices). A plan with `decode="fast"` has them behind `ToImage`. There
is no difference in these:

- with `decode="exact"`: resizes, color changes, and warps by the nearest and the bilinear filter
  (`tests/plan/test_tensor_levels.py`, `tests/plan/test_tensor_warps.py`);
- [deferred tensors](../guide/deferred_tensors.md) (`tests/deferred/test_tensors.py`);
- [plain tensors](../guide/frames.md) of uint8 and float32, such as frames
  (`tests/deferred/test_native_kernels.py`), but for the payload of a NaN and the tensor's
  `_version`;
- float32 tensors in plans: windows, flips, borders, `Normalize`, antialiased bilinear and bicubic
  resizes, changes of colors and warps (`tests/csrc/test_float_resize.py`,
  `tests/plan/test_float_plans.py`, `tests/plan/test_float_colors.py`).

A plan leaves v1's blurs [to torchvision](../guide/transforms.md#what-is-equal). With the
nearest filter, points on an edge between two pixels go either way, and one such pixel may be
black instead of white. Warps of tensors blend their border with the fill, which Pillow does
not. Cases that torchvision refuses on tensors, or answers with another size, are left out, as
are operations and filters that it lacks there.
"""
_WORKER = """\
Rows of whole plans, as 8-bit levels, of all kinds of JPEG files ([decoding](#decoding) lists them),
on DALI's CPU backend. From `ColorJitter` on, all plans begin with a bilinear `RandomResizedCrop`.

- *Kernel* is the default: DALI decodes images, with Pillow's pixels, and cuts the windows; the
  fused kernel does the rest in the native arithmetic. Its rows are those of CPU workers, bit for
  bit.
- *A level off*: nvJPEG, which decodes on a device, rounds
  [differently](../scale/gpu_decoders.md) from libjpeg. These columns show the effect on
  plans: {share:.0%} of the decoded values of the "leaves" are moved up or down by a level, and
  everything else is exact. They do not show the distance of nvJPEG from libjpeg.

*Differ* is the share of the values that differ, *more* of those that differ by more than a level.
"""
_DECODE = """\
`decode="exact"` against Pillow's pixels, whole files of all images:
"""
_FAST = """\
`decode="fast"` against `decode="exact"`, for images that are resized (bilinear) to that part of
their sides: the inverse transform gives fewer samples, which is another filter than Pillow's. The
"leaves" are like photographs, the others are noise and pure colors.
"""
_CONVERT = """\
`ToTensor` and `Normalize`, then a conversion to the element type, against torch, element by
element:
"""
_PERSPECTIVE = """\
A plan draws the corners of `RandomPerspective` natively and solves for the coefficients by
elimination; torchvision has LAPACK's least squares (`torch.linalg.lstsq`) do it. Both round to
float32. {sets:,} sets of corners were drawn, for images of 2 to 1200 pixels a side and distortions
of 0.1 to 1. The coefficients of {different:.2%} of them differ. In {zeros:.2%} only coefficients
differ that are zero apart from rounding errors (by at most {most_in_zeros:.1e}). In {real:.4%}
another coefficient differs, by at most {ulps} unit(s) in the last place. In {visible} set(s), of
images with a side of a few pixels, a corner of the result moves by more than {limit} pixels.
Elimination in 80-bit arithmetic gives the same shares, so the difference is the rounding of the
least squares. The tables above use the same coefficients on both sides.
"""


_WORKER_HEADER = ("transforms", "cases") + tuple(
    f"{whose}: {what}"
    for whose in ("kernel", "a level off")
    for what in ("maximum", "differ", "more")
)


def page(chosen: dict[str, Image.Image]) -> str:
    """The page's text.

    Raises:
        RuntimeError: DALI, which some of it is about, is not installed.
    """
    if not dali_is_installed():
        raise RuntimeError(f"the page needs DALI: {INSTALL}")
    names = ", ".join(chosen)
    pillow = {row: against_pillow(row, chosen) for row in rows()}
    tensor = {}
    for row in rows():
        difference = against_tensors(row, chosen)
        if difference is not None:
            tensor[row] = difference
    fast = fast_decode(chosen)
    leaves = {name: image for name, image in chosen.items() if "leaves" in name}
    parts = [
        _INTRODUCTION.format(versions=versions()),
        _paragraph(_IMAGES.format(images=len(chosen), names=names)),
        PILLOW_TITLE,
        _PILLOW,
        _table(("operation", "cases", "maximum", "mean"), _plain_rows(pillow)),
        TENSOR_TITLE,
        _TENSOR,
        _table(("operation", "cases", "maximum", "mean", "values that differ"), _shares(tensor)),
        WORKER_TITLE,
        _WORKER.format(share=OFF_SHARE),
        _table(
            _WORKER_HEADER, _worker_rows(worker_rows(chosen), worker_rows(leaves, by_kernel=False))
        ),
        DECODE_TITLE,
        _DECODE,
        _table(("file", "files", "maximum", "mean"), _plain_rows(exact_decode(chosen))),
        _FAST,
        _table(
            ("size", "files", "maximum", "mean", "maximum of leaves", "mean of leaves"),
            [
                (*row, *other[2:])
                for row, other in zip(
                    _plain_rows(fast), _plain_rows(fast_decode(leaves)), strict=True
                )
            ],
        ),
        CONVERT_TITLE,
        _CONVERT,
        _table(
            ("type", "images", "maximum", "elements that differ"),
            [
                (name, str(d.cases), f"{d.most:g}", str(d.different))
                for name, d in conversion(chosen).items()
            ],
        ),
        PERSPECTIVE_TITLE,
        _perspective_text(compare_coefficients(PERSPECTIVE_SETS)),
    ]
    return "\n".join(part if part.endswith("\n") else part + "\n" for part in parts)


def versions() -> str:
    """The versions that the figures depend on."""
    names = {
        "torch": "torch",
        "torchvision": "torchvision",
        "nvidia-dali-cuda120": "DALI",
        "pillow": "Pillow",
    }
    texts = [f"{shown} {importlib.metadata.version(name)}" for name, shown in names.items()]
    return f"{', '.join(texts[:-1])} and {texts[-1]}"


def figures(text: str, title: str) -> dict[str, list[str]]:
    """The first table below a title: the cells of each row by its name."""
    lines = text[text.index(title) :].splitlines()
    first = next(place for place, line in enumerate(lines) if line.startswith("|"))
    found = {}
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        found[name] = cells
    return found


def _perspective_text(found: Coefficients) -> str:
    text = _PERSPECTIVE.format(
        sets=found.sets,
        different=found.different / found.sets,
        zeros=found.different_in_zeros_alone / found.sets,
        real=found.share_of_real_differences,
        ulps=found.most_ulps,
        most_in_zeros=found.most_in_zeros,
        visible=found.visible,
        limit=VISIBLE,
    )
    return _paragraph(text)


def _paragraph(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), 100, break_on_hyphens=False) + "\n"


def _plain_rows(differences: Mapping[str, Difference]) -> list[tuple[str, ...]]:
    return [(name, str(d.cases), f"{d.most:g}", _small(d.mean)) for name, d in differences.items()]


def _shares(differences: Mapping[str, Difference]) -> list[tuple[str, ...]]:
    return [(*row, _percent(differences[row[0]].share)) for row in _plain_rows(differences)]


def _worker_rows(
    all_images: Mapping[str, Distances], leaves: Mapping[str, Distances]
) -> list[tuple[str, ...]]:
    return [
        (name, str(each.kernel.cases), *_levels(each.kernel), *_levels(leaves[name].off))
        for name, each in all_images.items()
    ]


def _levels(found: Difference) -> tuple[str, str, str]:
    return f"{found.most:g}", _percent(found.share), _percent(found.share_by_levels)


def _small(value: float) -> str:
    return "0" if value == 0 else f"{value:.2g}" if value >= 1e-4 else f"{value:.1e}"


def _percent(share: float) -> str:
    return "0" if share == 0 else f"{share:.2%}" if share >= 5e-5 else "< 0.01%"


def _table(header: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    ruler = ["---", *(["---:"] * (len(header) - 1))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [header, ruler, *body])
