// The lender's half of the ledger.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <string>

#include "cuda/error.hpp"
#include "cuda/ledger.hpp"
#include "queue/futex.hpp"
#include "queue/identity.hpp"

namespace fusionloader::cuda {

size_t LenderLedger::bytes(uint32_t records) {
  if (records == 0 || records > kMaxRecords)
    throw Error(Fault::size, "a ledger has 1 to " + std::to_string(kMaxRecords) + " slots, not " +
                                 std::to_string(records));
  return LedgerMemory::bytes(records);
}

LenderLedger::LenderLedger(int fd, uint32_t records)
    : Ledger(std::make_shared<Mapping>(fd, 0, bytes(records)), records),
      fd_(fcntl(fd, F_DUPFD_CLOEXEC, 3)) {
  if (fd_ < 0) throw Error(Fault::ledger, std::string("dup: ") + std::strerror(errno));
  LedgerHeader& h = header();
  h.user = geteuid();
  h.lender = my_identity();
  h.namespaces = my_namespaces();
  for (uint32_t i = 0; i < records; ++i)
    memory_->records()[i].word.store(LoanWord::make(0, kNobody, State::free));
  h.magic = kLedgerMagic;
}

LenderLedger::~LenderLedger() { ::close(fd_); }

Ticket LenderLedger::arm(const Offer& offer) {
  check_process();
  for (uint32_t i = 0; i < records_; ++i) {
    Record& record = memory_->records()[i];
    const uint64_t word = word_of(record);
    if (LoanWord::state(word) != State::free) continue;
    const uint64_t generation = LoanWord::generation(word) + 1;
    record.offer = offer;
    record.bytes.store(offer.bytes);
    record.purpose.store(static_cast<uint32_t>(offer.purpose));
    record.word.store(LoanWord::make(generation, kNobody, State::armed));
    return {i, generation};
  }
  throw Error(Fault::ledger, "all " + std::to_string(records_) + " slots of the ledger are in use");
}

bool LenderLedger::revoke(Ticket ticket) {
  Record& of = record(ticket);
  uint64_t word = this->word(ticket);
  while (true) {
    const State state = LoanWord::state(word);
    if (state == State::free) return true;
    if (state == State::armed || state == State::yielded) {
      if (end_loan(ticket, word)) return true;
    } else if (state == State::borrowed) {
      const uint64_t asked =
          LoanWord::make(ticket.generation, LoanWord::borrower_slot(word), State::revoking);
      if (of.word.compare_exchange_strong(word, asked)) {
        header().borrower_word.fetch_add(1);
        futex_wake_all(header().borrower_word);
        return false;
      }
    } else {
      return false;
    }
    word = this->word(ticket);
  }
}

bool LenderLedger::take_back(Ticket ticket) {
  while (true) {
    const uint64_t word = this->word(ticket);
    switch (LoanWord::state(word)) {
      case State::free:
        return true;
      case State::armed:
      case State::yielded:
        return false;  // to be revoked first
      case State::returned:
        break;
      case State::borrowed:
      case State::revoking:
      case State::quarantined:
        if (!ended(holder(word))) return false;
        break;
    }
    // It may have been returned just before its owner ended: then once more.
    if (end_loan(ticket, word)) return true;
  }
}

bool LenderLedger::end_loan(Ticket ticket, uint64_t from) {
  const uint64_t free = LoanWord::make(ticket.generation, kNobody, State::free);
  return record(ticket).word.compare_exchange_strong(from, free);
}

bool LenderLedger::quarantine(Ticket ticket) {
  const uint32_t borrower_slot = LoanWord::borrower_slot(word(ticket));
  uint64_t asked = LoanWord::make(ticket.generation, borrower_slot, State::revoking);
  const uint64_t out = LoanWord::make(ticket.generation, borrower_slot, State::quarantined);
  return record(ticket).word.compare_exchange_strong(asked, out) || asked == out;
}

uint64_t LenderLedger::owner(Ticket ticket) {
  const uint64_t word = this->word(ticket);
  return is_held(LoanWord::state(word)) ? holder(word) : 0;
}

uint64_t LenderLedger::holder(uint64_t word) const {
  if (LoanWord::borrower_slot(word) >= kBorrowerSlots)
    throw Error(Fault::ledger, "the ledger is damaged");
  return header().borrower_slots[LoanWord::borrower_slot(word)].identity.load();
}

uint64_t LenderLedger::wanted_bytes() const {
  uint32_t wanting = header().wanting.load();
  uint64_t bytes = 0;
  for (uint32_t borrower_slot = 0; wanting != 0; ++borrower_slot, wanting >>= 1)
    if ((wanting & 1) != 0 && borrower_slot < kBorrowerSlots)
      bytes += header().borrower_slots[borrower_slot].wanted.load();
  return bytes;
}

std::vector<uint64_t> LenderLedger::borrowers() const {
  std::vector<uint64_t> all;
  for (BorrowerSlot& borrower_slot : header().borrower_slots)
    if (const uint64_t identity = borrower_slot.identity.load()) all.push_back(identity);
  return all;
}

void LenderLedger::empty_borrower_slots() {
  check_process();
  for (uint32_t borrower_slot = 0; borrower_slot < kBorrowerSlots; ++borrower_slot) {
    Atomic64& identity = header().borrower_slots[borrower_slot].identity;
    if (identity.load() == 0 || !ended(identity.load())) continue;
    header().wanting.fetch_and(~(1u << borrower_slot));
    // Looked at after its end: it can borrow nothing more.
    if (!is_named(borrower_slot)) identity.store(0);
  }
}

bool LenderLedger::is_named(uint32_t borrower_slot) const {
  for (uint32_t i = 0; i < records_; ++i) {
    const uint64_t word = memory_->records()[i].word.load();
    if (is_held(LoanWord::state(word)) && LoanWord::borrower_slot(word) == borrower_slot)
      return true;
  }
  return false;
}

void LenderLedger::close() {
  check_process();
  header().closed.store(1);
  header().borrower_word.fetch_add(1);
  futex_wake_all(header().borrower_word);
}

void LenderLedger::wait(uint32_t seen, int64_t timeout_ns) {
  futex_wait(header().lender_word, seen, timeout_ns);
}

}  // namespace fusionloader::cuda
