// The local manager's half of the queue, and what it reads there.
#include "queue/manager_queue.hpp"

#include <pybind11/native_enum.h>
#include <pybind11/stl.h>

#include <cstring>
#include <deque>
#include <numeric>
#include <utility>

#include "bindings/buffers.hpp"
#include "bindings/gil.hpp"
#include "bindings/module.hpp"
#include "bindings/python_types.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace fusionloader {
namespace {

void bind_states(py::module_& m) {
  py::native_enum<TinyBatchState>(m, "TinyBatchState", "enum.Enum", "What becomes of a tiny-batch.")
      .value("WAITING", TinyBatchState::waiting)
      .value("ACTIVE", TinyBatchState::active)
      .value("COMPLETED", TinyBatchState::completed)
      .value("FAILED", TinyBatchState::failed)
      .value("SPILLED", TinyBatchState::spilled)
      .value("SKIPPED", TinyBatchState::skipped)
      .finalize();
  py::native_enum<GpuState>(m, "GpuState", "enum.Enum",
                            "Whether the GPU worker may claim; OFF: there is none.")
      .value("OFF", GpuState::off)
      .value("CLOSED", GpuState::closed)
      .value("OPEN", GpuState::open)
      .finalize();
}

void bind_values(py::module_& m) {
  py::class_<BatchStatus>(m, "BatchStatus",
                          "How many tiny-batches of a mini-batch are in which state.")
      .def_readonly("waiting", &BatchStatus::waiting)
      .def_readonly("active", &BatchStatus::active)
      .def_readonly("completed", &BatchStatus::completed)
      .def_readonly("failed", &BatchStatus::failed)
      .def_readonly("spilled", &BatchStatus::spilled)
      .def_readonly("skipped", &BatchStatus::skipped, "Of the completed ones.")
      .def_property_readonly("done", &BatchStatus::done, "Whether none is waiting or active.");
  py::class_<SideShare>(m, "SideShare",
                        "What the CPU workers or the GPU worker did of a mini-batch.")
      .def_readonly("tiny_batches", &SideShare::tiny_batches)
      .def_readonly("samples", &SideShare::samples)
      .def_property_readonly("finished_seconds", in_seconds(&SideShare::finished_ns),
                             "CLOCK_MONOTONIC when the last of them was finished.");
  py::class_<BatchShares>(m, "BatchShares", "Who did how much of a mini-batch.")
      .def_property_readonly("begun_seconds", in_seconds(&BatchShares::begun_ns),
                             "CLOCK_MONOTONIC at the first claim; 0.0 before it.")
      .def_readonly("threshold", &BatchShares::threshold, "The one in force at the first claim.")
      .def_readonly("cpu", &BatchShares::cpu)
      .def_readonly("gpu", &BatchShares::gpu);
  py::class_<LostTinyBatch>(m, "LostTinyBatch", "A tiny-batch that a dead worker had claimed.")
      .def_readonly("sequence", &LostTinyBatch::sequence)
      .def_readonly("tiny_batch", &LostTinyBatch::tiny_batch);
  py::class_<HeldTinyBatch>(m, "HeldTinyBatch", "A tiny-batch and the worker that has it.")
      .def_readonly("tiny_batch", &HeldTinyBatch::tiny_batch)
      .def_readonly("worker", &HeldTinyBatch::worker);
  py::class_<WorkerSnapshot>(m, "WorkerSnapshot", "A worker's record, as it is at one moment.")
      .def_readonly("pid", &WorkerSnapshot::pid, "0 before it has begun.")
      .def_readonly("sequence", &WorkerSnapshot::sequence,
                    "The mini-batch that it works on; None when idle.")
      .def_readonly("tiny_batch", &WorkerSnapshot::tiny_batch)
      .def_readonly("position", &WorkerSnapshot::position,
                    "Of its sample, in the order of the tiny-batches.")
      .def_property_readonly("since_seconds", in_seconds(&WorkerSnapshot::since_ns),
                             "CLOCK_MONOTONIC at the start of that sample.")
      .def_property_readonly(
          "samples", [](const WorkerSnapshot& seen) { return seen.count(WorkerCount::samples); },
          "Samples done so far.")
      .def_property_readonly(
          "busy_seconds",
          [](const WorkerSnapshot& seen) { return to_seconds(seen.count(WorkerCount::busy_ns)); },
          "Wall time spent on samples.")
      .def_property_readonly(
          "cpu_seconds",
          [](const WorkerSnapshot& seen) { return to_seconds(seen.count(WorkerCount::cpu_ns)); },
          "Processor time of its thread, which is looked at every 10 ms.")
      .def_property_readonly(
          "run_delay_seconds",
          [](const WorkerSnapshot& seen) {
            return to_seconds(seen.count(WorkerCount::run_delay_ns));
          },
          "Time that its thread was ready to run while other threads had the cores.")
      .def_readonly("counts", &WorkerSnapshot::counts, "What it has counted, as `names()` says.")
      .def_readonly("images", &WorkerSnapshot::images,
                    "What it has counted of deferred images, as `add_images` got it.")
      .def_static(
          "names",
          [] { return std::vector<std::string>(kWorkerCounts.begin(), kWorkerCounts.end()); },
          "Returns the names of the counts.")
      .def_property_readonly(
          "part_seconds",
          [](const WorkerSnapshot& seen) {
            std::vector<double> seconds;
            for (const uint64_t ns : seen.part_ns) seconds.push_back(to_seconds(ns));
            return seconds;
          },
          "Wall time of the parts of a compiled plan.");
}

void bind_span(py::module_& m) {
  py::class_<WorkerSpan>(m, "WorkerSpan",
                         "Neighbouring tiny-batches that a worker did in one go during a trace.")
      .def_readonly("worker", &WorkerSpan::worker)
      .def_readonly("pid", &WorkerSpan::pid)
      .def_readonly("sequence", &WorkerSpan::sequence, "Of the mini-batch.")
      .def_readonly("first", &WorkerSpan::first, "The first tiny-batch.")
      .def_readonly("count", &WorkerSpan::count, "How many tiny-batches.")
      .def_readonly("samples", &WorkerSpan::samples)
      .def_readonly("read_bytes", &WorkerSpan::read_bytes, "Encoded bytes that were read.")
      .def_readonly("begin_ns", &WorkerSpan::begin_ns, "CLOCK_MONOTONIC.")
      .def_readonly("end_ns", &WorkerSpan::end_ns)
      .def_readonly("read_ns", &WorkerSpan::read_ns)
      .def_readonly("decode_ns", &WorkerSpan::decode_ns)
      .def_readonly("augment_ns", &WorkerSpan::augment_ns)
      .def_readonly("python_ns", &WorkerSpan::python_ns)
      .def_readonly("write_ns", &WorkerSpan::write_ns);
}

void describe(ManagerQueue& queue, uint64_t slot, uint64_t sequence, std::vector<uint32_t> rows,
              std::vector<int64_t> items, std::vector<uint64_t> keys,
              std::vector<uint32_t> occurrences, uint32_t tiny_size, uint64_t seed, uint64_t epoch,
              uint64_t number, uint32_t group_size, std::optional<uint64_t> payload,
              const py::bytes& indices, std::optional<uint32_t> claimant, uint32_t spread) {
  MiniBatchDescription batch{sequence,
                             std::move(rows),
                             std::move(items),
                             std::move(keys),
                             std::move(occurrences),
                             tiny_size,
                             seed,
                             epoch,
                             number,
                             group_size,
                             payload,
                             indices};
  batch.claimant = claimant;
  batch.spread = spread;
  queue.describe(slot, batch);
}

// Above this many bytes other threads may run while they are copied.
constexpr size_t kLargeCopy = size_t{1} << 20;

void write_encoded(ManagerQueue& queue, uint64_t slot, const std::vector<py::object>& images,
                   uint32_t tiny_size) {
  std::deque<Buffer> from;  // a Buffer stays where it is
  std::vector<uint64_t> sizes;
  size_t all = 0;
  for (const py::object& image : images) {
    sizes.push_back(from.emplace_back(image, readable).bytes().size);
    all += sizes.back();
  }
  const std::vector<uint8_t*> places = queue.reserve_encoded(slot, tiny_size, sizes);
  const auto copy = [&] {
    for (size_t image = 0; image < places.size(); ++image)
      if (sizes[image] != 0) std::memcpy(places[image], from[image].bytes().data, sizes[image]);
  };
  if (all < kLargeCopy) return copy();
  const GilReleased unlocked;
  copy();
}

void describe_encoded(ManagerQueue& queue, uint64_t slot, uint64_t sequence,
                      std::vector<uint32_t> rows, std::vector<uint64_t> keys, uint32_t tiny_size,
                      uint64_t seed, uint64_t epoch, uint64_t payload, uint32_t first_row,
                      uint32_t payload_rows) {
  const size_t images = rows.size();
  MiniBatchDescription batch{};
  batch.sequence = sequence;
  batch.rows = std::move(rows);
  batch.items.resize(images);
  std::iota(batch.items.begin(), batch.items.end(), 0);
  batch.keys = std::move(keys);
  batch.occurrences.resize(images);
  batch.tiny_size = tiny_size;
  batch.seed = seed;
  batch.epoch = epoch;
  batch.payload = payload;
  batch.first_row = first_row;
  batch.payload_rows = payload_rows;
  batch.encoded_images = static_cast<uint32_t>(images);
  queue.describe(slot, batch);
}

void bind_queue_of_manager(py::module_& m) {
  py::class_<ManagerQueue>(m, "ManagerQueue", "The local manager's half of the queue.")
      .def(py::init<int, int, uint32_t, uint32_t, uint32_t, uint32_t, int>(), "control_fd"_a,
           "data_fd"_a, "workers"_a, "ring_size"_a, "guest_slots"_a = 0, "shareable"_a = 0,
           "event_fd"_a = -1,
           "Lays the control block out.\n\n"
           "The first `shareable` workers may be sent to other ranks, whose own come to the guest\n"
           "slots; publications add to `event_fd` where the global manager wants to know.")
      .def_static(
          "attach", [](int control_fd, int data_fd) { return ManagerQueue(control_fd, data_fd); },
          "control_fd"_a, "data_fd"_a,
          "The queue in a control block that another process has laid out, to read from.")
      .def_static("control_bytes", &Control::bytes, "records"_a, "ring_size"_a,
                  "Size of a control block with so many records of workers and guest slots.")
      .def_static(
          "untraced_bytes",
          [](uint32_t records, uint32_t ring_size) {
            return Control::bytes(records, ring_size) - records * sizeof(TraceRing);
          },
          "records"_a, "ring_size"_a, "How many of these are used while no trace is on.")
      .def_static("descriptor_bytes", &Batch::descriptor_bytes, "samples"_a, "tiny_batches"_a,
                  "Size of a mini-batch's descriptor, without pickled indices.")
      .def("add_slot", &ManagerQueue::add_slot, "slot"_a, "offset"_a, "nbytes"_a)
      .def("describe", &describe, "slot"_a, py::kw_only(), "sequence"_a, "rows"_a, "items"_a,
           "keys"_a, "occurrences"_a, "tiny_size"_a, "seed"_a, "epoch"_a, "number"_a,
           "group_size"_a = 0, "payload"_a = py::none(), "indices"_a = py::bytes(),
           "claimant"_a = py::none(), "spread"_a = 0,
           "Writes the descriptor of a mini-batch into a slot.\n\n"
           "`items`, `keys` and `occurrences` have an entry per row of the batch; `rows` are its "
           "rows\n"
           "in the order in which they are cut into tiny-batches. `payload` is the slot for the "
           "rows,\n"
           "`indices` is pickled. `claimant` is the only worker that may claim it; any may "
           "without.\n"
           "With `spread`, so many workers each begin at a part of their own.")
      .def("set_payload", &ManagerQueue::set_payload, "slot"_a, "payload"_a,
           "Says which slot is for the rows of a mini-batch that was described without.")
      .def(
          "announce_layout",
          [](ManagerQueue& queue, uint64_t slot, const py::bytes& pickled) {
            queue.announce_layout(slot, pickled);
          },
          "slot"_a, "pickled"_a, "Lets workers know the layout of Python samples, through a slot.")
      .def("set_gpu_rows", &ManagerQueue::set_gpu_rows, "slot"_a, "rows"_a,
           "The device buffer for the GPU worker's rows, plus 1; 0: it leaves them alone.")
      .def_static("encoded_bytes", &ManagerQueue::encoded_bytes, "images"_a, "tiny_size"_a,
                  "image_bytes"_a,
                  "Size of a mini-batch's descriptor with so many bytes of encoded images.")
      .def("write_encoded", &write_encoded, "slot"_a, "images"_a, "tiny_size"_a,
           "Copies encoded images, bytes-like, to where `describe_encoded` looks for them.")
      .def(
          "describe_encoded", &describe_encoded, "slot"_a, py::kw_only(), "sequence"_a, "rows"_a,
          "keys"_a, "tiny_size"_a, "seed"_a, "epoch"_a, "payload"_a, "first_row"_a,
          "payload_rows"_a,
          "Writes the descriptor of the encoded images in a slot.\n\n"
          "`rows` are their numbers in the order in which they are cut into tiny-batches. Image 0\n"
          "becomes row `first_row` of the slot `payload`, which is laid out for `payload_rows`.")
      .def("publish", &ManagerQueue::publish, "slot"_a, "sequence"_a, "most_woken"_a = UINT32_MAX,
           "Wakes at most so many of the workers that sleep.")
      .def("wake_manager", &ManagerQueue::wake_manager, "Ends the manager's sleep.")
      .def("replace", &ManagerQueue::replace, "old_slot"_a, "slot"_a, "sequence"_a,
           "Withdraws a mini-batch, and publishes it anew from another slot in its place.\n\n"
           "Who holds a tiny-batch of the old slot may still write to its rows.")
      .def("search", &ManagerQueue::search, "slot"_a,
           "Has workers look for tiny-batches that somebody stopped in mid-claim has left out.")
      .def("repeat", &ManagerQueue::repeat, "slot"_a, "sequence"_a, "tiny_batch"_a,
           "Makes a tiny-batch that is done wait again. Its mini-batch has to be published still.")
      .def_property_readonly("is_watched", &ManagerQueue::is_watched,
                             "Whether workers of other ranks may come: some are idle.")
      .def_property_readonly("published", &ManagerQueue::published,
                             "How many mini-batches were published: the next one's sequence.")
      .def("in_state", &ManagerQueue::in_state, "slot"_a, "state"_a,
           "The tiny-batches in one state, and the workers that brought them there.")
      .def("status", &ManagerQueue::status, "slot"_a)
      .def("shares", &ManagerQueue::shares, "slot"_a)
      .def("deliver_until", &ManagerQueue::deliver_until, "sequence"_a,
           "Workers look for work from this mini-batch on.")
      .def("take_back", &ManagerQueue::take_back, "worker"_a,
           "hopeless"_a = std::vector<std::pair<uint64_t, uint32_t>>(),
           "Makes what a worker had claimed wait again, once it writes no more.\n\n"
           "What is in `hopeless`, as (sequence, tiny-batch), is given up as failed instead.")
      .def("dead_borrowed_workers", &ManagerQueue::dead_borrowed_workers,
           "Guest slots whose process has ended.")
      .def("empty_guest_slot", &ManagerQueue::empty_guest_slot, "guest_slot"_a)
      .def("withdraw_one", &ManagerQueue::withdraw_one, "slot"_a, "sequence"_a,
           "Nobody claims anything of one mini-batch any more.")
      .def("withdraw", &ManagerQueue::withdraw,
           "Nobody claims anything of the published mini-batches any more.")
      .def("set_gpu", &ManagerQueue::set_gpu, "state"_a, "threshold"_a, "beside"_a = false,
           "CPU workers leave the last `threshold` tiny-batches of a mini-batch to the GPU "
           "worker.\n\n"
           "It works `beside` training, or only while training waits.")
      .def_property_readonly("gpu_is_ready", &ManagerQueue::gpu_is_ready)
      .def_property_readonly("gpu_is_inside", &ManagerQueue::gpu_is_inside,
                             "Once it is not open any more, False: the GPU worker stays outside.")
      .def("forget_gpu", &ManagerQueue::forget_gpu)
      .def("set_tracing", &ManagerQueue::set_tracing, "on"_a,
           "Workers write down what they do, or no more; what nobody has read is dropped.")
      .def("take_spans", &ManagerQueue::take_spans, "What they have done since the last call.")
      .def("take_lost_spans", &ManagerQueue::take_lost_spans,
           "How many spans were left out since the last call, as nobody had read for too long.")
      .def("stop", &ManagerQueue::stop, "Tells workers to end.")
      .def("wake_workers", [](ManagerQueue& queue) { queue.wake_workers(); })
      .def("done_word", &ManagerQueue::done_word)
      .def(
          "sleep",
          [](ManagerQueue& queue, uint32_t seen, double seconds) {
            queue.sleep(seen, to_ns(seconds));
          },
          "seen"_a, "seconds"_a, Unlocked(), "Sleeps unless `done_word()` is no longer `seen`.")
      .def("worker", &ManagerQueue::worker, "number"_a)
      .def("workers", &ManagerQueue::workers, "first"_a = 0, "count"_a = UINT32_MAX,
           "At most `count` from number `first` on; guest slots come last.");
}

}  // namespace

void bind_manager_queue(py::module_& m) {
  bind_states(m);
  bind_values(m);
  bind_span(m);
  bind_queue_of_manager(m);
}

}  // namespace fusionloader
