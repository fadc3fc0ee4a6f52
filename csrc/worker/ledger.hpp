#pragma once
// How much all stores of a cache may take, in shared memory: bytes of memory and of disk apart.
// Who wants to allocate charges first, so the sum is never more than the limit, whoever dies.
// Laid out by fusionloader/cache/tiers/ledger.py.
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "queue/mapping.hpp"

namespace fusionloader {

enum class Medium : uint64_t { memory = 0, disk = 1 };

class Ledger {
 public:
  static constexpr size_t bytes = 4096;

  // Throws MappingMismatch where the memory is no ledger of this version.
  explicit Ledger(int fd) : memory_(fd, 0, bytes) {
    if (reinterpret_cast<Page*>(memory_.data())->magic != magic)
      throw MappingMismatch::version("no ledger of a cache");
  }

  // False, and nothing is charged, if the limit would be exceeded.
  bool charge(Medium medium, uint64_t amount) {
    Account& account = of(medium);
    uint64_t used = account.used.load();
    do {
      if (used > account.limit || amount > account.limit - used) return false;
    } while (!account.used.compare_exchange_weak(used, used + amount));
    return true;
  }
  void refund(Medium medium, uint64_t amount) { of(medium).used.fetch_sub(amount); }
  uint64_t left(Medium medium) const {
    const Account& account = of(medium);
    const uint64_t used = account.used.load(std::memory_order_relaxed);
    return used < account.limit ? account.limit - used : 0;
  }

 private:
  struct Account {
    uint64_t limit;
    std::atomic<uint64_t> used;
  };
  static constexpr uint64_t magic =
      0x3172656764654c46;  // "FLedger1": another layout has another number
  struct Page {
    Account accounts[2];  // by Medium
    uint64_t magic;
  };
  Account& of(Medium medium) const {
    return reinterpret_cast<Page*>(memory_.data())->accounts[static_cast<uint64_t>(medium)];
  }

  Mapping memory_;
};

}  // namespace fusionloader
