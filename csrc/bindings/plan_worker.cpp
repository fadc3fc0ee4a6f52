// The native loop of a worker, the shared memory that it works on, and its end with training.
#include "worker/plan_worker.hpp"

#include <pybind11/native_enum.h>
#include <pybind11/stl.h>

#include "bindings/buffers.hpp"
#include "bindings/gil.hpp"
#include "bindings/module.hpp"
#include "bindings/opened_stores.hpp"
#include "bindings/python_types.hpp"
#include "bindings/sample_ranges.hpp"
#include "worker/parent_watch.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace fusionloader {
namespace {

void bind_memory(py::module_& m) {
  py::class_<Mapping>(m, "SharedMapping", py::buffer_protocol(), "Shared memory of a descriptor.")
      .def(py::init([](int fd, uint64_t offset, size_t nbytes, bool copy_on_write, bool is_file) {
             const Backing backing = is_file ? Backing::file : Backing::memory;
             return new Mapping(fd, offset, nbytes, copy_on_write, backing);
           }),
           "fd"_a, "offset"_a, "nbytes"_a, py::kw_only(), "copy_on_write"_a = false,
           "is_file"_a = false,
           "With `copy_on_write` what is written here stays here.\n\n"
           "Only with `is_file` the descriptor may be that of any file.")
      .def("discard_writes", &Mapping::discard_writes,
           "Shows what others write again, where this process has written.")
      .def("copy_all", &Mapping::copy_all,
           "Copies what was not written here: what others write shows no more.")
      .def_property_readonly(
          "address",
          [](const Mapping& mapping) { return reinterpret_cast<uintptr_t>(mapping.data()); })
      .def("populate", &Mapping::populate, Unlocked(),
           "Allocates what there is room for, in huge pages where the system gives such.")
      .def_buffer([](Mapping& mapping) {
        return py::buffer_info(mapping.data(), static_cast<py::ssize_t>(mapping.bytes()));
      });
}

void bind_current(py::module_& m) {
  py::native_enum<WorkerEvent>(m, "WorkerEvent", "enum.Enum", "Why a worker's loop has returned.")
      .value("STOPPED", WorkerEvent::stopped)
      .value("ORPHANED", WorkerEvent::orphaned)
      .value("SAMPLE", WorkerEvent::sample)
      .value("FETCH", WorkerEvent::fetch)
      .value("ASSIGNMENT", WorkerEvent::assignment)
      .value("RECALLED", WorkerEvent::recalled)
      .value("IDLE", WorkerEvent::idle)
      .value("SERVED", WorkerEvent::served)
      .finalize();
  py::class_<CurrentSample>(m, "CurrentSample", "The sample that a worker's loop needs Python for.")
      .def_readonly("sequence", &CurrentSample::sequence)
      .def_readonly("tiny_batch", &CurrentSample::tiny_batch)
      .def_readonly("row", &CurrentSample::row)
      .def_readonly("item", &CurrentSample::item)
      .def_property_readonly("seed", [](const CurrentSample& at) { return at.key.seed; })
      .def_property_readonly("epoch", [](const CurrentSample& at) { return at.key.epoch; })
      .def_property_readonly("key", [](const CurrentSample& at) { return at.key.index; })
      .def_property_readonly("occurrence",
                             [](const CurrentSample& at) { return at.key.occurrence; })
      .def_property_readonly("group", [](const CurrentSample& at) { return at.key.group; });
}

Site site(WorkerQueue& queue, Mapping& table, Executor& executor) {
  return {&queue, DatasetTable::of(table), &executor};
}

py::memoryview table_pixels(PlanWorker& worker, uint64_t item) {
  const DatasetTable& table = worker.table();
  const auto height = static_cast<py::ssize_t>(table.height),
             width = static_cast<py::ssize_t>(table.width),
             channels = static_cast<py::ssize_t>(table.channels);
  return py::memoryview::from_buffer(table.pixels(item), {height, width, channels},
                                     {width * channels, channels, py::ssize_t{1}});
}

void bind_loop(py::module_& m) {
  py::class_<PlanWorker>(m, "PlanWorker", "The native loop of a worker on a wholly compiled plan.")
      .def(py::init([](WorkerQueue& queue, Mapping& table, Executor& executor, int parent,
                       int event_fd, std::optional<OpenedStores*> stores,
                       std::optional<WorkerQueue*> pool, bool fetches) {
             const Site home = site(queue, table, executor);
             const CacheStores kept = stores ? (*stores)->stores() : CacheStores{};
             return new PlanWorker(home, parent, event_fd, kept, pool.value_or(nullptr), fetches);
           }),
           py::keep_alive<1, 2>(), py::keep_alive<1, 3>(), py::keep_alive<1, 4>(),
           py::keep_alive<1, 7>(), py::keep_alive<1, 8>(), "queue"_a, "table"_a, "executor"_a,
           "parent"_a, "event_fd"_a = -1, "stores"_a = py::none(), "pool"_a = py::none(),
           "fetches"_a = false)
      .def("run", &PlanWorker::run, "once"_a = false, Unlocked(),
           "Works until Python is needed; with `once` for no more than one claim.")
      .def("rest", &PlanWorker::rest, "seen"_a, Unlocked(),
           "Sleeps at home, unless the queue's word is no longer `seen`.")
      .def("current", &PlanWorker::current)
      .def(
          "image",
          [](PlanWorker& worker, size_t bytes) { return view_of(worker.current().image, bytes); },
          "nbytes"_a, "The row of the current sample, to write to.")
      .def(
          "set_target",
          [](PlanWorker& worker, int64_t target) { *worker.current().target = target; }, "target"_a)
      .def("items", [](PlanWorker& worker) { return worker.table().count; })
      .def("holds_pixels", [](PlanWorker& worker) { return worker.table().holds_pixels(); })
      .def(
          "is_remote", [](PlanWorker& worker) { return worker.table().is_remote(); },
          "Whether samples are at URLs, which the loop does not open.")
      .def(
          "range", [](PlanWorker& worker, uint64_t item) { return range_of(worker.table(), item); },
          "item"_a,
          "Path, offset and bytes of a sample, and its file's bytes and mtime in ns.\n\n"
          "All numbers are 0 where the sample has a file.")
      .def("pixels", &table_pixels, "item"_a)
      .def(
          "target", [](PlanWorker& worker, uint64_t item) { return worker.table().target(item); },
          "item"_a)
      .def(
          "encoded",
          [](PlanWorker& worker) {
            const ByteView found = worker.encoded();
            return py::bytes(reinterpret_cast<const char*>(found.data), found.size);
          },
          "The encoded bytes of the current sample; empty where they could not be read.")
      .def_property_readonly("comes_encoded", &PlanWorker::comes_encoded,
                             "Whether they came with the mini-batch: the sample is in no table.")
      .def(
          "stamp",
          [](PlanWorker& worker) {
            return std::make_pair(worker.stamp().bytes, worker.stamp().mtime_ns);
          },
          "Bytes and mtime in ns by which `encoded` is kept.")
      .def("missing", &PlanWorker::missing,
           "After FETCH: the items of the next tiny-batch of which nothing is kept here.")
      .def(
          "supply",
          [](PlanWorker& worker, uint64_t item, uint64_t bytes, int64_t mtime_ns,
             const py::buffer& data, bool is_hit, double seconds) {
            const Buffer from(data, readable);
            worker.supply(item, {bytes, mtime_ns}, from.bytes(), is_hit,
                          static_cast<uint64_t>(seconds * 1e9));
          },
          "item"_a, "nbytes"_a, "mtime_ns"_a, "data"_a, "is_hit"_a, "seconds"_a,
          "Gives a sample's bytes for that tiny-batch; a hit came from another server's cache.")
      .def("sample_done", &PlanWorker::sample_done)
      .def("sample_skipped", &PlanWorker::sample_skipped)
      .def("sample_failed", &PlanWorker::sample_failed)
      .def("count_pillow_sample", &PlanWorker::count_pillow_sample)
      .def_property_readonly("is_borrowed", &PlanWorker::is_borrowed,
                             "Whether the current sample is another rank's.")
      .def("give_back", &PlanWorker::give_back, "Leaves its tiny-batch to that rank's own workers.")
      .def("assignment", &PlanWorker::assignment, "The member whose queue is wanted, 0 for none.")
      .def("decline", &PlanWorker::decline)
      .def("detach", &PlanWorker::detach)
      .def(
          "attach",
          [](PlanWorker& worker, uint32_t member, WorkerQueue& queue, Mapping& table,
             Executor& executor) { worker.attach(member, site(queue, table, executor)); },
          "member"_a, "queue"_a, "table"_a, "executor"_a,
          "The caller keeps what is attached until it calls `detach`.");
}

}  // namespace

void bind_plan_worker(py::module_& m) {
  bind_memory(m);
  bind_current(m);
  bind_loop(m);
  m.def("exit_with", &exit_with, "parent"_a, "ended"_a = -1,
        "Ends this process within half a second of another one's end, whatever runs in it.\n\n"
        "`parent` is the pid of this process's parent, or 0. `ended` is a descriptor that becomes\n"
        "readable with the other process's end.");
}

}  // namespace fusionloader
