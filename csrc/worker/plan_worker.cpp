#include "worker/plan_worker.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>

#include "queue/futex.hpp"

namespace fusionloader {

namespace {

constexpr int64_t kOrphanCheckNs = 500'000'000;
constexpr size_t kLargestFile = size_t{1} << 31;

class File {
 public:
  explicit File(const char* path) : fd_(open(path, O_RDONLY | O_CLOEXEC)) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

PlanWorker::PlanWorker(WorkerQueue& queue, DatasetTable& table, Executor& executor, int parent,
                       FileStore* pixels, FileStore* indexes)
    : queue_(queue), table_(table), executor_(executor), parent_(parent), kept_(pixels, indexes) {}

Event PlanWorker::run() {
  for (;;) {
    while (claim_) {
      if (!run_sample()) return Event::sample;
      sample_done();
    }
    if (queue_.stopping()) return Event::stopped;
    if (getppid() != parent_) return Event::orphaned;
    const uint32_t seen = queue_.work_word();
    claim_ = queue_.claim_next(1);
    if (claim_) {
      tiny_batch_ = claim_->first;
      advance();
      continue;
    }
    queue_.idle();
    queue_.sleep(seen, kOrphanCheckNs);
  }
}

void PlanWorker::advance() {
  const BatchHeader& header = claim_->batch->header;
  position_ = tiny_batch_ * header.tiny_size;
  stop_ = std::min(position_ + header.tiny_size, header.samples);
  queue_.begin_sample(*claim_, tiny_batch_, position_);
}

CurrentSample PlanWorker::current() {
  Batch& batch = *claim_->batch;
  const Entry& entry = batch.entries()[position_];
  const size_t row_bytes = executor_.result_bytes();
  const size_t images =
      (batch.header.payload_rows.load() * row_bytes + kAlign - 1) / kAlign * kAlign;
  uint8_t* payload = queue_.slot(batch.header.payload.load() - 1).data();
  return {
      claim_->sequence,
      position_,
      entry.row,
      entry.item,
      {batch.header.seed, batch.header.epoch, entry.key, entry.occurrence, batch.group(entry.row)},
      payload + entry.row * row_bytes,
      reinterpret_cast<int64_t*>(payload + images) + entry.row};
}

bool PlanWorker::run_sample() {
  const CurrentSample sample = current();
  const auto item = static_cast<uint64_t>(sample.item);
  if (item >= table_.count) return false;  // also what is no index at all, -1
  try {
    if (table_.holds_pixels())
      run_pixels(sample, item);
    else if (!run_file(sample, item))
      return false;
  } catch (const std::exception&) {
    return false;  // the caller meets the same error where it can be reported
  }
  *sample.target = table_.target(item);
  return true;
}

std::optional<PixelView> PlanWorker::kept_pixels(uint64_t item) {
  const PartTimes::Timed timed(executor_.times(), Part::read);
  return kept_.pixels(item, table_.path(item));
}

bool PlanWorker::run_file(const CurrentSample& sample, uint64_t item) {
  if (const auto pixels = kept_pixels(item)) {
    executor_.run_pixels(*pixels, sample.key, sample.image);
    return true;
  }
  {
    const PartTimes::Timed timed(executor_.times(), Part::read);
    if (!read_file(item)) return false;
  }
  table_.size(item).store(static_cast<uint32_t>(std::min<size_t>(file_bytes_, UINT32_MAX)),
                          std::memory_order_relaxed);
  const ByteView encoded{file_.data(), file_bytes_};
  return executor_.run_encoded(encoded, sample.key, sample.image, &kept_) == Status::ok;
}

void PlanWorker::run_pixels(const CurrentSample& sample, uint64_t item) {
  const auto width = static_cast<int>(table_.width), channels = static_cast<int>(table_.channels);
  const PixelView image{table_.pixels(item), width, static_cast<int>(table_.height), channels,
                        static_cast<ptrdiff_t>(width) * channels};
  executor_.run_pixels(image, sample.key, sample.image);
}

void PlanWorker::sample_done() {
  WorkerRecord& record = queue_.record();
  executor_.times().move_to(record.part_ns);
  const uint64_t now = monotonic_ns();
  record.busy_ns.fetch_add(now - record.since_ns.load(std::memory_order_relaxed));
  record.samples.fetch_add(1);
  claim_->batch->progress()[tiny_batch_].fetch_add(1);
  if (++position_ < stop_)
    queue_.begin_sample(*claim_, tiny_batch_, position_);
  else
    finish_tiny_batch(TinyState::completed);
}

void PlanWorker::count_pillow_sample() { queue_.record().pillow_samples.fetch_add(1); }

void PlanWorker::sample_failed() { finish_tiny_batch(TinyState::failed); }

void PlanWorker::finish_tiny_batch(TinyState result) {
  queue_.finish(*claim_, tiny_batch_, result);
  if (++tiny_batch_ < claim_->first + claim_->count)
    advance();
  else
    claim_.reset();
}

bool PlanWorker::read_file(uint64_t item) {
  const File file(table_.path(item));
  struct stat info{};
  if (file.fd() < 0 || fstat(file.fd(), &info) != 0 || !S_ISREG(info.st_mode) ||
      info.st_size <= 0 || static_cast<size_t>(info.st_size) > kLargestFile)
    return false;
  kept_.begin(item, stamp_of(info));
  const auto expected = static_cast<size_t>(info.st_size);
  if (file_.size() < expected || file_.size() > 16 * expected + (size_t{1} << 22))
    file_ = std::vector<uint8_t>(expected + expected / 2);
  file_bytes_ = 0;
  while (file_bytes_ < expected) {
    const ssize_t got = read(file.fd(), file_.data() + file_bytes_, expected - file_bytes_);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    file_bytes_ += static_cast<size_t>(got);
  }
  return true;
}

}  // namespace fusionloader
