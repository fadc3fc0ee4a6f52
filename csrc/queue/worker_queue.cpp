#include "queue/worker_queue.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "queue/futex.hpp"
#include "queue/identity.hpp"
#include "queue/parts.hpp"
#include "queue/processor_time.hpp"
#include "queue/worker_sharing.hpp"

namespace fusionloader {

namespace {
constexpr uint64_t kProcessorPeriodNs = 10'000'000;
// Of how many mini-batches a worker takes its own part before it takes others' parts: enough that
// workers with a small part do not run dry, and few enough that the oldest is not late.
constexpr uint64_t kOwnParts = 2;
thread_local ProcessorTime processor_time;
}  // namespace

WorkerQueue::WorkerQueue(int control_fd, int data_fd, uint32_t worker, Side side,
                         bool takes_returned)
    : Shared(control_fd, data_fd),
      worker_(worker),
      side_(side),
      takes_returned_(takes_returned && side == Side::cpu) {
  check_control();
  if (worker >= control_->record_count()) throw std::out_of_range("worker number");
  processor_time = ProcessorTime::now(monotonic_ns());
}

std::optional<Claim> WorkerQueue::claim(End end, uint32_t threshold, uint32_t count) {
  ControlHeader& header = control_->header;
  const uint64_t oldest = header.oldest.load(), published = header.published.load();
  for (uint64_t sequence = oldest; sequence < std::min(published, oldest + kOwnParts); ++sequence) {
    Batch* batch = this->batch(control_->ring()[sequence % header.ring_size].load());
    if (!is_spread(*batch)) continue;
    if (auto claimed = claim_part(*batch, sequence, count, false)) return claimed;
  }
  for (uint64_t sequence = oldest; sequence < published; ++sequence) {
    Batch* batch = this->batch(control_->ring()[sequence % header.ring_size].load());
    if (auto claimed = claim_from(*batch, sequence, end, threshold, count)) return claimed;
  }
  return std::nullopt;
}

std::optional<Claim> WorkerQueue::claim_part(Batch& batch, uint64_t sequence, uint32_t count,
                                             bool all_around) {
  const uint64_t spread = std::max(batch.header.spread.load(), 1u);  // it may be written anew
  const uint64_t all = batch.header.tiny_batches, mine = worker_ % spread;
  const uint64_t begin = mine * all / spread, end = (mine + 1) * all / spread;
  if (!QueueWord::of(batch.header.queue.load(), sequence))
    return std::nullopt;  // withdrawn, or new
  for (uint64_t at = begin; at < (all_around ? begin + all : end); ++at) {
    const auto first = static_cast<uint32_t>(at % all);
    if (!take(batch, sequence, first)) continue;
    const uint64_t limit = std::min(at < end ? end : all, first + uint64_t{count});
    uint32_t stop = first + 1;
    while (stop < limit && take(batch, sequence, stop)) ++stop;
    return Claim{sequence, first, stop - first, &batch};
  }
  return std::nullopt;
}

std::optional<Claim> WorkerQueue::claim_next(uint32_t count) {
  if (side_ == Side::gpu) return claim_when_open(count);
  ControlHeader& header = control_->header;
  const auto state = static_cast<GpuState>(header.gpu_state.load());
  if (state == GpuState::off) return claim(End::large, 0, count);
  return claim(End::small, header.threshold.load(), count);
}

std::optional<Claim> WorkerQueue::claim_small(uint32_t count) {
  const ControlHeader& header = control_->header;
  const bool alone = static_cast<GpuState>(header.gpu_state.load()) == GpuState::off;
  return claim(End::small, alone ? 0 : header.threshold.load(), count);
}

uint32_t WorkerQueue::ready() {
  const ControlHeader& header = control_->header;
  const uint64_t oldest = header.oldest.load(), published = header.published.load();
  for (uint64_t sequence = oldest; sequence < published; ++sequence) {
    Batch& batch = *this->batch(control_->ring()[sequence % header.ring_size].load());
    for (uint32_t t = 0; t < batch.header.tiny_batches; ++t) {
      const TinyBatchState state = StateWord::state(batch.states()[t].load());
      if (state == TinyBatchState::waiting || state == TinyBatchState::active)
        return static_cast<uint32_t>(sequence - oldest);
    }
  }
  return static_cast<uint32_t>(published - std::min(oldest, published));
}

WorkerQueue::Work WorkerQueue::work_of(uint32_t first, uint32_t count) {
  Work work{};
  const uint32_t end = std::min(control_->record_count(), first + count);
  for (uint32_t worker = first; worker < end; ++worker) {
    work.samples += control_->records()[worker].count(WorkerCount::samples).load();
    work.busy_ns += control_->records()[worker].count(WorkerCount::busy_ns).load();
  }
  return work;
}

bool WorkerQueue::take_guest_slot(uint32_t guest_slot, uint64_t identity) {
  if (guest_slot < control_->header.workers || guest_slot >= control_->record_count()) return false;
  if (identity == 0) return false;  // /proc could not be read: the slot would look free
  uint64_t nobody = 0;
  if (!control_->records()[guest_slot].owner.compare_exchange_strong(nobody, identity))
    return false;
  worker_ = guest_slot;
  takes_returned_ = false;
  record().pid.store(pid_of(identity));
  return true;
}

void WorkerQueue::leave_guest_slot() {
  idle();
  record().pid.store(0);  // who looks for stopped processes takes no later one for this
  record().owner.store(0);
}

uint32_t WorkerQueue::answer() {
  const uint64_t assignment = record().assignment.load();
  record().answered.store(assignment);
  return Assignment::member(assignment);
}

std::optional<Claim> WorkerQueue::claim_as_borrowed(uint64_t assignment, uint32_t count) {
  ControlHeader& header = control_->header;
  const bool alone = static_cast<GpuState>(header.gpu_state.load()) == GpuState::off;
  const End end = alone ? End::large : End::small;
  const uint32_t threshold = alone ? 0 : header.threshold.load();
  const uint64_t published = header.published.load();
  for (uint64_t sequence = header.oldest.load(); sequence < published; ++sequence) {
    if (!Assignment::covers(assignment, sequence)) break;
    Batch* batch = this->batch(control_->ring()[sequence % header.ring_size].load());
    if (batch->header.payload.load() == 0) continue;
    if (auto claimed = claim_from(*batch, sequence, end, threshold, count)) return claimed;
  }
  return std::nullopt;
}

std::optional<Claim> WorkerQueue::claim_when_open(uint32_t count) {
  ControlHeader& header = control_->header;
  // Before the look: who closes sees one of the two. It may be inside with an earlier claim.
  const bool was_inside = header.gpu_inside.exchange(1) != 0;
  std::optional<Claim> claimed;
  if (static_cast<GpuState>(header.gpu_state.load()) == GpuState::open)
    claimed = claim(End::large, 0, count);
  if (!claimed && !was_inside) leave();
  return claimed;
}

void WorkerQueue::leave() {
  ControlHeader& header = control_->header;
  header.gpu_inside.store(0);
  // Who has closed may be waiting for this.
  if (static_cast<GpuState>(header.gpu_state.load()) != GpuState::open) wake_manager();
}

std::optional<Claim> WorkerQueue::claim_from(Batch& batch, uint64_t sequence, End end,
                                             uint32_t threshold, uint32_t count) {
  // If the descriptor is written anew after this look, the claim fails below.
  const uint32_t claimant = batch.header.claimant.load();
  if (claimant != 0 && claimant != worker_ + 1) return std::nullopt;
  if (is_spread(batch)) return claim_part(batch, sequence, count, true);
  const bool for_gpu = batch.header.gpu_rows.load() != 0;
  if (side_ == Side::gpu && !for_gpu) return std::nullopt;
  const uint32_t all = batch.header.tiny_batches;
  const uint32_t ours = for_gpu ? all - std::min(threshold, all) : all;
  uint64_t word = batch.header.queue.load();
  while (QueueWord::of(word, sequence)) {
    const uint32_t head = QueueWord::head(word);
    const uint32_t tail = QueueWord::tail(word);
    const uint32_t limit = end == End::small ? std::min(tail, ours) : tail;
    if (head >= limit) break;
    const uint32_t taken = std::min(count, limit - head);
    const uint32_t first = end == End::small ? head : tail - taken;
    const uint64_t next = end == End::small ? QueueWord::make(sequence, head + taken, tail)
                                            : QueueWord::make(sequence, head, first);
    if (!batch.header.queue.compare_exchange_weak(word, next)) continue;
    // Between the two steps a tiny-batch can go to somebody who looks through the states; the
    // claim is then what is left of it.
    uint32_t begin = first;
    while (begin < first + taken && !take(batch, sequence, begin)) ++begin;
    uint32_t stop = begin;
    while (stop < first + taken && (stop == begin || take(batch, sequence, stop))) ++stop;
    if (stop < first + taken) batch.header.returned.store(1);  // the rest is found by looking
    if (stop > begin) return Claim{sequence, begin, stop - begin, &batch};
    word = batch.header.queue.load();
  }
  // What comes back may be what a GPU worker, or a worker elsewhere, could not do.
  if (!takes_returned_ || batch.header.returned.load() == 0 ||
      batch.header.sequence.load() != sequence)
    return std::nullopt;
  const uint64_t now = batch.header.queue.load();
  for (uint32_t t = 0; t < batch.header.tiny_batches; ++t) {
    if (t >= QueueWord::head(now) && t < QueueWord::tail(now)) continue;
    if (take(batch, sequence, t)) return Claim{sequence, t, 1, &batch};
  }
  return std::nullopt;
}

bool WorkerQueue::take(Batch& batch, uint64_t sequence, uint32_t tiny_batch) {
  Atomic64& state = batch.states()[tiny_batch];
  uint64_t expected = StateWord::make(sequence, 0, TinyBatchState::waiting);
  // A look first: a search meets many that are taken, and a swap would take their cache lines.
  if (state.load() != expected ||
      !state.compare_exchange_strong(expected,
                                     StateWord::make(sequence, worker_, TinyBatchState::active)))
    return false;
  batch.progress()[tiny_batch].store(0);
  uint64_t never = 0;
  if (batch.header.begun_ns.load() == 0 &&
      batch.header.begun_ns.compare_exchange_strong(never, monotonic_ns()))
    batch.header.threshold.store(control_->header.threshold.load());
  return true;
}

bool WorkerQueue::finish(const Claim& claim, uint32_t tiny_batch, TinyBatchState result) {
  note_share(claim, tiny_batch);  // before: who sees the mini-batch done sees all of it
  uint64_t expected = StateWord::make(claim.sequence, worker_, TinyBatchState::active);
  if (!claim.batch->states()[tiny_batch].compare_exchange_strong(
          expected, StateWord::make(claim.sequence, worker_, result)))
    return false;
  tell_completed();
  // Whoever finishes last sees every other state final, so one of two simultaneous ones wakes.
  for (uint32_t t = 0; t < claim.batch->header.tiny_batches; ++t) {
    const TinyBatchState state = StateWord::state(claim.batch->states()[t].load());
    if (state == TinyBatchState::waiting || state == TinyBatchState::active) return true;
  }
  wake_manager();
  return true;
}

void WorkerQueue::note_share(const Claim& claim, uint32_t tiny_batch) {
  BatchHeader& header = claim.batch->header;
  Share& mine = header.shares[static_cast<size_t>(side_)];
  const uint32_t begin = tiny_batch * header.tiny_size;
  mine.samples.fetch_add(std::min(header.tiny_size, header.samples - begin));
  mine.tiny_batches.fetch_add(1);
  const uint64_t now = monotonic_ns();
  mine.finished_ns.store(now);
  count_processor_time(now);
}

// What the thread got since the last time, on whichever queue: a worker may work on several. Not
// after each tiny-batch, which may take a microsecond.
void WorkerQueue::count_processor_time(uint64_t now_ns) {
  if (now_ns - processor_time.seen_ns < kProcessorPeriodNs) return;
  const ProcessorTime before = std::exchange(processor_time, ProcessorTime::now(now_ns));
  const auto add = [&](WorkerCount what, uint64_t earlier, uint64_t later) {
    if (later > earlier) record().count(what).fetch_add(later - earlier);
  };
  add(WorkerCount::cpu_ns, before.cpu_ns, processor_time.cpu_ns);
  add(WorkerCount::run_delay_ns, before.run_delay_ns, processor_time.run_delay_ns);
}

void WorkerQueue::give_back(const Claim& claim, uint32_t tiny_batch) {
  uint64_t held = StateWord::make(claim.sequence, worker_, TinyBatchState::active);
  if (!claim.batch->states()[tiny_batch].compare_exchange_strong(
          held, StateWord::make(claim.sequence, 0, TinyBatchState::waiting)))
    return;
  // A look at the word after the state: withdraw() does it the other way round, so one of the two
  // sees the other. Of a withdrawn mini-batch nothing is to be claimed any more, so `returned`, by
  // which it would be found, is set after that look.
  if (QueueWord::of(claim.batch->header.queue.load(), claim.sequence))
    claim.batch->header.returned.store(1);
  else
    drop_waiting(*claim.batch, claim.sequence, tiny_batch);
  wake_workers();
}

std::optional<std::string_view> WorkerQueue::encoded(const Claim& claim, uint64_t image) {
  const uint64_t number = control_->ring()[claim.sequence % control_->header.ring_size].load();
  const Mapping& memory = slot(number);
  const uint64_t table = claim.header().encoded, bytes = memory.bytes();
  if (image >= claim.header().encoded_images || table > bytes ||
      image >= (bytes - table) / sizeof(EncodedImage))
    return std::nullopt;
  EncodedImage entry;
  std::memcpy(&entry, memory.data() + table + image * sizeof entry, sizeof entry);
  if (entry.offset > bytes || entry.bytes > bytes - entry.offset) return std::nullopt;
  return std::string_view{reinterpret_cast<const char*>(memory.data() + entry.offset), entry.bytes};
}

void WorkerQueue::sleep(uint32_t seen, int64_t timeout_ns) {
  ControlHeader& header = control_->header;
  header.sleeping_workers.fetch_add(1);
  futex_wait(header.work_word, seen, timeout_ns);
  header.sleeping_workers.fetch_sub(1);
}

void WorkerQueue::begin_sample(const Claim& claim, uint32_t tiny_batch, uint64_t position) {
  begin_sample(claim, tiny_batch, position, monotonic_ns());
}

void WorkerQueue::begin_sample(const Claim& claim, uint32_t tiny_batch, uint64_t position,
                               uint64_t now_ns) {
  sample_ = position;
  WorkerRecord& mine = record();
  mine.since_ns.store(now_ns, std::memory_order_relaxed);
  mine.tiny_batch.store(tiny_batch, std::memory_order_relaxed);
  mine.position.store(position, std::memory_order_relaxed);
  mine.sequence.store(claim.sequence + 1, std::memory_order_release);
}

uint64_t WorkerQueue::end_samples(const Claim& claim, uint32_t tiny_batch, uint32_t samples) {
  sample_.reset();
  WorkerRecord& mine = record();
  const uint64_t now_ns = monotonic_ns();
  mine.count(WorkerCount::busy_ns).fetch_add(now_ns - mine.since_ns.load());
  mine.count(WorkerCount::samples).fetch_add(samples);
  claim.batch->progress()[tiny_batch].fetch_add(samples);
  return now_ns;
}

void WorkerQueue::add_part_ns(const std::vector<uint64_t>& ns) {
  for (size_t part = 0; part < std::min(ns.size(), kParts); ++part)
    record().part_ns[part].fetch_add(ns[part]);
}

void WorkerQueue::add_images(const std::vector<int64_t>& counts) {
  if (counts.size() > kImageCounts) throw std::out_of_range("more counts than words");
  for (size_t i = 0; i < counts.size(); ++i)
    record().images[i].fetch_add(static_cast<uint64_t>(counts[i]));
}

// Sums of the worker's record, as a span has them.
TraceRecord WorkerQueue::counted() {
  const WorkerRecord& mine = record();
  const auto ns = [&](Part part) { return mine.part_ns[static_cast<size_t>(part)].load(); };
  TraceRecord sums{};
  sums.read_ns = ns(Part::read);
  sums.decode_ns = ns(Part::passes);
  sums.python_ns = ns(Part::python);
  sums.write_ns = ns(Part::write);
  sums.read_bytes = mine.count(WorkerCount::read_bytes).load();
  for (size_t part = static_cast<size_t>(Part::first_stage); part < kParts; ++part)
    sums.augment_ns += mine.part_ns[part].load();
  sums.samples = static_cast<uint32_t>(mine.count(WorkerCount::samples).load());
  sums.pid = mine.pid.load();
  return sums;
}

void WorkerQueue::begin_span() {
  span_.reset();
  if (control_->header.tracing.load(std::memory_order_relaxed) == 0) return;
  span_ = counted();
  span_->begin_ns = monotonic_ns();
  span_busy_ns_ = record().count(WorkerCount::busy_ns).load();
}

void WorkerQueue::end_span(const Claim& claim, uint32_t first, uint32_t count,
                           bool rest_is_python) {
  if (!span_ || control_->header.tracing.load() == 0) return;
  const TraceRecord& before = *span_;
  TraceRecord span = counted();
  span.sequence = claim.sequence;
  span.begin_ns = before.begin_ns;
  span.end_ns = monotonic_ns();
  span.read_ns -= before.read_ns;
  span.decode_ns -= before.decode_ns;
  span.augment_ns -= before.augment_ns;
  span.python_ns -= before.python_ns;
  span.write_ns -= before.write_ns;
  span.read_bytes -= before.read_bytes;
  span.samples -= before.samples;
  span.first = first;
  span.count = count;
  if (rest_is_python) {
    const uint64_t others = span.read_ns + span.decode_ns + span.augment_ns;
    const uint64_t busy = record().count(WorkerCount::busy_ns).load() - span_busy_ns_;
    span.python_ns = std::max(busy, others) - others;
  }
  control_->trace_rings()[worker_].push(span);
  span_.reset();
}

void WorkerQueue::add_reads(uint64_t bytes, const std::array<uint64_t, kCacheCounts>& counts) {
  record().count(WorkerCount::read_bytes).fetch_add(bytes);
  Atomic64* of_cache = &record().count(WorkerCount::cache_decoded);
  for (size_t i = 0; i < kCacheCounts; ++i) of_cache[i].fetch_add(counts[i]);
}

void WorkerQueue::add_files(uint64_t opened, uint64_t reused) {
  record().count(WorkerCount::files_opened).fetch_add(opened);
  record().count(WorkerCount::files_reused).fetch_add(reused);
}

std::string_view WorkerQueue::layout() {
  const ControlHeader& header = control_->header;
  return {reinterpret_cast<const char*>(slot(header.layout_slot.load()).data()),
          header.layout_bytes.load()};
}

}  // namespace fusionloader
