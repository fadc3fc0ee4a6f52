// The workers' half of the queue.
#include "queue/worker_queue.hpp"

#include <pybind11/native_enum.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <algorithm>
#include <array>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/generators.hpp"
#include "bindings/gil.hpp"
#include "bindings/module.hpp"
#include "bindings/python_types.hpp"
#include "queue/futex.hpp"
#include "rng/mix.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace fusionloader {
namespace {

// A getter for a plain field of the mini-batch's header.
template <class Value>
auto of_header(Value BatchHeader::* field) {
  return [field](const Claim& claim) -> Value { return claim.header().*field; };
}

using Objects = py::typing::List<py::object>;
using Numbers = std::vector<uint64_t>;  // of the samples, in order

std::tuple<std::vector<int64_t>, Numbers, Numbers, Numbers> sample_keys(const Claim& claim,
                                                                        uint32_t start,
                                                                        uint32_t stop) {
  std::vector<int64_t> items;
  Numbers keys, occurrences, groups;
  for (uint32_t position = start; position < stop; ++position) {
    const SampleEntry entry = claim.entry(position);
    items.push_back(entry.item);
    keys.push_back(entry.key);
    occurrences.push_back(entry.occurrence);
    groups.push_back(entry.group);
  }
  return {std::move(items), std::move(keys), std::move(occurrences), std::move(groups)};
}

// The rows of the samples at positions start .. stop - 1; none if each row is its position.
std::optional<Numbers> scattered_rows(const Claim& claim, uint32_t start, uint32_t stop) {
  Numbers rows;
  for (uint32_t position = start; position < stop; ++position)
    rows.push_back(claim.entry(position).row);
  for (size_t i = 0; i < rows.size(); ++i)
    if (rows[i] != start + i) return rows;
  return std::nullopt;
}

void make_samples(WorkerQueue& queue, const Claim& claim, uint32_t begin, size_t count,
                  const std::optional<Objects>& inputs, const py::object& make, Objects samples,
                  std::optional<Generators*> given, const std::tuple<bool, bool, bool>& seeding) {
  Generators* const generators = given.value_or(nullptr);
  const BatchHeader& header = claim.header();
  const Chosen chosen{std::get<0>(seeding), std::get<1>(seeding), std::get<2>(seeding)};
  Chosen seeded = chosen;
  std::array<uint64_t, SeededWords::most> seeds;
  uint64_t now_ns = monotonic_ns();
  size_t number = samples.size(), prepared_from = 0, prepared = number;
  while (number < count) {
    const uint32_t position = begin + static_cast<uint32_t>(number);
    const uint32_t tiny_batch = position / header.tiny_size;
    queue.begin_sample(claim, tiny_batch, position, now_ns);
    if (generators != nullptr) {
      if (number == prepared) {
        prepared_from = number;
        prepared = std::min(number + seeds.size(), count);
        for (size_t i = number; i < prepared; ++i) {
          const SampleEntry entry = claim.entry(begin + static_cast<uint32_t>(i));
          seeds[i - number] = mix_key(header.seed, header.epoch, entry.key, entry.occurrence);
        }
        seeded = generators->without_idle(chosen);
        generators->prepare(seeds.data(), prepared - number, seeded);
      }
      generators->use(number - prepared_from, seeded);
    }
    const py::object input =
        inputs ? py::object((*inputs)[number]) : py::object(py::int_(claim.entry(position).item));
    auto sample = py::reinterpret_steal<py::object>(PyObject_CallOneArg(make.ptr(), input.ptr()));
    if (generators != nullptr && generators->has_drawn() && chosen.python && !seeded.python &&
        (sample || PyErr_ExceptionMatches(PyExc_Exception))) {
      PyErr_Clear();
      prepared = number;  // once more, seeded
      continue;
    }
    if (!sample) throw py::error_already_set();
    samples.append(std::move(sample));
    now_ns = queue.end_samples(claim, tiny_batch, 1);
    ++number;
  }
}

// A row of a slot in a mapping of its own, which can be taken out of the slot's memory.
class RowMapping {
 public:
  RowMapping(WorkerQueue& queue, uint64_t slot, size_t begin, size_t bytes)
      : begin_(begin), bytes_(bytes), mapping_(queue.map_again(slot, begin_, bytes)) {}

  uint8_t* data() const { return mapping_.data() + begin_; }
  size_t bytes() const { return bytes_; }
  void make_private() const { mapping_.make_private(); }

