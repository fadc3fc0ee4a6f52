// What the proxy of remote workers asks of the dataset's table, and has written into slots.
#include "worker/remote_rows.hpp"

#include <pybind11/stl.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings/buffers.hpp"
#include "bindings/gil.hpp"
#include "bindings/module.hpp"
#include "bindings/python_types.hpp"
#include "bindings/sample_ranges.hpp"
#include "bindings/stages.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace fusionloader {
namespace {

RemoteRows* make_rows(Mapping& table, size_t received_bytes, const std::optional<Convert>& convert,
                      int channels) {
  std::optional<ConvertSpec> spec;
  if (convert) spec = convert_from_tuple(*convert);
  return new RemoteRows(DatasetTable::of(table), received_bytes, spec, channels, best_simd_level());
}

uint64_t known(const RemoteRows& rows, uint64_t item) {
  if (item >= rows.table().count) throw std::out_of_range("the dataset has no such sample");
  return item;
}

void write(const RemoteRows& rows, WorkerQueue& queue, const Claim& claim,
           const py::buffer& results) {
  const Buffer from(results, readable);
  const uint32_t samples = RemoteRows::samples(claim);
  if (from.bytes().size != samples * rows.received_bytes())
    throw std::invalid_argument("results of " + std::to_string(samples) + " samples have not " +
                                std::to_string(from.bytes().size) + " bytes");
  const GilReleased unlocked;
  rows.write(queue, claim, from.bytes().data);
}

}  // namespace

void bind_remote_rows(py::module_& m) {
  py::class_<RemoteRows>(m, "RemoteRows",
                         "A dataset's table, and the slots' rows, of what other machines make.")
      .def(py::init(&make_rows), py::keep_alive<1, 2>(), "table"_a, "received_bytes"_a, "convert"_a,
           "channels"_a,
           "Results come as they are, or with `convert` as levels.\n\n"
           "These are 8-bit, `channels` planes of them; `convert` is elements' name and table.")
      .def_property_readonly("items", [](const RemoteRows& rows) { return rows.table().count; })
      .def(
          "range",
          [](const RemoteRows& rows, uint64_t item) {
            return range_of(rows.table(), known(rows, item));
          },
          "item"_a,
          "Path, offset and bytes of a sample, and its file's bytes and mtime in ns.\n\n"
          "All numbers are 0 where the sample has a file.")
      .def_property_readonly(
          "holds_ranges", [](const RemoteRows& rows) { return rows.table().holds_ranges(); },
          "Whether samples are ranges of files.")
      .def(
          "size",
          [](const RemoteRows& rows, uint64_t item) {
            return rows.table().size(known(rows, item)).load();
          },
          "item"_a, "Bytes of a file, 0 where no worker has read it yet.")
      .def(
          "pixels",
          [](const RemoteRows& rows, uint64_t item) {
            const DatasetTable& table = rows.table();
            return view_of(const_cast<uint8_t*>(table.pixels(known(rows, item))),
                           table.height * table.width * table.channels);
          },
          "item"_a, "The bytes of an image, where the table has these.")
      .def(
          "paths",
          [](const RemoteRows& rows, const Claim& claim) {
            const RemoteRows::Paths made = rows.paths(claim);
            return std::make_pair(py::bytes(made.samples), py::bytes(made.paths));
          },
          "claim"_a,
          "The samples of a claim as `PREPARE` has them, and the paths of their files.\n\n"
          "Empty where one has no file with an absolute path.")
      .def_property_readonly("receives_rows", &RemoteRows::receives_rows,
                             "Whether results are rows as they come.")
      .def(
          "places",
          [](const RemoteRows& rows, WorkerQueue& queue, const Claim& claim) {
            const uint32_t begin = claim.first * claim.header().tiny_size;
            std::vector<py::memoryview> places;
            for (uint32_t i = 0; i < RemoteRows::samples(claim); ++i)
              places.push_back(view_of(rows.row(queue, claim, begin + i), rows.received_bytes()));
            return places;
          },
          "queue"_a, "claim"_a,
          "Where to write the results of a claim that is held, if they are rows already.")
      .def("write_targets", &RemoteRows::write_targets, "queue"_a, "claim"_a)
      .def("write", &write, "queue"_a, "claim"_a, "results"_a,
           "Writes what was made of a claim that is held, and the targets.");
}

}  // namespace fusionloader
