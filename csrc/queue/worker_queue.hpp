#pragma once
// The workers' half of the queue; see queue.hpp for how it works.
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "queue/queue.hpp"

namespace fusionloader {

class WorkerQueue : public Shared {
 public:
  // `takes_returned`: also what came back, which may be what a worker elsewhere could not do.
  WorkerQueue(int control_fd, int data_fd, uint32_t worker, Side side = Side::cpu,
              bool takes_returned = true);

  // Takes up to `count` neighbouring tiny-batches of the oldest mini-batch that has any waiting,
  // leaving the last `threshold` ones (largest samples) to the other end. Of mini-batches that are
  // spread, this worker's part comes first.
  std::optional<Claim> claim(End end, uint32_t threshold, uint32_t count);
  // Makes this the queue of a worker from elsewhere, under the number of a guest slot; false when
  // the guest slot is not free. `identity` is its process's. It takes nothing that has come back:
  // that may be what a borrowed worker could not do, since it cannot report an error here.
  bool take_guest_slot(uint32_t guest_slot, uint64_t identity);
  // Holding no claim, gives the guest slot up.
  void leave_guest_slot();
  // As a borrowed worker, of mini-batches that the assignment covers and that there is memory for.
  std::optional<Claim> claim_as_borrowed(uint64_t assignment, uint32_t count);
  // The same at the end that is this side's now: CPU workers take from the small end while there is
  // a GPU worker, which takes from the large end when the manager lets it, and from the large end
  // when they are alone.
  std::optional<Claim> claim_next(uint32_t count);
  // Claims up to `count` at the small end, whoever else works; leaves a GPU worker's to it.
  std::optional<Claim> claim_small(uint32_t count);
  // How many mini-batches in a row are complete, from the oldest that is not delivered.
  uint32_t ready();
  // What workers first .. first + count - 1 have done, and the wall time that they took.
  struct Work {
    uint64_t samples, busy_ns;
  };
  Work work_of(uint32_t first, uint32_t count);
  // False when it is no longer ours to finish. Wakes the manager when the mini-batch is done.
  bool finish(const Claim& claim, uint32_t tiny_batch, TinyBatchState result);
  // Leaves a tiny-batch of the claim to CPU workers.
  void give_back(const Claim& claim, uint32_t tiny_batch);
  void gpu_ready() { control_->header.gpu_ready.store(1); }
  bool gpu_beside() { return control_->header.gpu_beside.load() != 0; }
  // After a claim of the GPU worker: nothing of it is on the device any more.
  void leave();
  // Sleeps until there may be something to claim, at most `timeout_ns`.
  void sleep(uint32_t seen, int64_t timeout_ns);
  uint32_t work_word() { return control_->header.work_word.load(); }
  bool stopping() { return control_->header.stop.load() != 0; }
  WorkerRecord& record() { return control_->records()[worker_]; }
  // Writes down that process `pid` is the worker, and does what it has to.
  void announce(uint32_t pid) { record().pid.store(pid); }
  // The slot with the rows of a claim whose payload() is known.
  const Mapping& rows(const Claim& claim) { return slot(claim.payload().value()); }
  // Bytes of an encoded image that came with a claim's mini-batch; none where its number or its
  // place is not within the slot.
  std::optional<std::string_view> encoded(const Claim& claim, uint64_t image);
  void begin_sample(const Claim& claim, uint32_t tiny_batch, uint64_t position);
  void begin_sample(const Claim& claim, uint32_t tiny_batch, uint64_t position, uint64_t now_ns);
  // So many more samples of the tiny-batch are done, since begin_sample(); counts them and the
  // time. Returns the time of now.
  uint64_t end_samples(const Claim& claim, uint32_t tiny_batch, uint32_t samples);
  // Position of the sample that was begun and is not done.
  std::optional<uint64_t> sample() const { return sample_; }
  // Adds to the wall time of a plan's parts; what is beyond kParts is left out.
  void add_part_ns(const std::vector<uint64_t>& ns);
  // Adds to what it has counted of deferred images. Throws std::out_of_range for more counts than
  // there are words.
  void add_images(const std::vector<int64_t>& counts);
  // Adds to what was read, and to where it came from.
  void add_reads(uint64_t bytes, const std::array<uint64_t, kCacheCounts>& counts);
  // Adds to the files that user code had opened for it, and to those that were open already.
  void add_files(uint64_t opened, uint64_t reused);
  // While a trace is on, what is done from here to end_span() is one span of it.
  void begin_span();
  // Tiny-batches first .. first + count - 1 of the claim are done, and about to be finished.
  // `rest_is_python`: so is what was spent on samples and is no part of a plan.
  void end_span(const Claim& claim, uint32_t first, uint32_t count, bool rest_is_python = false);
  void idle() { record().sequence.store(0); }
  uint64_t owner() { return control_->header.owner.load(); }
  // Counts up when the layout of Python samples becomes known; then layout() is its pickle.
  uint32_t layout_version() { return control_->header.layout_version.load(); }
  std::string_view layout();
  // Of the queue of a pool, see worker_sharing.hpp: whether there is an assignment that was not
  // looked at, or an end of all assignments; and the member that the worker is sent to from now on.
  bool is_sent() { return stopping() || record().assignment.load() != record().answered.load(); }
  uint32_t answer();

 private:
  std::optional<Claim> claim_from(Batch& batch, uint64_t sequence, End end, uint32_t threshold,
                                  uint32_t count);
  // Whether this worker begins at a part of its own. One that may not take what came back does not:
  // it could not tell that from what nobody has claimed yet.
  bool is_spread(const Batch& batch) const {
    return takes_returned_ && batch.header.spread.load() != 0;
  }
  // Claims of a mini-batch that is spread: in this worker's part alone, or with `all_around` also
  // in those after it and before it.
  std::optional<Claim> claim_part(Batch& batch, uint64_t sequence, uint32_t count, bool all_around);
  std::optional<Claim> claim_when_open(uint32_t count);
  bool take(Batch& batch, uint64_t sequence, uint32_t tiny_batch);
  void note_share(const Claim& claim, uint32_t tiny_batch);
  void count_processor_time(uint64_t now_ns);
  TraceRecord counted();
  uint32_t worker_;
  std::optional<uint64_t> sample_;
  Side side_;
  bool takes_returned_;
  // What the worker's record said when the span began; none while there is no trace.
  std::optional<TraceRecord> span_;
  uint64_t span_busy_ns_ = 0;
};

}  // namespace fusionloader
