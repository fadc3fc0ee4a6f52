// Memory shared between processes, as the submodule `cuda`. The GIL is released around whatever
// may wait for the device or another process. What lends and borrows; its parts are in
// cuda_parts.cpp.
#include <pybind11/native_enum.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cmath>

#include "bindings/cuda.hpp"
#include "bindings/gil.hpp"
#include "bindings/module.hpp"
#include "cuda/borrower.hpp"
#include "cuda/error.hpp"
#include "cuda/lender.hpp"
#include "queue/identity.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace fusionloader {
namespace {

using namespace cuda;

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
        py::module_::import("fusionloader.system.gpu_memory.errors").attr(name_of(wrong.fault));
    const py::object made =
        wrong.fault == Fault::cuda ? type(wrong.what(), wrong.code) : type(wrong.what());
    PyErr_SetObject(type.ptr(), made.ptr());
  }
}

Purpose purpose(bool probe) { return probe ? Purpose::probe : Purpose::use; }

// At most a day: whoever waits looks again.
int64_t to_ns(double seconds) {
  return static_cast<int64_t>(std::fmin(std::fmax(seconds, 0), 86400) * 1e9);
}

void bind_values(py::module_& m) {
  py::native_enum<State>(m, "LoanState", "enum.Enum", "Of a record of the ledger.")
      .value("FREE", State::free)
      .value("ARMED", State::armed)
      .value("YIELDED", State::yielded)
      .value("BORROWED", State::borrowed)
      .value("REVOKING", State::revoking)
      .value("RETURNED", State::returned)
      .value("QUARANTINED", State::quarantined)
      .finalize();
  py::native_enum<Outcome>(m, "Outcome", "enum.Enum",
                           "Where a block is when the lender wants it back.")
      .value("OUT", Outcome::out)
      .value("BACK", Outcome::back)
      .value("FREED", Outcome::freed, "It is back, and its memory is gone.")
      .finalize();
  py::class_<Ticket>(m, "Ticket", "One loan of one record of a ledger.")
      .def(
          py::init([](uint32_t record, uint64_t generation) { return Ticket{record, generation}; }),
          "record"_a, "generation"_a)
      .def_readonly("record", &Ticket::record)
      .def_readonly("generation", &Ticket::generation);
  py::class_<Loan>(m, "Loan", "A borrowed block, opened.")
      .def_readonly("ticket", &Loan::ticket)
      .def_readonly("address", &Loan::address)
      .def_readonly("nbytes", &Loan::bytes)
      .def_readonly("device", &Loan::device);
  m.def("ended", &ended, "identity"_a);
  m.def("kill_child", &kill_child, "identity"_a,
        "Kills a process; False where it is no child of this one.");
  m.def("pid_of", &pid_of, "identity"_a);
}

void bind_lender(py::module_& m) {
  py::class_<Lender>(m, "Lender", "The lender's half of a ledger, with the driver.")
      .def(py::init<int, uint32_t>(), "fd"_a, "slots"_a, Unlocked())
      .def_static("ledger_bytes", &LenderLedger::bytes, "slots"_a)
      .def_property_readonly("fd", [](Lender& self) { return self.ledger().fd(); })
      .def(
          "lend",
          [](Lender& self, uint64_t address, uint64_t bytes, std::optional<uint64_t> stream,
             bool probe) { return self.lend(address, bytes, stream, purpose(probe)); },
          "address"_a, "nbytes"_a, "stream"_a, "probe"_a = false, Unlocked())
      .def("revoke", &Lender::revoke, "ticket"_a, Unlocked())
      .def("take_back", &Lender::take_back, "ticket"_a, Unlocked())
      .def("quarantine", &Lender::quarantine, "ticket"_a)
      .def("state", &Lender::state, "ticket"_a)
      .def("owner", &Lender::owner, "ticket"_a, "Identity of the process that has the block, or 0.")
      .def("empty_borrower_slots", &Lender::empty_borrower_slots)
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
  py::class_<Borrower>(m, "Borrower", "One borrower slot at the ledger behind a descriptor.")
      .def(py::init<int>(), "fd"_a, Unlocked())
      .def(
          "borrow",
          [](Borrower& self, uint64_t least, bool probe) {
            return self.borrow(least, purpose(probe));
          },
          "least_nbytes"_a, "probe"_a = false, Unlocked())
      .def("give_back", &Borrower::give_back, "ticket"_a, "streams"_a, Unlocked())
      .def("is_revoked", &Borrower::is_revoked, "ticket"_a)
      .def("any_revoked", &Borrower::any_revoked)
      .def("want", &Borrower::want, "nbytes"_a)
      .def("leave", &Borrower::leave)
      .def_property_readonly("lender_lives",
                             [](const Borrower& self) { return self.ledger().lender_lives(); })
      .def_property_readonly("is_closed",
                             [](const Borrower& self) { return self.ledger().is_closed(); })
      .def_property_readonly("change_count",
                             [](const Borrower& self) { return self.ledger().change_count(); })
      .def(
          "wait",
          [](const Borrower& self, uint32_t seen, double seconds) {
            self.ledger().wait(seen, to_ns(seconds));
          },
          "seen"_a, "seconds"_a, Unlocked());
}

}  // namespace

void bind_cuda(py::module_& m) {
  py::module_ cuda = m.def_submodule(
      "cuda",
      "Memory shared between processes. Its errors: fusionloader.system.gpu_memory.errors.");
  py::register_local_exception_translator(&say_memory_error);
  bind_values(cuda);
  bind_lender(cuda);
  bind_borrower(cuda);
  bind_cuda_parts(cuda);
}

}  // namespace fusionloader
