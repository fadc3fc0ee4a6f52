#pragma once
// The ledger: shared memory in which one lender and up to eight borrowers keep which process has
// which block.
//
//   free --L--> armed --G--> yielded --B--> borrowed --L--> revoking --L--> quarantined
//    ^            |             |              |               |                |
//    |            L             L              B               B                B
//    |<-----------+-------------+              +------> returned <--------------+
//    |<--L--- returned; borrowed, revoking and quarantined too, once their owner has ended
//
// L is the lender, B the borrower, G the lender's GPU when it has done what it was given before.
// Each arrow is one compare-and-swap of one word: no process holds a lock that it could die with.
// Only the lender leaves `free`, and only then writes a record. The generation tells a loan from
// earlier ones of the same record, for delayed publications and returns.
#include <cstdint>

#include "cuda/driver.hpp"
#include "cuda/peer.hpp"
#include "queue/layout.hpp"

namespace fusionloader::cuda {

constexpr uint64_t kLedgerMagic =
    0x3172656764654c46;  // "FLedger1": another layout has another number
constexpr uint32_t kMaxRecords = 4096;
constexpr uint32_t kBorrowerSlots = 8;
constexpr uint32_t kNobody = 0xff;

enum class State : uint8_t { free, armed, yielded, borrowed, revoking, returned, quarantined };
constexpr int kStates = 7;
// A borrower has it, and its borrower slot is in the word.
inline bool is_held(State state) {
  return state == State::borrowed || state == State::revoking || state == State::quarantined;
}

// [generation : 48 | borrower slot of the borrower : 8 | state : 8]
struct LoanWord {
  static uint64_t make(uint64_t generation, uint32_t borrower_slot, State state) {
    return (generation << 16) | (uint64_t{borrower_slot & 0xff} << 8) | static_cast<uint8_t>(state);
  }
  static uint64_t generation(uint64_t word) { return word >> 16; }
  static uint32_t borrower_slot(uint64_t word) { return static_cast<uint32_t>(word >> 8) & 0xff; }
  static State state(uint64_t word) { return static_cast<State>(word & 0xff); }
};

enum class Purpose : uint32_t { use = 0, probe = 1 };

// Where a block lies. The handle opens the whole allocation that it is part of.
struct Offer {
  IpcHandle handle;
  Uuid device;
  uint64_t allocation_bytes;
  uint64_t offset;
  uint64_t bytes;
  Purpose purpose;
};

struct alignas(kAlign) Record {
  Atomic64 word;
  Atomic64 bytes;    // as in `offer`; read before it is known whose turn it is
  Atomic32 purpose;  // as well
  Offer offer;
};

struct alignas(kAlign) BorrowerSlot {
  Atomic64 identity;  // of the process that has it; 0: free
  Atomic64 wanted;    // bytes that it would borrow now
};

struct alignas(kAlign) LedgerHeader {
  uint64_t magic;
  uint32_t user;
  uint64_t lender;  // identity of its process
  Namespaces namespaces;
  Atomic32 closed;
  Atomic32 wanting;                        // a bit for each borrower slot that wants something
  Atomic64 borrowed_ever;                  // bytes of all loans so far
  alignas(kAlign) Atomic32 lender_word;    // futex: changes when the lender should look
  alignas(kAlign) Atomic32 borrower_word;  // futex: changes when borrowers should look
  BorrowerSlot borrower_slots[kBorrowerSlots];
};

struct LedgerMemory {
  LedgerHeader header;
  // followed by Record[records]

  Record* records() { return reinterpret_cast<Record*>(this + 1); }
  static size_t bytes(uint32_t records) { return sizeof(LedgerMemory) + records * sizeof(Record); }
};

}  // namespace fusionloader::cuda
