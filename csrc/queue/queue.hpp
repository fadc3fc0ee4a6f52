#pragma once
// The two-ended queue of tiny-batches: what workers do with it (claim, finish) and what the local
// manager does (publish, look, take back from the dead). See layout.hpp for the shared words.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "queue/layout.hpp"

namespace fusionloader {

// A file descriptor's memory, mapped whole and shared.
class Mapping {
 public:
  Mapping(int fd, uint64_t offset, size_t bytes);
  ~Mapping();
  Mapping(Mapping&& other) noexcept : data_(other.data_), bytes_(other.bytes_) {
    other.data_ = nullptr;
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  uint8_t* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  uint8_t* data_;
  size_t bytes_;
};

enum class End { small, large };

// Tiny-batches first .. first + count - 1 of one mini-batch, all held by the same worker.
struct Claim {
  uint64_t sequence;
  uint32_t first;
  uint32_t count;
  Batch* batch;
};

// Base of both sides: the control block, and slots mapped when first met.
class Shared {
 public:
  Shared(int control_fd, int data_fd);
  Control& control() { return *control_; }
  const Mapping& slot(uint64_t number);
  Batch* batch(uint64_t slot) { return reinterpret_cast<Batch*>(this->slot(slot).data()); }
  void wake_workers();

 protected:
  int data_fd_;
  Mapping mapping_;
  Control* control_;
  std::vector<std::optional<Mapping>> slots_;
};

class WorkerQueue : public Shared {
 public:
  WorkerQueue(int control_fd, int data_fd, uint32_t worker, Side side = Side::cpu);

  // Takes up to `count` neighbouring tiny-batches of the oldest mini-batch that has any waiting,
  // leaving the last `threshold` ones (largest samples) to the other end.
  std::optional<Claim> claim(End end, uint32_t threshold, uint32_t count);
  // Makes this the queue of a worker from elsewhere, under the number of a guest slot; false when
  // the guest slot is not free. `identity` is its process's. It takes nothing that has come back:
  // that may be what a borrowed worker could not do, since it cannot report an error here.
  bool take_guest_slot(uint32_t guest_slot, uint64_t identity);
  // Holding no claim, gives the guest slot up.
  void leave_guest_slot();
  // As a borrowed worker, of mini-batches that the assignment covers.
  std::optional<Claim> claim_as_borrowed(uint64_t assignment);
  // The same at the end that is this side's now: CPU workers take from the small end while there is
  // a GPU worker, which takes from the large end when the manager lets it, and from the large end
  // when they are alone.
  std::optional<Claim> claim_next(uint32_t count);
  // False when it is no longer ours to finish. Wakes the manager when the mini-batch is done.
  bool finish(const Claim& claim, uint32_t tiny_batch, TinyState result);
  // Leaves a tiny-batch of the claim to CPU workers.
  void give_back(const Claim& claim, uint32_t tiny_batch);
  void gpu_ready() { control_->header.gpu_ready.store(1); }
  // After a claim of the GPU worker: nothing of it is on the device any more.
  void leave();
  // Sleeps until there may be something to claim, at most `timeout_ns`.
  void sleep(uint32_t seen, int64_t timeout_ns);
  void wake_manager();
  uint32_t work_word() { return control_->header.work_word.load(); }
  bool stopping() { return control_->header.stop.load() != 0; }
  WorkerRecord& record() { return control_->records()[worker_]; }
  void begin_sample(const Claim& claim, uint32_t tiny_batch, uint64_t position);
  void idle() { record().sequence.store(0); }
  uint64_t owner() { return control_->header.owner.load(); }
  // Of the queue of a pool, see lending.hpp: whether there is an assignment that was not looked at,
  // or an end of all assignments; and the member that the worker is sent to from now on.
  bool is_sent() { return stopping() || record().assignment.load() != record().answered.load(); }
  uint32_t answer();

 private:
  std::optional<Claim> claim_from(Batch& batch, uint64_t sequence, End end, uint32_t threshold,
                                  uint32_t count);
  std::optional<Claim> claim_when_open(uint32_t count);
  bool take(Batch& batch, uint64_t sequence, uint32_t tiny_batch);
  void note_share(const Claim& claim, uint32_t tiny_batch);
  uint32_t worker_;
  Side side_;
  bool borrowed_ = false;
};

struct BatchStatus {
  uint32_t waiting = 0, active = 0, completed = 0, failed = 0, spilled = 0;
  bool done() const { return waiting == 0 && active == 0; }
};

struct Lost {  // a tiny-batch that a dead worker had claimed
  uint64_t sequence;
  uint32_t tiny_batch;
};

class ManagerQueue : public Shared {
 public:
  // With `guest_slots` for workers of others, the first `shareable` workers may be lent, and the
  // global manager is told through the eventfd `event_fd`.
  ManagerQueue(int control_fd, int data_fd, uint32_t workers, uint32_t ring_size,
               uint32_t guest_slots = 0, uint32_t shareable = 0, int event_fd = -1);

  void add_slot(uint64_t slot, uint64_t offset, uint64_t bytes);
  // Writes the descriptor into the slot; publish() then makes it visible.
  Batch& describe(uint64_t slot, uint64_t sequence, uint32_t samples, uint32_t tiny_size);
  void publish(uint64_t slot, uint64_t sequence);
  BatchStatus status(uint64_t slot);
  TinyState state(uint64_t slot, uint32_t tiny_batch);
  // The tiny-batches that `worker` has completed.
  std::vector<uint32_t> done_by(uint64_t slot, uint32_t worker);
  // Marks a tiny-batch failed by the manager's own verdict (it killed too many workers).
  void give_up(uint64_t slot, uint32_t tiny_batch);
  void deliver_until(uint64_t sequence) { control_->header.oldest.store(sequence); }
  // Takes back what `worker` had claimed. Only for one whose process has ended.
  std::vector<Lost> take_back(uint32_t worker);
  // Guest slots of processes that have ended; empty_guest_slot() follows take_back().
  std::vector<uint32_t> dead_borrowed_workers();
  void empty_guest_slot(uint32_t guest_slot) { control_->records()[guest_slot].owner.store(0); }
  // Nobody claims anything of the published mini-batches any more; waits for none.
  void withdraw();
  // Whether the GPU worker has built what it needs; forget it when the worker has died.
  bool gpu_is_ready() { return control_->header.gpu_ready.load() != 0; }
  void forget_gpu();
  // Once it is not open any more, false means that the GPU worker stays off the device.
  bool gpu_is_inside() { return control_->header.gpu_inside.load() != 0; }
  void set_gpu(GpuState state, uint32_t threshold);
  void stop();
  // Sleeps until a mini-batch may be done or a message may be there, at most `timeout_ns`.
  void sleep(uint32_t seen, int64_t timeout_ns);
  uint32_t done_word() { return control_->header.done_word.load(); }

 private:
  int event_fd_;
};

// Adds to an eventfd, if it is one.
void notify(int event_fd);

}  // namespace fusionloader
