#pragma once
// CPU workers that serve another rank's queue for a while: the words by which the global manager,
// the workers and the rank that borrows them communicate.
//
// Each rank owns its lists; they are in its control block, so that they outlive a global manager.
//
//   progress list  the queue itself: what is published, claimed and half done. No process writes a
//                  copy, so it is never stale and never half written.
//   action list    one Assignment per worker, in the worker's record of its own rank's control
//                  block. The global manager writes it, the worker answers it; each is one word.
//   guest slots    records of the destination's control block behind those of its own workers. A
//                  borrowed worker stores its identity in `owner` by compare-and-swap from 0.
//
// A worker takes a guest slot before it claims, claims under the slot's number, and leaves the slot
// when it has no claim. Only the destination empties the guest slot of a dead worker, after it has
// taken the worker's claims back. So every claim has an owner that is alive or is found dead,
// whatever an assignment says and however many managers there are: a wrong assignment costs time
// and no sample.
//
// A pool of workers for several loaders of one process is a control block without mini-batches. The
// same words assign its workers to a loader, until they are assigned to another one. In a loader's
// control block each has the record of its own number and is no borrowed worker: the loader has no
// other workers.
#include <cstdint>
#include <optional>
#include <vector>

#include "queue/worker_queue.hpp"

namespace fusionloader {

// [number : 16 | last mini-batch : 16 | member : 16 | guest slot : 16], 0 before the first one. The
// number distinguishes two equal assignments. A member is a queue whose workers the manager
// assigns; its name is never 0. Mini-batches are counted modulo 2^16, of which few are in flight.
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

// What the global manager sees of a published mini-batch; nothing waits in one that has no memory
// for its rows yet, since borrowed workers claim nothing of it.
struct MiniBatchProgress {
  uint64_t sequence;
  uint32_t waiting;
  uint32_t half_done;  // tiny-batches in process of which more than half is done
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
  // Assigns `worker` to a guest slot of another member, for mini-batches up to `last`; wakes it.
  void send(uint32_t worker, uint64_t last, uint32_t member, uint32_t guest_slot);
  // Whether the member is to notify its eventfd when it publishes a mini-batch.
  void watch(bool on) { control_->header.watched.store(on); }
};

// A worker's side. It claims for another rank while its own queue has nothing for it.
class SharedWorker {
 public:
  // `event_fd` tells the global manager of idleness; where it is -1 nobody sends the worker. A
  // worker of a pool is absent until it has worked for this loader.
  SharedWorker(WorkerQueue& home, int event_fd, bool of_pool);

  bool is_shared() const { return event_fd_ >= 0; }
  // Answers an assignment to the queue that is attached. False where the caller has to detach() it,
  // and to attach() that of the member which assignment() names, if any, or to decline().
  bool obey();
  // The member whose queue is wanted, 0 for none.
  uint32_t assignment();
  void attach(uint32_t member, WorkerQueue& queue);
  void detach();
  void decline() { home_.record().answered.store(wanted_); }
  // Claims up to `count` tiny-batches of the attached queue; without any it leaves the guest slot.
  std::optional<Claim> claim(uint32_t count);
  void leave_guest_slot();
  void report(WorkerActivity activity);
  // The worker goes to another loader of its pool: nobody comes on an assignment for the time
  // being.
  void withdraw();

 private:
  bool borrower_is_gone();

  WorkerQueue& home_;
  WorkerQueue* borrower_ = nullptr;
  int event_fd_;
  uint64_t me_ = 0;
  uint32_t member_ = 0;      // whose queue borrower_ is
  uint64_t assignment_ = 0;  // the one that is obeyed
  uint64_t wanted_ = 0;      // the one that the caller was told of
  bool in_guest_slot_ = false;
  uint64_t looked_ns_ = 0;  // when the owner of borrower_ was last seen alive
  WorkerActivity activity_ = WorkerActivity::home;
};

}  // namespace fusionloader
