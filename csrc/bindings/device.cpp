// Device programs: operations as tuples in, one block of bytes out.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <stdexcept>
#include <string>

#include "bindings/buffers.hpp"
#include "bindings/gil.hpp"
#include "bindings/module.hpp"
#include "bindings/operations.hpp"
#include "device/builder.hpp"
#include "device/host.hpp"
#include "device/launcher.hpp"
#include "device/source.hpp"

namespace py = pybind11;

namespace fusionloader {
namespace {

using device::BatchBuilder;

std::optional<std::string> unsupported(const OperationSequence& operations) {
  return device::unsupported(operations_from_list(operations));
}

uint64_t address(const void* memory) { return reinterpret_cast<uint64_t>(memory); }

// Returns the height and width of the result.
std::pair<int, int> run_on_host(const Executor& executor, const py::buffer& image,
                                const OperationSequence& operations, const py::buffer& out,
                                int lanes) {
  const Buffer from(image, shaped), to(out, writable);
  const PixelView view = from.pixels();
  if (view.channels != executor.plan().channels)
    throw std::invalid_argument("the image has not the plan's channels");
  const Parameters given = operations_from_list(operations);
  BatchBuilder batch(executor.plan());
  {
    const GilReleased release;
    const ByteView room = to.bytes();
    batch.add(given, {address(view.pixels), view.width, view.height}, address(room.data));
    to.writable(batch.result_bytes());
    device::run_on_host(batch, lanes);
  }
  return {batch.height(), batch.width()};
}

void add(BatchBuilder& batch, const OperationSequence& operations, uint64_t pixels, int width,
         int height, uint64_t out) {
  batch.add(operations_from_list(operations), {pixels, width, height}, out);
}

void add_drawn(BatchBuilder& batch, const Executor& executor, uint64_t seed, uint64_t epoch,
               uint64_t index, uint64_t occurrence, uint64_t group, uint64_t pixels, int width,
               int height, uint64_t out) {
  const SampleKey key{seed, epoch, index, occurrence, group};
  batch.add(draw(executor.plan(), key, width, height), {pixels, width, height}, out);
}

std::map<std::string, std::string> source() {
  std::map<std::string, std::string> files;
  for (size_t i = 0; i < device::source_count; ++i)
    files.emplace(device::source_files[i].name, device::source_files[i].text);
  return files;
}

void bind_launches(py::module_& m) {
  using namespace py::literals;
  m.def(
      "device_source", &source,
      "The source of the CUDA kernel that runs this build's programs, by the names of its files.");
  m.def(
      "run_block_on_host",
      [](uint64_t block, uint64_t work, uint32_t samples) {
        device::run_block_on_host(reinterpret_cast<const uint8_t*>(block),
                                  reinterpret_cast<uint8_t*>(work), samples);
      },
      "block"_a, "work"_a, "samples"_a, Unlocked(),
      "Runs samples of a written batch as a launch does; block and work are addresses.");
  py::class_<device::Launcher>(m, "DeviceLauncher", "Launches batches on a CUDA device.")
      .def(py::init([](int device, const py::bytes& image) {
             const std::string code = image;
             const GilReleased release;
             return std::make_unique<device::Launcher>(device, code);
           }),
           "device"_a, "image"_a)
      .def("launch", &device::Launcher::launch, "batch"_a, "work"_a, "stream"_a, Unlocked())
      .def("wait", &device::Launcher::wait, "stream"_a, Unlocked());
}

}  // namespace

void bind_device(py::module_& m) {
  using namespace py::literals;
  m.def("device_unsupported", &unsupported, "operations"_a,
        "Why no device program does these operations; None where one does.");
  m.def("run_device_program_on_host", &run_on_host, "executor"_a, "image"_a, "operations"_a,
        "out"_a, "lanes"_a,
        "Runs operations on an image as a device would; height and width of the result.");
  py::class_<BatchBuilder>(
      m, "DeviceBatch",
      "Programs of samples, for one launch; addresses are those of the memory it will run on.")
      .def(py::init([](const Executor& executor) { return BatchBuilder(executor.plan()); }),
           "executor"_a)
      .def("clear", &BatchBuilder::clear)
      .def("add", &add, "operations"_a, "pixels"_a, "width"_a, "height"_a, "out"_a)
      .def("add_drawn", &add_drawn, "executor"_a, "seed"_a, "epoch"_a, "index"_a, "occurrence"_a,
           "group"_a, "pixels"_a, "width"_a, "height"_a, "out"_a)
      .def_property_readonly("samples", &BatchBuilder::samples)
      .def_property_readonly("nbytes", &BatchBuilder::bytes)
      .def_property_readonly("work_bytes", &BatchBuilder::work_bytes)
      .def(
          "write",
          [](const BatchBuilder& self, uint64_t to) { self.write(reinterpret_cast<uint8_t*>(to)); },
          "address"_a);
  bind_launches(m);
}

}  // namespace fusionloader
