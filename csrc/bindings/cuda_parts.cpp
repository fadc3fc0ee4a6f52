// Parts of the submodule `cuda`, each of use by itself: the arena for what is borrowed, the driver
// for the probe.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/cuda.hpp"
#include "bindings/gil.hpp"
#include "cuda/driver.hpp"
#include "cuda/ledger.hpp"
#include "cuda/pool.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace fusionloader {
namespace {

using namespace cuda;

void bind_arena(py::module_& m) {
  py::class_<Arena>(m, "Arena",
                    "Allocates within ranges of memory, first fit; it never touches the memory.")
      .def(py::init<>())
      .def("add", &Arena::add, "address"_a, "nbytes"_a, "device"_a)
      .def("remove", &Arena::remove, "address"_a)
      .def("freeze", &Arena::freeze, "address"_a, "frozen"_a)
      .def("allocate", &Arena::allocate, "nbytes"_a, "device"_a)
      .def("free", &Arena::free, "address"_a)
      .def("is_empty", &Arena::is_empty)
      .def("live_bytes", py::overload_cast<>(&Arena::live_bytes))
      .def("live_bytes", py::overload_cast<uint64_t>(&Arena::live_bytes), "address"_a);
  m.def("pool", []() -> Arena& { return Pool::get().arena(); }, py::return_value_policy::reference);
  m.def("settle_pool", [] { Pool::get().settle(); }, Unlocked());
}

void bind_driver(py::module_& m) {
  m.def("library", [] { return Driver::get().library(); }, Unlocked());
  m.def("device_count", [] { return Driver::get().device_count(); }, Unlocked());
  m.def(
      "architecture", [](int device) { return Driver::get().architecture(device); }, "device"_a,
      Unlocked());
  m.def(
      "uuid",
      [](int device) {
        const Uuid uuid = Driver::get().uuid(device);
        return py::bytes(reinterpret_cast<const char*>(uuid.data()), uuid.size());
      },
      "device"_a);
  m.def(
      "allocate", [](int device, size_t bytes) { return OnDevice(device).allocate(bytes); },
      "device"_a, "nbytes"_a, Unlocked());
  m.def(
      "free", [](int device, uint64_t address) { OnDevice(device).free(address); }, "device"_a,
      "address"_a, Unlocked());
  m.def(
      "relax_captures", [](int device) { OnDevice(device).relax_captures(); }, "device"_a,
      "Whatever this thread does, no capture of a CUDA graph by another one ends.", Unlocked());
  m.def(
      "fill",
      [](int device, uint64_t address, uint32_t value, size_t count) {
        OnDevice(device).fill(address, value, count);
      },
      "device"_a, "address"_a, "value"_a, "count"_a, Unlocked());
  m.def(
      "read",
      [](int device, uint64_t address, size_t bytes) {
        std::string copy(bytes, '\0');
        {
          const GilReleased release;
          OnDevice(device).read(copy.data(), address, bytes);
        }
        return py::bytes(copy);
      },
      "device"_a, "address"_a, "nbytes"_a);
}

}  // namespace

void bind_cuda_parts(py::module_& m) {
  bind_arena(m);
  bind_driver(m);
}

}  // namespace fusionloader
