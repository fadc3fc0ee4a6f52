#pragma once
// The loop of a CPU worker on a wholly compiled plan: claim, read, run, finish, without Python. It
// comes back to its caller only for what needs Python: a file that is not a plain JPEG, or the end.
#include <cstdint>
#include <optional>
#include <vector>

#include "plan/executor.hpp"
#include "queue/queue.hpp"
#include "worker/dataset_table.hpp"
#include "worker/kept_files.hpp"

namespace fusionloader {

enum class Event {
  stopped,   // the manager said so
  orphaned,  // the training process is gone
  sample,    // current() needs Python: Pillow decodes it, or words the error
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
  // `pixels` and `indexes` are null where the loader keeps none.
  PlanWorker(WorkerQueue& queue, DatasetTable& table, Executor& executor, int parent,
             FileStore* pixels, FileStore* indexes);

  Event run();
  DatasetTable& table() { return table_; }
  CurrentSample current();
  // After Event::sample: the caller has written the row, or given up on the sample's tiny-batch.
  void sample_done();
  void sample_failed();
  void count_pillow_sample();  // Pillow has decoded the row that the caller wrote

 private:
  bool run_sample();
  bool run_file(const CurrentSample& sample, uint64_t item);
  void run_pixels(const CurrentSample& sample, uint64_t item);
  std::optional<PixelView> kept_pixels(uint64_t item);
  void advance();
  void finish_tiny_batch(TinyState result);
  bool read_file(uint64_t item);

  WorkerQueue& queue_;
  DatasetTable& table_;
  Executor& executor_;
  int parent_;
  KeptFiles kept_;
  std::optional<Claim> claim_;
  uint32_t tiny_batch_ = 0;  // of the claim
  uint32_t position_ = 0;    // of the sample in the mini-batch
  uint32_t stop_ = 0;        // where the tiny-batch ends
  std::vector<uint8_t> file_;
  size_t file_bytes_ = 0;
};

}  // namespace fusionloader
