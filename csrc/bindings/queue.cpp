#include <pybind11/stl.h>

#include <cstring>

#include "bindings/buffers.hpp"
#include "bindings/module.hpp"
#include "queue/futex.hpp"
#include "queue/queue.hpp"
#include "worker/plan_worker.hpp"

namespace py = pybind11;

namespace fusionloader {

namespace {

constexpr double kNs = 1e9;

int64_t to_ns(double seconds) { return static_cast<int64_t>(seconds * kNs); }

py::memoryview view(void* data, size_t bytes) {
  return py::memoryview::from_memory(data, static_cast<py::ssize_t>(bytes));
}

// Entry j of the descriptor is the sample at batch position rows[j].
void describe(ManagerQueue& queue, uint64_t slot, uint64_t sequence,
              const std::vector<uint32_t>& rows, const std::vector<int64_t>& items,
              const std::vector<uint64_t>& keys, const std::vector<uint32_t>& occurrences,
              uint32_t tiny_size, uint64_t seed, uint64_t epoch, uint64_t number,
              uint32_t group_size, uint64_t payload, uint64_t payload_rows,
              const py::bytes& indices) {
  const size_t samples = rows.size();
  if (items.size() != samples || keys.size() != samples || occurrences.size() != samples)
    throw std::invalid_argument("a descriptor's lists differ in length");
  Batch& batch = queue.describe(slot, sequence, static_cast<uint32_t>(samples), tiny_size);
  BatchHeader& header = batch.header;
  header.seed = seed;
  header.epoch = epoch;
  header.number = number;
  header.group_size = group_size;
  header.payload_rows.store(payload_rows);
  header.payload.store(payload);
  Entry* entries = batch.entries();
  for (size_t j = 0; j < samples; ++j) {
    const uint32_t row = rows[j];
    if (row >= samples) throw std::out_of_range("a descriptor's row");
    entries[j] = {items[row], keys[row], occurrences[row], row};
  }
  const std::string_view pickled = indices;
  header.indices = Batch::descriptor_bytes(samples, header.tiny_batches);
  header.indices_bytes = pickled.size();
  if (header.indices + pickled.size() > queue.slot(slot).bytes())
    throw std::length_error("batch slot too small for its indices");
  std::memcpy(batch.at(header.indices), pickled.data(), pickled.size());
}

std::vector<double> part_seconds(const WorkerRecord& record) {
  std::vector<double> seconds;
  for (const Atomic64& ns : record.part_ns) seconds.push_back(static_cast<double>(ns.load()) / kNs);
  return seconds;
}

py::tuple share_tuple(const Share& share) {
  return py::make_tuple(share.tiny_batches.load(), share.samples.load(),
                        static_cast<double>(share.finished_ns.load()) / kNs);
}

py::list records(ManagerQueue& queue, uint32_t first, uint32_t count) {
  py::list all;
  Control& control = queue.control();
  const uint32_t there = control.record_count();
  for (uint32_t w = first; w < there && w - first < count; ++w) {
    const WorkerRecord& r = control.records()[w];
    all.append(py::make_tuple(r.pid.load(), r.sequence.load(), r.tiny_batch.load(),
                              r.position.load(), static_cast<double>(r.since_ns.load()) / kNs,
                              r.samples.load(), static_cast<double>(r.busy_ns.load()) / kNs,
                              r.pillow_samples.load(), part_seconds(r)));
  }
  return all;
}

// A bijection of 64-bit words that spreads every bit (the finalizer of SplitMix64).
uint64_t mix(uint64_t word) {
  word += 0x9e3779b97f4a7c15;
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9;
  word = (word ^ (word >> 27)) * 0x94d049bb133111eb;
  return word ^ (word >> 31);
}

void bind_manager(py::module_& m) {
  py::class_<ManagerQueue>(m, "ManagerQueue")
      .def(py::init<int, int, uint32_t, uint32_t, uint32_t, uint32_t, int>(), py::arg("control_fd"),
           py::arg("data_fd"), py::arg("workers"), py::arg("ring_size"), py::arg("guest_slots") = 0,
           py::arg("shareable") = 0, py::arg("event_fd") = -1)
      .def_static("control_bytes", &Control::bytes)
      .def_static("descriptor_bytes", &Batch::descriptor_bytes)
      .def("add_slot", &ManagerQueue::add_slot)
      .def("describe", &describe)
      .def("set_payload",
           [](ManagerQueue& q, uint64_t slot, uint64_t payload, uint64_t rows) {
             q.batch(slot)->header.payload_rows.store(rows);
             q.batch(slot)->header.payload.store(payload);
           })
      .def("announce_layout",
           [](ManagerQueue& q, uint64_t slot, const py::bytes& pickled) {
             const std::string_view text = pickled;
             if (text.size() > q.slot(slot).bytes()) throw std::length_error("layout");
             std::memcpy(q.slot(slot).data(), text.data(), text.size());
             q.control().header.layout_slot.store(slot);
             q.control().header.layout_bytes.store(text.size());
             q.control().header.layout_version.fetch_add(1);
             q.wake_workers();
           })
      .def("publish", &ManagerQueue::publish)
      .def("status",
           [](ManagerQueue& q, uint64_t slot) {
             const BatchStatus s = q.status(slot);
             return py::make_tuple(s.waiting, s.active, s.completed, s.failed, s.spilled);
           })
      .def("state", [](ManagerQueue& q, uint64_t slot,
                       uint32_t tiny_batch) { return static_cast<int>(q.state(slot, tiny_batch)); })
      .def("give_up", &ManagerQueue::give_up)
      .def("done_by", &ManagerQueue::done_by)
      .def("set_gpu_rows", [](ManagerQueue& q, uint64_t slot,
                              uint32_t rows) { q.batch(slot)->header.gpu_rows.store(rows); })
      .def("deliver_until", &ManagerQueue::deliver_until)
      .def("take_back",
           [](ManagerQueue& q, uint32_t worker) {
             py::list lost;
             for (const Lost& l : q.take_back(worker))
               lost.append(py::make_tuple(l.sequence, l.tiny_batch));
             return lost;
           })
      .def("dead_borrowed_workers", &ManagerQueue::dead_borrowed_workers)
      .def("empty_guest_slot", &ManagerQueue::empty_guest_slot)
      .def("withdraw", &ManagerQueue::withdraw)
      .def("shares",
           [](ManagerQueue& q, uint64_t slot) {
             const BatchHeader& header = q.batch(slot)->header;
             return py::make_tuple(static_cast<double>(header.begun_ns.load()) / kNs,
                                   header.threshold.load(), share_tuple(header.shares[0]),
                                   share_tuple(header.shares[1]));
           })
      .def("set_gpu",
           [](ManagerQueue& q, int state, uint32_t threshold) {
             q.set_gpu(static_cast<GpuState>(state), threshold);
           })
      .def_property_readonly("gpu_is_ready", &ManagerQueue::gpu_is_ready)
      .def_property_readonly("gpu_is_inside", &ManagerQueue::gpu_is_inside)
      .def("forget_gpu", &ManagerQueue::forget_gpu)
      .def("stop", &ManagerQueue::stop)
      .def("wake_workers", &ManagerQueue::wake_workers)
      .def("done_word", &ManagerQueue::done_word)
      .def(
          "sleep",
          [](ManagerQueue& q, uint32_t seen, double seconds) { q.sleep(seen, to_ns(seconds)); },
          py::call_guard<py::gil_scoped_release>())
      .def("records", &records, py::arg("first") = 0, py::arg("count") = UINT32_MAX);
}

void bind_worker(py::module_& m) {
  py::class_<Claim>(m, "Claim")
      .def_readonly("sequence", &Claim::sequence)
      .def_readonly("first", &Claim::first)
      .def_readonly("count", &Claim::count)
      .def_property_readonly("samples", [](const Claim& c) { return c.batch->header.samples; })
      .def_property_readonly("tiny_size", [](const Claim& c) { return c.batch->header.tiny_size; })
      .def_property_readonly("seed", [](const Claim& c) { return c.batch->header.seed; })
      .def_property_readonly("epoch", [](const Claim& c) { return c.batch->header.epoch; })
      .def("group", [](const Claim& c, uint32_t row) { return c.batch->group(row); })
      .def_property_readonly("payload",
                             [](const Claim& c) { return c.batch->header.payload.load(); })
      .def_property_readonly("payload_rows",
                             [](const Claim& c) { return c.batch->header.payload_rows.load(); })
      .def_property_readonly("gpu_rows",
                             [](const Claim& c) { return c.batch->header.gpu_rows.load(); })
      .def("indices",
           [](const Claim& c) {
             const BatchHeader& h = c.batch->header;
             return view(c.batch->at(h.indices), h.indices_bytes);
           })
      .def("entry", [](const Claim& c, uint32_t position) {
        if (position >= c.batch->header.samples) throw std::out_of_range("position");
        const Entry& e = c.batch->entries()[position];
        return py::make_tuple(e.item, e.key, e.occurrence, e.row);
      });
  py::class_<WorkerQueue>(m, "WorkerQueue")
      .def(py::init([](int control_fd, int data_fd, uint32_t worker, bool gpu) {
             return new WorkerQueue(control_fd, data_fd, worker, gpu ? Side::gpu : Side::cpu);
           }),
           py::arg("control_fd"), py::arg("data_fd"), py::arg("worker"), py::arg("gpu") = false)
      .def("claim",
           [](WorkerQueue& q, bool large_end, uint32_t threshold, uint32_t count) {
             return q.claim(large_end ? End::large : End::small, threshold, count);
           })
      .def("claim_next", &WorkerQueue::claim_next)
      .def_property_readonly("is_sent", &WorkerQueue::is_sent)
      .def("answer", &WorkerQueue::answer)
      .def("give_back", &WorkerQueue::give_back)
      .def("take_guest_slot", &WorkerQueue::take_guest_slot)
      .def("leave_guest_slot", &WorkerQueue::leave_guest_slot)
      .def("claim_as_borrowed", &WorkerQueue::claim_as_borrowed)
      .def("gpu_ready", &WorkerQueue::gpu_ready)
      .def("leave", &WorkerQueue::leave)
      .def("finish",
           [](WorkerQueue& q, const Claim& c, uint32_t tiny_batch, int result) {
             return q.finish(c, tiny_batch, static_cast<TinyState>(result));
           })
      .def("rows",
           [](WorkerQueue& q, const Claim& c) {
             const Mapping& rows = q.slot(c.batch->header.payload.load() - 1);
             return view(rows.data(), rows.bytes());
           })
      .def("begin_sample", &WorkerQueue::begin_sample)
      .def("end_samples",
           [](WorkerQueue& q, const Claim& c, uint32_t tiny_batch, uint32_t samples) {
             WorkerRecord& r = q.record();
             r.busy_ns.fetch_add(monotonic_ns() - r.since_ns.load());
             r.samples.fetch_add(samples);
             c.batch->progress()[tiny_batch].store(samples);
           })
      .def("idle", &WorkerQueue::idle)
      .def(
          "sleep",
          [](WorkerQueue& q, uint32_t seen, double seconds) { q.sleep(seen, to_ns(seconds)); },
          py::call_guard<py::gil_scoped_release>())
      .def("wake_manager", &WorkerQueue::wake_manager)
      .def_property_readonly("work_word", &WorkerQueue::work_word)
      .def_property_readonly("stopping", &WorkerQueue::stopping)
      .def_property_readonly(
          "layout_version", [](WorkerQueue& q) { return q.control().header.layout_version.load(); })
      .def("layout",
           [](WorkerQueue& q) {
             const ControlHeader& header = q.control().header;
             return view(q.slot(header.layout_slot.load()).data(), header.layout_bytes.load());
           })
      .def("add_part_seconds",
           [](WorkerQueue& q, const std::vector<double>& seconds) {
             WorkerRecord& r = q.record();
             for (size_t i = 0; i < std::min(seconds.size(), kParts); ++i)
               r.part_ns[i].fetch_add(static_cast<uint64_t>(to_ns(seconds[i])));
           })
      .def("announce", [](WorkerQueue& q, uint32_t pid) { q.record().pid.store(pid); });
}

void bind_file_store(py::module_& m) {
  py::class_<FileStore>(m, "FileStore")
      .def(py::init<int, size_t>(), py::arg("fd"), py::arg("nbytes"))
      .def("lacks", &FileStore::lacks)
      .def("find",
           [](const FileStore& store, uint64_t item, uint64_t bytes,
              int64_t mtime_ns) -> std::optional<py::tuple> {
             const auto kept = store.find(item, {bytes, mtime_ns});
             if (!kept) return std::nullopt;
             const auto* data = reinterpret_cast<const char*>(kept->data.data);
             return py::make_tuple(py::bytes(data, kept->data.size), kept->width, kept->height);
           })
      .def("put", [](FileStore& store, uint64_t item, uint64_t bytes, int64_t mtime_ns,
                     uint32_t width, uint32_t height, const py::buffer& data) {
        const Buffer from(data, readable);
        return store.put(item, {bytes, mtime_ns}, width, height, from.bytes());
      });
}

Site site(WorkerQueue& queue, Mapping& table, Executor& executor) {
  return {&queue, reinterpret_cast<DatasetTable*>(table.data()), &executor};
}

void bind_plan_worker(py::module_& m) {
  py::class_<Mapping>(m, "Mapping", py::buffer_protocol())
      .def(py::init<int, uint64_t, size_t>())
      .def_property_readonly(
          "address", [](const Mapping& map) { return reinterpret_cast<uintptr_t>(map.data()); })
      .def_buffer([](Mapping& map) {
        return py::buffer_info(map.data(), static_cast<py::ssize_t>(map.bytes()));
      });
  py::class_<PlanWorker>(m, "PlanWorker")
      .def(py::init([](WorkerQueue& queue, Mapping& table, Executor& executor, int parent,
                       int event_fd, FileStore* pixels, FileStore* indexes, WorkerQueue* pool) {
             const Site home = site(queue, table, executor);
             return new PlanWorker(home, parent, event_fd, pixels, indexes, pool);
           }),
           py::keep_alive<1, 2>(), py::keep_alive<1, 3>(), py::keep_alive<1, 4>(),
           py::keep_alive<1, 7>(), py::keep_alive<1, 8>(), py::keep_alive<1, 9>(), py::arg("queue"),
           py::arg("table"), py::arg("executor"), py::arg("parent"), py::arg("event_fd") = -1,
           py::arg("pixels") = py::none(), py::arg("indexes") = py::none(),
           py::arg("pool") = py::none())
      .def(
          "run",
          [](PlanWorker& worker, bool once) {
            Event event = Event::stopped;
            {
              py::gil_scoped_release release;
              event = worker.run(once);
            }
            switch (event) {
              case Event::stopped:
                return "stopped";
              case Event::orphaned:
                return "orphaned";
              case Event::assignment:
                return "assignment";
              case Event::recalled:
                return "recalled";
              case Event::idle:
                return "idle";
              case Event::served:
                return "served";
              case Event::sample:
                break;
            }
            return "sample";
          },
          py::arg("once") = false)
      .def("rest", &PlanWorker::rest, py::call_guard<py::gil_scoped_release>())
      .def("current",
           [](PlanWorker& worker) {
             const CurrentSample s = worker.current();
             return py::make_tuple(s.sequence, s.position, s.row, s.item, s.key.seed, s.key.epoch,
                                   s.key.index, s.key.occurrence, s.key.group);
           })
      .def("image",
           [](PlanWorker& worker, size_t bytes) { return view(worker.current().image, bytes); })
      .def("path",
           [](PlanWorker& worker, uint64_t item) { return py::bytes(worker.table().path(item)); })
      .def("holds_pixels", [](PlanWorker& worker) { return worker.table().holds_pixels(); })
      .def("pixels",
           [](PlanWorker& worker, uint64_t item) {
             const DatasetTable& table = worker.table();
             const auto height = static_cast<py::ssize_t>(table.height),
                        width = static_cast<py::ssize_t>(table.width),
                        channels = static_cast<py::ssize_t>(table.channels);
             return py::memoryview::from_buffer(table.pixels(item), {height, width, channels},
                                                {width * channels, channels, py::ssize_t{1}});
           })
      .def("target", [](PlanWorker& worker, uint64_t item) { return worker.table().target(item); })
      .def("items", [](PlanWorker& worker) { return worker.table().count; })
      .def("set_target",
           [](PlanWorker& worker, int64_t target) { *worker.current().target = target; })
      .def("sample_done", &PlanWorker::sample_done)
      .def("sample_failed", &PlanWorker::sample_failed)
      .def("count_pillow_sample", &PlanWorker::count_pillow_sample)
      .def_property_readonly("is_borrowed", &PlanWorker::is_borrowed)
      .def("give_back", &PlanWorker::give_back)
      .def("assignment", &PlanWorker::assignment)
      .def("decline", &PlanWorker::decline)
      .def("detach", &PlanWorker::detach)
      // The caller keeps the three until it calls detach().
      .def("attach",
           [](PlanWorker& worker, uint32_t member, WorkerQueue& queue, Mapping& table,
              Executor& executor) { worker.attach(member, site(queue, table, executor)); });
}

}  // namespace

void bind_queue(py::module_& m) {
  m.def("mix_key", [](uint64_t seed, uint64_t epoch, uint64_t key, uint64_t occurrence) {
    return mix(seed ^ mix(epoch ^ mix(key ^ mix(occurrence))));
  });
  bind_manager(m);
  bind_worker(m);
  bind_file_store(m);
  bind_plan_worker(m);
}

}  // namespace fusionloader
