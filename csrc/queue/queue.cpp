#include "queue/queue.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <system_error>

#include "queue/futex.hpp"

namespace fusionloader {

namespace {

size_t file_bytes(int fd) {
  struct stat info{};
  if (fstat(fd, &info) != 0) throw std::system_error(errno, std::generic_category(), "fstat");
  return static_cast<size_t>(info.st_size);
}

}  // namespace

SampleEntry Claim::entry(uint32_t position) const {
  if (position >= header().samples) throw std::out_of_range("a sample's position");
  const Entry& entry = batch->entries()[position];
  return {entry, batch->group(entry.row)};
}

std::optional<uint64_t> Claim::payload() const {
  const uint64_t next = header().payload.load();
  if (next == 0) return std::nullopt;
  return next - 1;
}

std::string_view Claim::indices() const {
  return {reinterpret_cast<const char*>(batch->at(header().indices)), header().indices_bytes};
}

Shared::Shared(int control_fd, int data_fd)
    : data_fd_(data_fd),
      mapping_(control_fd, 0, file_bytes(control_fd)),
      control_(reinterpret_cast<Control*>(mapping_.data())) {}

void Shared::check_control() const {
  if (mapping_.bytes() < sizeof(Control) || control_->header.magic != kMagic)
    throw MappingMismatch::version("no control block");
  const ControlHeader& header = control_->header;
  if (mapping_.bytes() < Control::bytes(control_->record_count(), header.ring_size))
    throw MappingMismatch::version("a control block that is not whole");
}

const Mapping& Shared::slot(uint64_t number) {
  if (number >= kMaxSlots) throw std::out_of_range("a slot's number");
  if (number >= slots_.size()) slots_.resize(number + 1);
  if (!slots_[number]) {
    SlotEntry& entry = control_->slots()[number];
    slots_[number].emplace(data_fd_, entry.offset.load(), entry.bytes.load());
  }
  return *slots_[number];
}

Mapping Shared::map_again(uint64_t number, size_t& begin, size_t bytes) {
  const Mapping& whole = slot(number);
  if (begin > whole.bytes() || bytes > whole.bytes() - begin)
    throw std::out_of_range("bytes of a slot");
  const uint64_t from = control_->slots()[number].offset.load() + begin;
  begin = static_cast<size_t>(from % static_cast<uint64_t>(sysconf(_SC_PAGESIZE)));
  return {data_fd_, from - begin, begin + bytes};
}

void Shared::tell_completed() {
  ControlHeader& header = control_->header;
  if (header.watches_completed.load() == 0) return;
  header.completed_word.fetch_add(1);
  futex_wake_all(header.completed_word);
}

void Shared::wake_workers(uint32_t most) {
  ControlHeader& header = control_->header;
  header.work_word.fetch_add(1);
  // Not exact after a worker died asleep; a needless call is all that costs.
  if (header.sleeping_workers.load() != 0) futex_wake(header.work_word, most);
}

void Shared::wake_manager() {
  ControlHeader& header = control_->header;
  header.done_word.fetch_add(1);
  if (header.manager_sleeps.load() != 0) futex_wake_all(header.done_word);
}

void drop_waiting(Batch& batch, uint64_t sequence, uint32_t tiny_batch) {
  uint64_t waiting = StateWord::make(sequence, 0, TinyBatchState::waiting);
  batch.states()[tiny_batch].compare_exchange_strong(
      waiting, StateWord::make(sequence, 0, TinyBatchState::completed));
}

void notify(int event_fd) {
  const uint64_t one = 1;
  // It can fail only where nobody has read for 2^64 times.
  if (event_fd >= 0 && write(event_fd, &one, sizeof one) < 0) return;
}

}  // namespace fusionloader
