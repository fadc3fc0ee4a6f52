#include "queue/worker_sharing.hpp"

#include <unistd.h>

#include <stdexcept>

#include "queue/futex.hpp"
#include "queue/identity.hpp"

namespace fusionloader {

namespace {

constexpr uint64_t kOwnerCheckNs = 500'000'000;

}  // namespace

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
    if (batch.header.sequence.load() == sequence && batch.header.payload.load() != 0 &&
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

SharedWorker::SharedWorker(WorkerQueue& home, int event_fd, bool of_pool)
    : home_(home), event_fd_(event_fd) {
  if (!is_shared()) return;
  me_ = identity_of(static_cast<uint32_t>(getpid()));
  // An assignment of a dead predecessor is void: only the destination empties that guest slot.
  WorkerRecord& record = home_.record();
  record.answered.store(record.assignment.load());
  if (of_pool) activity_ = WorkerActivity::absent;
  record.activity.store(static_cast<uint32_t>(activity_));
}

bool SharedWorker::obey() {
  if (borrower_ != nullptr && borrower_is_gone()) return false;
  WorkerRecord& record = home_.record();
  const uint64_t assignment = record.assignment.load();
  if (assignment == record.answered.load()) return true;
  leave_guest_slot();
  if (borrower_ == nullptr || Assignment::member(assignment) != member_) return false;
  // A guest slot that is not free is not worth waiting for: the manager looks again when this
  // rests.
  in_guest_slot_ = borrower_->take_guest_slot(Assignment::guest_slot(assignment), me_);
  assignment_ = assignment;
  record.answered.store(assignment);
  return true;
}

// Memory of a loader that has ended is not to be kept; who was killed does not say so.
bool SharedWorker::borrower_is_gone() {
  if (borrower_->stopping()) return true;
  const uint64_t now = monotonic_ns();
  if (now - looked_ns_ < kOwnerCheckNs) return false;
  looked_ns_ = now;
  return !runs(borrower_->owner());
}

uint32_t SharedWorker::assignment() {
  const WorkerRecord& record = home_.record();
  wanted_ = record.assignment.load();
  return wanted_ == record.answered.load() ? 0 : Assignment::member(wanted_);
}

void SharedWorker::attach(uint32_t member, WorkerQueue& queue) {
  borrower_ = &queue;
  member_ = member;
  looked_ns_ = monotonic_ns();
}

void SharedWorker::detach() {
  leave_guest_slot();
  borrower_ = nullptr;
}

std::optional<Claim> SharedWorker::claim(uint32_t count) {
  if (!in_guest_slot_) return std::nullopt;
  auto claimed = borrower_->claim_as_borrowed(assignment_, count);
  if (claimed)
    report(WorkerActivity::borrowed);
  else
    leave_guest_slot();
  return claimed;
}

void SharedWorker::leave_guest_slot() {
  if (in_guest_slot_) borrower_->leave_guest_slot();
  in_guest_slot_ = false;
}

void SharedWorker::report(WorkerActivity activity) {
  if (!is_shared() || activity == activity_) return;
  activity_ = activity;
  // The record in the other queue would seem to stay at its last sample.
  if (activity == WorkerActivity::home && in_guest_slot_) borrower_->idle();
  if (activity == WorkerActivity::borrowed) home_.idle();
  home_.record().activity.store(static_cast<uint32_t>(activity));
  if (activity == WorkerActivity::idle) notify(event_fd_);
}

void SharedWorker::withdraw() {
  if (!is_shared()) return;
  WorkerRecord& record = home_.record();
  record.answered.store(record.assignment.load());
  report(WorkerActivity::absent);
}

}  // namespace fusionloader
