// One color operation on one image: for tests and comparisons.
#include <pybind11/stl.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bindings/names.hpp"
#include "bindings/testing.hpp"
#include "ops/color.hpp"

namespace py = pybind11;

namespace fusionloader {
namespace {

struct Call {
  Planes& image;
  const std::vector<double>& arguments;
  SimdLevel simd;
  Rounding rounding;
  ColorScratch scratch = {};

  double number(size_t position) const { return arguments[position]; }
  int whole(size_t position) const { return whole_number(arguments[position]); }
  uint8_t level(size_t position) const { return static_cast<uint8_t>(whole(position)); }
};

struct ColorOperation {
  size_t arguments;
  std::function<void(Call&)> run;
};

void run_erase(Call& call) {
  const uint8_t values[3] = {call.level(4), call.level(5), call.level(6)};
  erase(call.image, {call.whole(0), call.whole(1), call.whole(2), call.whole(3)}, values);
}

void run_blur(Call& call) {
  gaussian_blur(call.image, call.whole(0), call.whole(1), call.number(2), call.number(3),
                call.scratch, call.simd);
}

const std::map<std::string, ColorOperation>& operations() {
  static const std::map<std::string, ColorOperation> all = {
      {"brightness", {1, [](Call& c) { adjust_brightness(c.image, c.number(0), c.simd); }}},
      {"contrast", {1, [](Call& c) { adjust_contrast(c.image, c.number(0), c.rounding, c.simd); }}},
      {"saturation",
       {1, [](Call& c) { adjust_saturation(c.image, c.number(0), c.rounding, c.simd); }}},
      {"sharpness",
       {1, [](Call& c) { adjust_sharpness(c.image, c.number(0), c.rounding, c.scratch, c.simd); }}},
      {"hue", {1, [](Call& c) { adjust_hue(c.image, c.number(0), c.rounding, c.simd); }}},
      {"posterize", {1, [](Call& c) { posterize(c.image, c.whole(0), c.simd); }}},
      {"solarize", {1, [](Call& c) { solarize(c.image, c.number(0), c.simd); }}},
      {"solarize_add",
       {2, [](Call& c) { solarize_add(c.image, c.whole(0), c.number(1), c.simd); }}},
      {"invert", {0, [](Call& c) { invert(c.image, c.simd); }}},
      {"autocontrast", {0, [](Call& c) { autocontrast(c.image, c.rounding, c.simd); }}},
      {"equalize", {0, [](Call& c) { equalize(c.image, c.simd); }}},
      {"to_grayscale", {1, [](Call& c) { to_grayscale(c.image, c.whole(0), c.rounding, c.simd); }}},
      {"gaussian_blur", {4, run_blur}},
      {"box_blur", {1, [](Call& c) { box_gaussian_blur(c.image, c.number(0), c.scratch); }}},
      {"erase", {7, run_erase}},
  };
  return all;
}

void split(const uint8_t* pixels, Planes& image) {
  const auto channels = static_cast<size_t>(image.channels());
  for (size_t c = 0; c < channels; ++c) {
    uint8_t* plane = image.plane(static_cast<int>(c));
    for (size_t i = 0; i < image.size(); ++i) plane[i] = pixels[i * channels + c];
  }
}

py::bytes join(const Planes& image) {
  const auto channels = static_cast<size_t>(image.channels());
  std::string pixels(image.size() * channels, '\0');
  for (size_t c = 0; c < channels; ++c) {
    const uint8_t* plane = image.plane(static_cast<int>(c));
    for (size_t i = 0; i < image.size(); ++i)
      pixels[i * channels + c] = static_cast<char>(plane[i]);
  }
  return pixels;
}

py::bytes color_op(const std::string& name, const py::buffer& pixels,
                   const std::vector<double>& arguments, const std::optional<std::string>& simd,
                   const std::string& rounding) {
  const auto found = operations().find(name);
  if (found == operations().end()) throw py::value_error("no color operation " + name);
  if (arguments.size() != found->second.arguments)
    throw py::value_error(name + " takes " + std::to_string(found->second.arguments) +
                          " arguments");
  const py::buffer_info info = pixels.request();
  if (info.ndim != 3 || info.itemsize != 1 || (info.shape[2] != 1 && info.shape[2] != 3) ||
      info.strides[2] != 1 || info.strides[1] != info.shape[2] ||
      info.strides[0] != info.shape[1] * info.shape[2])
    throw py::value_error("pixels must be contiguous bytes of height x width x (1 or 3)");
  Planes image;
  image.reset(static_cast<int>(info.shape[2]), static_cast<int>(info.shape[1]),
              static_cast<int>(info.shape[0]));
  split(static_cast<const uint8_t*>(info.ptr), image);
  Call call{image, arguments, simd ? simd_level_from_name(*simd) : best_simd_level(),
            rounding_names.value(rounding)};
  found->second.run(call);
  return join(image);
}

}  // namespace

void bind_color(py::module_& m) {
  using namespace py::literals;
  m.def("color_op", &color_op, "name"_a, "pixels"_a, "arguments"_a, "simd"_a = py::none(),
        "rounding"_a = "pillow", "An image's pixels, row by row, after a color operation.");
}

}  // namespace fusionloader
