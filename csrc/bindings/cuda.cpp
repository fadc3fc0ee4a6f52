// Memory shared between processes, as the submodule `cuda`. The GIL is released around whatever
// may wait for the device or another process.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cmath>
#include <cstring>

#include "bindings/module.hpp"
#include "cuda/arena.hpp"
#include "cuda/borrower.hpp"
#include "cuda/error.hpp"
#include "cuda/lender.hpp"
#include "queue/identity.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace fusionloader {
namespace {

using namespace cuda;
using Unlocked = py::call_guard<py::gil_scoped_release>;

const char* name_of(Fault fault) {
  switch (fault) {
    case Fault::cuda:
      return "CudaError";
    case Fault::unavailable:
      return "UnavailableError";
    case Fault::device:
      return "DeviceError";
    case Fault::ledger:
      return "LedgerError";
    case Fault::peer:
      return "PeerError";
    case Fault::size:
      return "SizeError";
    case Fault::grant:
      break;
  }
  return "GrantError";
}

void say_memory_error(std::exception_ptr error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const Error& wrong) {
    const py::object type =
        py::module_::import("fusionloader.memory.errors").attr(name_of(wrong.fault));
    const py::object made =
        wrong.fault == Fault::cuda ? type(wrong.what(), wrong.code) : type(wrong.what());
    PyErr_SetObject(type.ptr(), made.ptr());
  }
}

const char* name_of(State state) {
  constexpr const char* names[kStates] = {"free",     "armed",    "yielded",    "borrowed",
                                          "revoking", "returned", "quarantined"};
  return names[static_cast<int>(state)];
}

const char* name_of(Outcome outcome) {
  switch (outcome) {
    case Outcome::out:
      return "out";
    case Outcome::back:
      return "back";
    case Outcome::freed:
      break;
  }
  return "freed";
}

Purpose purpose(bool probe) { return probe ? Purpose::probe : Purpose::use; }

// At most a day: whoever waits looks again.
int64_t to_ns(double seconds) {
  return static_cast<int64_t>(std::fmin(std::fmax(seconds, 0), 86400) * 1e9);
}

template <size_t size>
std::array<uint8_t, size> array_of(const py::bytes& bytes) {
  const std::string_view view = bytes;
  if (view.size() != size) throw std::invalid_argument("bytes of another length");
  std::array<uint8_t, size> array;
  std::memcpy(array.data(), view.data(), size);
  return array;
}

void bind_values(py::module_& m) {
  py::class_<Ticket>(m, "Ticket")
      .def(
          py::init([](uint32_t record, uint64_t generation) { return Ticket{record, generation}; }),
          "record"_a, "generation"_a)
      .def_readonly("record", &Ticket::record)
      .def_readonly("generation", &Ticket::generation);
  py::class_<Loan>(m, "Loan")
      .def_readonly("ticket", &Loan::ticket)
      .def_readonly("address", &Loan::address)
      .def_readonly("nbytes", &Loan::bytes)
      .def_readonly("device", &Loan::device);
  m.def("ended", &ended, "identity"_a);
  m.def("kill_child", &kill_child, "identity"_a);
  m.def("pid_of", &pid_of, "identity"_a);
}

// The ledger alone, for tests of the protocol.
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
      .def("empty_seats", &LenderLedger::empty_seats)
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

void bind_lender(py::module_& m) {
  py::class_<Lender>(m, "Lender")
      .def(py::init<uint32_t>(), "slots"_a, Unlocked())
      .def_property_readonly("fd", [](Lender& self) { return self.ledger().fd(); })
      .def(
          "lend",
          [](Lender& self, uint64_t address, uint64_t bytes, std::optional<uint64_t> stream,
             bool probe) { return self.lend(address, bytes, stream, purpose(probe)); },
          "address"_a, "nbytes"_a, "stream"_a, "probe"_a = false, Unlocked())
      .def(
          "revoke", [](Lender& self, const Ticket& ticket) { return name_of(self.revoke(ticket)); },
          Unlocked())
      .def(
          "take_back",
          [](Lender& self, const Ticket& ticket) { return name_of(self.take_back(ticket)); },
          Unlocked())
      .def("quarantine", &Lender::quarantine)
      .def("state", [](Lender& self, const Ticket& ticket) { return name_of(self.state(ticket)); })
      .def("owner", &Lender::owner)
      .def("empty_seats", &Lender::empty_seats)
      .def("close", [](Lender& self) { self.ledger().close(); })
      .def_property_readonly("borrowers", [](Lender& self) { return self.ledger().borrowers(); })
      .def_property_readonly("wanted_bytes",
                             [](Lender& self) { return self.ledger().wanted_bytes(); })
      .def_property_readonly("borrowed_ever",
                             [](Lender& self) { return self.ledger().borrowed_ever(); })
      .def_property_readonly("change_count",
                             [](Lender& self) { return self.ledger().change_count(); })
      .def(
          "wait",
          [](Lender& self, uint32_t seen, double seconds) {
            self.ledger().wait(seen, to_ns(seconds));
          },
          "seen"_a, "seconds"_a, Unlocked());
}

void bind_borrower(py::module_& m) {
  py::class_<Borrower>(m, "Borrower")
      .def(py::init<int>(), "fd"_a, Unlocked())
      .def(
          "borrow",
          [](Borrower& self, uint64_t least, bool probe) {
            return self.borrow(least, purpose(probe));
          },
          "least_nbytes"_a, "probe"_a = false, Unlocked())
      .def("give_back", &Borrower::give_back, "ticket"_a, "streams"_a, Unlocked())
      .def("is_revoked", &Borrower::is_revoked)
      .def("any_revoked", &Borrower::any_revoked)
      .def("want", &Borrower::want)
      .def("leave", &Borrower::leave)
      .def_property_readonly("lender_lives",
                             [](Borrower& self) { return self.ledger().lender_lives(); })
      .def_property_readonly("is_closed", [](Borrower& self) { return self.ledger().is_closed(); })
      .def_property_readonly("change_count",
                             [](Borrower& self) { return self.ledger().change_count(); })
      .def(
          "wait",
          [](Borrower& self, uint32_t seen, double seconds) {
            self.ledger().wait(seen, to_ns(seconds));
          },
          "seen"_a, "seconds"_a, Unlocked());
}

void bind_arena(py::module_& m) {
  py::class_<Arena>(m, "Arena")
      .def(py::init<>())
      .def("add", &Arena::add, "address"_a, "nbytes"_a, "device"_a)
      .def("remove", &Arena::remove, "address"_a)
      .def("freeze", &Arena::freeze, "address"_a, "frozen"_a)
      .def("allocate", &Arena::allocate, "nbytes"_a, "device"_a)
      .def("free", &Arena::free, "address"_a)
      .def("live_bytes", py::overload_cast<>(&Arena::live_bytes))
      .def("live_bytes", py::overload_cast<uint64_t>(&Arena::live_bytes), "address"_a);
  m.def("pool", &pool_arena, py::return_value_policy::reference);
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

void bind_cuda(py::module_& m) {
  py::module_ cuda = m.def_submodule("cuda", "Memory shared between processes.");
  py::register_local_exception_translator(&say_memory_error);
  bind_values(cuda);
  bind_ledger(cuda);
  bind_lender(cuda);
  bind_borrower(cuda);
  bind_arena(cuda);
  bind_driver(cuda);
}

}  // namespace fusionloader
