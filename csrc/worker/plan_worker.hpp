#pragma once
// The loop of a CPU worker on a wholly compiled plan: claim, read, run, finish, without Python. It
// comes back to its caller only for what needs Python: a file that is not a plain JPEG, the queue
// of another rank that it is lent to, or the end.
#include <cstdint>
#include <optional>
#include <vector>

#include "plan/executor.hpp"
#include "queue/queue.hpp"
#include "queue/worker_sharing.hpp"
#include "worker/dataset_table.hpp"
#include "worker/kept_files.hpp"

namespace fusionloader {

enum class Event {
  stopped,     // the manager said so
  orphaned,    // the training process is gone
  sample,      // current() needs Python: Pillow decodes it, or words the error
  assignment,  // detach(), then attach() the queue that assignment() names, or decline() it
  // Of a worker of a pool, where the caller decides on which queue it sleeps:
  recalled,  // the pool has another assignment
  idle,      // there is nothing to claim
  served,    // the one claim that was requested is done
};

// A queue to serve, with its dataset and its plan's executor.
struct Site {
  WorkerQueue* queue;
  DatasetTable* table;
  Executor* executor;
};

struct CurrentSample {
  uint64_t sequence;
  uint32_t position;
  uint32_t row;
  int64_t item;
  SampleKey key;
  uint8_t* image;  // its row of the batch slot
  int64_t* target;
};

class PlanWorker {
 public:
  // A worker that may be lent tells of idleness through the eventfd `event_fd`. `pixels` and
  // `indexes`, of files at home, are null where the loader keeps none. `pool` is the queue of the
  // pool that the worker is of, if it is.
  PlanWorker(const Site& home, int parent, int event_fd = -1, FileStore* pixels = nullptr,
             FileStore* indexes = nullptr, WorkerQueue* pool = nullptr);

  // With `once` no more than one claim.
  Event run(bool once = false);
  // Sleeps at home, until there may be something to do; `seen` is the queue's word from before the
  // last look.
  void rest(uint32_t seen);
  DatasetTable& table() { return *at_->table; }
  CurrentSample current();
  // After Event::sample: the caller has written the row, or given up on the sample's tiny-batch.
  void sample_done();
  void sample_failed();
  void count_pillow_sample();  // Pillow has decoded the row that the caller wrote

  // Whether the current sample is another rank's: failures are not reported to it, so the
  // tiny-batch is given back to its own workers.
  bool is_borrowed() const { return at_ != &home_; }
  void give_back();

  // After Event::assignment: the member whose queue is wanted, 0 for none.
  uint32_t assignment();
  void detach() { away_.reset(); }
  void attach(uint32_t member, const Site& site);
  void decline();

 private:
  bool run_sample();
  bool run_file(const CurrentSample& sample, uint64_t item);
  void run_pixels(const CurrentSample& sample, uint64_t item);
  bool is_home() const { return at_ == &home_; }
  std::optional<PixelView> kept_pixels(uint64_t item);
  bool claim_at_home();
  bool claim_away();
  bool obey();
  bool away_is_gone();
  void leave_guest_slot();
  void say(Place place);
  Event recall();
  Event end(Event event);
  void advance();
  void finish_tiny_batch(TinyState result);
  void next_tiny_batch();
  bool read_file(uint64_t item);

  Site home_;
  std::optional<Site> away_;
  const Site* at_;
  int parent_;
  KeptFiles kept_;
  int event_fd_;
  WorkerQueue* pool_;
  bool served_ = false;  // a claim of a run() that makes one only
  uint64_t me_ = 0;
  uint32_t away_member_ = 0;
  uint64_t assignment_ = 0;  // the one that is obeyed
  uint64_t wanted_ = 0;      // the one that the caller was told of
  bool in_guest_slot_ = false;
  uint64_t looked_ns_ = 0;  // when the owner of away_ was last seen alive
  Place place_ = Place::home;
  std::optional<Claim> claim_;
  uint32_t tiny_batch_ = 0;  // of the claim
  uint32_t position_ = 0;    // of the sample in the mini-batch
  uint32_t stop_ = 0;        // where the tiny-batch ends
  std::vector<uint8_t> file_;
  size_t file_bytes_ = 0;
};

}  // namespace fusionloader
