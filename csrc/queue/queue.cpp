#include "queue/queue.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <stdexcept>
#include <system_error>

#include "queue/futex.hpp"
#include "queue/identity.hpp"
#include "queue/worker_sharing.hpp"

namespace fusionloader {

namespace {

// Of a mini-batch that nobody waits for any more.
void drop_waiting(Batch& batch, uint64_t sequence, uint32_t tiny_batch) {
  uint64_t waiting = StateWord::make(sequence, 0, TinyState::waiting);
  batch.states()[tiny_batch].compare_exchange_strong(
      waiting, StateWord::make(sequence, 0, TinyState::completed));
}

size_t file_bytes(int fd) {
  struct stat info{};
  if (fstat(fd, &info) != 0) throw std::system_error(errno, std::generic_category(), "fstat");
  return static_cast<size_t>(info.st_size);
}

}  // namespace

Mapping::Mapping(int fd, uint64_t offset, size_t bytes) : data_(nullptr), bytes_(bytes) {
  void* at =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset));
  if (at == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
  data_ = static_cast<uint8_t*>(at);
}

Mapping::~Mapping() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

Shared::Shared(int control_fd, int data_fd)
    : data_fd_(data_fd),
      mapping_(control_fd, 0, file_bytes(control_fd)),
      control_(reinterpret_cast<Control*>(mapping_.data())) {}

const Mapping& Shared::slot(uint64_t number) {
  if (number >= slots_.size()) slots_.resize(number + 1);
  if (!slots_[number]) {
    SlotEntry& entry = control_->slots()[number];
    slots_[number].emplace(data_fd_, entry.offset.load(), entry.bytes.load());
  }
  return *slots_[number];
}

void Shared::wake_workers() {
  ControlHeader& header = control_->header;
  header.work_word.fetch_add(1);
  // Not exact after a worker died asleep; a needless call is all that costs.
  if (header.sleeping_workers.load() != 0) futex_wake_all(header.work_word);
}

// ---- workers -----------------------------------------------------------------------------------

WorkerQueue::WorkerQueue(int control_fd, int data_fd, uint32_t worker, Side side)
    : Shared(control_fd, data_fd), worker_(worker), side_(side) {
  if (control_->header.magic != kMagic)
    throw std::runtime_error("not a fusionloader control block");
  if (worker >= control_->record_count()) throw std::out_of_range("worker number");
}

std::optional<Claim> WorkerQueue::claim(End end, uint32_t threshold, uint32_t count) {
  ControlHeader& header = control_->header;
  const uint64_t published = header.published.load();
  for (uint64_t sequence = header.oldest.load(); sequence < published; ++sequence) {
    Batch* batch = this->batch(control_->ring()[sequence % header.ring_size].load());
    if (auto claimed = claim_from(*batch, sequence, end, threshold, count)) return claimed;
  }
  return std::nullopt;
}

std::optional<Claim> WorkerQueue::claim_next(uint32_t count) {
  if (side_ == Side::gpu) return claim_when_open(count);
  ControlHeader& header = control_->header;
  const auto state = static_cast<GpuState>(header.gpu_state.load());
  if (state == GpuState::off) return claim(End::large, 0, count);
  return claim(End::small, header.threshold.load(), count);
}

bool WorkerQueue::take_guest_slot(uint32_t guest_slot, uint64_t identity) {
  if (guest_slot < control_->header.workers || guest_slot >= control_->record_count()) return false;
  uint64_t nobody = 0;
  if (!control_->records()[guest_slot].owner.compare_exchange_strong(nobody, identity))
    return false;
  worker_ = guest_slot;
  borrowed_ = true;
  record().pid.store(pid_of(identity));
  return true;
}

void WorkerQueue::leave_guest_slot() {
  idle();
  record().owner.store(0);
}

uint32_t WorkerQueue::answer() {
  const uint64_t assignment = record().assignment.load();
  record().answered.store(assignment);
  return Assignment::member(assignment);
}

std::optional<Claim> WorkerQueue::claim_as_borrowed(uint64_t assignment) {
  ControlHeader& header = control_->header;
  const bool alone = static_cast<GpuState>(header.gpu_state.load()) == GpuState::off;
  const End end = alone ? End::large : End::small;
  const uint32_t threshold = alone ? 0 : header.threshold.load();
  const uint64_t published = header.published.load();
  for (uint64_t sequence = header.oldest.load(); sequence < published; ++sequence) {
    if (!Assignment::covers(assignment, sequence)) break;
    Batch* batch = this->batch(control_->ring()[sequence % header.ring_size].load());
    if (auto claimed = claim_from(*batch, sequence, end, threshold, 1)) return claimed;
  }
  return std::nullopt;
}

