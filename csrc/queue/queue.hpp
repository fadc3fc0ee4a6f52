#pragma once
// The two-ended queue of tiny-batches. Workers claim and finish (worker_queue.hpp); the local
// manager publishes, watches and takes back from the dead (manager_queue.hpp). layout.hpp has the
// shared words.
//
// How it works. A mini-batch's descriptor holds one queue word, [tag | tail | head], and a state
// word for each tiny-batch, [mini-batch | claimant | state]. A claim is made in two steps. A
// compare-and-swap on the queue word moves head or tail past a few tiny-batches, which spreads the
// workers but gives nobody anything. A compare-and-swap on each state word, from waiting to active
// with the worker's number, then decides who holds the tiny-batch. Finishing is the third one, from
// active under that number to a final state, so it fails for whoever does not hold the tiny-batch.
// Tiny-batches that lie outside the unclaimed middle and still wait are found through the states:
// workers search those of mini-batches whose `returned` flag is set. Both words carry the
// mini-batch's number, so a worker that was held up claims nothing of a descriptor that was written
// anew. A worker that finds nothing sleeps on the futex `work_word`, the manager on `done_word`. A
// sleeper has read the word before its last look, and a waker changes it after the news, so no
// wake-up is lost between the two.
//
// A mini-batch may be ordered by what its samples have in common, such as a file, and say among how
// many workers it is spread. Each of them then begins at a part of its own, so that a worker meets
// the same files again: it takes its part of the oldest two mini-batches, then what is left of any.
// Such a claim is the second step alone. The queue word stays as it is, for borrowed workers, which
// claim in two steps here as everywhere.
//
// Why it is right when any process dies at any instruction. Nobody holds a lock, and every step
// is one atomic operation, so a death leaves the words between two steps and nothing half written.
// A worker may die
//  - between the two steps of a claim: its tiny-batches wait outside the middle. No state shows
//    that, so take_back() sets `returned` on the mini-batches in flight, and they are found;
//  - holding tiny-batches: their states name it, and take_back() makes them wait again. The
//    manager calls it only for a worker that writes no more, so no two write the same rows;
//  - after finishing, before it wakes the manager: the work is final. The manager's sleeps have a
//    timeout, after which it looks at the states;
//  - asleep: it stays counted in `sleeping_workers`, which costs needless wake-up calls.
// `returned` may be set without need, which costs a search; it is cleared only where a descriptor
// is written or its mini-batch withdrawn, so nothing that came back is overlooked. A tiny-batch may
// be computed twice, but is finished once, by the worker whose number its state has then. A Share
// may count it twice; shares are statistics. When the training process has died, workers leave when
// they next look for work, at the latest after the timeout of their sleep; the memory has no name
// and goes with the last of them.
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "queue/layout.hpp"
#include "queue/mapping.hpp"

namespace fusionloader {

enum class End { small, large };

// A sample as it stands in a descriptor, with what its row shares draws by (Batch::group).
struct SampleEntry : Entry {
  uint64_t group;
};

// Tiny-batches first .. first + count - 1 of one mini-batch, all held by the same worker.
struct Claim {
  uint64_t sequence;
  uint32_t first;
  uint32_t count;
  Batch* batch;

  const BatchHeader& header() const { return batch->header; }
  // The sample at a position in the order of the tiny-batches.
  SampleEntry entry(uint32_t position) const;
  // Number of the slot with the rows; none until their layout is known.
  std::optional<uint64_t> payload() const;
  // The pickled indices; empty where they are plain integers.
  std::string_view indices() const;
  // Whether its samples are encoded images that came with it, see WorkerQueue::encoded().
  bool has_encoded() const { return header().encoded_images != 0; }
};

// Base of both sides: the control block, and slots mapped when first met.
class Shared {
 public:
  Shared(int control_fd, int data_fd);
  Control& control() { return *control_; }
  const Mapping& slot(uint64_t number);
  // Another mapping of bytes begin .. begin + bytes - 1 of a slot, and what lies around them in
  // their pages; `begin` becomes their offset in it.
  Mapping map_again(uint64_t number, size_t& begin, size_t bytes);
  Batch* batch(uint64_t slot) { return reinterpret_cast<Batch*>(this->slot(slot).data()); }
  // Of those that sleep, at most so many.
  void wake_workers(uint32_t most = UINT32_MAX);
  void wake_manager();
  // Wakes who copies tiny-batches as they complete, if anybody does.
  void tell_completed();

 protected:
  int data_fd_;
  // Throws MappingMismatch unless the control block is one of this version, and whole.
  void check_control() const;

  Mapping mapping_;
  Control* control_;
  std::vector<std::optional<Mapping>> slots_;
};

// Leaves a waiting tiny-batch to nobody, in a mini-batch that was withdrawn.
void drop_waiting(Batch& batch, uint64_t sequence, uint32_t tiny_batch);

// Adds to an eventfd, if it is one.
void notify(int event_fd);

}  // namespace fusionloader
