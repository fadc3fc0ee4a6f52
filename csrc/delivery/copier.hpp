#pragma once
// Copies mini-batches to a device while they are made: a thread puts each tiny-batch into a stream
// as soon as it is complete, so that the last one is all that is left when training asks.
//
// Rows that came as 8-bit levels, or as pixels with programs, go to a staging buffer, and a kernel
// behind the copies makes their rows of the batch from them. Rows that the GPU worker has written
// are there already.
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <variant>
#include <vector>

#include "cuda/driver.hpp"
#include "cuda/event.hpp"
#include "queue/manager_queue.hpp"

namespace fusionloader::delivery {

// The rows of one leaf, which lie one behind the other on both sides.
struct LeafRows {
  uint64_t from, to;  // addresses of row 0: page-locked host memory, device memory
  uint64_t row_bytes;
};

// How the levels of the first leaf become elements.
struct LevelConversion {
  cuda::Function kernel;  // of a LevelRows
  uint64_t table;         // address on the device
  uint32_t plane_levels;  // of one channel
  uint32_t element_bytes;
};

// How pixels with programs become rows of the first leaf, see device/program_rows.hpp.
struct ProgramRun {
  cuda::Function kernel;  // of ProgramRows
  uint64_t table;         // address on the device
  uint64_t program, result_bytes, work_bytes;
  uint32_t rows_at_once;  // that there is working memory for, a multiple of 32
};
using Conversion = std::variant<LevelConversion, ProgramRun>;

class Copier {
 public:
  // Copies go into `stream`. `gpu_worker` is the number of the worker that writes its rows of the
  // first leaf into device memory itself. The queue lives for longer.
  Copier(ManagerQueue& queue, int device, uint64_t stream, std::optional<uint32_t> gpu_worker,
         std::optional<Conversion> conversion);
  ~Copier();
  Copier(const Copier&) = delete;
  Copier& operator=(const Copier&) = delete;

  // A mini-batch that is copied for as long as its ticket lives. So an exception between begin()
  // and finish() leaves no copy that goes on into memory of another batch.
  class Ticket {
   public:
    Ticket(Copier& copier, uint64_t number) : copier_(copier), number_(number) {}
    ~Ticket() { copier_.drop(number_); }
    Ticket(const Ticket&) = delete;
    Ticket& operator=(const Ticket&) = delete;

   private:
    friend class Copier;
    Copier& copier_;
    const uint64_t number_;
  };

  // Copies the mini-batch in a slot as its tiny-batches complete. With `staging`, the first leaf's
  // rows are copied there, and converted to where the leaf goes.
  std::shared_ptr<Ticket> begin(uint64_t slot, std::vector<LeafRows> leaves, uint64_t staging);
  // Puts what is left of a mini-batch that is done into the stream; the point behind all of it.
  // `work` is working memory for programs, which all mini-batches may share.
  std::shared_ptr<cuda::Event> finish(const Ticket& ticket, uint64_t work);
  // Ends the thread. What is in the stream goes on.
  void close();
  uint64_t copied_bytes() const { return copied_bytes_.load(); }
  // The device's time for some of the copies, one at a time of those that are large enough. Takes
  // no lock: in a forked child the parent's thread may have held it for good.
  struct Timed {
    uint64_t bytes;
    double seconds;
  };
  Timed timed() const { return {timed_bytes_.load(), timed_seconds_.load()}; }

 private:
  struct Copying {
    uint64_t number;
    Batch* batch;
    uint64_t sequence;
    std::vector<LeafRows> leaves;
    uint64_t staging;
    std::vector<uint64_t> seen;   // states of tiny-batches whose rows are copied
    std::vector<uint32_t> which;  // a bit for each row that came through the slot
  };

  // A copy whose time is not known yet.
  struct Measured {
    cuda::Event begin;
    std::unique_ptr<cuda::Event> end;
    uint64_t bytes;
  };

  void run();
  void read_time();
  Copying take(const Ticket& ticket);
  void drop(uint64_t number);
  void advance(Copying& copying);
  void copy_rows(const Copying& copying, const LeafRows& leaf, std::vector<uint32_t> rows);
  void copy(uint64_t to, uint64_t from, uint64_t bytes);
  void copy_rest(const Copying& copying);
  void convert(const Copying& copying, const LevelConversion& with, uint64_t work);
  void convert(const Copying& copying, const ProgramRun& with, uint64_t work);
  std::vector<uint32_t> rows_through_slot(const Copying& copying) const;

  ManagerQueue& queue_;
  const int device_;
  const std::optional<uint32_t> gpu_worker_;
  const std::optional<Conversion> conversion_;
  const pid_t pid_;
  const uint64_t stream_;
  uint64_t numbers_ = 0;
  std::mutex mutex_;  // of what follows, and of the order in the stream
  std::list<Copying> copying_;
  std::unique_ptr<Measured> measured_;
  std::exception_ptr failure_;  // of the thread
  std::atomic<bool> closed_{false};
  std::atomic<uint64_t> copied_bytes_{0}, timed_bytes_{0};
  std::atomic<double> timed_seconds_{0};
  std::unique_ptr<std::thread> thread_;
};

}  // namespace fusionloader::delivery