std::optional<Claim> WorkerQueue::claim_when_open(uint32_t count) {
  ControlHeader& header = control_->header;
  header.gpu_inside.store(1);  // before the look: who closes sees one of the two
  std::optional<Claim> claimed;
  if (static_cast<GpuState>(header.gpu_state.load()) == GpuState::open)
    claimed = claim(End::large, 0, count);
  if (!claimed) leave();
  return claimed;
}

void WorkerQueue::leave() {
  ControlHeader& header = control_->header;
  header.gpu_inside.store(0);
  // Who has closed may be waiting for this.
  if (static_cast<GpuState>(header.gpu_state.load()) != GpuState::open) wake_manager();
}

std::optional<Claim> WorkerQueue::claim_from(Batch& batch, uint64_t sequence, End end,
                                             uint32_t threshold, uint32_t count) {
  const bool for_gpu = batch.header.gpu_rows.load() != 0;
  if (side_ == Side::gpu && !for_gpu) return std::nullopt;
  const uint32_t all = batch.header.tiny_batches;
  const uint32_t ours = for_gpu ? all - std::min(threshold, all) : all;
  uint64_t word = batch.header.queue.load();
  while (QueueWord::of(word, sequence)) {
    const uint32_t head = QueueWord::head(word);
    const uint32_t tail = QueueWord::tail(word);
    const uint32_t limit = end == End::small ? std::min(tail, ours) : tail;
    if (head >= limit) break;
    const uint32_t taken = std::min(count, limit - head);
    const uint32_t first = end == End::small ? head : tail - taken;
    const uint64_t next = end == End::small ? QueueWord::make(sequence, head + taken, tail)
                                            : QueueWord::make(sequence, head, first);
    if (!batch.header.queue.compare_exchange_weak(word, next)) continue;
    // Between the two steps a tiny-batch can go to somebody who looks through the states; the
    // claim is then what is left of it.
    uint32_t begin = first;
    while (begin < first + taken && !take(batch, sequence, begin)) ++begin;
    uint32_t stop = begin;
    while (stop < first + taken && (stop == begin || take(batch, sequence, stop))) ++stop;
    if (stop < first + taken) batch.header.returned.store(1);  // the rest is found by looking
    if (stop > begin) return Claim{sequence, begin, stop - begin, &batch};
    word = batch.header.queue.load();
  }
  // What comes back may be what a GPU worker or a borrowed worker could not do.
  if (side_ == Side::gpu || borrowed_ || batch.header.returned.load() == 0 ||
      batch.header.sequence.load() != sequence)
    return std::nullopt;
  const uint64_t now = batch.header.queue.load();
  for (uint32_t t = 0; t < batch.header.tiny_batches; ++t) {
    if (t >= QueueWord::head(now) && t < QueueWord::tail(now)) continue;
    if (take(batch, sequence, t)) return Claim{sequence, t, 1, &batch};
  }
  return std::nullopt;
}

bool WorkerQueue::take(Batch& batch, uint64_t sequence, uint32_t tiny_batch) {
  uint64_t expected = StateWord::make(sequence, 0, TinyState::waiting);
  if (!batch.states()[tiny_batch].compare_exchange_strong(
          expected, StateWord::make(sequence, worker_, TinyState::active)))
    return false;
  batch.progress()[tiny_batch].store(0);
  uint64_t never = 0;
  if (batch.header.begun_ns.load() == 0 &&
      batch.header.begun_ns.compare_exchange_strong(never, monotonic_ns()))
    batch.header.threshold.store(control_->header.threshold.load());
  return true;
}

bool WorkerQueue::finish(const Claim& claim, uint32_t tiny_batch, TinyState result) {
  note_share(claim, tiny_batch);  // before: who sees the mini-batch done sees all of it
  uint64_t expected = StateWord::make(claim.sequence, worker_, TinyState::active);
  if (!claim.batch->states()[tiny_batch].compare_exchange_strong(
          expected, StateWord::make(claim.sequence, worker_, result)))
    return false;
  // Whoever finishes last sees every other state final, so one of two simultaneous ones wakes.
  for (uint32_t t = 0; t < claim.batch->header.tiny_batches; ++t) {
    const TinyState state = StateWord::state(claim.batch->states()[t].load());
    if (state == TinyState::waiting || state == TinyState::active) return true;
  }
  wake_manager();
  return true;
}

void WorkerQueue::note_share(const Claim& claim, uint32_t tiny_batch) {
  BatchHeader& header = claim.batch->header;
  Share& mine = header.shares[static_cast<size_t>(side_)];
  const uint32_t begin = tiny_batch * header.tiny_size;
  mine.samples.fetch_add(std::min(header.tiny_size, header.samples - begin));
  mine.tiny_batches.fetch_add(1);
  mine.finished_ns.store(monotonic_ns());
}

