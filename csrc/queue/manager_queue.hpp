#pragma once
// The local manager's half of the queue; see queue.hpp for how it works.
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "queue/queue.hpp"

namespace fusionloader {

// A mini-batch as it is published. `items`, `keys` and `occurrences` have an entry per row of the
// batch; `rows` are the rows in the order in which they are cut into tiny-batches of `tiny_size`.
struct MiniBatchDescription {
  uint64_t sequence;
  std::vector<uint32_t> rows;
  std::vector<int64_t> items;
  std::vector<uint64_t> keys;
  std::vector<uint32_t> occurrences;
  uint32_t tiny_size;
  uint64_t seed;
  uint64_t epoch;
  uint64_t number;                  // in the epoch
  uint32_t group_size;              // neighbours that share the draws of augmentations; 0: none do
  std::optional<uint64_t> payload;  // the slot for the rows, if their layout is known
  std::string_view indices;         // pickled, where they are not plain integers
  // Of the payload: the row that the first row of the mini-batch is, and all that it is laid out
  // for; 0: those of the mini-batch.
  uint32_t first_row = 0;
  uint32_t payload_rows = 0;
  uint32_t encoded_images = 0;  // that reserve_encoded() has made room for in the slot
  std::optional<uint32_t> claimant = std::nullopt;  // the only worker that may claim it
  uint32_t spread = 0;  // workers that begin at a part of their own; 0: none do
};

// How many tiny-batches of a mini-batch are in which state.
struct BatchStatus {
  // `completed` counts those that are `skipped`, too.
  uint32_t waiting = 0, active = 0, completed = 0, failed = 0, spilled = 0, skipped = 0;
  bool done() const { return waiting == 0 && active == 0; }
};

// What one side has done of a mini-batch.
struct SideShare {
  uint32_t tiny_batches;
  uint32_t samples;
  uint64_t finished_ns;  // CLOCK_MONOTONIC when it finished its last tiny-batch
};

struct BatchShares {
  uint64_t begun_ns;   // CLOCK_MONOTONIC at the first claim; 0 before it
  uint32_t threshold;  // the one in force then
  SideShare cpu, gpu;
};

// A worker's record, its words read one after the other.
struct WorkerSnapshot {
  uint32_t pid;
  std::optional<uint64_t> sequence;  // of the mini-batch that it works on
  uint32_t tiny_batch;
  uint64_t position;  // of the sample in the mini-batch
  uint64_t since_ns;  // CLOCK_MONOTONIC at the start of that sample
  std::array<uint64_t, kWorkerCounts.size()> counts;
  std::array<uint64_t, kImageCounts> images;
  std::array<uint64_t, kParts> part_ns;

  uint64_t count(WorkerCount what) const { return counts[place(what)]; }
};

// A tiny-batch that a dead worker had claimed.
struct LostTinyBatch {
  uint64_t sequence;
  uint32_t tiny_batch;
};

// A tiny-batch and the worker that holds it.
struct HeldTinyBatch {
  uint32_t tiny_batch;
  uint32_t worker;
};

// What a worker has done while a trace is on.
struct WorkerSpan : TraceRecord {
  uint32_t worker;
};

class ManagerQueue : public Shared {
 public:
  // With `guest_slots` for workers of other ranks, the first `shareable` workers may be sent to
  // them, and the global manager is told through the eventfd `event_fd`.
  ManagerQueue(int control_fd, int data_fd, uint32_t workers, uint32_t ring_size,
               uint32_t guest_slots = 0, uint32_t shareable = 0, int event_fd = -1);

  // The queue in a control block that another process has laid out, to read from.
  ManagerQueue(int control_fd, int data_fd);

