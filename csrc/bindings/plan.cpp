// Plans and executors: values of fusionloader.plan come in as tuples, buffers as buffers.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings/buffers.hpp"
#include "bindings/module.hpp"
#include "bindings/operations.hpp"
#include "bindings/stages.hpp"
#include "ops/limits.hpp"
#include "plan/executor.hpp"
#include "rng/philox.hpp"

namespace py = pybind11;

namespace fusionloader {
namespace {

ConvertSpec convert_from_tuple(const py::tuple& fields) {
  const auto type = fields[0].cast<std::string>();
  ConvertSpec spec{};
  if (type == "uint8")
    spec.element_size = 1;
  else if (type == "float16" || type == "bfloat16")
    spec.element_size = 2;
  else if (type == "float32")
    spec.element_size = 4;
  else if (type == "float64")
    spec.element_size = 8;
  else
    throw std::invalid_argument("unknown element type " + type);
  spec.is_float32 = type == "float32";
  const Buffer table(fields[1], readable);
  spec.table.assign(table.bytes().data, table.bytes().data + table.bytes().size);
  return spec;
}

std::unique_ptr<Executor> make_executor(const py::sequence& stages,
                                        const std::optional<py::tuple>& convert, int channels,
                                        int result_channels, int height, int width,
                                        bool fast_decode, bool strict, bool vertical_first_allowed,
                                        const std::optional<std::string>& simd) {
  PlanSpec spec;
  spec.stages = stages_from_python(stages);
  if (convert) spec.convert = convert_from_tuple(*convert);
  spec.channels = channels;
  spec.result_channels = result_channels;
  spec.height = height;
  spec.width = width;
  spec.fast_decode = fast_decode;
  spec.strict = strict;
  spec.vertical_first_allowed = vertical_first_allowed;
  spec.simd = simd ? simd_level_from_name(*simd) : best_simd_level();
  return std::make_unique<Executor>(std::move(spec));
}

// One call at a time: threads of Python may share an executor, whose buffers are its own.
template <class Work>
auto without_gil(Executor& executor, Work work) {
  const py::gil_scoped_release release;
  const std::lock_guard lock(executor.mutex());
  return work();
}

py::tuple pixels_tuple(const Pixels& pixels) {
  return py::make_tuple(
      py::bytes(reinterpret_cast<const char*>(pixels.bytes.data()), pixels.bytes.size()),
      py::make_tuple(pixels.height, pixels.width));
}

py::list draw_list(const Executor& self, uint64_t seed, uint64_t epoch, uint64_t index,
                   uint64_t occurrence, int width, int height, uint64_t group) {
  return list_from_operations(
      draw(self.plan(), {seed, epoch, index, occurrence, group}, width, height));
}

int run(Executor& self, const py::object& encoded, uint64_t seed, uint64_t epoch, uint64_t index,
        uint64_t occurrence, const py::object& out, uint64_t group) {
  const Buffer from(encoded, readable), to(out, writable);
  uint8_t* target = to.writable(self.result_bytes());
  const SampleKey key{seed, epoch, index, occurrence, group};
  return static_cast<int>(
      without_gil(self, [&] { return self.run_encoded(from.bytes(), key, target); }));
}

int run_with(Executor& self, const py::object& encoded, const py::sequence& parameters,
             const py::object& out) {
  const Buffer from(encoded, readable), to(out, writable);
  uint8_t* target = to.writable(self.result_bytes());
  const Parameters given = operations_from_list(parameters);
  return static_cast<int>(
      without_gil(self, [&] { return self.run_encoded_with(from.bytes(), given, target); }));
}

void run_pixels(Executor& self, const py::object& image, uint64_t seed, uint64_t epoch,
                uint64_t index, uint64_t occurrence, const py::object& out, uint64_t group) {
  const Buffer from(image, shaped), to(out, writable);
  const PixelView view = from.pixels();
  uint8_t* target = to.writable(self.result_bytes());
  const SampleKey key{seed, epoch, index, occurrence, group};
  without_gil(self, [&] { self.run_pixels(view, key, target); });
}

void run_pixels_with(Executor& self, const py::object& image, const py::sequence& parameters,
                     const py::object& out) {
  const Buffer from(image, shaped), to(out, writable);
  const PixelView view = from.pixels();
  uint8_t* target = to.writable(self.result_bytes());
  const Parameters given = operations_from_list(parameters);
  without_gil(self, [&] { self.run_pixels_with(view, given, target); });
}

std::optional<py::tuple> pixels(Executor& self, const py::object& encoded, uint64_t seed,
                                uint64_t epoch, uint64_t index, uint64_t occurrence,
                                uint64_t group) {
  const Buffer from(encoded, readable);
  const SampleKey key{seed, epoch, index, occurrence, group};
  Pixels result;
  const Status status =
      without_gil(self, [&] { return self.pixels_of_encoded(from.bytes(), key, result); });
  if (status != Status::ok) return std::nullopt;
  return pixels_tuple(result);
}

py::tuple pixels_of_pixels(Executor& self, const py::object& image, uint64_t seed, uint64_t epoch,
                           uint64_t index, uint64_t occurrence, uint64_t group) {
  const Buffer from(image, shaped);
  const PixelView view = from.pixels();
  const SampleKey key{seed, epoch, index, occurrence, group};
  Pixels result;
  without_gil(self, [&] { self.pixels_of_pixels(view, key, result); });
  return pixels_tuple(result);
}

py::tuple pixels_with(Executor& self, const py::object& image, const py::sequence& parameters) {
  const Buffer from(image, shaped);
  const PixelView view = from.pixels();
  const Parameters given = operations_from_list(parameters);
  Pixels result;
  without_gil(self, [&] { self.pixels_with(view, given, result); });
  return pixels_tuple(result);
}

std::optional<py::tuple> image_size(Executor& self, const py::object& encoded) {
  const Buffer from(encoded, readable);
  int width = 0, height = 0;
  if (!self.image_size(from.bytes(), width, height)) return std::nullopt;
  return py::make_tuple(width, height);
}

std::array<uint32_t, 4> philox(PhiloxCounter counter, PhiloxKey key) {
  return philox4x32(counter, key);
}

}  // namespace

void bind_plan(py::module_& m) {
  using namespace py::literals;
  m.def(
      "simd_levels",
      [] {
        std::vector<std::string> names;
        for (const SimdLevel level : simd_levels()) names.emplace_back(simd_level_name(level));
        return names;
      },
      "Which vector instructions this processor has, from none to the widest.");
  m.def("philox4x32", &philox, "counter"_a, "key"_a);
  py::class_<Executor>(m, "Executor")
      .def(py::init(&make_executor), "stages"_a, "convert"_a, "channels"_a, "result_channels"_a,
           "height"_a, "width"_a, "fast_decode"_a, "strict"_a, "vertical_first_allowed"_a,
           "simd"_a = py::none())
      .def_property_readonly("result_bytes", &Executor::result_bytes)
      .def_property_readonly("conversion", &Executor::conversion)
      .def("take_part_seconds",
           [](Executor& self) {
             std::vector<double> seconds;
             for (uint64_t& ns : self.times().ns)
               seconds.push_back(static_cast<double>(std::exchange(ns, 0)) * 1e-9);
             return seconds;
           })
      .def_property_readonly("simd_level",
                             [](const Executor& self) { return simd_level_name(self.plan().simd); })
      .def("draw", &draw_list, "seed"_a, "epoch"_a, "index"_a, "occurrence"_a, "width"_a,
           "height"_a, "group"_a = 0)
      .def("run", &run, "encoded"_a, "seed"_a, "epoch"_a, "index"_a, "occurrence"_a, "out"_a,
           "group"_a = 0)
      .def("run_with", &run_with, "encoded"_a, "parameters"_a, "out"_a)
      .def("run_pixels", &run_pixels, "image"_a, "seed"_a, "epoch"_a, "index"_a, "occurrence"_a,
           "out"_a, "group"_a = 0)
      .def("run_pixels_with", &run_pixels_with, "image"_a, "parameters"_a, "out"_a)
      .def("pixels", &pixels, "encoded"_a, "seed"_a, "epoch"_a, "index"_a, "occurrence"_a,
           "group"_a = 0)
      .def("pixels_of_pixels", &pixels_of_pixels, "image"_a, "seed"_a, "epoch"_a, "index"_a,
           "occurrence"_a, "group"_a = 0)
      .def("pixels_with", &pixels_with, "image"_a, "parameters"_a)
      .def("image_size", &image_size, "encoded"_a);
}

}  // namespace fusionloader
