#pragma once
// Lending: blocks of this process's GPU memory are put into the ledger, in the order of the streams
// that used them, and taken back.
#include <map>
#include <mutex>
#include <optional>

#include "cuda/ledger.hpp"

namespace fusionloader::cuda {

// Where a block is when the lender wants it back. Freed: it is back, and its memory is gone.
enum class Outcome { out, back, freed };

class Lender {
 public:
  // With the ledger in memory of zeros, whose descriptor may be closed afterwards.
  Lender(int fd, uint32_t records);

  // The block is offered when all that is in `stream` by now is done; without a stream, waits here
  // until all work of this process is done.
  Ticket lend(uint64_t address, uint64_t bytes, std::optional<uint64_t> stream, Purpose purpose);
  // Asks for a block.
  Outcome revoke(Ticket ticket);
  // Looks whether it was returned, or its borrower has ended.
  Outcome take_back(Ticket ticket);
  bool quarantine(Ticket ticket) { return ledger_.quarantine(ticket); }
  State state(Ticket ticket) { return ledger_.state(ticket); }
  uint64_t owner(Ticket ticket) { return ledger_.owner(ticket); }
  LenderLedger& ledger() { return ledger_; }
  void empty_borrower_slots();

 private:
  struct Lent {
    uint64_t generation;
    uint64_t address;
    uint64_t bytes;
    int device;
    uint64_t allocation;  // its id
  };
  void refuse_if_lent(uint64_t address, uint64_t bytes) const;
  Outcome outcome(Ticket ticket, bool back);

  std::mutex mutex_;
  LenderLedger ledger_;
  std::map<uint32_t, Lent> lent_;  // by record
};

}  // namespace fusionloader::cuda
