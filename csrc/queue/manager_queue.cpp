#include "queue/manager_queue.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <stdexcept>

#include "queue/futex.hpp"
#include "queue/identity.hpp"

namespace fusionloader {

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

ManagerQueue::ManagerQueue(int control_fd, int data_fd)
    : Shared(control_fd, data_fd), event_fd_(-1) {
  check_control();
}

void ManagerQueue::add_slot(uint64_t slot, uint64_t offset, uint64_t bytes) {
  if (slot >= kMaxSlots) throw std::length_error("too many batch slots");
  control_->slots()[slot].offset.store(offset);
  control_->slots()[slot].bytes.store(bytes);
}

void ManagerQueue::describe(uint64_t slot, const MiniBatchDescription& given) {
  const size_t samples = given.rows.size();
  if (given.items.size() != samples || given.keys.size() != samples ||
      given.occurrences.size() != samples)
    throw std::invalid_argument("a descriptor's lists differ in length");
  Batch& batch = clear(slot, given.sequence, static_cast<uint32_t>(samples), given.tiny_size);
  BatchHeader& header = batch.header;
  header.seed = given.seed;
  header.epoch = given.epoch;
  header.number = given.number;
  header.group_size = given.group_size;
  if (given.claimant) header.claimant.store(*given.claimant + 1);
  if (!given.claimant) header.spread.store(given.spread);
  if (given.payload) set_payload(slot, *given.payload);
  Entry* entries = batch.entries();
  for (size_t position = 0; position < samples; ++position) {
    const uint32_t row = given.rows[position];
    if (row >= samples) throw std::out_of_range("a descriptor's row");
    entries[position] = {given.items[row], given.keys[row], given.occurrences[row],
                         given.first_row + row};
  }
  if (given.payload_rows != 0) {
    if (samples > given.payload_rows || given.first_row > given.payload_rows - samples)
      throw std::out_of_range("rows of a payload");
    header.payload_rows.store(given.payload_rows);
  }
  if (given.encoded_images != 0) {
    header.encoded = Batch::descriptor_bytes(samples, header.tiny_batches);
    header.encoded_images = given.encoded_images;
    return;
  }
  header.indices = Batch::descriptor_bytes(samples, header.tiny_batches);
  header.indices_bytes = given.indices.size();
  if (header.indices + header.indices_bytes > this->slot(slot).bytes())
    throw std::length_error("batch slot too small for its indices");
  std::memcpy(batch.at(header.indices), given.indices.data(), given.indices.size());
}

size_t ManagerQueue::encoded_bytes(size_t images, size_t tiny_size, size_t image_bytes) {
  return Batch::descriptor_bytes(images, (images + tiny_size - 1) / tiny_size) +
         images * sizeof(EncodedImage) + image_bytes;
}

std::vector<uint8_t*> ManagerQueue::reserve_encoded(uint64_t slot, uint32_t tiny_size,
                                                    const std::vector<uint64_t>& sizes) {
  const Mapping& memory = this->slot(slot);
  size_t end = encoded_bytes(sizes.size(), tiny_size, 0);
  const size_t table = end - sizes.size() * sizeof(EncodedImage);
  if (end > memory.bytes()) throw std::length_error("batch slot too small for its images");
  std::vector<uint8_t*> places;
  for (size_t image = 0; image < sizes.size(); ++image) {
    if (sizes[image] > memory.bytes() - end)
      throw std::length_error("batch slot too small for its images");
    const EncodedImage entry{end, sizes[image]};
    std::memcpy(memory.data() + table + image * sizeof entry, &entry, sizeof entry);
    places.push_back(memory.data() + end);
    end += sizes[image];
  }
  return places;
}

void ManagerQueue::set_payload(uint64_t slot, uint64_t payload) {
  BatchHeader& header = batch(slot)->header;
  header.payload_rows.store(header.samples);
  header.payload.store(payload + 1);
}

void ManagerQueue::announce_layout(uint64_t slot, std::string_view pickled) {
  const Mapping& memory = this->slot(slot);
  if (pickled.size() > memory.bytes()) throw std::length_error("slot too small for a layout");
  std::memcpy(memory.data(), pickled.data(), pickled.size());
  ControlHeader& header = control_->header;
  header.layout_slot.store(slot);
  header.layout_bytes.store(pickled.size());
  header.layout_version.fetch_add(1);
  wake_workers();
}

// An empty descriptor of a mini-batch whose tiny-batches all wait.
Batch& ManagerQueue::clear(uint64_t slot, uint64_t sequence, uint32_t samples, uint32_t tiny_size) {
  const uint32_t tiny_batches = (samples + tiny_size - 1) / tiny_size;
  if (tiny_batches > kMaxTinyBatches)
    throw std::length_error("a mini-batch has at most 1048575 tiny-batches: raise tiny_batch_size");
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
  batch.header.encoded = 0;
  batch.header.encoded_images = 0;
  for (uint32_t t = 0; t < tiny_batches; ++t) {
    batch.states()[t].store(StateWord::make(sequence, 0, TinyBatchState::waiting));
    batch.progress()[t].store(0);
  }
  batch.header.gpu_rows.store(0);
  batch.header.claimant.store(0);
  batch.header.spread.store(0);
  batch.header.begun_ns.store(0);
  batch.header.threshold.store(0);
  for (Share& share : batch.header.shares) {
    share.finished_ns.store(0);
    share.tiny_batches.store(0);
    share.samples.store(0);
  }
  return batch;
}

void ManagerQueue::publish(uint64_t slot, uint64_t sequence, uint32_t most_woken) {
  ControlHeader& header = control_->header;
  // Its entry of the ring would be that of a mini-batch which is still to be found there.
  if (sequence >= header.oldest.load() + header.ring_size)
    throw std::logic_error("more mini-batches are published than the ring has entries");
  Batch& batch = *this->batch(slot);
  batch.header.queue.store(QueueWord::make(sequence, 0, batch.header.tiny_batches));
  control_->ring()[sequence % header.ring_size].store(slot);
  header.published.store(sequence + 1);
  wake_workers(most_woken);
  if (header.watched.load() != 0) notify(event_fd_);
}

void ManagerQueue::replace(uint64_t old_slot, uint64_t slot, uint64_t sequence) {
  withdraw_one(old_slot, sequence);
  Batch& batch = *this->batch(slot);
  control_->ring()[sequence % control_->header.ring_size].store(slot);
  batch.header.queue.store(QueueWord::make(sequence, 0, batch.header.tiny_batches));
  wake_workers();
}

void ManagerQueue::search(uint64_t slot) {
  batch(slot)->header.returned.store(1);
  wake_workers();
}

void ManagerQueue::repeat(uint64_t slot, uint64_t sequence, uint32_t tiny_batch) {
  Atomic64& state = batch(slot)->states()[tiny_batch];
  state.store(StateWord::make(sequence, 0, TinyBatchState::waiting));
  search(slot);
}

std::vector<HeldTinyBatch> ManagerQueue::in_state(uint64_t slot, TinyBatchState state) {
  std::vector<HeldTinyBatch> found;
  Batch& batch = *this->batch(slot);
  for (uint32_t t = 0; t < batch.header.tiny_batches; ++t) {
    const uint64_t word = batch.states()[t].load();
    const TinyBatchState there = StateWord::state(word);
    const bool same = state == TinyBatchState::completed ? is_written(there) : there == state;
    if (same) found.push_back({t, StateWord::worker(word)});
  }
  return found;
}

void ManagerQueue::forget_gpu() {
  control_->header.gpu_ready.store(0);
  control_->header.gpu_inside.store(0);
}

void ManagerQueue::set_gpu(GpuState state, uint32_t threshold, bool beside) {
  ControlHeader& header = control_->header;
  header.gpu_beside.store(beside ? 1 : 0);
  header.threshold.store(threshold);
  header.gpu_state.store(static_cast<uint32_t>(state));
  wake_workers();
}

BatchStatus ManagerQueue::status(uint64_t slot) {
  Batch& batch = *this->batch(slot);
  BatchStatus status;
  for (uint32_t t = 0; t < batch.header.tiny_batches; ++t) {
    switch (StateWord::state(batch.states()[t].load())) {
      case TinyBatchState::waiting:
        ++status.waiting;
        break;
      case TinyBatchState::active:
        ++status.active;
        break;
      case TinyBatchState::completed:
        ++status.completed;
        break;
      case TinyBatchState::failed:
        ++status.failed;
        break;
      case TinyBatchState::spilled:
        ++status.spilled;
        break;
      case TinyBatchState::skipped:
        ++status.skipped;
        ++status.completed;
        break;
    }
  }
  return status;
}

BatchShares ManagerQueue::shares(uint64_t slot) {
  const BatchHeader& header = batch(slot)->header;
  const auto of = [&](Side side) -> SideShare {
    const Share& share = header.shares[static_cast<size_t>(side)];
    return {share.tiny_batches.load(), share.samples.load(), share.finished_ns.load()};
  };
  return {header.begun_ns.load(), header.threshold.load(), of(Side::cpu), of(Side::gpu)};
}

WorkerSnapshot ManagerQueue::worker(uint32_t number) {
  if (number >= control_->record_count()) throw std::out_of_range("worker number");
  const WorkerRecord& record = control_->records()[number];
  const uint64_t next = record.sequence.load();
  WorkerSnapshot seen{record.pid.load(),
                      next == 0 ? std::nullopt : std::optional(next - 1),
                      record.tiny_batch.load(),
                      record.position.load(),
                      record.since_ns.load(),
                      {},
                      {},
                      {}};
  for (size_t i = 0; i < seen.counts.size(); ++i) seen.counts[i] = record.counts[i].load();
  for (size_t i = 0; i < seen.images.size(); ++i) seen.images[i] = record.images[i].load();
  for (size_t part = 0; part < kParts; ++part) seen.part_ns[part] = record.part_ns[part].load();
  return seen;
}

std::vector<WorkerSnapshot> ManagerQueue::workers(uint32_t first, uint32_t count) {
  std::vector<WorkerSnapshot> all;
  const uint32_t there = control_->record_count();
  for (uint32_t w = first; w < there && w - first < count; ++w) all.push_back(worker(w));
  return all;
}

std::vector<LostTinyBatch> ManagerQueue::take_back(
    uint32_t worker, const std::vector<std::pair<uint64_t, uint32_t>>& hopeless) {
  std::vector<LostTinyBatch> lost;
  ControlHeader& header = control_->header;
  const uint64_t published = header.published.load();
  for (uint64_t sequence = header.oldest.load(); sequence < published; ++sequence) {
    Batch& batch = *this->batch(control_->ring()[sequence % header.ring_size].load());
    if (batch.header.sequence.load() != sequence) continue;
    for (uint32_t t = 0; t < batch.header.tiny_batches; ++t) {
      // Not by way of waiting: whoever is idle would have claimed it again by then.
      const bool given_up =
          std::count(hopeless.begin(), hopeless.end(), std::pair(sequence, t)) > 0;
      const auto next = given_up ? TinyBatchState::failed : TinyBatchState::waiting;
      uint64_t held = StateWord::make(sequence, worker, TinyBatchState::active);
      if (batch.states()[t].compare_exchange_strong(held, StateWord::make(sequence, 0, next)))
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
  record.activity.store(static_cast<uint32_t>(WorkerActivity::absent));
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

void ManagerQueue::withdraw_one(uint64_t slot, uint64_t sequence) {
  Batch& batch = *this->batch(slot);
  batch.header.queue.store(QueueWord::make(sequence - 1, 0, 0));
  batch.header.returned.store(0);
  for (uint32_t t = 0; t < batch.header.tiny_batches; ++t) drop_waiting(batch, sequence, t);
}

void ManagerQueue::withdraw() {
  ControlHeader& header = control_->header;
  const uint64_t published = header.published.load();
  for (uint64_t sequence = header.oldest.load(); sequence < published; ++sequence) {
    const uint64_t slot = control_->ring()[sequence % header.ring_size].load();
    if (batch(slot)->header.sequence.load() == sequence) withdraw_one(slot, sequence);
  }
}

void ManagerQueue::set_tracing(bool on) {
  control_->header.tracing.store(0);
  if (!on) return;
  take_spans();
  take_lost_spans();
  control_->header.tracing.store(1);
}

std::vector<WorkerSpan> ManagerQueue::take_spans() {
  std::vector<WorkerSpan> spans;
  for (uint32_t w = 0; w < control_->record_count(); ++w)
    for (const TraceRecord& record : control_->trace_rings()[w].take())
      spans.push_back({record, w});
  return spans;
}

uint64_t ManagerQueue::take_lost_spans() {
  uint64_t lost = 0;
  for (uint32_t w = 0; w < control_->record_count(); ++w)
    lost += control_->trace_rings()[w].take_lost();
  return lost;
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

void ManagerQueue::sleep_until_completed(uint32_t seen, int64_t timeout_ns) {
  futex_wait(control_->header.completed_word, seen, timeout_ns);
}

void ManagerQueue::wake_completed() {
  control_->header.completed_word.fetch_add(1);
  futex_wake_all(control_->header.completed_word);
}

}  // namespace fusionloader