 private:
  size_t begin_;  // in the mapping
  size_t bytes_;
  Mapping mapping_;
};

void bind_row_mapping(py::module_& m) {
  py::class_<RowMapping>(m, "RowMapping", py::buffer_protocol(),
                         "A row of a slot, mapped once more; a buffer of bytes.")
      .def_buffer([](const RowMapping& row) {
        return py::buffer_info(row.data(), static_cast<py::ssize_t>(row.bytes()));
      })
      .def_property_readonly(
          "address", [](const RowMapping& row) { return reinterpret_cast<uintptr_t>(row.data()); })
      .def("make_private", &RowMapping::make_private,
           "Replaces the memory by a copy that is not the slot's, at the same address.");
}

void bind_claim(py::module_& m) {
  py::class_<SampleEntry>(m, "SampleEntry", "One sample of a mini-batch.")
      .def_readonly("item", &SampleEntry::item,
                    "Its number in the dataset's table, or its position.")
      .def_readonly("key", &SampleEntry::key, "The index for its random draws.")
      .def_readonly("occurrence", &SampleEntry::occurrence,
                    "How often the index came up before in the epoch.")
      .def_readonly("row", &SampleEntry::row, "Of the batch.")
      .def_readonly("group", &SampleEntry::group,
                    "What it shares its draws by; 0 where it shares them with none.");
  py::class_<Claim>(m, "Claim",
                    "Tiny-batches `first .. first + count - 1` of a mini-batch, held by a worker.")
      .def_readonly("sequence", &Claim::sequence)
      .def_readonly("first", &Claim::first)
      .def_readonly("count", &Claim::count)
      .def_property_readonly("samples", of_header(&BatchHeader::samples), "Of the mini-batch.")
      .def_property_readonly("tiny_size", of_header(&BatchHeader::tiny_size))
      .def_property_readonly("seed", of_header(&BatchHeader::seed))
      .def_property_readonly("epoch", of_header(&BatchHeader::epoch))
      .def_property_readonly("number", of_header(&BatchHeader::number), "In the epoch.")
      .def_property_readonly("payload", &Claim::payload,
                             "The slot for the rows; None until their layout is known.")
      .def_property_readonly(
          "payload_rows", [](const Claim& claim) { return claim.header().payload_rows.load(); },
          "Rows that the payload is laid out for.")
      .def_property_readonly(
          "gpu_rows", [](const Claim& claim) { return claim.header().gpu_rows.load(); },
          "The device buffer for the GPU worker's rows, plus 1.")
      .def(
          "indices", [](const Claim& claim) { return view_of(claim.indices()); },
          "The pickled indices; empty where they are plain integers.")
      .def("entry", &Claim::entry, "position"_a,
           "The sample at a position in the order of the tiny-batches.")
      .def("sample_keys", &sample_keys, "start"_a, "stop"_a,
           "The items, keys, occurrences and groups at positions start .. stop - 1.\n\n"
           "A list of each: one call for all samples of a tiny-batch.")
      .def("scattered_rows", &scattered_rows, "start"_a, "stop"_a,
           "The rows of the samples at positions start .. stop - 1; None if each is its position.");
}

void bind_queue_of_worker(py::module_& m) {
  py::native_enum<End>(m, "End", "enum.Enum", "Of the samples of a mini-batch, by their size.")
      .value("SMALL", End::small)
      .value("LARGE", End::large)
      .finalize();
  py::class_<WorkerQueue>(m, "WorkerQueue", "A worker's half of the queue.")
      .def(
          py::init([](int control_fd, int data_fd, uint32_t worker, bool gpu, bool takes_returned) {
            return WorkerQueue(control_fd, data_fd, worker, gpu ? Side::gpu : Side::cpu,
                               takes_returned);
          }),
          "control_fd"_a, "data_fd"_a, "worker"_a, "gpu"_a = false, "takes_returned"_a = true,
          "`takes_returned`: also tiny-batches that others gave back.")
      .def("claim_small", &WorkerQueue::claim_small, "count"_a,
           "Claims up to `count` neighbours at the small end.")
      .def("ready", &WorkerQueue::ready,
           "Mini-batches that are complete, in a row, the oldest first.")
      .def(
          "work_of",
          [](WorkerQueue& queue, uint32_t first, uint32_t count) {
            const WorkerQueue::Work work = queue.work_of(first, count);
            return std::make_pair(work.samples, to_seconds(work.busy_ns));
          },
          "first"_a, "count"_a,
          "Samples that so many workers have made, from the first on, and seconds for these.")
      .def("claim", &WorkerQueue::claim, "end"_a, "threshold"_a, "count"_a,
           "Claims up to `count` neighbours of the oldest mini-batch that has any waiting.\n\n"
           "The last `threshold` are left to the other end.")
      .def("claim_next", &WorkerQueue::claim_next, "count"_a,
           "Claims at the end that is this worker's now.")
      .def("claim_as_borrowed", &WorkerQueue::claim_as_borrowed, "assignment"_a, "count"_a = 1,
           "Claims of the mini-batches that an assignment covers, and that have their memory.")
      .def("finish", &WorkerQueue::finish, "claim"_a, "tiny_batch"_a, "result"_a,
           "False when the tiny-batch is not this worker's any more.")
      .def("give_back", &WorkerQueue::give_back, "claim"_a, "tiny_batch"_a,
           "Leaves a tiny-batch of a claim to CPU workers.")
      .def(
          "rows",
          [](WorkerQueue& queue, const Claim& claim) {
            const Mapping& rows = queue.rows(claim);
            return view_of(rows.data(), rows.bytes());
          },
          "claim"_a, "The slot for the rows of a claim, to write to.")
      .def(
          "map_row",
          [](WorkerQueue& queue, const Claim& claim, size_t begin, size_t bytes) {
            return std::make_unique<RowMapping>(queue, claim.payload().value(), begin, bytes);
          },
          "claim"_a, "begin"_a, "bytes"_a, "Bytes of the slot for the rows of a claim.")
      .def("begin_sample",
           py::overload_cast<const Claim&, uint32_t, uint64_t>(&WorkerQueue::begin_sample),
           "claim"_a, "tiny_batch"_a, "position"_a)
      .def(
          "end_samples",
          [](WorkerQueue& queue, const Claim& claim, uint32_t tiny_batch, uint32_t samples) {
            queue.end_samples(claim, tiny_batch, samples);
          },
          "claim"_a, "tiny_batch"_a, "samples"_a,
          "So many more samples of a tiny-batch are done, since begin_sample().")
      .def("make_samples", &make_samples, "claim"_a, "begin"_a, "count"_a, "inputs"_a, "make"_a,
           "samples"_a, "generators"_a, "seeding"_a,
           "Appends to `samples`, of positions from `begin` on, until there are `count`.\n\n"
           "A sample is what `make` returns for its input, or, without inputs, for its item. The\n"
           "generators are seeded for each, if they are given. What `make` raises is raised: the\n"
           "sample is begun and not ended then.")
      .def_property_readonly("sample", &WorkerQueue::sample,
                             "The position that was begun; None when it is done.")
      .def(
          "add_part_seconds",
          [](WorkerQueue& queue, const std::vector<double>& seconds) {
            std::vector<uint64_t> ns;
            for (const double part : seconds) ns.push_back(static_cast<uint64_t>(to_ns(part)));
            queue.add_part_ns(ns);
          },
          "seconds"_a, "Adds to the wall time of a plan's parts.")
      .def("add_images", &WorkerQueue::add_images, "counts"_a,
           "Adds to what it has counted of deferred images.")
      .def("add_reads", &WorkerQueue::add_reads, "nbytes"_a, "cache_counts"_a,
           "Adds to what was read, and to where it came from.")
      .def("add_files", &WorkerQueue::add_files, "opened"_a, "reused"_a,
           "Adds to the files that were opened for user code, and to those that were open.")
      .def("begin_span", &WorkerQueue::begin_span,
           "While a trace is on, what is done from here to `end_span` is one span of it.")
      .def("end_span", &WorkerQueue::end_span, "claim"_a, "first"_a, "count"_a,
           "rest_is_python"_a = false,
           "So many tiny-batches of a claim are done, and about to be finished.\n\n"
           "`rest_is_python`: so is what was spent on samples and is no part of a plan.")
      .def("idle", &WorkerQueue::idle, "The worker is at no mini-batch.")
      .def(
          "sleep",
          [](WorkerQueue& queue, uint32_t seen, double seconds) {
            queue.sleep(seen, to_ns(seconds));
          },
          "seen"_a, "seconds"_a, Unlocked(), "Sleeps unless `work_word` is no longer `seen`.")
      .def("wake_manager", &WorkerQueue::wake_manager)
      .def("announce", &WorkerQueue::announce, "pid"_a)
      .def("gpu_ready", &WorkerQueue::gpu_ready, "The GPU worker has built what it needs.")
      .def_property_readonly("gpu_beside", &WorkerQueue::gpu_beside,
                             "Whether the GPU worker works beside training.")
      .def("leave", &WorkerQueue::leave, "Nothing of the GPU worker is on the device any more.")
      .def("take_guest_slot", &WorkerQueue::take_guest_slot, "guest_slot"_a, "identity"_a,
           "Makes this the queue of a worker of another rank; False where the slot is not free.")
      .def("leave_guest_slot", &WorkerQueue::leave_guest_slot)
      .def_property_readonly("is_sent", &WorkerQueue::is_sent,
                             "Of a pool's queue: whether there is an assignment not answered.")
      .def("answer", &WorkerQueue::answer, "Answers it; the member that the worker is sent to.")
      .def(
          "layout", [](WorkerQueue& queue) { return view_of(queue.layout()); },
          "The pickled layout of Python samples.")
      .def_property_readonly("layout_version", &WorkerQueue::layout_version,
                             "0 until the layout is known.")
      .def_property_readonly("work_word", &WorkerQueue::work_word)
      .def_property_readonly("stopping", &WorkerQueue::stopping);
}

}  // namespace

void bind_worker_queue(py::module_& m) {
  bind_row_mapping(m);
  bind_claim(m);
  bind_queue_of_worker(m);
}

}  // namespace fusionloader