void WorkerQueue::give_back(const Claim& claim, uint32_t tiny_batch) {
  uint64_t held = StateWord::make(claim.sequence, worker_, TinyState::active);
  if (!claim.batch->states()[tiny_batch].compare_exchange_strong(
          held, StateWord::make(claim.sequence, 0, TinyState::waiting)))
    return;
  claim.batch->header.returned.store(1);
  // A look at the word after the state: withdraw() does it the other way round, so one of the two
  // sees the other.
  if (!QueueWord::of(claim.batch->header.queue.load(), claim.sequence))
    drop_waiting(*claim.batch, claim.sequence, tiny_batch);
  wake_workers();
}

void WorkerQueue::wake_manager() {
  ControlHeader& header = control_->header;
  header.done_word.fetch_add(1);
  if (header.manager_sleeps.load() != 0) futex_wake_all(header.done_word);
}

void WorkerQueue::sleep(uint32_t seen, int64_t timeout_ns) {
  ControlHeader& header = control_->header;
  header.sleeping_workers.fetch_add(1);
  futex_wait(header.work_word, seen, timeout_ns);
  header.sleeping_workers.fetch_sub(1);
}

void WorkerQueue::begin_sample(const Claim& claim, uint32_t tiny_batch, uint64_t position) {
  WorkerRecord& mine = record();
  mine.since_ns.store(monotonic_ns(), std::memory_order_relaxed);
  mine.tiny_batch.store(tiny_batch, std::memory_order_relaxed);
  mine.position.store(position, std::memory_order_relaxed);
  mine.sequence.store(claim.sequence + 1, std::memory_order_release);
}

// ---- local manager -----------------------------------------------------------------------------

ManagerQueue::ManagerQueue(int control_fd, int data_fd, uint32_t workers, uint32_t ring_size,
                           uint32_t guest_slots, uint32_t shareable, int event_fd)
    : Shared(control_fd, data_fd), event_fd_(event_fd) {
  if (mapping_.bytes() < Control::bytes(workers + guest_slots, ring_size) || shareable > workers)
    throw std::invalid_argument("control block too small");
  ControlHeader& header = *new (&control_->header) ControlHeader{};
  header.workers = workers;
  header.guest_slots = guest_slots;
  header.shareable = shareable;
  header.owner.store(identity_of(static_cast<uint32_t>(getpid())));
  header.ring_size = ring_size;
  header.magic = kMagic;
}

void ManagerQueue::add_slot(uint64_t slot, uint64_t offset, uint64_t bytes) {
  if (slot >= kMaxSlots) throw std::length_error("too many batch slots");
  control_->slots()[slot].offset.store(offset);
  control_->slots()[slot].bytes.store(bytes);
}

Batch& ManagerQueue::describe(uint64_t slot, uint64_t sequence, uint32_t samples,
                              uint32_t tiny_size) {
  const uint32_t tiny_batches = (samples + tiny_size - 1) / tiny_size;
  if (tiny_batches > kMaxTinyBatches) throw std::length_error("mini-batch too large");
  if (Batch::descriptor_bytes(samples, tiny_batches) > control_->slots()[slot].bytes.load())
    throw std::length_error("batch slot too small");
  Batch& batch = *this->batch(slot);
  batch.header.queue.store(QueueWord::make(sequence - 1, 0, 0));  // nothing to claim meanwhile
  batch.header.returned.store(0);
  batch.header.sequence.store(sequence);
  batch.header.samples = samples;
  batch.header.tiny_batches = tiny_batches;
  batch.header.tiny_size = tiny_size;
  batch.header.payload.store(0);
  batch.header.indices = 0;
  batch.header.indices_bytes = 0;
  for (uint32_t t = 0; t < tiny_batches; ++t) {
    batch.states()[t].store(StateWord::make(sequence, 0, TinyState::waiting));
    batch.progress()[t].store(0);
  }
  batch.header.gpu_rows.store(0);
  batch.header.begun_ns.store(0);
  batch.header.threshold.store(0);
  for (Share& share : batch.header.shares) {
    share.finished_ns.store(0);
    share.tiny_batches.store(0);
    share.samples.store(0);
  }
  return batch;
}

void ManagerQueue::publish(uint64_t slot, uint64_t sequence) {
  ControlHeader& header = control_->header;
  Batch& batch = *this->batch(slot);
  batch.header.queue.store(QueueWord::make(sequence, 0, batch.header.tiny_batches));
  control_->ring()[sequence % header.ring_size].store(slot);
  header.published.store(sequence + 1);
  wake_workers();
  if (header.watched.load() != 0) notify(event_fd_);
}

void ManagerQueue::forget_gpu() {
  control_->header.gpu_ready.store(0);
  control_->header.gpu_inside.store(0);
}

