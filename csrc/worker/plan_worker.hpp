#pragma once
// The loop of a CPU worker on a wholly compiled plan: claim, read, run, finish, without Python. It
// comes back to its caller only for what needs Python: a file that is not a plain JPEG, the queue
// of another rank that it is sent to, or the end.
#include <cstdint>
#include <optional>
#include <vector>

#include "plan/executor.hpp"
#include "queue/worker_queue.hpp"
#include "queue/worker_sharing.hpp"
#include "worker/dataset_table.hpp"
#include "worker/kept_files.hpp"
#include "worker/sample_files.hpp"

namespace fusionloader {

enum class WorkerEvent {
  stopped,     // the manager said so
  orphaned,    // the training process is gone
  sample,      // current() needs Python: Pillow decodes it, or words the error
  fetch,       // missing() of the next tiny-batch may be supplied
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
  uint32_t tiny_batch;
  uint32_t row;
  int64_t item;
  SampleKey key;
  uint8_t* image;  // its row of the batch slot
  int64_t* target;
};

class PlanWorker {
 public:
  // A worker that may be sent to other ranks tells of idleness through the eventfd `event_fd`.
  // `stores` are of the files at home. `pool` is the queue of the pool that the worker is of, if it
  // is. With `fetches` it asks for what it lacks before each tiny-batch.
  PlanWorker(const Site& home, int parent, int event_fd, const CacheStores& stores,
             WorkerQueue* pool, bool fetches);

  // With `once` no more than one claim.
  WorkerEvent run(bool once = false);
  // Sleeps at home, until there may be something to do; `seen` is the queue's word from before the
  // last look.
  void rest(uint32_t seen);
  DatasetTable& table() { return *at_->table; }
  CurrentSample current();
  // After WorkerEvent::sample: the caller has written the row, or given up on the sample's
  // tiny-batch.
  void sample_done();
  // The same for one that is left out or replaced, which Python has reported.
  void sample_skipped();
  void sample_failed();
  void count_pillow_sample();  // Pillow has decoded the row that the caller wrote

  // Whether the current sample is another rank's: failures are not reported to it, so the
  // tiny-batch is given back to its own workers.
  bool is_borrowed() const { return at_ != &home_; }
  void give_back();

  // After WorkerEvent::fetch: the files of the tiny-batch of which nothing is kept here.
  const std::vector<uint64_t>& missing() const { return missing_; }
  // A sample's bytes, for the tiny-batch that is next; `ns` is what it took to get them. Those of a
  // file are not kept here: another server keeps them, and gave them if `is_hit`. Those of a URL
  // are as many as the table says, and kept as if they had been read.
  void supply(uint64_t item, FileStamp stamp, ByteView encoded, bool is_hit, uint64_t ns);
  // The encoded bytes of current(), as far as they were read; of the calls' own memory.
  ByteView encoded() const { return encoded_; }
  // Whether these came with the mini-batch: the sample is not of the table.
  bool comes_encoded() const { return claim_->has_encoded(); }
  FileStamp stamp() const { return stamp_; }  // of the file that encoded() is of

  // After WorkerEvent::assignment: the member whose queue is wanted, 0 for none.
  uint32_t assignment() { return shared_.assignment(); }
  void detach();
  void attach(uint32_t member, const Site& site);
  void decline() { shared_.decline(); }

 private:
  struct Supplied {
    uint64_t item;
    FileStamp stamp;
    std::vector<uint8_t> encoded;
    bool is_hit;
    uint64_t ns;
  };

  const Supplied* supplied(uint64_t item) const;
  bool run_supplied(const CurrentSample& sample, const Supplied& given);
  void count_read(uint64_t ns);
  bool run_sample();
  bool run_file(const CurrentSample& sample, uint64_t item);
  bool run_given(const CurrentSample& sample);
  std::optional<KeptFiles::Found> find_kept(uint64_t item);
  bool run_kept(const CurrentSample& sample, uint64_t item, const KeptFiles::Found& found);
  void run_pixels(const CurrentSample& sample, uint64_t item);
  bool is_home() const { return at_ == &home_; }
  bool may_be_supplied() const { return is_home() || at_->table->is_remote(); }
  bool run_bytes(const CurrentSample& sample, uint64_t item, FileStamp stamp, bool is_kept);
  void count(WorkerCount what, uint64_t many = 1) {
    at_->queue->record().count(what).fetch_add(many, std::memory_order_relaxed);
  }
  bool wants_fetch();
  bool claim_at_home();
  bool claim_as_borrowed();
  WorkerEvent recall();
  WorkerEvent end(WorkerEvent event);
  void advance();
  void finish_tiny_batch(TinyBatchState result);
  void next_tiny_batch();

  Site home_;
  std::optional<Site> borrower_;
  const Site* at_;
  int parent_;
  KeptFiles kept_;
  SharedWorker shared_;
  WorkerQueue* pool_;
  bool served_ = false;  // a claim of a run() that makes one only
  std::optional<Claim> claim_;
  uint32_t tiny_batch_ = 0;  // of the claim
  uint32_t position_ = 0;    // of the sample in the mini-batch
  bool skipped_ = false;     // a sample of the tiny-batch
  uint32_t stop_ = 0;        // where the tiny-batch ends
  SampleFiles files_;
  ByteView encoded_{};  // of the current sample
  FileStamp stamp_;
  bool fetches_;
  bool asked_ = false;  // for what the tiny-batch lacks
  std::vector<uint64_t> missing_;
  std::vector<Supplied> supplied_;
};

}  // namespace fusionloader
