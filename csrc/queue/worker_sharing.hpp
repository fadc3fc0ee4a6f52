#pragma once
// CPU workers that serve another rank's queue for a while: the words that go between the global
// manager, the workers and the rank that borrows them.
//
// Each rank owns its lists; they lie in its control block, so that they outlive a global manager.
//
//   progress list  the queue itself: what is published, claimed and half done. Nobody has to write
//                  it, so it is never old and never half written.
//   action list    one Assignment per worker, in the worker's record of its home's control block.
//                  Written by the global manager, answered by the worker; each is one word.
//   guest slots    records of the borrower's control block behind those of its own workers. Who
//                  works there has put its identity into `owner` by compare-and-swap from 0.
//
// A worker takes its guest slot before it claims, claims under that number, and leaves the slot
// when it holds no claim. The borrower alone empties the guest slot of a dead one, after it has
// taken its claims back. So a claim always has an owner that lives or is found dead, whatever an
// assignment says, however many managers there are: a manager that is wrong costs time and no
// sample.
//
// A pool of workers for several loaders of one process is a control block without mini-batches. Its
// workers are sent by the same words, to a loader until they are sent to another one. There each
// has the record of its own number by right and is no borrowed worker: the loader has no other
// workers.
#include <cstdint>
#include <vector>

#include "queue/queue.hpp"

namespace fusionloader {

// [number : 16 | last mini-batch : 16 | member : 16 | guest slot : 16], 0 before the first one. The
// number tells two equal assignments apart. A member is a queue whose workers the manager directs;
// its name is never 0. Mini-batches are counted modulo 2^16, of which few are in flight.
struct Assignment {
  static uint64_t make(uint64_t number, uint64_t last, uint32_t member, uint32_t guest_slot) {
    return (number << 48) | ((last & 0xffff) << 32) | (uint64_t{member & 0xffff} << 16) |
           (guest_slot & 0xffff);
  }
  static uint64_t number(uint64_t assignment) { return assignment >> 48; }
  static uint16_t last(uint64_t assignment) { return static_cast<uint16_t>(assignment >> 32); }
  static uint32_t member(uint64_t assignment) {
    return static_cast<uint32_t>(assignment >> 16) & 0xffff;
  }
  static uint32_t guest_slot(uint64_t assignment) {
    return static_cast<uint32_t>(assignment) & 0xffff;
  }
  static bool covers(uint64_t assignment, uint64_t sequence) {
    return static_cast<int16_t>(last(assignment) - static_cast<uint16_t>(sequence)) >= 0;
  }
};

// What the global manager sees of a published mini-batch.
struct MiniBatchProgress {
  uint64_t sequence;
  uint32_t waiting;
  uint32_t half_done;  // tiny-batches under way of which more than half is done
};

// What it sees of a worker that it may send.
struct WorkerView {
  WorkerActivity activity;
  // Of the assignment that the worker has not answered: the member that it is sent to, 0 where
  // there is none, and its guest slot there.
  uint32_t member;
  uint32_t guest_slot;
};

// A member's lists as the global manager reads and writes them.
class MemberView : public Shared {
 public:
  MemberView(int control_fd, int data_fd);
  // Of the mini-batches in flight, the oldest first.
  std::vector<MiniBatchProgress> progress();
  std::vector<WorkerView> workers();
  std::vector<uint32_t> free_guest_slots();
  uint32_t borrowed_at_work();
  // Sends `worker` to a guest slot of another member, for mini-batches up to `last`, and wakes it.
  void send(uint32_t worker, uint64_t last, uint32_t member, uint32_t guest_slot);
  // Whether the member is to tell of what it publishes.
  void watch(bool on) { control_->header.watched.store(on); }
};

}  // namespace fusionloader
