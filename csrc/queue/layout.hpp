#pragma once
// The shared memory that the local manager and its workers agree on. Every field that two processes
// may touch at once is a lock-free atomic; nobody ever holds a lock, so nobody's death can hold
// one.
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "queue/parts.hpp"
#include "queue/trace_ring.hpp"
#include "queue/worker_counts.hpp"

namespace fusionloader {

using Atomic32 = std::atomic<uint32_t>;
using Atomic64 = std::atomic<uint64_t>;
static_assert(Atomic64::is_always_lock_free && Atomic32::is_always_lock_free);

constexpr uint64_t kMagic = 0x41726564616f4c46;  // "FLoaderA": another layout has another number
constexpr uint32_t kMaxSlots = 1 << 16;
constexpr size_t kAlign = 64;  // a cache line: neighbours do not disturb each other

// ---- control block -----------------------------------------------------------------------------

struct alignas(kAlign) ControlHeader {
  uint64_t magic;
  uint32_t workers;         // of the loader itself; guest slots have the numbers behind them
  uint32_t guest_slots;     // records for workers of other ranks, see worker_sharing.hpp
  uint32_t shareable;       // the first so many workers may be sent to other ranks
  uint32_t ring_size;       // mini-batches that can be in flight
  Atomic64 published;       // mini-batches published so far; their numbers are 0 .. published - 1
  Atomic64 oldest;          // the oldest one not delivered: workers look from here on
  Atomic32 stop;            // workers leave when it is not 0
  Atomic32 layout_version;  // counts up when the layout of Python samples becomes known
  Atomic64 layout_slot;     // where it stands, pickled
  Atomic64 layout_bytes;
  Atomic64 owner;    // identity of the training process
  Atomic32 watched;  // the global manager wants to know of mini-batches that are published
  Atomic32 tracing;  // workers write down what they do, each in its TraceRing
  // A GPU worker takes mini-batches from their large end. It says when it is ready to, once; the
  // manager says whether it may (GpuState), and how many last tiny-batches are left to it
  // meanwhile.
  Atomic32 gpu_ready;
  Atomic32 gpu_state;
  Atomic32 gpu_inside;  // it looks for work or works; set before it looks at gpu_state
  Atomic32 gpu_beside;  // it works while training does, which waits for none of its launches
  Atomic32 threshold;
  alignas(kAlign) Atomic32 work_word;  // futex: changes when there is something to claim
  Atomic32 sleeping_workers;
  alignas(kAlign) Atomic32 done_word;  // futex: changes when the manager should look
  Atomic32 manager_sleeps;
  // Somebody copies tiny-batches as they complete: `completed_word` changes with each then.
  alignas(kAlign) Atomic32 completed_word;
  Atomic32 watches_completed;
};

enum class GpuState : uint32_t {
  off = 0,     // CPU workers are alone
  closed = 1,  // not now: training is using the device
  open = 2,
};

// Who works on a mini-batch.
enum class Side : uint32_t { cpu = 0, gpu = 1 };

// What a worker that may be sent to other ranks does, as it last said.
enum class WorkerActivity : uint32_t {
  absent = 0,  // there is no such worker now
  idle = 1,
  home = 2,      // works for its own rank
  borrowed = 3,  // works for another one
};

// What a worker is at; read by the manager for warnings, statistics and recovery.
struct alignas(kAlign) WorkerRecord {
  Atomic32 pid;
  Atomic32 tiny_batch;
  Atomic64 sequence;                      // of the mini-batch that it works on, plus 1; 0 when idle
  Atomic64 position;                      // of the sample in the mini-batch
  Atomic64 since_ns;                      // CLOCK_MONOTONIC at the start of that sample
  Atomic64 counts[kWorkerCounts.size()];  // as in queue/worker_counts.hpp
  Atomic64 images[kImageCounts];
  Atomic64 part_ns[kParts];  // wall time of a compiled plan's parts, as in queue/parts.hpp
  // Of a worker that may be sent to other ranks, see worker_sharing.hpp.
  Atomic64 assignment;
  Atomic64 answered;
  Atomic32 activity;  // a WorkerActivity
  Atomic64 owner;     // of a guest slot: identity of the process that has it; 0: free

