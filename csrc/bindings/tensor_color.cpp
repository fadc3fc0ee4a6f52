// Color operations and warps of torchvision on tensors, which come in as arrays over their memory.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>
#include <algorithm>

#include <array>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "bindings/gil.hpp"
#include "bindings/module.hpp"
#include "bindings/names.hpp"
#include "ops/limits.hpp"
#include "ops/tensor_blur.hpp"
#include "ops/tensor_color.hpp"
#include "ops/tensor_warp.hpp"
#include "resize/tensor_resize.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace fusionloader {
namespace {

// The memory of an array, held for as long as this lives: uint8 or float32, and dense.
class ArrayBuffer {
 public:
  ArrayBuffer(const py::handle& array, bool writable) {
    const int flags = PyBUF_STRIDES | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(array.ptr(), &view_, flags) != 0) throw py::error_already_set();
  }
  ~ArrayBuffer() { PyBuffer_Release(&view_); }
  ArrayBuffer(const ArrayBuffer&) = delete;
  ArrayBuffer& operator=(const ArrayBuffer&) = delete;

  bool is_float() const { return std::strcmp(view_.format, "f") == 0; }
  // The three channels of its images, ... x 3 x height x width.
  TensorShape shape() const {
    const int dims = view_.ndim;
    if (dims < 3 || view_.shape[dims - 3] != 3)
      throw std::invalid_argument("a tensor is ... x 3 x height x width");
    TensorShape shape{1, side(dims - 2), side(dims - 1), false};
    for (int dim = 0; dim + 3 < dims; ++dim) shape.images *= side(dim);
    if (has_strides(1, static_cast<ptrdiff_t>(shape.pixels()))) return shape;
    shape.interleaved = true;
    if (has_strides(3, 1)) return shape;
    throw std::invalid_argument("a tensor is contiguous, or its channels lie side by side");
  }
  bool has_layout_of(const ArrayBuffer& other) const {
    if (view_.ndim != other.view_.ndim) return false;
    for (int dim = 0; dim < view_.ndim; ++dim)
      if (view_.shape[dim] != other.view_.shape[dim] ||
          view_.strides[dim] * other.view_.itemsize != other.view_.strides[dim] * view_.itemsize)
        return false;
    return true;
  }
  template <class Element>
  Element* elements(size_t needed) const {
    if (std::strcmp(view_.format, std::is_same_v<Element, float> ? "f" : "B") != 0)
      throw std::invalid_argument("arrays are uint8 or float32");
    if (static_cast<size_t>(view_.len) != needed * sizeof(Element))
      throw std::invalid_argument("an array has another number of elements than its operation");
    return static_cast<Element*>(view_.buf);
  }
  // Of a grid, 1 x height x width x 2.
  std::array<size_t, 2> grid_sides() const {
    if (view_.ndim != 4 || view_.shape[0] != 1 || view_.shape[3] != 2)
      throw std::invalid_argument("a grid is 1 x height x width x 2");
    return {side(1), side(2)};
  }
  // Of images x channels x height x width, whose rows may lie anywhere.
  StridedPlanes strided_planes() const {
    if (view_.ndim != 4)
      throw std::invalid_argument("a tensor is images x channels x height x width");
    const auto step = [&](int dim) { return view_.strides[dim] / view_.itemsize; };
    const bool interleaved = view_.shape[1] == 3 && step(1) == 1 && step(3) == 3;
    if (!interleaved && step(3) != 1)
      throw std::invalid_argument("columns of a tensor lie side by side, or their channels do");
    require_possible_size(view_.shape[3], view_.shape[2]);
    return {side(0),
            side(1),
            static_cast<int>(view_.shape[2]),
            static_cast<int>(view_.shape[3]),
            step(0),
            step(1),
            step(2),
            interleaved};
  }
  size_t bytes() const { return static_cast<size_t>(view_.len); }
  // The same of an array whose elements lie in their order.
  template <class Element>
  Element* contiguous(size_t needed) const {
    if (!PyBuffer_IsContiguous(&view_, 'C'))
      throw std::invalid_argument("this array has to be contiguous");
    return elements<Element>(needed);
  }

