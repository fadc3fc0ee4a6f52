#include "cuda/lender.hpp"

#include <memory>
#include <string>

#include "cuda/error.hpp"

namespace fusionloader::cuda {
namespace {

// Called by the driver, on a thread of its own: it must not call CUDA.
void publish(void* publication) {
  const std::unique_ptr<Publication> owned(static_cast<Publication*>(publication));
  owned->publish();
}

std::string range(uint64_t address, uint64_t bytes) {
  return std::to_string(bytes) + " bytes at " + std::to_string(address);
}

Error no_memory(uint64_t address, uint64_t bytes) {
  return Error(Fault::grant, range(address, bytes) + " are no memory of a CUDA device");
}

Allocation require_allocation(const OnDevice& here, uint64_t address, uint64_t bytes) {
  const auto found = here.allocation_of(address);
  if (!found) throw no_memory(address, bytes);
  if (bytes > found->bytes - (address - found->base))
    throw Error(Fault::size, range(address, bytes) + " end outside of their allocation of " +
                                 range(found->base, found->bytes));
  if (!here.can_be_opened_elsewhere(address))
    throw Error(Fault::grant,
                "this memory cannot be opened in another process: it was not allocated by "
                "cudaMalloc (PyTorch's expandable segments, a memory pool, managed memory)");
  return *found;
}

}  // namespace

Lender::Lender(int fd, uint32_t records) : ledger_(fd, records) { Driver::get(); }

Ticket Lender::lend(uint64_t address, uint64_t bytes, std::optional<uint64_t> stream,
                    Purpose purpose) {
  if (bytes == 0) throw Error(Fault::size, "a block has at least 1 byte");
  const auto device = Driver::get().device_of(address);
  if (!device) throw no_memory(address, bytes);
  const OnDevice here(*device);
  const Allocation allocation = require_allocation(here, address, bytes);
  if (stream && here.is_capturing(*stream))
    throw Error(Fault::grant, "memory cannot be lent while its stream is captured into a graph");
  const Offer offer{here.export_handle(allocation.base),
                    Driver::get().uuid(*device),
                    allocation.bytes,
                    address - allocation.base,
                    bytes,
                    purpose};
  if (!stream) here.synchronize();

  const std::lock_guard<std::mutex> lock(mutex_);
  refuse_if_lent(address, bytes);
  const Ticket ticket = ledger_.arm(offer);
  auto publication = std::make_unique<Publication>(ledger_.publication(ticket));
  if (stream) {
    try {
      here.call_after(*stream, &publish, publication.get());
    } catch (const Error&) {
      ledger_.revoke(ticket);
      throw;
    }
    publication.release();  // to the driver
  } else {
    publication->publish();
  }
  lent_[ticket.record] = {ticket.generation, address, bytes, *device, allocation.id};
  return ticket;
}

void Lender::refuse_if_lent(uint64_t address, uint64_t bytes) const {
  for (const auto& [record, lent] : lent_)
    if (address < lent.address + lent.bytes && lent.address < address + bytes)
      throw Error(Fault::grant, range(address, bytes) + " are lent already, with " +
                                    range(lent.address, lent.bytes));
}

Outcome Lender::revoke(Ticket ticket) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return outcome(ticket, ledger_.revoke(ticket));
}

Outcome Lender::take_back(Ticket ticket) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return outcome(ticket, ledger_.take_back(ticket));
}

Outcome Lender::outcome(Ticket ticket, bool back) {
  if (!back) return Outcome::out;
  const auto lent = lent_.find(ticket.record);
  if (lent == lent_.end() || lent->second.generation != ticket.generation) return Outcome::back;
  const Lent was = lent->second;
  lent_.erase(lent);
  const auto now = OnDevice(was.device).allocation_of(was.address);
  return now && now->id == was.allocation ? Outcome::back : Outcome::freed;
}

void Lender::empty_borrower_slots() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ledger_.empty_borrower_slots();
}

}  // namespace fusionloader::cuda
