#include "cuda/borrower.hpp"

#include "cuda/error.hpp"

namespace fusionloader::cuda {

Borrower::Borrower(int fd) : ledger_(fd) { Driver::get(); }

std::optional<Loan> Borrower::borrow(uint64_t least_bytes, Purpose purpose) {
  if (least_bytes == 0) throw Error(Fault::size, "at least 1 byte must be borrowed");
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto borrowed = ledger_.borrow(least_bytes, purpose);
  if (!borrowed) return std::nullopt;
  try {
    return open(*borrowed);
  } catch (...) {
    ledger_.give_back(borrowed->ticket);
    throw;
  }
}

Loan Borrower::open(const BorrowerLedger::Borrowed& borrowed) {
  const Offer& offer = borrowed.offer;
  if (offer.offset > offer.allocation_bytes || offer.bytes > offer.allocation_bytes - offer.offset)
    throw Error(Fault::ledger, "the ledger is damaged: a block ends outside of its allocation");
  const auto device = Driver::get().find_device(offer.device);
  if (!device)
    throw Error(Fault::device,
                "the memory is of a GPU that this process does not see: CUDA_VISIBLE_DEVICES must "
                "name it here too");
  const OnDevice here(*device);
  const Place place{*device, offer.handle};
  auto opened = opened_.find(place);
  if (opened == opened_.end())
    opened = opened_.emplace(place, Opened{here.open(offer.handle), 0}).first;
  ++opened->second.loans;
  held_[borrowed.ticket.record] = {borrowed.ticket.generation, place, false};
  return {borrowed.ticket, opened->second.base + offer.offset, offer.bytes, *device};
}

void Borrower::close(const Place& place) {
  const auto opened = opened_.find(place);
  if (--opened->second.loans > 0) return;
  const uint64_t base = opened->second.base;
  opened_.erase(opened);
  OnDevice(place.first).close(base);
}

void Borrower::give_back(Ticket ticket, const std::optional<std::vector<uint64_t>>& streams) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto held = held_.find(ticket.record);
  if (held == held_.end() || held->second.generation != ticket.generation || held->second.returning)
    throw Error(Fault::grant, "the block is not borrowed by this process: it was returned already");
  held->second.returning = true;
  const Place place = held->second.place;
  lock.unlock();
  try {
    const OnDevice here(place.first);
    if (streams)
      for (const uint64_t stream : *streams) here.synchronize(stream);
    else
      here.synchronize();
  } catch (...) {
    lock.lock();
    held->second.returning = false;
    throw;
  }
  lock.lock();
  close(place);
  held_.erase(held);
  ledger_.give_back(ticket);
}

void Borrower::want(uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ledger_.want(bytes);
}

void Borrower::leave() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ledger_.leave();
}

}  // namespace fusionloader::cuda