 private:
  size_t side(int dim) const { return static_cast<size_t>(view_.shape[dim]); }
  // Strides in elements: of columns and of channels.
  bool has_strides(ptrdiff_t column, ptrdiff_t channel) const {
    const int dims = view_.ndim;
    const ptrdiff_t row = column * view_.shape[dims - 1];
    ptrdiff_t image = 3 * view_.shape[dims - 2] * view_.shape[dims - 1];
    if (!is_stride(dims - 1, column) || !is_stride(dims - 2, row) || !is_stride(dims - 3, channel))
      return false;
    for (int dim = dims - 4; dim >= 0; image *= view_.shape[dim], --dim)
      if (!is_stride(dim, image)) return false;
    return true;
  }
  bool is_stride(int dim, ptrdiff_t elements) const {
    return view_.strides[dim] == elements * view_.itemsize;
  }

  Py_buffer view_;
};

struct Call {
  ColorKind kind;
  const ArrayBuffer &in, &out;
  const ArrayBuffer* means;
  double factor;
  bool v2;
  SimdLevel simd;

  template <class Element>
  bool run() const {
    const TensorShape shape = in.shape();
    const size_t count = shape.images * shape.elements(), pixels = shape.images * shape.pixels();
    const Element* from = in.elements<Element>(count);
    if (kind == ColorKind::grayscale) return to_grey(from, shape, pixels);
    if (kind == ColorKind::hue && v2) return turn(from, shape, out.contiguous<Element>(count));
    if (kind == ColorKind::equalize) return equalize(shape, count);
    if (!out.has_layout_of(in)) throw std::invalid_argument("out needs the layout of the image");
    Element* to = out.elements<Element>(count);
    const TensorFactor by(factor);
    const float* levels = means == nullptr ? nullptr : means->contiguous<float>(shape.images);
    const GilReleased release;
    if (kind == ColorKind::brightness && v2)
      scale_elements(from, to, count, by.factor, simd);
    else if (kind == ColorKind::saturation)
      blend_from_pixels(from, to, shape, by, v2, simd);
    else if (kind == ColorKind::sharpness && shape.height > 2 && shape.width > 2)
      blend_from_smoothed(from, to, shape, by, v2, simd);
    else if ((kind == ColorKind::contrast || kind == ColorKind::brightness) && levels != nullptr)
      blend_from_levels(from, levels, to, shape, by, v2, simd);
    else if (kind == ColorKind::autocontrast)
      return stretch_tensor(from, to, shape, v2, simd);
    else if (kind == ColorKind::solarize && factor >= 0.0 && factor <= 255.0)
      solarize_elements(from, to, count, factor, simd);
    else
      throw std::invalid_argument("a tensor has no such color operation");
    return true;
  }

 private:
  bool to_grey(const uint8_t* from, const TensorShape& shape, size_t pixels) const {
    if (out.is_float()) return to_grey<uint8_t, float>(from, shape, pixels);
    return to_grey<uint8_t, uint8_t>(from, shape, pixels);
  }
  bool to_grey(const float* from, const TensorShape& shape, size_t pixels) const {
    return to_grey<float, float>(from, shape, pixels);
  }
  template <class Element, class Grey>
  bool to_grey(const Element* from, const TensorShape& shape, size_t pixels) const {
    Grey* to = out.contiguous<Grey>(pixels);
    const GilReleased release;
    grey_of_tensor(from, to, shape, v2, simd);
    return true;
  }
  bool equalize(const TensorShape& shape, size_t count) const {
    const auto* from = in.elements<uint8_t>(count);
    auto* to = out.contiguous<uint8_t>(count);
    const GilReleased release;
    equalize_tensor(from, to, shape, simd);
    return true;
  }
  template <class Element>
  bool turn(const Element* from, const TensorShape& shape, Element* to) const {
    const GilReleased release;
    return turn_hue(from, to, shape, static_cast<float>(factor), v2, simd);
  }
};

SimdLevel level_of(const std::optional<std::string>& simd) {
  return simd ? simd_level_from_name(*simd) : best_simd_level();
}

bool adjust_tensor(const std::string& operation, const py::buffer& image, const py::buffer& out,
                   double factor, const std::string& rounding,
                   const std::optional<py::buffer>& means, const std::optional<std::string>& simd) {
  const ArrayBuffer from(image, false), to(out, true);
  std::optional<ArrayBuffer> levels;
  if (means) levels.emplace(*means, false);
  const Rounding by = rounding_names.value(rounding);
  if (by != Rounding::torch_v1 && by != Rounding::torch_v2)
    throw std::invalid_argument("a tensor has the rounding torch_v1 or torch_v2");
  const Call call{
      color_names.value(operation), from,          to, levels ? &*levels : nullptr, factor,
      by == Rounding::torch_v2,     level_of(simd)};
  return from.is_float() ? call.run<float>() : call.run<uint8_t>();
}

