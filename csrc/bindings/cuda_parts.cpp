// Parts of the submodule `cuda`, each of use by itself: the ledger for tests of the protocol, the
// arena for what is borrowed, the driver for the probe.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>

#include "bindings/cuda.hpp"
#include "cuda/driver.hpp"
#include "cuda/ledger.hpp"
#include "cuda/pool.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace fusionloader {
namespace {

using namespace cuda;
using Unlocked = py::call_guard<py::gil_scoped_release>;

template <size_t size>
std::array<uint8_t, size> array_of(const py::bytes& bytes) {
  const std::string_view view = bytes;
  if (view.size() != size) throw std::invalid_argument("bytes of another length");
  std::array<uint8_t, size> array;
  std::memcpy(array.data(), view.data(), size);
  return array;
}

void bind_ledger(py::module_& m) {
  py::class_<LenderLedger>(m, "LenderLedger")
      .def(py::init<uint32_t>(), "slots"_a)
      .def_property_readonly("fd", &LenderLedger::fd)
      .def(
          "arm",
          [](LenderLedger& self, const py::bytes& handle, const py::bytes& uuid,
             uint64_t allocation_bytes, uint64_t offset, uint64_t bytes) {
            return self.arm({array_of<64>(handle), array_of<16>(uuid), allocation_bytes, offset,
                             bytes, Purpose::use});
          },
          "handle"_a, "uuid"_a, "allocation_bytes"_a, "offset"_a, "nbytes"_a)
      .def("publish",
           [](LenderLedger& self, const Ticket& ticket) { self.publication(ticket).publish(); })
      .def("revoke", &LenderLedger::revoke)
      .def("take_back", &LenderLedger::take_back)
      .def("quarantine", &LenderLedger::quarantine)
      .def("state",
           [](LenderLedger& self, const Ticket& ticket) { return name_of(self.state(ticket)); })
      .def("owner", &LenderLedger::owner)
      .def("empty_borrower_slots", &LenderLedger::empty_borrower_slots)
      .def("close", &LenderLedger::close)
      .def_property_readonly("borrowers", &LenderLedger::borrowers)
      .def_property_readonly("wanted_bytes", &LenderLedger::wanted_bytes)
      .def_property_readonly("borrowed_ever", &LenderLedger::borrowed_ever);
  py::class_<BorrowerLedger>(m, "BorrowerLedger")
      .def(py::init<int>(), "fd"_a)
      .def(
          "borrow",
          [](BorrowerLedger& self, uint64_t least) -> std::optional<py::tuple> {
            const auto got = self.borrow(least, Purpose::use);
            if (!got) return std::nullopt;
            const auto* handle = reinterpret_cast<const char*>(got->offer.handle.data());
            return py::make_tuple(got->ticket, py::bytes(handle, got->offer.handle.size()),
                                  got->offer.offset, got->offer.bytes);
          },
          "least_nbytes"_a)
      .def("give_back", &BorrowerLedger::give_back)
      .def("is_revoked", &BorrowerLedger::is_revoked)
      .def("any_revoked", &BorrowerLedger::any_revoked)
      .def("want", &BorrowerLedger::want)
      .def("leave", &BorrowerLedger::leave);
}

void bind_arena(py::module_& m) {
  py::class_<Arena>(m, "Arena")
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
  m.def("uuid", [](int device) {
    const Uuid uuid = Driver::get().uuid(device);
    return py::bytes(reinterpret_cast<const char*>(uuid.data()), uuid.size());
  });
  m.def(
      "allocate", [](int device, size_t bytes) { return OnDevice(device).allocate(bytes); },
      "device"_a, "nbytes"_a, Unlocked());
  m.def(
      "free", [](int device, uint64_t address) { OnDevice(device).free(address); }, "device"_a,
      "address"_a, Unlocked());
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
          const py::gil_scoped_release release;
          OnDevice(device).read(copy.data(), address, bytes);
        }
        return py::bytes(copy);
      },
      "device"_a, "address"_a, "nbytes"_a);
}

}  // namespace

void bind_cuda_parts(py::module_& m) {
  bind_ledger(m);
  bind_arena(m);
  bind_driver(m);
}

}  // namespace fusionloader
