// Geometric operations on one image, for tests and the fidelity table: pixels in, pixels out.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <cmath>
#include <stdexcept>
#include <string>

#include "bindings/names.hpp"
#include "bindings/testing.hpp"
#include "ops/geometry.hpp"
#include "ops/limits.hpp"
#include "ops/perspective.hpp"

namespace py = pybind11;

namespace fusionloader {
namespace {

Planes planes_of(const py::buffer& pixels) {
  const py::buffer_info info = pixels.request();
  if (info.ndim != 3 || info.itemsize != 1 || (info.shape[2] != 1 && info.shape[2] != 3) ||
      info.shape[0] > longest_side || info.shape[1] > longest_side || info.strides[2] != 1 ||
      info.strides[1] != info.shape[2] || info.strides[0] != info.shape[1] * info.shape[2])
    throw std::invalid_argument("pixels must be 8 bit, contiguous, height x width x 1 or 3");
  Planes planes;
  const auto channels = static_cast<int>(info.shape[2]);
  planes.reset(channels, static_cast<int>(info.shape[1]), static_cast<int>(info.shape[0]));
  const auto* from = static_cast<const uint8_t*>(info.ptr);
  for (size_t i = 0; i < planes.size(); ++i)
    for (int channel = 0; channel < channels; ++channel) planes.plane(channel)[i] = *from++;
  return planes;
}

using Arguments = py::typing::Tuple<py::object, py::ellipsis>;

std::pair<py::bytes, std::pair<int, int>> interleaved(const Planes& planes) {
  std::string bytes;
  bytes.reserve(planes.size() * static_cast<size_t>(planes.channels()));
  for (size_t i = 0; i < planes.size(); ++i)
    for (int channel = 0; channel < planes.channels(); ++channel)
      bytes.push_back(static_cast<char>(planes.plane(channel)[i]));
  return {py::bytes(bytes), {planes.height(), planes.width()}};
}

std::optional<AffineMatrix> one_number_matrix(const std::string& name, double number,
                                              const Planes& in) {
  if (name == "shear_x") return shear_x_matrix(number);
  if (name == "shear_y") return shear_y_matrix(number);
  if (name == "translate_x") return translate_x_matrix(number, in.width(), in.height());
  if (name == "translate_y") return translate_y_matrix(number, in.width(), in.height());
  if (name == "plain_shear_x") return plain_shear_x_matrix(number);
  if (name == "plain_shear_y") return plain_shear_y_matrix(number);
  if (name == "plain_translate_x") return plain_translate_x_matrix(number);
  if (name == "plain_translate_y") return plain_translate_y_matrix(number);
  return std::nullopt;
}

std::optional<Point> centre_from(const py::handle& item) {
  if (item.is_none()) return std::nullopt;
  const auto xy = item.cast<std::array<double, 2>>();
  return Point{xy[0], xy[1]};
}

// The arguments start with the operation's own, then come interpolation and fill (and a centre).
void apply(const std::string& name, const Planes& in, Planes& out, const py::tuple& arguments,
           GeometryWorkspace& workspace) {
  const auto number = [&](size_t i) { return arguments[i].cast<double>(); };
  const auto integer = [&](size_t i) { return arguments[i].cast<int>(); };
  const auto point = [&](size_t i) { return centre_from(arguments[i]).value(); };
  const auto fill = [&](size_t i) { return arguments[i].cast<Color>(); };
  const auto interpolation = [&](size_t i) {
    return interpolation_names.value(arguments[i].cast<std::string>());
  };
  if (name == "affine_transform")
    return affine_transform(in, out, integer(0), integer(1), arguments[2].cast<AffineMatrix>(),
                            interpolation(3), fill(4), workspace);
  if (name == "perspective_transform")
    return perspective_transform(in, out, arguments[0].cast<PerspectiveCoefficients>(),
                                 interpolation(1), fill(2), workspace);
  if (name == "rotate")
    return rotate(in, out, number(0), interpolation(1), arguments[2].cast<bool>(),
                  centre_from(arguments[3]), fill(4), workspace);
  if (name == "pad")
    return pad(in, out, {integer(0), integer(1), integer(2), integer(3)},
               pad_mode_names.value(arguments[4].cast<std::string>()), fill(5), workspace);
  if (name == "affine") {
    const Point middle{in.width() * 0.5, in.height() * 0.5};
    const AffineMatrix matrix = inverse_affine_matrix(centre_from(arguments[6]).value_or(middle),
                                                      number(0), point(1), number(2), point(3));
    return affine_transform(in, out, in.width(), in.height(), matrix, interpolation(4), fill(5),
                            workspace);
  }
  if (py::len(arguments) != 3) throw std::invalid_argument("unknown operation " + name);
  const auto matrix = one_number_matrix(name, number(0), in);
  if (!matrix) throw std::invalid_argument("unknown operation " + name);
  affine_transform(in, out, in.width(), in.height(), *matrix, interpolation(1), fill(2), workspace);
}

std::pair<py::bytes, std::pair<int, int>> geometry_op(const std::string& name,
                                                      const py::buffer& pixels,
                                                      const Arguments& arguments,
                                                      const std::optional<std::string>& simd) {
  const Planes in = planes_of(pixels);
  // Kept between calls, as in a worker: what an earlier image has left must not show.
  thread_local Planes out;
  thread_local GeometryWorkspace workspace;
  workspace.simd = simd ? simd_level_from_name(*simd) : best_simd_level();
  apply(name, in, out, arguments, workspace);
  return interleaved(out);
}

using Points = std::array<std::array<double, 2>, 4>;

PerspectiveCoefficients coefficients_of(const Points& start, const Points& end) {
  const auto corners = [](const Points& from) {
    Corners made{};
    for (size_t i = 0; i < from.size(); ++i) made[i] = {from[i][0], from[i][1]};
    return made;
  };
  return perspective_coefficients(corners(start), corners(end));
}

}  // namespace

void bind_geometry(py::module_& m) {
  using namespace py::literals;
  m.def("geometry_op", &geometry_op, "name"_a, "pixels"_a, "arguments"_a, "simd"_a = py::none(),
        "One geometric operation on height x width x channels pixels: bytes, (height, width).");
  m.def("perspective_coefficients", &coefficients_of, "start"_a, "end"_a,
        "Of the transform that moves the corners `start` of an image to `end`.");
}

}  // namespace fusionloader
