#pragma once
#include <array>
#include <cstddef>

namespace fusionloader {

// What a worker counts, a word each of its record. Python sums the words up by their names, and
// those that WorkerTotals (observe/statistics/worker_totals.py) has a field of are in stats().
enum class WorkerCount : size_t {
  samples,         // done so far
  busy_ns,         // wall time spent on samples
  cpu_ns,          // processor time of the worker's thread
  run_delay_ns,    // time that the thread was ready to run while other threads had the cores
  pillow_samples,  // samples of a compiled plan that Pillow decoded
  read_bytes,      // of files, as they are stored
  files_opened,    // by OpenFiles of user code
  files_reused,    // that it had open
  // Samples by where they came from, in the order of system/shm/cache_counts.py.
  cache_decoded,  // pixels in memory
  cache_encoded,  // encoded bytes in memory
  cache_disk_decoded,
  cache_disk_encoded,
  cache_remote,  // encoded bytes of another server
  cache_missed,  // read from storage
  cache_filled,  // of those: kept
};
constexpr std::array kWorkerCounts{"samples",
                                   "busy_ns",
                                   "cpu_ns",
                                   "run_delay_ns",
                                   "pillow_samples",
                                   "read_bytes",
                                   "files_opened",
                                   "files_reused",
                                   "cache_decoded",
                                   "cache_encoded",
                                   "cache_disk_decoded",
                                   "cache_disk_encoded",
                                   "cache_remote",
                                   "cache_missed",
                                   "cache_filled"};
constexpr size_t place(WorkerCount what) { return static_cast<size_t>(what); }
static_assert(place(WorkerCount::cache_filled) + 1 == kWorkerCounts.size());

// What it counts of deferred images, in the order of data/deferred/counts.py.
constexpr size_t kImageCounts = 48;

constexpr size_t kCacheCounts = kWorkerCounts.size() - place(WorkerCount::cache_decoded);

}  // namespace fusionloader
