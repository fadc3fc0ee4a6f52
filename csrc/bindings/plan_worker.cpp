// The native loop of a worker, and the shared memory that it works on.
#include "worker/plan_worker.hpp"

#include <pybind11/native_enum.h>
#include <pybind11/stl.h>

#include "bindings/buffers.hpp"
#include "bindings/module.hpp"
#include "bindings/python_types.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace fusionloader {
namespace {

using Unlocked = py::call_guard<py::gil_scoped_release>;

void bind_memory(py::module_& m) {
  py::class_<Mapping>(m, "SharedMapping", py::buffer_protocol(), "Shared memory of a descriptor.")
      .def(py::init<int, uint64_t, size_t>(), "fd"_a, "offset"_a, "nbytes"_a)
      .def_property_readonly(
          "address",
          [](const Mapping& mapping) { return reinterpret_cast<uintptr_t>(mapping.data()); })
      .def("populate", &Mapping::populate, py::call_guard<py::gil_scoped_release>(),
           "Allocates what there is room for, in huge pages where the system gives such.")
      .def_buffer([](Mapping& mapping) {
        return py::buffer_info(mapping.data(), static_cast<py::ssize_t>(mapping.bytes()));
      });
  py::class_<FileStore::Kept>(m, "KeptFile", "What is kept of a file.")
      .def_property_readonly("data",
                             [](const FileStore::Kept& kept) {
                               return py::bytes(reinterpret_cast<const char*>(kept.data.data),
                                                kept.data.size);
                             })
      .def_property_readonly(
          "view",
          [](const FileStore::Kept& kept) {
            return py::memoryview::from_memory(kept.data.data,
                                               static_cast<py::ssize_t>(kept.data.size));
          },
          "The same in the store's memory, for as long as the store is there.")
      .def_readonly("width", &FileStore::Kept::width)
      .def_readonly("height", &FileStore::Kept::height);
  py::class_<FileStore>(m, "FileStoreView",
                        "What workers made of files; a file is told by its bytes and its mtime.")
      .def(py::init<int, size_t>(), "fd"_a, "nbytes"_a)
      .def("lacks", &FileStore::lacks, "item"_a, "nbytes"_a,
           "Whether nothing is kept of the file, and there is room for so much.")
      .def(
          "find",
          [](const FileStore& store, uint64_t item, uint64_t bytes, int64_t mtime_ns) {
            return store.find(item, {bytes, mtime_ns});
          },
          "item"_a, "nbytes"_a, "mtime_ns"_a, py::keep_alive<0, 1>())
      .def(
          "put",
          [](FileStore& store, uint64_t item, uint64_t bytes, int64_t mtime_ns, uint32_t width,
             uint32_t height, const py::buffer& data) {
            const Buffer from(data, readable);
            return store.put(item, {bytes, mtime_ns}, width, height, from.bytes());
          },
          "item"_a, "nbytes"_a, "mtime_ns"_a, "width"_a, "height"_a, "data"_a,
          "False if the store is full, or another worker was faster.");
}

void bind_current(py::module_& m) {
  py::native_enum<WorkerEvent>(m, "WorkerEvent", "enum.Enum", "Why a worker's loop has returned.")
      .value("STOPPED", WorkerEvent::stopped)
      .value("ORPHANED", WorkerEvent::orphaned)
      .value("SAMPLE", WorkerEvent::sample)
      .value("ASSIGNMENT", WorkerEvent::assignment)
      .value("RECALLED", WorkerEvent::recalled)
      .value("IDLE", WorkerEvent::idle)
      .value("SERVED", WorkerEvent::served)
      .finalize();
  py::class_<CurrentSample>(m, "CurrentSample", "The sample that a worker's loop needs Python for.")
      .def_readonly("sequence", &CurrentSample::sequence)
      .def_readonly("position", &CurrentSample::position)
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
  return {&queue, reinterpret_cast<DatasetTable*>(table.data()), &executor};
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
                       int event_fd, std::optional<FileStore*> pixels,
                       std::optional<FileStore*> indexes, std::optional<WorkerQueue*> pool) {
             const Site home = site(queue, table, executor);
             return new PlanWorker(home, parent, event_fd, pixels.value_or(nullptr),
                                   indexes.value_or(nullptr), pool.value_or(nullptr));
           }),
           py::keep_alive<1, 2>(), py::keep_alive<1, 3>(), py::keep_alive<1, 4>(),
           py::keep_alive<1, 7>(), py::keep_alive<1, 8>(), py::keep_alive<1, 9>(), "queue"_a,
           "table"_a, "executor"_a, "parent"_a, "event_fd"_a = -1, "pixels"_a = py::none(),
           "indexes"_a = py::none(), "pool"_a = py::none())
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
          "path",
          [](PlanWorker& worker, uint64_t item) { return py::bytes(worker.table().path(item)); },
          "item"_a)
      .def("pixels", &table_pixels, "item"_a)
      .def(
          "target", [](PlanWorker& worker, uint64_t item) { return worker.table().target(item); },
          "item"_a)
      .def("sample_done", &PlanWorker::sample_done)
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
}

}  // namespace fusionloader
