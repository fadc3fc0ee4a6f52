#include "cuda/ledger.hpp"

#include <unistd.h>

#include <string>

#include "cuda/error.hpp"
#include "queue/futex.hpp"

namespace fusionloader::cuda {

Ledger::Ledger(std::shared_ptr<Mapping> mapping, uint32_t records)
    : mapping_(std::move(mapping)),
      memory_(reinterpret_cast<LedgerMemory*>(mapping_->data())),
      records_(records),
      process_(getpid()) {}

void Ledger::check_process() const {
  if (getpid() != process_)
    throw Error(Fault::ledger, "this end of the ledger belongs to process " +
                                   std::to_string(process_) + ", not to its forked child");
}

Record& Ledger::record(Ticket ticket) {
  check_process();
  if (ticket.record >= records_)
    throw Error(Fault::grant, "the ledger has no record " + std::to_string(ticket.record));
  return memory_->records()[ticket.record];
}

uint64_t Ledger::word_of(Record& record) const {
  const uint64_t word = record.word.load();
  if (static_cast<int>(LoanWord::state(word)) >= kStates)
    throw Error(Fault::ledger, "the ledger is damaged");
  return word;
}

uint64_t Ledger::word(Ticket ticket) {
  const uint64_t word = word_of(record(ticket));
  if (LoanWord::generation(word) != ticket.generation)
    throw Error(Fault::grant, "this is loan " + std::to_string(ticket.generation) + " of record " +
                                  std::to_string(ticket.record) + ", which is at loan " +
                                  std::to_string(LoanWord::generation(word)) + " now");
  return word;
}

void Publication::publish() const {
  auto* memory = reinterpret_cast<LedgerMemory*>(mapping_->data());
  uint64_t armed = LoanWord::make(ticket_.generation, kNobody, State::armed);
  const uint64_t yielded = LoanWord::make(ticket_.generation, kNobody, State::yielded);
  if (!memory->records()[ticket_.record].word.compare_exchange_strong(armed, yielded)) return;
  memory->header.borrower_word.fetch_add(1);
  futex_wake_all(memory->header.borrower_word);
}

}  // namespace fusionloader::cuda