  Atomic64& count(WorkerCount what) { return counts[place(what)]; }
  const Atomic64& count(WorkerCount what) const { return counts[place(what)]; }
};

struct SlotEntry {  // where a slot lies in the data object; never changes once written
  Atomic64 offset;
  Atomic64 bytes;
};

struct Control {
  ControlHeader header;
  // followed by: WorkerRecord[workers + guest slots], Atomic64 ring[ring_size] (slot numbers),
  // SlotEntry[kMaxSlots], TraceRing[workers + guest slots]: untouched, and so without memory, as
  // long as nobody traces

  WorkerRecord* records() { return reinterpret_cast<WorkerRecord*>(this + 1); }
  Atomic64* ring() { return reinterpret_cast<Atomic64*>(records() + record_count()); }
  uint32_t record_count() const { return header.workers + header.guest_slots; }
  SlotEntry* slots() { return reinterpret_cast<SlotEntry*>(ring() + header.ring_size); }
  TraceRing* trace_rings() {
    auto* start = reinterpret_cast<uint8_t*>(this);
    return reinterpret_cast<TraceRing*>(start + trace_rings_at(record_count(), header.ring_size));
  }
  static size_t bytes(uint32_t records, uint32_t ring_size) {
    return trace_rings_at(records, ring_size) + records * sizeof(TraceRing);
  }