void scale(const py::buffer& image, const py::buffer& out, const std::optional<std::string>& simd) {
  const ArrayBuffer from(image, false), to(out, true);
  const TensorShape shape = from.shape();
  const size_t count = shape.images * shape.elements();
  if (!to.has_layout_of(from)) throw std::invalid_argument("out needs the layout of the image");
  const auto* levels = from.elements<uint8_t>(count);
  auto* elements = to.elements<float>(count);
  const GilReleased release;
  scale_levels(levels, elements, count, level_of(simd));
}

void normalize(const py::buffer& image, const py::buffer& out, const std::array<float, 3>& mean,
               const std::array<float, 3>& deviation, const std::optional<std::string>& simd) {
  const ArrayBuffer from(image, false), to(out, true);
  const TensorShape shape = from.shape();
  const size_t count = shape.images * shape.elements();
  if (!to.has_layout_of(from)) throw std::invalid_argument("out needs the layout of the image");
  const auto* elements = from.elements<float>(count);
  auto* normalized = to.elements<float>(count);
  const GilReleased release;
  normalize_tensor(elements, normalized, shape, mean, deviation, level_of(simd));
}

template <class Element>
void blur_images(const Element* in, Element* out, const TensorShape& shape,
                 const BlurSquare& square, SimdLevel level) {
  const size_t step = shape.interleaved ? 3 : 1, plane = shape.pixels();
  BlurMemory memory;
  for (size_t image = 0; image < shape.images; ++image, in += shape.elements())
    for (size_t channel = 0; channel < 3; ++channel, out += plane)
      blur_plane(in + channel * (shape.interleaved ? 1 : plane), step, out,
                 static_cast<int>(shape.height), static_cast<int>(shape.width), square, memory,
                 level);
}

void blur(const py::buffer& image, const py::buffer& out, int height, int width,
          const std::vector<float>& weights, const std::optional<std::string>& simd) {
  const ArrayBuffer from(image, false), to(out, true);
  const TensorShape shape = from.shape();
  const size_t count = shape.images * shape.elements();
  if (height < 1 || width < 1 || height % 2 == 0 || width % 2 == 0 ||
      weights.size() != static_cast<size_t>(height) * static_cast<size_t>(width))
    throw std::invalid_argument("a blur has odd numbers of rows and columns of weights");
  const BlurSquare square{height, width, weights};
  const auto run = [&](auto element) {
    using Element = decltype(element);
    const auto* elements = from.elements<Element>(count);
    auto* blurred = to.contiguous<Element>(count);
    const GilReleased release;
    blur_images(elements, blurred, shape, square, level_of(simd));
  };
  from.is_float() ? run(0.0f) : run(uint8_t{0});
}

template <class Element>
void warp_elements(const ArrayBuffer& image, const ArrayBuffer& out, const TensorWarp& warp,
                   SimdLevel simd) {
  thread_local GeometryWorkspace workspace;
  const TensorShape shape = image.shape();
  const Element* from = image.elements<Element>(shape.images * shape.elements());
  const size_t pixels = static_cast<size_t>(warp.height) * static_cast<size_t>(warp.width);
  const size_t planes = shape.images * pixels;
  const size_t count = planes == 0 ? 0 : out.bytes() / sizeof(Element) / planes;
  Element* to = out.contiguous<Element>(count * planes);
  if (count < 3) throw std::invalid_argument("out has three planes of each image, or more");
  if (std::max(shape.pixels(), pixels) > static_cast<size_t>(most_pixels))
    throw std::invalid_argument("an image of that size is not warped");
  const GilReleased release;
  workspace.simd = simd;
  warp_tensor(from, shape, to, count, warp, workspace);
  if (shape.pixels() * sizeof(Element) > largest_kept_buffer / 8) workspace.release();
}

