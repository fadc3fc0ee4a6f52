// A borrower's half of the ledger.
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "cuda/error.hpp"
#include "cuda/ledger.hpp"
#include "queue/futex.hpp"
#include "queue/identity.hpp"

namespace fusionloader::cuda {
namespace {

[[noreturn]] void refuse() {
  throw Error(Fault::ledger, "the descriptor is not that of a ledger of this version");
}

uint32_t records_in(size_t bytes) {
  return static_cast<uint32_t>((bytes - sizeof(LedgerMemory)) / sizeof(Record));
}

std::shared_ptr<Mapping> map_ledger(int fd) {
  struct stat file{};
  if (fstat(fd, &file) != 0) refuse();
  const auto bytes = static_cast<size_t>(file.st_size);
  if (bytes < LedgerMemory::bytes(1) || bytes > LedgerMemory::bytes(kMaxRecords) ||
      bytes != LedgerMemory::bytes(records_in(bytes)))
    refuse();
  std::shared_ptr<Mapping> mapping;
  try {
    mapping = std::make_shared<Mapping>(fd, 0, bytes);
  } catch (const MappingMismatch&) {
    refuse();
  }
  if (reinterpret_cast<LedgerMemory*>(mapping->data())->header.magic != kLedgerMagic) refuse();
  return mapping;
}

}  // namespace

BorrowerLedger::BorrowerLedger(int fd) : BorrowerLedger(map_ledger(fd)) {}

BorrowerLedger::BorrowerLedger(const std::shared_ptr<Mapping>& mapping)
    : Ledger(mapping, records_in(mapping->bytes())) {
  if (header().user != geteuid())
    throw Error(Fault::peer, "the lender is a process of user " + std::to_string(header().user) +
                                 ", this one is of user " + std::to_string(geteuid()));
  if (!(header().namespaces == my_namespaces()))
    throw Error(Fault::peer, "the lender has another namespace of processes (another container)");
  if (!lender_lives()) throw Error(Fault::peer, "the lender's process has ended");
  const uint64_t me = my_identity();
  for (uint32_t i = 0; i < kBorrowerSlots && borrower_slot_ == kNobody; ++i) {
    uint64_t nobody = 0;
    if (header().borrower_slots[i].identity.compare_exchange_strong(nobody, me)) borrower_slot_ = i;
  }
  if (borrower_slot_ == kNobody)
    throw Error(Fault::ledger, "all " + std::to_string(kBorrowerSlots) +
                                   " borrower slots of the lender are taken");
}

BorrowerLedger::~BorrowerLedger() {
  try {
    leave();
  } catch (const Error&) {
    // Something is still out: the borrower slot is this process's until it ends.
  }
}

std::optional<BorrowerLedger::Borrowed> BorrowerLedger::borrow(uint64_t least_bytes,
                                                               Purpose purpose) {
  check_process();
  if (borrower_slot_ == kNobody) throw Error(Fault::ledger, "the borrower is closed");
  const auto wanted = static_cast<uint32_t>(purpose);
  while (true) {
    uint32_t best = 0;
    uint64_t best_word = 0, best_bytes = 0;
    for (uint32_t i = 0; i < records_; ++i) {
      Record& record = memory_->records()[i];
      const uint64_t word = word_of(record);
      const uint64_t bytes = record.bytes.load();
      if (LoanWord::state(word) != State::yielded || record.purpose.load() != wanted) continue;
      if (bytes < least_bytes || bytes <= best_bytes) continue;
      best = i;
      best_word = word;
      best_bytes = bytes;
    }
    if (best_bytes == 0) return std::nullopt;
    Record& record = memory_->records()[best];
    const uint64_t generation = LoanWord::generation(best_word);
    const uint64_t mine = LoanWord::make(generation, borrower_slot_, State::borrowed);
    // When this fails another borrower was faster: the next best, then. From the word as it was
    // seen: from what it should be, it would fail for ever in a damaged ledger.
    if (!record.word.compare_exchange_strong(best_word, mine)) continue;
    header().borrowed_ever.fetch_add(best_bytes);
    return Borrowed{{best, generation}, record.offer};
  }
}

bool BorrowerLedger::holds(uint64_t word) const {
  return is_held(LoanWord::state(word)) && LoanWord::borrower_slot(word) == borrower_slot_;
}

void BorrowerLedger::give_back(Ticket ticket) {
  Record& of = record(ticket);
  uint64_t word = this->word(ticket);
  const uint64_t returned = LoanWord::make(ticket.generation, kNobody, State::returned);
  do {
    if (LoanWord::generation(word) != ticket.generation || !holds(word))
      throw Error(Fault::grant, "record " + std::to_string(ticket.record) +
                                    " is not with this borrower: it was returned already");
  } while (!of.word.compare_exchange_strong(word, returned));
  header().lender_word.fetch_add(1);
  futex_wake_all(header().lender_word);
}

bool BorrowerLedger::is_revoked(Ticket ticket) {
  const State state = this->state(ticket);
  return state == State::revoking || state == State::quarantined;
}

bool BorrowerLedger::any_revoked() const {
  for (uint32_t i = 0; i < records_; ++i) {
    const uint64_t word = memory_->records()[i].word.load();
    if (holds(word) && LoanWord::state(word) != State::borrowed) return true;
  }
  return false;
}

void BorrowerLedger::want(uint64_t bytes) {
  check_process();
  if (borrower_slot_ == kNobody) throw Error(Fault::ledger, "the borrower is closed");
  header().borrower_slots[borrower_slot_].wanted.store(bytes);
  const uint32_t bit = 1u << borrower_slot_;
  if (bytes == 0) {
    header().wanting.fetch_and(~bit);
    return;
  }
  header().wanting.fetch_or(bit);
  header().lender_word.fetch_add(1);
  futex_wake_all(header().lender_word);
}

bool BorrowerLedger::lender_lives() const { return !ended(header().lender); }

void BorrowerLedger::leave() {
  check_process();
  if (borrower_slot_ == kNobody) return;
  for (uint32_t i = 0; i < records_; ++i)
    if (holds(memory_->records()[i].word.load()))
      throw Error(Fault::grant, "a borrowed block was not returned");
  want(0);
  header().borrower_slots[borrower_slot_].identity.store(0);
  borrower_slot_ = kNobody;
}

void BorrowerLedger::wait(uint32_t seen, int64_t timeout_ns) const {
  futex_wait(header().borrower_word, seen, timeout_ns);
}

}  // namespace fusionloader::cuda
