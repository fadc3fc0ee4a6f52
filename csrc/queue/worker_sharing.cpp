#include "queue/worker_sharing.hpp"

#include <stdexcept>

namespace fusionloader {

MemberView::MemberView(int control_fd, int data_fd) : Shared(control_fd, data_fd) {
  check_control();
}

std::vector<MiniBatchProgress> MemberView::progress() {
  ControlHeader& header = control_->header;
  std::vector<MiniBatchProgress> all;
  const uint64_t published = header.published.load();
  for (uint64_t sequence = header.oldest.load(); sequence < published; ++sequence) {
    const uint64_t number = control_->ring()[sequence % header.ring_size].load();
    const Mapping& memory = slot(number);
    Batch& batch = *this->batch(number);
    MiniBatchProgress found{sequence, 0, 0};
    // The slot may be reused for another mini-batch meanwhile: what is read here is an estimate,
    // but every read has to stay inside the slot.
    const uint32_t count = batch.header.tiny_batches, size = batch.header.tiny_size;
    if (batch.header.sequence.load() == sequence &&
        Batch::descriptor_bytes(0, count) <= memory.bytes()) {
      const uint64_t waiting = StateWord::make(sequence, 0, TinyBatchState::waiting);
      for (uint32_t t = 0; t < count; ++t) {
        const uint64_t word = batch.states()[t].load();
        if (word == waiting)
          ++found.waiting;
        else if (StateWord::state(word) == TinyBatchState::active &&
                 2 * reinterpret_cast<Atomic32*>(batch.states() + count)[t].load() > size)
          ++found.half_done;
      }
    }
    all.push_back(found);
  }
  return all;
}

std::vector<WorkerView> MemberView::workers() {
  std::vector<WorkerView> all;
  for (uint32_t w = 0; w < control_->header.shareable; ++w) {
    const WorkerRecord& record = control_->records()[w];
    const uint64_t assignment = record.assignment.load();
    const bool open = assignment != record.answered.load();
    all.push_back({static_cast<WorkerActivity>(record.activity.load()),
                   open ? Assignment::member(assignment) : 0,
                   open ? Assignment::guest_slot(assignment) : 0});
  }
  return all;
}

std::vector<uint32_t> MemberView::free_guest_slots() {
  std::vector<uint32_t> all;
  const ControlHeader& header = control_->header;
  for (uint32_t guest_slot = header.workers; guest_slot < header.workers + header.guest_slots;
       ++guest_slot)
    if (control_->records()[guest_slot].owner.load() == 0) all.push_back(guest_slot);
  return all;
}

uint32_t MemberView::borrowed_at_work() {
  uint32_t count = 0;
  const ControlHeader& header = control_->header;
  for (uint32_t guest_slot = header.workers; guest_slot < header.workers + header.guest_slots;
       ++guest_slot) {
    const WorkerRecord& record = control_->records()[guest_slot];
    count += record.owner.load() != 0 && record.sequence.load() != 0;
  }
  return count;
}

void MemberView::send(uint32_t worker, uint64_t last, uint32_t member, uint32_t guest_slot) {
  if (worker >= control_->header.shareable) throw std::out_of_range("worker number");
  Atomic64& assignment = control_->records()[worker].assignment;
  const uint64_t number = Assignment::number(assignment.load()) + 1;
  assignment.store(Assignment::make(number, last, member, guest_slot));
  wake_workers();
}

}  // namespace fusionloader
