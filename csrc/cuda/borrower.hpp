#pragma once
// Borrowing: a block of the ledger is opened on this process's device, used, waited for, closed and
// given back.
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "cuda/ledger.hpp"

namespace fusionloader::cuda {

struct Loan {
  Ticket ticket;
  uint64_t address;
  uint64_t bytes;
  int device;
};

class Borrower {
 public:
  // Takes a borrower slot; the descriptor may be closed afterwards.
  explicit Borrower(int fd);

  std::optional<Loan> borrow(uint64_t least_bytes, Purpose purpose);
  // Waits for the streams (without any named, for all work of this process), closes the memory, and
  // gives the block back. When the work has failed the block stays with this process.
  void give_back(Ticket ticket, const std::optional<std::vector<uint64_t>>& streams);
  // Atomic loads: they wait for no other thread that opens or closes memory.
  bool is_revoked(Ticket ticket) { return ledger_.is_revoked(ticket); }
  bool any_revoked() const { return ledger_.any_revoked(); }
  const BorrowerLedger& ledger() const { return ledger_; }
  void want(uint64_t bytes);
  void leave();

 private:
  // Blocks of one allocation share what was opened.
  struct Opened {
    uint64_t base;
    uint32_t loans;
  };
  using Place = std::pair<int, IpcHandle>;  // the device and the handle
  struct Held {
    uint64_t generation;
    Place place;
    bool returning;
  };
  Loan open(const BorrowerLedger::Borrowed& borrowed);
  void close(const Place& place);

  std::mutex mutex_;
  BorrowerLedger ledger_;
  std::map<Place, Opened> opened_;
  std::map<uint32_t, Held> held_;  // by record
};

}  // namespace fusionloader::cuda
