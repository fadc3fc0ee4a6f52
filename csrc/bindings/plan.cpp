// Plans and executors: values of fusionloader.transforms.plan come in as tuples, buffers as
// buffers.
#include <pybind11/native_enum.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/buffers.hpp"
#include "bindings/gil.hpp"
#include "bindings/module.hpp"
#include "bindings/operations.hpp"
#include "bindings/python_types.hpp"
#include "bindings/stages.hpp"
#include "device/program_writer.hpp"
#include "jpeg/scan_script.hpp"
#include "ops/limits.hpp"
#include "plan/executor.hpp"
#include "rng/mix.hpp"

namespace py = pybind11;

namespace fusionloader {
namespace {

// The last stages that a device runs, and bytes of their program and of its working memory.
using DeviceTail = std::tuple<size_t, size_t, size_t>;
// Steps, elements of a step in the image, and in the result.
using Loop = std::tuple<size_t, size_t, size_t>;

VerticalFirst vertical_first_from_name(const std::string& name) {
  if (name == "never") return VerticalFirst::never;
  if (name == "tall") return VerticalFirst::tall;
  if (name == "cheaper") return VerticalFirst::cheaper;
  throw std::invalid_argument("vertical_first is one of never, tall and cheaper");
}

std::unique_ptr<Executor> make_executor(
    const StageSequence& stages, const std::optional<Convert>& convert, int channels,
    int result_channels, int height, int width, bool fast_decode, bool strict,
    const std::string& vertical_first, const std::optional<std::string>& simd,
    const std::optional<DeviceTail>& tail, const std::vector<Loop>& order, int tensor_from,
    int copied_from) {
  PlanSpec spec;
  spec.stages = stages_from_python(stages);
  if (convert) spec.convert = convert_from_tuple(*convert);
  if (!order.empty() && !convert) throw std::invalid_argument("an order needs a conversion");
  for (const auto& [size, from, to] : order) spec.convert->order.push_back({size, from, to});
  spec.channels = channels;
  spec.result_channels = result_channels;
  spec.height = height;
  spec.width = width;
  spec.fast_decode = fast_decode;
  spec.strict = strict;
  spec.tensor_from = tensor_from;
  spec.copied_from = copied_from;
  spec.vertical_first = vertical_first_from_name(vertical_first);
  spec.simd = simd ? simd_level_from_name(*simd) : best_simd_level();
  if (!tail) return std::make_unique<Executor>(std::move(spec));
  const auto [stages_deferred, bytes, work_bytes] = *tail;
  auto writer = std::make_unique<device::ProgramWriter>(spec, bytes, work_bytes);
  spec.convert.reset();
  spec.result_channels = spec.channels;
  spec.deferred_stages = stages_deferred;
  return std::make_unique<Executor>(std::move(spec), std::move(writer));
}

// One call at a time: threads of Python may share an executor, whose buffers are its own.
template <class Work>
auto without_gil(Executor& executor, Work work) {
  const GilReleased release;
  const std::lock_guard lock(executor.mutex());
  return work();
}

void set_max_pixels(Executor& self, std::optional<int64_t> pixels) {
  const std::lock_guard lock(self.mutex());
  self.set_most_pixels(pixels ? static_cast<uint64_t>(std::max<int64_t>(*pixels, 0))
                              : most_decoded_pixels);
}

// The bytes, and height and width.
using PixelsAndSize = std::pair<py::bytes, std::pair<int, int>>;

PixelsAndSize with_size(const Pixels& pixels) {
  return {py::bytes(reinterpret_cast<const char*>(pixels.bytes.data()), pixels.bytes.size()),
          {pixels.height, pixels.width}};
}

OperationList draw_list(const Executor& self, uint64_t seed, uint64_t epoch, uint64_t index,
                        uint64_t occurrence, int width, int height, uint64_t group) {
  return list_from_operations(
      draw(self.plan(), {seed, epoch, index, occurrence, group}, width, height));
}

Status run(Executor& self, const py::buffer& encoded, uint64_t seed, uint64_t epoch, uint64_t index,
           uint64_t occurrence, const py::buffer& out, uint64_t group) {
  const Buffer from(encoded, readable), to(out, writable);
  uint8_t* target = to.writable(self.result_bytes());
  const SampleKey key{seed, epoch, index, occurrence, group};
  return without_gil(self, [&] { return self.run_encoded(from.bytes(), key, target); });
}

Status run_with(Executor& self, const py::buffer& encoded, const OperationSequence& parameters,
                const py::buffer& out, const py::bytes& index) {
  const Buffer from(encoded, readable), to(out, writable);
  uint8_t* target = to.writable(self.result_bytes());
  const Parameters given = operations_from_list(parameters);
  const std::vector<ScanEntry> entries = entries_of(index);
  return without_gil(self, [&] {
    return self.run_encoded_with(from.bytes(), given, target, {entries.data(), entries.size()});
  });
}

py::bytes record(Executor& self, const py::buffer& encoded) {
  const Buffer from(encoded, readable);
  return bytes_of(without_gil(self, [&] { return self.record(from.bytes()); }));
}

void run_pixels(Executor& self, const py::buffer& image, uint64_t seed, uint64_t epoch,
                uint64_t index, uint64_t occurrence, const py::buffer& out, uint64_t group) {
  const Buffer from(image, shaped), to(out, writable);
  const PixelView view = from.pixels();
  uint8_t* target = to.writable(self.result_bytes());
  const SampleKey key{seed, epoch, index, occurrence, group};
  without_gil(self, [&] { self.run_pixels(view, key, target); });
}

void run_pixels_with(Executor& self, const py::buffer& image, const OperationSequence& parameters,
                     const py::buffer& out) {
  const Buffer from(image, shaped), to(out, writable);
  const PixelView view = from.pixels();
  uint8_t* target = to.writable(self.result_bytes());
  const Parameters given = operations_from_list(parameters);
  without_gil(self, [&] { self.run_pixels_with(view, given, target); });
}

std::optional<PixelsAndSize> pixels(Executor& self, const py::buffer& encoded, uint64_t seed,
                                    uint64_t epoch, uint64_t index, uint64_t occurrence,
                                    uint64_t group) {
  const Buffer from(encoded, readable);
  const SampleKey key{seed, epoch, index, occurrence, group};
  Pixels result;
  const Status status =
      without_gil(self, [&] { return self.pixels_of_encoded(from.bytes(), key, result); });
  if (status != Status::ok) return std::nullopt;
  return with_size(result);
}

PixelsAndSize pixels_of_pixels(Executor& self, const py::buffer& image, uint64_t seed,
                               uint64_t epoch, uint64_t index, uint64_t occurrence,
                               uint64_t group) {
  const Buffer from(image, shaped);
  const PixelView view = from.pixels();
  const SampleKey key{seed, epoch, index, occurrence, group};
  Pixels result;
  without_gil(self, [&] { self.pixels_of_pixels(view, key, result); });
  return with_size(result);
}

PixelsAndSize pixels_with(Executor& self, const py::buffer& image,
                          const OperationSequence& parameters) {
  const Buffer from(image, shaped);
  const PixelView view = from.pixels();
  const Parameters given = operations_from_list(parameters);
  Pixels result;
  without_gil(self, [&] { self.pixels_with(view, given, result); });
  return with_size(result);
}

Status decode(Executor& self, const py::buffer& encoded, const py::buffer& out, bool bgr) {
  const Buffer from(encoded, readable), to(out, shaped | writable);
  const PixelView view = to.pixels();
  const PixelOrder order = view.channels == 4   ? PixelOrder::rgbx
                           : view.channels == 1 ? PixelOrder::grey
                           : bgr                ? PixelOrder::bgr
                                                : PixelOrder::rgb;
  uint8_t* target = to.writable(1);
  return without_gil(
      self, [&] { return self.decode(from.bytes(), view.width, view.height, order, target); });
}

std::optional<std::pair<int, int>> image_size(Executor& self, const py::buffer& encoded) {
  const Buffer from(encoded, readable);
  int width = 0, height = 0;
  if (!self.image_size(from.bytes(), width, height)) return std::nullopt;
  return std::pair(width, height);
}

bool is_never_refused(const py::buffer& encoded) {
  const Buffer from(encoded, readable);
  return ScanScript().read(from.bytes());
}

std::vector<double> take_part_seconds(Executor& self) {
  std::vector<double> seconds;
  for (const uint64_t ns : self.times().take()) seconds.push_back(to_seconds(ns));
  return seconds;
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
  m.def("is_never_refused", &is_never_refused, "encoded"_a,
        "Whether libjpeg decodes a JPEG file whatever its entropy-coded data.\n\n"
        "It may warn then, but gives no error. Some other files it does not refuse either.");
  m.def("mix_key", &mix_key, "seed"_a, "epoch"_a, "key"_a, "occurrence"_a,
        "A seed of 63 bits from what identifies the draws of a sample.");
  py::native_enum<Status>(m, "RunStatus", "enum.Enum", "Whether an executor could run a file.")
      .value("OK", Status::ok)
      .value("NEEDS_PILLOW", Status::needs_pillow, "Pillow decodes it, or words the error.")
      .finalize();
  py::class_<Executor>(
      m, "Executor",
      "Runs a plan on one sample at a time.\n\n"
      "A sample is named by seed, epoch, index, occurrence and group, and comes as an\n"
      "encoded file or as pixels. Methods that end in `_with` are given the drawn\n"
      "operations; those named for pixels return bytes with their height and width.")
      .def(py::init(&make_executor), "stages"_a, "convert"_a, "channels"_a, "result_channels"_a,
           "height"_a, "width"_a, "fast_decode"_a, "strict"_a, "vertical_first"_a,
           "simd"_a = py::none(), "device_tail"_a = py::none(), "order"_a = std::vector<Loop>(),
           "tensor_from"_a = 0, "copied_from"_a = 0,
           "With `device_tail`, a device runs so many of the last stages.\n\n"
           "Behind its pixels a result then has a program of so many bytes, which takes so many\n"
           "bytes to work in. `order` has nested loops: size, and steps in the image and in the\n"
           "result.")
      .def_property_readonly("result_bytes", &Executor::result_bytes)
      .def_property("max_pixels", &Executor::most_pixels, &set_max_pixels,
                    "Images that have more are left to Pillow, as with its MAX_IMAGE_PIXELS.")
      .def_property_readonly("conversion", &Executor::conversion)
      .def_property_readonly("simd_level",
                             [](const Executor& self) { return simd_level_name(self.plan().simd); })
      .def("take_part_seconds", &take_part_seconds,
           "Wall time of the plan's parts since the last call.")
      .def("draw", &draw_list, "seed"_a, "epoch"_a, "index"_a, "occurrence"_a, "width"_a,
           "height"_a, "group"_a = 0, "The operations for an image of that size.")
      .def("run", &run, "encoded"_a, "seed"_a, "epoch"_a, "index"_a, "occurrence"_a, "out"_a,
           "group"_a = 0)
      .def("run_with", &run_with, "encoded"_a, "parameters"_a, "out"_a, "index"_a = py::bytes(),
           "`index` is the file's, as record() gives it, or empty.")
      .def("record", &record, "encoded"_a,
           "A file's entry index; empty for one that can have none.")
      .def("run_pixels", &run_pixels, "image"_a, "seed"_a, "epoch"_a, "index"_a, "occurrence"_a,
           "out"_a, "group"_a = 0)
      .def("run_pixels_with", &run_pixels_with, "image"_a, "parameters"_a, "out"_a)
      .def("pixels", &pixels, "encoded"_a, "seed"_a, "epoch"_a, "index"_a, "occurrence"_a,
           "group"_a = 0, "None where Pillow has to decode.")
      .def("pixels_of_pixels", &pixels_of_pixels, "image"_a, "seed"_a, "epoch"_a, "index"_a,
           "occurrence"_a, "group"_a = 0)
      .def("pixels_with", &pixels_with, "image"_a, "parameters"_a)
      .def("decode", &decode, "encoded"_a, "out"_a, "bgr"_a = false,
           "All of a file, height x width x 1, 3 or 4.\n\n"
           "Of four channels the last is alpha, or any where the file has none; of three, blue is\n"
           "the first with `bgr`; one is the level of a grey image, or the red of any other.")
      .def("image_size", &image_size, "encoded"_a,
           "Width and height; None where Pillow has to decode.");
}

}  // namespace fusionloader
