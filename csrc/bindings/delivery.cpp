// Batches on their way to a device: points in its work, page-locked memory, the copying thread.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <tuple>
#include <variant>

#include "bindings/gil.hpp"
#include "bindings/module.hpp"
#include "cuda/kernel.hpp"
#include "delivery/copier.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace fusionloader {
namespace {

using cuda::Event;
using cuda::OnDevice;
using delivery::Copier;
using Leaf = std::tuple<uint64_t, uint64_t, uint64_t>;
using Levels = std::tuple<uint64_t, uint64_t, uint32_t, uint32_t>;
using Programs = std::tuple<uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint32_t>;
using Conversion = std::variant<Levels, Programs>;

cuda::Function function_at(uint64_t address) { return reinterpret_cast<cuda::Function>(address); }

delivery::Conversion conversion_of(const Levels& given) {
  const auto& [kernel, table, plane_levels, element_bytes] = given;
  return delivery::LevelConversion{function_at(kernel), table, plane_levels, element_bytes};
}

delivery::Conversion conversion_of(const Programs& given) {
  const auto& [kernel, table, program, result_bytes, work_bytes, rows_at_once] = given;
  return delivery::ProgramRun{function_at(kernel), table,      program,
                              result_bytes,        work_bytes, rows_at_once};
}

std::unique_ptr<Copier> make_copier(ManagerQueue& queue, int device, uint64_t stream,
                                    std::optional<uint32_t> gpu_worker,
                                    const std::optional<Conversion>& given) {
  std::optional<delivery::Conversion> conversion;
  if (given) conversion = std::visit([](const auto& each) { return conversion_of(each); }, *given);
  const GilReleased release;
  return std::make_unique<Copier>(queue, device, stream, gpu_worker, conversion);
}

std::shared_ptr<Copier::Ticket> begin(Copier& copier, uint64_t slot, const std::vector<Leaf>& given,
                                      uint64_t staging) {
  std::vector<delivery::LeafRows> leaves;
  for (const auto& [from, to, row_bytes] : given) leaves.push_back({from, to, row_bytes});
  const GilReleased release;
  return copier.begin(slot, std::move(leaves), staging);
}

void bind_streams(py::module_& m) {
  m.def(
      "make_stream", [](int device) { return OnDevice(device).make_stream(); }, "device"_a,
      Unlocked());
  m.def(
      "synchronize", [](int device, uint64_t stream) { OnDevice(device).synchronize(stream); },
      "device"_a, "stream"_a, "Waits until the device has done what is in the stream now.",
      Unlocked());
}

void bind_memory(py::module_& m) {
  m.def(
      "page_lock",
      [](int device, uint64_t address, size_t bytes) {
        OnDevice(device).page_lock(reinterpret_cast<void*>(address), bytes);
      },
      "device"_a, "address"_a, "nbytes"_a, Unlocked());
  m.def(
      "page_unlock",
      [](int device, uint64_t address) {
        OnDevice(device).page_unlock(reinterpret_cast<void*>(address));
      },
      "device"_a, "address"_a, Unlocked());
  m.def(
      "export_handle",
      [](int device, uint64_t address) {
        const cuda::IpcHandle handle = OnDevice(device).export_handle(address);
        return py::bytes(reinterpret_cast<const char*>(handle.data()), handle.size());
      },
      "device"_a, "address"_a, "What opens an allocation in another process.");
  m.def(
      "open_handle",
      [](int device, const py::bytes& given) {
        const std::string_view bytes = given;
        cuda::IpcHandle handle;
        if (bytes.size() != handle.size()) throw py::value_error("not a handle of CUDA IPC");
        std::copy(bytes.begin(), bytes.end(), handle.begin());
        const GilReleased release;
        return OnDevice(device).open(handle);
      },
      "device"_a, "handle"_a, "The address of another process's allocation in this one.");
}

void bind_kernel(py::module_& m) {
  py::class_<cuda::Kernel>(m, "Kernel", "A kernel that was loaded into a device.")
      .def(py::init([](int device, const py::bytes& image, const std::string& name) {
             const std::string code = image;
             const GilReleased release;
             return std::make_unique<cuda::Kernel>(device, code, name);
           }),
           "device"_a, "image"_a, "name"_a)
      .def_property_readonly("function", [](const cuda::Kernel& kernel) {
        return reinterpret_cast<uint64_t>(kernel.function());
      });
}

void bind_copier(py::module_& m) {
  py::class_<Event, std::shared_ptr<Event>>(m, "Event", "A point in the work of a device.")
      .def(py::init<int, uint64_t>(), "device"_a, "stream"_a, Unlocked(),
           "The point behind all that is in the stream now.")
      .def("query", &Event::query, "Whether the device has passed it.")
      .def("hold_back", &Event::hold_back, "stream"_a,
           "Nothing that is put into the stream from now on begins before it.");
  py::class_<Copier::Ticket, std::shared_ptr<Copier::Ticket>>(
      m, "CopyTicket",
      "A mini-batch that is being copied; without references, no more of it is copied.");
  py::class_<Copier>(
      m, "Copier", "A thread that copies mini-batches to a device as their tiny-batches complete.")
      .def(
          py::init(&make_copier), "queue"_a, "device"_a, "stream"_a, "gpu_worker"_a = py::none(),
          "conversion"_a = py::none(), py::keep_alive<1, 2>(),
          "Copies go into `stream`. `gpu_worker` writes its rows of the first leaf itself.\n\n"
          "`conversion` of levels: kernel, address of the table, levels of a channel, bytes of an\n"
          "element. Of pixels with programs: kernel, address of the table, where in a row the\n"
          "program begins, bytes of a result, bytes to work in, rows at once.")
      .def("begin", &begin, "slot"_a, "leaves"_a, "staging"_a = 0, py::keep_alive<0, 1>(),
           "Copies a mini-batch.\n\n"
           "`leaves` are addresses of row 0 in the slot and on the device, and bytes of a row. "
           "With\n"
           "`staging`, the first leaf's rows are copied there, and converted.")
      .def("finish", &Copier::finish, "ticket"_a, "work"_a = 0, Unlocked(),
           "Copies the rest of a mini-batch that is done; the point behind it.\n\n"
           "`work` is memory for programs to work in.")
      .def("close", &Copier::close, Unlocked(), "Ends the thread.")
      .def_property_readonly("copied_bytes", &Copier::copied_bytes)
      .def_property_readonly(
          "timed",
          [](Copier& copier) {
            const Copier::Timed timed = copier.timed();
            return std::pair(timed.bytes, timed.seconds);
          },
          "Bytes of some of the copies, and the device's seconds for these.");
}

}  // namespace

void bind_delivery(py::module_& m) {
  py::module_ cuda = m.attr("cuda");
  bind_streams(cuda);
  bind_memory(cuda);
  bind_kernel(cuda);
  bind_copier(cuda);
}

}  // namespace fusionloader