 private:
  static size_t trace_rings_at(uint32_t records, uint32_t ring_size) {
    const size_t before = sizeof(Control) + records * sizeof(WorkerRecord) +
                          ring_size * sizeof(Atomic64) + kMaxSlots * sizeof(SlotEntry);
    return (before + kAlign - 1) / kAlign * kAlign;
  }
};

// ---- descriptor of a mini-batch, in a slot of its own: it is free again on delivery -------------

// The values are arbitrary bits that ordinary data does not have: a worker that slept between the
// two steps of a claim may look for a state word where a later descriptor has a count or a row.
enum class TinyBatchState : uint16_t {
  waiting = 0xb5a3,
  active = 0x9d6e,
  completed = 0xe2c7,
  failed = 0xc8f1,   // an exception; the worker has sent it to the manager
  spilled = 0xa71d,  // samples did not fit the layout; the worker has sent them to the manager
  skipped = 0xd43b,  // completed, with samples left out or replaced; the worker has sent which
};

// Whether all rows of a tiny-batch that are to be delivered are in the payload.
constexpr bool is_written(TinyBatchState state) {
  return state == TinyBatchState::completed || state == TinyBatchState::skipped;
}

// One tiny-batch: [mini-batch number : 32 | claimant : 16 | state : 16]. The compare-and-swap on
// this word decides who does a tiny-batch; the queue word below only says where to look next.
struct StateWord {
  static uint64_t make(uint64_t sequence, uint32_t worker, TinyBatchState state) {
    return (sequence << 32) | (uint64_t{worker & 0xffff} << 16) | static_cast<uint16_t>(state);
  }
  static uint32_t worker(uint64_t word) { return static_cast<uint32_t>(word >> 16) & 0xffff; }
  static TinyBatchState state(uint64_t word) { return static_cast<TinyBatchState>(word & 0xffff); }
};

constexpr uint32_t kMaxTinyBatches = 0xfffff;

// The unclaimed middle of a mini-batch: [tag : 24 | tail : 20 | head : 20]. CPU workers take at the
// head (smallest samples), a GPU worker at the tail; alone, CPU workers take at the tail. The tag
// is that of the sequence: who was stopped within a claim would have to sleep for 16 million
// publications, to one of them, to take the word of another mini-batch for this one's.
struct QueueWord {
  static uint64_t make(uint64_t sequence, uint64_t head, uint64_t tail) {
    return (sequence << 40) | (tail << 20) | head;
  }
  static uint32_t head(uint64_t word) { return static_cast<uint32_t>(word & kMaxTinyBatches); }
  static uint32_t tail(uint64_t word) {
    return static_cast<uint32_t>((word >> 20) & kMaxTinyBatches);
  }
  static bool of(uint64_t word, uint64_t sequence) { return (word >> 40) == (sequence & 0xffffff); }
};

struct Entry {          // one sample, in the order of the tiny-batches (smallest first)
  int64_t item;         // number of the sample in the dataset's table, or its position
  uint64_t key;         // index for the random draws
  uint32_t occurrence;  // how often this index came up before in the epoch
  uint32_t row;         // of the batch
};

struct EncodedImage {  // where its bytes lie in the descriptor's slot
  uint64_t offset;
  uint64_t bytes;
};

// What one side has done of a mini-batch.
struct Share {
  Atomic64 finished_ns;  // CLOCK_MONOTONIC when it finished its last tiny-batch
  Atomic32 tiny_batches;
  Atomic32 samples;
};

struct alignas(kAlign) BatchHeader {
  Atomic64 queue;
  Atomic64 sequence;
  Atomic32 returned;  // tiny-batches came back from a dead worker: look through the states
  uint32_t samples;
  uint32_t tiny_batches;
  uint32_t tiny_size;  // samples in a tiny-batch; the last one may have fewer
  uint64_t seed;
  uint64_t epoch;
  uint64_t number;      // of the mini-batch in its epoch
  uint32_t group_size;  // neighbours in the batch that share the draws of augmentations; 0: none do
  Atomic64 payload;     // number of the slot with the rows, plus 1; 0 until their layout is known
  Atomic64 payload_rows;  // rows that the payload is laid out for
  uint64_t indices;       // offset of the pickled indices, when they are not plain integers
  uint64_t indices_bytes;
  // Encoded images that came with the mini-batch: offset of their EncodedImage[], and how many. An
  // entry's item is then a number among them. None where samples are of the dataset's table.
  uint64_t encoded;
  uint32_t encoded_images;
  // Number of the buffer that the GPU worker writes its rows into, plus 1 (on the CPU backend,
  // where that is the payload, just not 0); 0: the GPU worker leaves the mini-batch alone.
  Atomic32 gpu_rows;
  Atomic32 claimant;   // number of the only worker that may claim it, plus 1; 0: any may
  Atomic32 spread;     // workers that begin at a part of their own, see queue.hpp; 0: none do
  Atomic64 begun_ns;   // CLOCK_MONOTONIC at the first claim; 0 before it
  Atomic32 threshold;  // the one in force then
  Share shares[2];     // by Side
};

struct Batch {
  BatchHeader header;
  // followed by: Atomic64 states[tiny_batches], Atomic32 progress[tiny_batches], Entry[samples],
  // the pickled indices, or EncodedImage[encoded_images] and the bytes of the images

  // What the samples of a row's group share, never 0; 0 where every sample is by itself.
  uint64_t group(uint32_t row) const {
    if (header.group_size == 0) return 0;
    return (header.number << 24 | row / header.group_size) << 1 | 1;
  }
  Atomic64* states() { return reinterpret_cast<Atomic64*>(this + 1); }
  Atomic32* progress() { return reinterpret_cast<Atomic32*>(states() + header.tiny_batches); }
  Entry* entries() {
    const size_t counts = (header.tiny_batches * sizeof(Atomic32) + 7) / 8 * 8;
    return reinterpret_cast<Entry*>(reinterpret_cast<uint8_t*>(progress()) + counts);
  }
  uint8_t* at(uint64_t offset) { return reinterpret_cast<uint8_t*>(this) + offset; }
  static size_t descriptor_bytes(size_t samples, size_t tiny_batches) {
    return sizeof(Batch) + tiny_batches * sizeof(Atomic64) +
           (tiny_batches * sizeof(Atomic32) + 7) / 8 * 8 + samples * sizeof(Entry);
  }
};

}  // namespace fusionloader