  void add_slot(uint64_t slot, uint64_t offset, uint64_t bytes);
  // Writes the descriptor into the slot; publish() then makes it visible.
  void describe(uint64_t slot, const MiniBatchDescription& batch);
  // Makes room for encoded images of so many bytes each behind the descriptor that describe() will
  // write for them, and returns where each one is to be copied to. The slot has at least
  // encoded_bytes(): of the mini-batch's descriptor and the images'.
  std::vector<uint8_t*> reserve_encoded(uint64_t slot, uint32_t tiny_size,
                                        const std::vector<uint64_t>& sizes);
  static size_t encoded_bytes(size_t images, size_t tiny_size, size_t image_bytes);
  // Says where the rows of a mini-batch go whose layout was not known when it was described.
  void set_payload(uint64_t slot, uint64_t payload);
  // Makes the layout of Python samples known, whose pickle goes into a slot.
  void announce_layout(uint64_t slot, std::string_view pickled);
  // Number of the device buffer for the GPU worker's rows, plus 1, see BatchHeader.
  void set_gpu_rows(uint64_t slot, uint32_t rows) { batch(slot)->header.gpu_rows.store(rows); }
  // Wakes at most so many of the workers that sleep.
  void publish(uint64_t slot, uint64_t sequence, uint32_t most_woken = UINT32_MAX);
  // Withdraws a mini-batch, and publishes it anew in another slot under its number: workers see it
  // as early as before. Who holds a tiny-batch of the old slot may still write to its rows.
  void replace(uint64_t old_slot, uint64_t slot, uint64_t sequence);
  // Has workers look through the states: who was held up in the middle of a claim may have left
  // tiny-batches outside the unclaimed middle.
  void search(uint64_t slot);
  void repeat(uint64_t slot, uint64_t sequence, uint32_t tiny_batch);
  // The tiny-batches in one state, and the workers that brought them there. Skipped ones are
  // completed, too.
  std::vector<HeldTinyBatch> in_state(uint64_t slot, TinyBatchState state);
  BatchStatus status(uint64_t slot);
  BatchShares shares(uint64_t slot);
  WorkerSnapshot worker(uint32_t number);
  // Of `first` and those behind it, guest slots last, at most `count`.
  std::vector<WorkerSnapshot> workers(uint32_t first = 0, uint32_t count = UINT32_MAX);
  void deliver_until(uint64_t sequence) { control_->header.oldest.store(sequence); }
  // Takes back what `worker` had claimed, for others to claim; of those in `hopeless`, as
  // (sequence, tiny-batch), it marks as failed what `worker` held. Only for one whose process has
  // ended.
  std::vector<LostTinyBatch> take_back(
      uint32_t worker, const std::vector<std::pair<uint64_t, uint32_t>>& hopeless = {});
  // Guest slots of processes that have ended; empty_guest_slot() follows take_back().
  std::vector<uint32_t> dead_borrowed_workers();
  void empty_guest_slot(uint32_t guest_slot) {
    control_->records()[guest_slot].pid.store(0);
    control_->records()[guest_slot].owner.store(0);
  }
  // Nobody claims anything of the published mini-batches any more; waits for none.
  void withdraw();
  // Nobody claims anything of this one any more.
  void withdraw_one(uint64_t slot, uint64_t sequence);
  // Whether the GPU worker has built what it needs; forget it when the worker has died.
  bool gpu_is_ready() { return control_->header.gpu_ready.load() != 0; }
  void forget_gpu();
  // Once it is not open any more, false means that the GPU worker stays off the device.
  bool gpu_is_inside() { return control_->header.gpu_inside.load() != 0; }
  void set_gpu(GpuState state, uint32_t threshold, bool beside);
  void stop();
  // Sleeps until a mini-batch may be done or a message may be there, at most `timeout_ns`.
  void sleep(uint32_t seen, int64_t timeout_ns);
  uint64_t published() { return control_->header.published.load(); }
  // Whether workers of other ranks may come: some are idle.
  bool is_watched() { return control_->header.watched.load() != 0; }
  uint32_t done_word() { return control_->header.done_word.load(); }
  // From now on `completed_word` changes whenever a tiny-batch completes.
  // From now on workers write down what they do, or no more; what nobody has read is dropped.
  void set_tracing(bool on);
  // What they have done since the last time.
  std::vector<WorkerSpan> take_spans();
  // How much of it is missing, as nobody has read for too long.
  uint64_t take_lost_spans();
  void watch_completed(bool on) { control_->header.watches_completed.store(on); }
  uint32_t completed_word() { return control_->header.completed_word.load(); }
  void sleep_until_completed(uint32_t seen, int64_t timeout_ns);
  void wake_completed();

 private:
  Batch& clear(uint64_t slot, uint64_t sequence, uint32_t samples, uint32_t tiny_size);
  int event_fd_;
};

}  // namespace fusionloader
