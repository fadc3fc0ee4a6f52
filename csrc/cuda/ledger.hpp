#pragma once
// Which process has which block of lent GPU memory: the words of record.hpp, as the lender and as a
// borrower may change them. Nothing here knows the CUDA driver.
//
// How it works. Lender and borrowers map the same memory, an array of records; each serves one loan
// at a time. One word of a record holds the number of the loan, the borrower's slot and the state;
// record.hpp draws the states. The lender fills a free record and arms it. When the lender's GPU
// has done its work up to then, a Publication puts the block on offer (`yielded`). A borrower
// claims it by writing its own slot with the state `borrowed`. The lender can take back what nobody
// has claimed; otherwise it writes `revoking`, which only asks, or after that `quarantined`, which
// only records that it stopped waiting. The borrower writes `returned` when its work has ended and
// its mapping is closed, and the lender makes the record free again. The futex words and the wishes
// of borrowers are hints: no state depends on them.
//
// Why it is right. A word changes by one compare-and-swap from what was seen; only out of `free` is
// it stored, and there the lender alone writes. Of two processes that change a word at once one
// fails, and has changed nothing. The number rises with each loan, so no word comes twice: a
// publication or a return that is late fails, and means no later loan. The offer is written while
// the record is free, and read after the claim, when the lender does not write it. A block leaves
// its borrower by two ways only: the borrower returns it, or the borrower's process has ended. No
// time limit frees a block.
//
// When a process dies. No lock is held between steps, so each word stays in a valid state. A
// borrower slot names its process by pid and start time, and is emptied only when no record names
// the slot. A block of a borrower that has ended becomes free when the lender takes it back. When
// the lender has ended, borrowers can still return what they have; lender_lives() tells them, and
// the memory goes with its last mapping.
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "cuda/record.hpp"
#include "queue/mapping.hpp"

namespace fusionloader::cuda {

// One loan of one record.
struct Ticket {
  uint32_t record;
  uint64_t generation;
};

// Base of both sides. Of no use to forked children of the process that made it.
class Ledger {
 public:
  // Throws where the ticket is forged or stale.
  State state(Ticket ticket) { return LoanWord::state(word(ticket)); }

 protected:
  Ledger(std::shared_ptr<Mapping> mapping, uint32_t records);
  void check_process() const;
  Record& record(Ticket ticket);
  uint64_t word(Ticket ticket);
  // Any record's, in a valid state.
  uint64_t word_of(Record& record) const;
  LedgerHeader& header() const { return memory_->header; }

  std::shared_ptr<Mapping> mapping_;
  LedgerMemory* memory_;
  // Not the header's, which another process could damage.
  const uint32_t records_;

 private:
  const pid_t process_;
};

// Puts an armed block on offer, unless it was taken back meanwhile. May be called on any thread and
// when the lender's object is gone.
class Publication {
 public:
  Publication(std::shared_ptr<Mapping> mapping, Ticket ticket)
      : mapping_(std::move(mapping)), ticket_(ticket) {}
  void publish() const;

 private:
  std::shared_ptr<Mapping> mapping_;
  Ticket ticket_;
};

// One thread at a time may arm, and empty borrower slots; the rest is for any thread.
class LenderLedger : public Ledger {
 public:
  // Begins a ledger in memory of zeros. The descriptor may be closed afterwards.
  LenderLedger(int fd, uint32_t records);
  ~LenderLedger();
  LenderLedger(const LenderLedger&) = delete;
  LenderLedger& operator=(const LenderLedger&) = delete;
  // The size of that memory.
  static size_t bytes(uint32_t records);
  int fd() const { return fd_; }

  // Fills a free record.
  Ticket arm(const Offer& offer);
  Publication publication(Ticket ticket) const { return {mapping_, ticket}; }
  // Asks for a block. True: nobody had borrowed it, it is the lender's again.
  bool revoke(Ticket ticket);
  // True: it is the lender's again, since it was returned or its borrower has ended.
  bool take_back(Ticket ticket);
  // What was asked for stays out, for as long as it takes. False where it is not out.
  bool quarantine(Ticket ticket);
  // Identity of the process that has the block; 0: none has.
  uint64_t owner(Ticket ticket);

  uint64_t wanted_bytes() const;
  uint64_t borrowed_ever() const { return header().borrowed_ever.load(); }
  // Identities of those that have a borrower slot.
  std::vector<uint64_t> borrowers() const;
  // Empties the borrower slots of processes that have ended, once no block is left with them.
  void empty_borrower_slots();
  // Tells borrowers that nothing will be offered any more.
  void close();
  uint32_t change_count() const { return header().lender_word.load(); }
  // Until the count is no longer `seen`, or longer than that by chance.
  void wait(uint32_t seen, int64_t timeout_ns);

 private:
  bool end_loan(Ticket ticket, uint64_t from);
  uint64_t holder(uint64_t word) const;
  bool is_named(uint32_t borrower_slot) const;
  int fd_;
};

// One thread at a time may leave; the rest is for any thread.
class BorrowerLedger : public Ledger {
 public:
  // Takes a borrower slot. The descriptor may be closed afterwards.
  explicit BorrowerLedger(int fd);
  ~BorrowerLedger();
  BorrowerLedger(const BorrowerLedger&) = delete;
  BorrowerLedger& operator=(const BorrowerLedger&) = delete;

  struct Borrowed {
    Ticket ticket;
    Offer offer;
  };
  // The largest block on offer, if it has at least so many bytes.
  std::optional<Borrowed> borrow(uint64_t least_bytes, Purpose purpose);
  // To be called when nothing of this process uses or maps the block any more.
  void give_back(Ticket ticket);
  bool is_revoked(Ticket ticket);
  // Whether any block that this borrower has is asked for.
  bool any_revoked() const;

  void want(uint64_t bytes);
  bool lender_lives() const;
  bool is_closed() const { return header().closed.load() != 0; }
  // Gives the borrower slot up; what it had borrowed must be back.
  void leave();
  uint32_t change_count() const { return header().borrower_word.load(); }
  void wait(uint32_t seen, int64_t timeout_ns) const;

 private:
  explicit BorrowerLedger(const std::shared_ptr<Mapping>& mapping);
  bool holds(uint64_t word) const;
  std::atomic<uint32_t> borrower_slot_{kNobody};
};

}  // namespace fusionloader::cuda