void warp(const py::buffer& image, const py::buffer& grid, const py::buffer& out,
          const std::string& interpolation, const std::array<float, 3>& fill,
          const std::string& rounding, const std::optional<std::string>& simd) {
  const ArrayBuffer from(image, false), places(grid, false), to(out, true);
  const auto [height, width] = places.grid_sides();
  const TensorWarp by{places.contiguous<float>(2 * height * width),
                      static_cast<int>(width),
                      static_cast<int>(height),
                      interpolation_names.value(interpolation),
                      rounding_names.value(rounding),
                      fill};
  if (by.interpolation == Interpolation::bicubic)
    throw std::invalid_argument("a tensor is warped by the nearest or the bilinear filter");
  if (from.is_float()) return warp_elements<float>(from, to, by, level_of(simd));
  for (const float level : fill)
    if (!(level >= 0.0f && level <= 255.0f)) throw std::invalid_argument("a fill is a level");
  warp_elements<uint8_t>(from, to, by, level_of(simd));
}

void resize(const py::buffer& image, const py::buffer& out, const std::string& filter,
            const std::optional<std::string>& simd) {
  const ArrayBuffer from(image, false), to(out, true);
  const StridedPlanes in = from.strided_planes(), made = to.strided_planes();
  const size_t pixels = static_cast<size_t>(in.height) * static_cast<size_t>(in.width);
  const size_t count = static_cast<size_t>(made.height) * static_cast<size_t>(made.width);
  if (made.images != in.images || made.channels != in.channels || pixels == 0 || count == 0 ||
      (made.interleaved && !in.interleaved))
    throw std::invalid_argument("out has the planes of the image, and no other layout");
  const Filter by = filter_names.value(filter);
  if (!is_for_floats(by) && !is_torchs(by))
    throw std::invalid_argument("a tensor is resized by a filter of torch");
  const size_t planes = in.images * in.channels;
  const auto run = [&](auto element) {
    using Element = decltype(element);
    const auto* elements = from.elements<Element>(planes * pixels);
    auto* resized = made.interleaved ? to.elements<Element>(planes * count)
                                     : to.contiguous<Element>(planes * count);
    const GilReleased release;
    resize_tensor(elements, in, by, resized, made.height, made.width, made.interleaved,
                  level_of(simd));
  };
  is_for_floats(by) ? run(0.0f) : run(uint8_t{0});
}

}  // namespace

void bind_tensor_color(py::module_& m) {
  m.def("blur_tensor", &blur, "image"_a, "out"_a, "height"_a, "width"_a, "weights"_a, py::kw_only(),
        "simd"_a = py::none(),
        "Convolves each plane of a tensor, ... x 3 x height x width, with rows of weights.\n\n"
        "Elements are uint8 or float32; those of `out` are contiguous. Borders are reflected.");
  m.def(
      "adjust_tensor", &adjust_tensor, "operation"_a, "image"_a, "out"_a, "factor"_a, "rounding"_a,
      "means"_a = py::none(), py::kw_only(), "simd"_a = py::none(),
      "Does a color operation of torchvision to a tensor, ... x 3 x height x width.\n\n"
      "Elements are uint8 or float32. Returns False, with other values in `out` than torchvision\n"
      "has, if the hue is to be turned of floats that are not finite, and if contrast is to be\n"
      "stretched of floats whose least are zeros, some of them negative.");
  m.def("scale_tensor", &scale, "image"_a, "out"_a, py::kw_only(), "simd"_a = py::none(),
        "Makes float32, 0 to 1, of a tensor of levels as to_dtype of torchvision's v2 does.");
  m.def("normalize_tensor", &normalize, "image"_a, "out"_a, "mean"_a, "deviation"_a, py::kw_only(),
        "simd"_a = py::none(), "Does what normalize of torchvision does to a float32 tensor.");
  m.def("resize_tensor", &resize, "image"_a, "out"_a, "filter"_a, py::kw_only(),
        "simd"_a = py::none(),
        "Resizes a tensor, images x channels x height x width, to the size of `out`.\n\n"
        "Elements are float32 with the filters float_bilinear and float_bicubic, or uint8 with\n"
        "torch_bilinear and torch_bicubic. The columns of a row lie side by side, or the three\n"
        "channels of each do. `out` is contiguous, or its channels, too, lie so.");
  m.def(
      "warp_tensor", &warp, "image"_a, "grid"_a, "out"_a, "interpolation"_a, "fill"_a, "rounding"_a,
      py::kw_only(), "simd"_a = py::none(),
      "Warps a tensor, ... x 3 x height x width, as grid_sample and torchvision do with a fill.\n\n"
      "The grid is 1 x height x width x 2. `out` has the same number of planes for each image, of\n"
      "which the first three are written.");
}

}  // namespace fusionloader
