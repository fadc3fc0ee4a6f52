#include "worker/plan_worker.hpp"

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <stdexcept>

#include "queue/futex.hpp"

namespace fusionloader {

namespace {

constexpr int64_t kOrphanCheckNs = 500'000'000;

}  // namespace

PlanWorker::PlanWorker(const Site& home, int parent, int event_fd, const CacheStores& stores,
                       WorkerQueue* pool, bool fetches)
    : home_(home),
      at_(&home_),
      parent_(parent),
      kept_(stores),
      shared_(*home.queue, event_fd, pool != nullptr),
      pool_(pool),
      fetches_(fetches) {}

WorkerEvent PlanWorker::run(bool once) {
  for (;;) {
    while (claim_) {
      if (wants_fetch()) return WorkerEvent::fetch;
      if (!run_sample()) return WorkerEvent::sample;
      sample_done();
    }
    if (served_) return end(WorkerEvent::served);
    if (home_.queue->stopping()) return end(WorkerEvent::stopped);
    if (getppid() != parent_) return end(WorkerEvent::orphaned);
    if (pool_ != nullptr && pool_->is_sent()) return recall();
    const uint32_t seen = home_.queue->work_word();
    if (claim_at_home()) {
      served_ = once;
      if (!once) shared_.report(WorkerActivity::home);
      continue;
    }
    if (once) return end(WorkerEvent::idle);  // who only helps is not for others to send
    if (shared_.is_shared()) {
      if (!shared_.obey()) return end(WorkerEvent::assignment);
      if (claim_as_borrowed()) continue;
    }
    if (pool_ != nullptr) return end(WorkerEvent::idle);
    rest(seen);
  }
}

bool PlanWorker::claim_at_home() {
  claim_ = home_.queue->claim_next(1);
  if (!claim_) return false;
  at_ = &home_;
  tiny_batch_ = claim_->first;
  advance();
  return true;
}

bool PlanWorker::claim_as_borrowed() {
  claim_ = shared_.claim(1);
  if (!claim_) return false;
  at_ = &*borrower_;
  tiny_batch_ = claim_->first;
  advance();
  return true;
}

void PlanWorker::rest(uint32_t seen) {
  home_.queue->idle();
  shared_.report(WorkerActivity::idle);
  home_.queue->sleep(seen, kOrphanCheckNs);
}

WorkerEvent PlanWorker::recall() {
  shared_.withdraw();
  return end(WorkerEvent::recalled);
}

WorkerEvent PlanWorker::end(WorkerEvent event) {
  shared_.leave_guest_slot();
  home_.queue->idle();
  served_ = false;
  at_ = &home_;
  return event;
}

void PlanWorker::attach(uint32_t member, const Site& site) {
  borrower_ = site;
  shared_.attach(member, *site.queue);
}

void PlanWorker::detach() {
  shared_.detach();
  borrower_.reset();
}

void PlanWorker::advance() {
  const BatchHeader& header = claim_->batch->header;
  position_ = tiny_batch_ * header.tiny_size;
  stop_ = std::min(position_ + header.tiny_size, header.samples);
  asked_ = false;
  at_->queue->begin_span();
  at_->queue->begin_sample(*claim_, tiny_batch_, position_);
}

CurrentSample PlanWorker::current() {
  Batch& batch = *claim_->batch;
  const Entry& entry = batch.entries()[position_];
  const size_t row_bytes = at_->executor->result_bytes();
  const size_t images =
      (batch.header.payload_rows.load() * row_bytes + kAlign - 1) / kAlign * kAlign;
  uint8_t* payload = at_->queue->slot(batch.header.payload.load() - 1).data();
  return {
      claim_->sequence,
      tiny_batch_,
      entry.row,
      entry.item,
      {batch.header.seed, batch.header.epoch, entry.key, entry.occurrence, batch.group(entry.row)},
      payload + entry.row * row_bytes,
      reinterpret_cast<int64_t*>(payload + images) + entry.row};
}

bool PlanWorker::run_sample() {
  encoded_ = {};
  const CurrentSample sample = current();
  at_->executor->clear_tail(sample.image);
  if (comes_encoded()) return run_given(sample);
  const auto item = static_cast<uint64_t>(sample.item);
  if (item >= at_->table->count) return false;  // also -1, which stands for no index
  try {
    if (at_->table->holds_pixels())
      run_pixels(sample, item);
    else if (!run_file(sample, item))
      return false;
  } catch (const std::exception&) {
    return false;  // the caller gets the same error where it can be reported
  }
  *sample.target = at_->table->target(item);
  return true;
}

bool PlanWorker::run_given(const CurrentSample& sample) {
  const auto given = at_->queue->encoded(*claim_, static_cast<uint64_t>(sample.item));
  if (!given) return false;
  encoded_ = {reinterpret_cast<const uint8_t*>(given->data()), given->size()};
  count(WorkerCount::read_bytes, encoded_.size);
  if (encoded_.size == 0 || encoded_.size > SampleFiles::largest) return false;
  try {
    return at_->executor->run_encoded(encoded_, sample.key, sample.image) == Status::ok;
  } catch (const std::exception&) {
    return false;  // the caller gets the same error where it can be reported
  }
}

// Once a tiny-batch, and of its own rank's files alone; URLs are the same for all ranks.
bool PlanWorker::wants_fetch() {
  if (!fetches_ || asked_ || !may_be_supplied() || comes_encoded() || at_->table->holds_pixels())
    return false;
  asked_ = true;
  missing_.clear();
  encoded_ = {};  // which may be in what was supplied
  supplied_.clear();
  const Entry* entries = claim_->batch->entries();
  for (uint32_t position = position_; position < stop_; ++position) {
    const auto item = static_cast<uint64_t>(entries[position].item);
    if (item < at_->table->count && !kept_.holds(item)) missing_.push_back(item);
  }
  return !missing_.empty();
}

void PlanWorker::supply(uint64_t item, FileStamp stamp, ByteView encoded, bool is_hit,
                        uint64_t ns) {
  if (at_->table->holds_ranges()) {
    if (item >= at_->table->count || encoded.size != at_->table->range_bytes(item))
      throw std::invalid_argument("a range has another length than its sample");
    stamp = at_->table->range_stamp(item);
  }
  supplied_.push_back({item, stamp, {encoded.data, encoded.data + encoded.size}, is_hit, ns});
  at_->executor->times().ns[static_cast<size_t>(Part::read)] += ns;
}

// A borrowed worker uses the stores of its own rank: it is sent to ranks with the same files only,
// numbered alike.
bool PlanWorker::run_file(const CurrentSample& sample, uint64_t item) {
  if (kept_.keeps_files())
    if (const auto found = find_kept(item)) return run_kept(sample, item, *found);
  if (const Supplied* given = supplied(item)) return run_supplied(sample, *given);
  if (at_->table->is_remote()) return false;
  const uint64_t began = monotonic_ns();
  std::optional<SampleFiles::Read> read;
  {
    const PartTimes::Timed timed(at_->executor->times(), Part::read);
    read = files_.read(*at_->table, item);
  }
  if (!read) return false;
  encoded_ = read->encoded;
  count_read(monotonic_ns() - began);
  return run_bytes(sample, item, read->stamp, false);
}

std::optional<KeptFiles::Found> PlanWorker::find_kept(uint64_t item) {
  const PartTimes::Timed timed(at_->executor->times(), Part::read);
  if (!kept_.holds(item)) return std::nullopt;
  const auto stamp = files_.stamp(*at_->table, item);
  return stamp ? kept_.find(item, *stamp) : std::nullopt;
}

bool PlanWorker::run_kept(const CurrentSample& sample, uint64_t item,
                          const KeptFiles::Found& found) {
  count(found.where);
  encoded_ = found.encoded;
  if (!found.pixels) return run_bytes(sample, item, kept_.stamp(), true);
  at_->executor->run_pixels(*found.pixels, sample.key, sample.image);
  return true;
}

const PlanWorker::Supplied* PlanWorker::supplied(uint64_t item) const {
  if (!may_be_supplied()) return nullptr;
  const auto found = std::find_if(supplied_.begin(), supplied_.end(),
                                  [&](const Supplied& each) { return each.item == item; });
  return found == supplied_.end() ? nullptr : &*found;
}

bool PlanWorker::run_supplied(const CurrentSample& sample, const Supplied& given) {
  encoded_ = {given.encoded.data(), given.encoded.size()};
  if (given.is_hit)
    count(WorkerCount::cache_remote);
  else
    count_read(at_->table->is_remote() ? given.ns : 0);
  return run_bytes(sample, given.item, given.stamp, !at_->table->is_remote());
}

// With the time that it took, where this was the time of storage.
void PlanWorker::count_read(uint64_t ns) {
  if (CacheControl* measured = ns ? kept_.measured() : nullptr)
    measured->count_read(ns, encoded_.size);
  count(WorkerCount::read_bytes, encoded_.size);
  if (kept_.keeps_files()) count(WorkerCount::cache_missed);
}

bool PlanWorker::run_bytes(const CurrentSample& sample, uint64_t item, FileStamp stamp,
                           bool is_kept) {
  if (!at_->table->holds_ranges())
    at_->table->size(item).store(static_cast<uint32_t>(std::min<size_t>(encoded_.size, UINT32_MAX)),
                                 std::memory_order_relaxed);
  // However the run ends, what was begun to be filled is filled or given up.
  struct Filling {
    PlanWorker& worker;
    ~Filling() {
      if (worker.kept_.end()) worker.count(WorkerCount::cache_filled);
    }
  } filling{*this};
  stamp_ = stamp;
  kept_.begin(item, stamp, encoded_, is_kept);
  const uint64_t began = monotonic_ns();
  const Status done = at_->executor->run_encoded(encoded_, sample.key, sample.image, &kept_);
  CacheControl* measured = kept_.measured();
  if (measured && done == Status::ok && !kept_.tried_pixels())
    measured->count_window(monotonic_ns() - began);
  return done == Status::ok;
}

void PlanWorker::run_pixels(const CurrentSample& sample, uint64_t item) {
  const auto width = static_cast<int>(at_->table->width),
             channels = static_cast<int>(at_->table->channels);
  const PixelView image{at_->table->pixels(item), width, static_cast<int>(at_->table->height),
                        channels, static_cast<ptrdiff_t>(width) * channels};
  at_->executor->run_pixels(image, sample.key, sample.image);
}

void PlanWorker::sample_done() {
  WorkerRecord& record = at_->queue->record();
  at_->executor->times().move_to(record.part_ns);
  const uint64_t now = monotonic_ns();
  record.count(WorkerCount::busy_ns)
      .fetch_add(now - record.since_ns.load(std::memory_order_relaxed));
  record.count(WorkerCount::samples).fetch_add(1);
  claim_->batch->progress()[tiny_batch_].fetch_add(1);
  if (++position_ < stop_)
    at_->queue->begin_sample(*claim_, tiny_batch_, position_);
  else
    finish_tiny_batch(skipped_ ? TinyBatchState::skipped : TinyBatchState::completed);
}

void PlanWorker::sample_skipped() {
  skipped_ = true;
  sample_done();
}

void PlanWorker::count_pillow_sample() { count(WorkerCount::pillow_samples); }

void PlanWorker::sample_failed() { finish_tiny_batch(TinyBatchState::failed); }

void PlanWorker::give_back() {
  at_->queue->give_back(*claim_, tiny_batch_);
  next_tiny_batch();
}

void PlanWorker::finish_tiny_batch(TinyBatchState result) {
  // Before: who sees the mini-batch done sees its spans, too.
  at_->queue->end_span(*claim_, tiny_batch_, 1);
  at_->queue->finish(*claim_, tiny_batch_, result);
  next_tiny_batch();
}

void PlanWorker::next_tiny_batch() {
  skipped_ = false;
  if (++tiny_batch_ < claim_->first + claim_->count)
    advance();
  else
    claim_.reset();
}

}  // namespace fusionloader
