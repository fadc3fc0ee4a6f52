#pragma once
// What a worker has done while a trace is on: a ring that the worker writes and the manager reads.
// Neither waits for the other. A worker that finds its ring full counts what it leaves out. One
// that dies while it writes a record leaves it unseen: `written` moves on behind the record.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace fusionloader {

// Neighbouring tiny-batches of a mini-batch that a worker did in one go. The times of the parts
// are as in queue/parts.hpp; `augment_ns` is that of all stages.
struct TraceRecord {
  uint64_t sequence;          // of the mini-batch
  uint64_t begin_ns, end_ns;  // CLOCK_MONOTONIC
  uint64_t read_bytes;        // encoded
  uint64_t read_ns, decode_ns, augment_ns, python_ns, write_ns;
  uint32_t pid;
  uint32_t first, count;  // tiny-batches
  uint32_t samples;
};

class alignas(64) TraceRing {
 public:
  // Of the worker.
  void push(const TraceRecord& record) {
    const uint64_t written = written_.load(std::memory_order_relaxed);
    if (written - read_.load(std::memory_order_acquire) >= kRecords) {
      lost_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    records_[written % kRecords] = record;
    written_.store(written + 1, std::memory_order_release);
  }

  // Of the manager, as are all that follow: what was written since the last time.
  std::vector<TraceRecord> take() {
    std::vector<TraceRecord> taken;
    const uint64_t written = written_.load(std::memory_order_acquire);
    for (uint64_t at = read_.load(std::memory_order_relaxed); at < written; ++at)
      taken.push_back(records_[at % kRecords]);
    read_.store(written, std::memory_order_release);
    return taken;
  }
  uint64_t take_lost() { return lost_.exchange(0, std::memory_order_relaxed); }

 private:
  // For as many tiny-batches as a worker does while training computes and nobody reads.
  static constexpr uint64_t kRecords = 4096;
  alignas(64) std::atomic<uint64_t> written_;
  std::atomic<uint64_t> lost_;
  alignas(64) std::atomic<uint64_t> read_;
  alignas(64) TraceRecord records_[kRecords];
};

}  // namespace fusionloader
