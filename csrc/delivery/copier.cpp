#include "delivery/copier.hpp"

#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "device/levels_to_elements.hpp"
#include "device/program_rows.hpp"

namespace fusionloader::delivery {
namespace {

using cuda::OnDevice;

// Rows of fewer bytes wait for the mini-batch: a copy takes longer to begin than they take.
constexpr uint64_t kLeastBytes = 4096;
// A shorter copy says little of how fast the way to the device is.
constexpr uint64_t kLeastTimed = 1 << 16;
constexpr int64_t kSleepNs = 100'000'000;
constexpr unsigned kThreads = 256, kLevelsOfThread = 16;

}  // namespace

Copier::Copier(ManagerQueue& queue, int device, uint64_t stream, std::optional<uint32_t> gpu_worker,
               std::optional<Conversion> conversion)
    : queue_(queue),
      device_(device),
      gpu_worker_(gpu_worker),
      conversion_(conversion),
      pid_(getpid()),
      stream_(stream) {
  const auto* programs = conversion_ ? std::get_if<ProgramRun>(&*conversion_) : nullptr;
  if (programs && (programs->rows_at_once == 0 || programs->rows_at_once % 32 != 0 ||
                   programs->rows_at_once > device::most_rows_augmented))
    throw std::invalid_argument("rows are augmented 32 to 4096 at a time, a multiple of 32");
  queue_.watch_completed(true);
  thread_ = std::make_unique<std::thread>([this] { run(); });
}

Copier::~Copier() {
  if (pid_ != getpid()) {  // there is no such thread in a forked child
    (void)thread_.release();
    return;
  }
  close();
}

void Copier::close() {
  if (closed_.exchange(true) || pid_ != getpid()) return;
  queue_.watch_completed(false);
  queue_.wake_completed();
  thread_->join();
}

std::shared_ptr<Copier::Ticket> Copier::begin(uint64_t slot, std::vector<LeafRows> leaves,
                                              uint64_t staging) {
  if (staging != 0 && (!conversion_ || leaves.empty()))
    throw std::invalid_argument("staging memory is for rows that are converted");
  Batch* batch = queue_.batch(slot);
  const BatchHeader& header = batch->header;
  auto ticket = std::make_shared<Ticket>(*this, ++numbers_);
  const std::lock_guard lock(mutex_);
  copying_.push_back({ticket->number_, batch, header.sequence.load(), std::move(leaves), staging,
                      std::vector<uint64_t>(header.tiny_batches),
                      std::vector<uint32_t>((header.samples + 31) / 32)});
  const OnDevice on(device_);
  advance(copying_.back());
  return ticket;
}

std::shared_ptr<cuda::Event> Copier::finish(const Ticket& ticket, uint64_t work) {
  const std::lock_guard lock(mutex_);
  Copying copying = take(ticket);
  if (failure_) std::rethrow_exception(failure_);
  const OnDevice on(device_);
  advance(copying);
  copy_rest(copying);
  if (copying.staging != 0)
    std::visit([&](const auto& with) { convert(copying, with, work); }, *conversion_);
  return std::make_shared<cuda::Event>(device_, stream_);
}

void Copier::drop(uint64_t number) {
  if (pid_ != getpid())
    return;  // in a forked child the parent's thread may hold the mutex for good
  const std::lock_guard lock(mutex_);
  copying_.remove_if([&](const Copying& each) { return each.number == number; });
}

Copier::Copying Copier::take(const Ticket& ticket) {
  const auto found = std::find_if(copying_.begin(), copying_.end(), [&](const Copying& each) {
    return each.number == ticket.number_;
  });
  if (found == copying_.end()) throw std::invalid_argument("no such mini-batch is being copied");
  Copying taken = std::move(*found);
  copying_.erase(found);
  return taken;
}

void Copier::run() {
  try {
    const OnDevice on(device_);
    const cuda::RelaxedCapture relaxed(on);
    while (!closed_.load()) {
      const uint32_t seen = queue_.completed_word();
      {
        const std::lock_guard lock(mutex_);
        for (Copying& copying : copying_) advance(copying);
        read_time();
      }
      queue_.sleep_until_completed(seen, kSleepNs);
    }
  } catch (const std::exception&) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
  }
}

// Copies the tiny-batches that have completed since the last time.
void Copier::advance(Copying& copying) {
  Batch& batch = *copying.batch;
  const BatchHeader& header = batch.header;
  for (uint32_t tiny_batch = 0; tiny_batch < header.tiny_batches; ++tiny_batch) {
    const uint64_t word = batch.states()[tiny_batch].load();
    // What is made a second time is in another state then.
    if (word == copying.seen[tiny_batch] || !is_written(StateWord::state(word))) continue;
    copying.seen[tiny_batch] = word;
    if (gpu_worker_ &&
        word == StateWord::make(copying.sequence, *gpu_worker_, TinyBatchState::completed))
      continue;
    std::vector<uint32_t> rows;
    const uint32_t begin = tiny_batch * header.tiny_size;
    for (uint32_t at = begin; at < std::min(begin + header.tiny_size, header.samples); ++at)
      rows.push_back(batch.entries()[at].row);
    for (const uint32_t row : rows) copying.which[row / 32] |= 1u << (row % 32);
    for (const LeafRows& leaf : copying.leaves)
      if (leaf.row_bytes >= kLeastBytes) copy_rows(copying, leaf, rows);
  }
}