void ManagerQueue::set_gpu(GpuState state, uint32_t threshold) {
  ControlHeader& header = control_->header;
  header.threshold.store(threshold);
  header.gpu_state.store(static_cast<uint32_t>(state));
  wake_workers();
}

BatchStatus ManagerQueue::status(uint64_t slot) {
  Batch& batch = *this->batch(slot);
  BatchStatus status;
  for (uint32_t t = 0; t < batch.header.tiny_batches; ++t) {
    switch (StateWord::state(batch.states()[t].load())) {
      case TinyState::waiting:
        ++status.waiting;
        break;
      case TinyState::active:
        ++status.active;
        break;
      case TinyState::completed:
        ++status.completed;
        break;
      case TinyState::failed:
        ++status.failed;
        break;
      case TinyState::spilled:
        ++status.spilled;
        break;
    }
  }
  return status;
}

TinyState ManagerQueue::state(uint64_t slot, uint32_t tiny_batch) {
  return StateWord::state(this->batch(slot)->states()[tiny_batch].load());
}

std::vector<uint32_t> ManagerQueue::done_by(uint64_t slot, uint32_t worker) {
  Batch& batch = *this->batch(slot);
  const uint64_t mine = StateWord::make(batch.header.sequence.load(), worker, TinyState::completed);
  std::vector<uint32_t> done;
  for (uint32_t t = 0; t < batch.header.tiny_batches; ++t)
    if (batch.states()[t].load() == mine) done.push_back(t);
  return done;
}

void ManagerQueue::give_up(uint64_t slot, uint32_t tiny_batch) {
  Batch& batch = *this->batch(slot);
  batch.states()[tiny_batch].store(
      StateWord::make(batch.header.sequence.load(), 0, TinyState::failed));
}

std::vector<Lost> ManagerQueue::take_back(uint32_t worker) {
  std::vector<Lost> lost;
  ControlHeader& header = control_->header;
  const uint64_t published = header.published.load();
  for (uint64_t sequence = header.oldest.load(); sequence < published; ++sequence) {
    Batch& batch = *this->batch(control_->ring()[sequence % header.ring_size].load());
    if (batch.header.sequence.load() != sequence) continue;
    for (uint32_t t = 0; t < batch.header.tiny_batches; ++t) {
      uint64_t held = StateWord::make(sequence, worker, TinyState::active);
      if (batch.states()[t].compare_exchange_strong(
              held, StateWord::make(sequence, 0, TinyState::waiting)))
        lost.push_back({sequence, t});
    }
    if (!QueueWord::of(batch.header.queue.load(), sequence)) {  // withdrawn: for nobody to claim
      for (uint32_t t = 0; t < batch.header.tiny_batches; ++t) drop_waiting(batch, sequence, t);
      continue;
    }
    // It may also have died between the two steps of a claim, which no state shows.
    batch.header.returned.store(1);
  }
  WorkerRecord& record = control_->records()[worker];
  record.sequence.store(0);
  record.place.store(static_cast<uint32_t>(Place::nowhere));
  record.answered.store(record.assignment.load());  // nobody will come on it
  wake_workers();
  return lost;
}

std::vector<uint32_t> ManagerQueue::dead_borrowed_workers() {
  std::vector<uint32_t> dead;
  for (uint32_t guest_slot = control_->header.workers; guest_slot < control_->record_count();
       ++guest_slot) {
    const uint64_t owner = control_->records()[guest_slot].owner.load();
    if (owner != 0 && !runs(owner)) dead.push_back(guest_slot);
  }
  return dead;
}

void ManagerQueue::withdraw() {
  ControlHeader& header = control_->header;
  const uint64_t published = header.published.load();
  for (uint64_t sequence = header.oldest.load(); sequence < published; ++sequence) {
    Batch& batch = *this->batch(control_->ring()[sequence % header.ring_size].load());
    if (batch.header.sequence.load() != sequence) continue;
    batch.header.queue.store(QueueWord::make(sequence - 1, 0, 0));
    batch.header.returned.store(0);
    for (uint32_t t = 0; t < batch.header.tiny_batches; ++t) drop_waiting(batch, sequence, t);
  }
}

void ManagerQueue::stop() {
  control_->header.stop.store(1);
  control_->header.work_word.fetch_add(1);
  futex_wake_all(control_->header.work_word);
}

void ManagerQueue::sleep(uint32_t seen, int64_t timeout_ns) {
  ControlHeader& header = control_->header;
  header.manager_sleeps.store(1);
  futex_wait(header.done_word, seen, timeout_ns);
  header.manager_sleeps.store(0);
}

void notify(int event_fd) {
  const uint64_t one = 1;
  // It can fail only where nobody has read for 2^64 times.
  if (event_fd >= 0 && write(event_fd, &one, sizeof one) < 0) return;
}

}  // namespace fusionloader
