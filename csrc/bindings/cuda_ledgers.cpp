// The two halves of the ledger of lent memory, without the driver: for tests of the protocol.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>

#include "bindings/cuda.hpp"
#include "bindings/testing.hpp"
#include "cuda/ledger.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace fusionloader {
namespace {

using namespace cuda;

template <size_t size>
std::array<uint8_t, size> array_of(const py::bytes& bytes) {
  const std::string_view view = bytes;
  if (view.size() != size) throw std::invalid_argument("bytes of another length");
  std::array<uint8_t, size> array;
  std::memcpy(array.data(), view.data(), size);
  return array;
}

}  // namespace

void bind_ledgers(py::module_& m) {
  py::class_<LenderLedger>(m, "LenderLedger", "The lender's half of the ledger alone.")
      .def(py::init<int, uint32_t>(), "fd"_a, "slots"_a)
      .def_property_readonly("fd", &LenderLedger::fd)
      .def(
          "arm",
          [](LenderLedger& self, const py::bytes& handle, const py::bytes& uuid,
             uint64_t allocation_bytes, uint64_t offset, uint64_t bytes) {
            return self.arm({array_of<64>(handle), array_of<16>(uuid), allocation_bytes, offset,
                             bytes, Purpose::use});
          },
          "handle"_a, "uuid"_a, "allocation_bytes"_a, "offset"_a, "nbytes"_a)
      .def(
          "publish",
          [](LenderLedger& self, const Ticket& ticket) { self.publication(ticket).publish(); },
          "ticket"_a)
      .def("revoke", &LenderLedger::revoke, "ticket"_a)
      .def("take_back", &LenderLedger::take_back, "ticket"_a)
      .def("quarantine", &LenderLedger::quarantine, "ticket"_a)
      .def("state", &LenderLedger::state, "ticket"_a)
      .def("owner", &LenderLedger::owner, "ticket"_a)
      .def("empty_borrower_slots", &LenderLedger::empty_borrower_slots)
      .def("close", &LenderLedger::close)
      .def_property_readonly("borrowers", &LenderLedger::borrowers)
      .def_property_readonly("wanted_bytes", &LenderLedger::wanted_bytes)
      .def_property_readonly("borrowed_ever", &LenderLedger::borrowed_ever);
  using Borrowed = BorrowerLedger::Borrowed;
  py::class_<Borrowed>(m, "BorrowedBlock", "A loan, and where its block lies.")
      .def_readonly("ticket", &Borrowed::ticket)
      .def_property_readonly("handle",
                             [](const Borrowed& block) {
                               const auto& handle = block.offer.handle;
                               return py::bytes(reinterpret_cast<const char*>(handle.data()),
                                                handle.size());
                             })
      .def_property_readonly("offset", [](const Borrowed& block) { return block.offer.offset; })
      .def_property_readonly("nbytes", [](const Borrowed& block) { return block.offer.bytes; });
  py::class_<BorrowerLedger>(m, "BorrowerLedger", "The borrower's half of the ledger alone.")
      .def(py::init<int>(), "fd"_a)
      .def(
          "borrow",
          [](BorrowerLedger& self, uint64_t least) { return self.borrow(least, Purpose::use); },
          "least_nbytes"_a)
      .def("give_back", &BorrowerLedger::give_back, "ticket"_a)
      .def("is_revoked", &BorrowerLedger::is_revoked, "ticket"_a)
      .def("any_revoked", &BorrowerLedger::any_revoked)
      .def("want", &BorrowerLedger::want, "nbytes"_a)
      .def("leave", &BorrowerLedger::leave);
}

}  // namespace fusionloader