// Copies rows of a leaf, neighbours together.
void Copier::copy_rows(const Copying& copying, const LeafRows& leaf, std::vector<uint32_t> rows) {
  const bool staged = copying.staging != 0 && &leaf == copying.leaves.data();
  const uint64_t to = staged ? copying.staging : leaf.to;
  std::sort(rows.begin(), rows.end());
  for (size_t first = 0, last; first < rows.size(); first = last) {
    for (last = first + 1; last < rows.size() && rows[last] == rows[last - 1] + 1;) ++last;
    const uint64_t offset = rows[first] * leaf.row_bytes, bytes = (last - first) * leaf.row_bytes;
    copy(to + offset, leaf.from + offset, bytes);
  }
}

void Copier::copy(uint64_t to, uint64_t from, uint64_t bytes) {
  std::unique_ptr<Measured> timed;
  if (bytes >= kLeastTimed && !measured_)
    timed.reset(new Measured{{device_, stream_, true}, nullptr, bytes});
  OnDevice(device_).copy(to, reinterpret_cast<const void*>(from), bytes, stream_);
  copied_bytes_ += bytes;
  if (!timed) return;
  timed->end = std::make_unique<cuda::Event>(device_, stream_, true);
  measured_ = std::move(timed);
}

// In the thread alone: training may be capturing a graph, where nothing may ask for events.
void Copier::read_time() {
  if (!measured_ || !measured_->end->query()) return;
  timed_seconds_ = timed_seconds_ + measured_->end->seconds_since(measured_->begin);
  timed_bytes_ += measured_->bytes;
  measured_.reset();
}

std::vector<uint32_t> Copier::rows_through_slot(const Copying& copying) const {
  std::vector<uint32_t> rows;
  for (uint32_t row = 0; row < copying.batch->header.samples; ++row)
    if (copying.which[row / 32] >> (row % 32) & 1) rows.push_back(row);
  return rows;
}

// Copies what has waited for the mini-batch: the small leaves, and of the others but the first what
// belongs to the GPU worker's samples.
void Copier::copy_rest(const Copying& copying) {
  const uint32_t samples = copying.batch->header.samples;
  for (const LeafRows& leaf : copying.leaves) {
    const bool first = &leaf == copying.leaves.data(), small = leaf.row_bytes < kLeastBytes;
    std::vector<uint32_t> rows;
    if (first) {
      if (small) rows = rows_through_slot(copying);
    } else {
      for (uint32_t row = 0; row < samples; ++row)
        if (small || !(copying.which[row / 32] >> (row % 32) & 1)) rows.push_back(row);
    }
    copy_rows(copying, leaf, std::move(rows));
  }
}

void Copier::convert(const Copying& copying, const LevelConversion& with, uint64_t) {
  const LeafRows& leaf = copying.leaves.front();
  const uint32_t samples = copying.batch->header.samples;
  for (uint32_t first = 0; first < samples; first += device::most_rows_converted) {
    const uint32_t count = std::min(samples - first, device::most_rows_converted);
    device::LevelRows rows{copying.staging,
                           leaf.to,
                           with.table,
                           static_cast<uint32_t>(leaf.row_bytes),
                           with.plane_levels,
                           with.element_bytes,
                           first,
                           {}};
    std::copy_n(copying.which.begin() + first / 32, (count + 31) / 32, rows.which);
    void* arguments[] = {&rows};
    const auto across = (rows.row_levels - 1) / (kThreads * kLevelsOfThread) + 1;
    OnDevice(device_).launch(with.kernel, {across, count, kThreads}, stream_, arguments);
  }
}

// Launches share the working memory: the stream runs one after the other.
void Copier::convert(const Copying& copying, const ProgramRun& with, uint64_t work) {
  const LeafRows& leaf = copying.leaves.front();
  const uint32_t samples = copying.batch->header.samples;
  for (uint32_t first = 0; first < samples; first += with.rows_at_once) {
    const uint32_t count = std::min(samples - first, with.rows_at_once);
    device::ProgramRows rows{
        copying.staging, leaf.to,           with.table,      work,  leaf.row_bytes,
        with.program,    with.result_bytes, with.work_bytes, first, {}};
    std::copy_n(copying.which.begin() + first / 32, (count + 31) / 32, rows.which);
    void* arguments[] = {&rows};
    OnDevice(device_).launch(with.kernel, {count, 1, device::threads_per_block}, stream_,
                             arguments);
  }
}

}  // namespace fusionloader::delivery
