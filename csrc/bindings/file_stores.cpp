// What caches keep of files: their ledger, and their stores.
#include <pybind11/stl.h>

#include "bindings/buffers.hpp"
#include "bindings/module.hpp"
#include "bindings/opened_stores.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace fusionloader {
namespace {

// What was found; of a store on a disk with the memory that it was read into.
struct KeptFile {
  FileStore::Kept kept;
  std::vector<uint8_t> buffer;
};

void bind_kept(py::module_& m) {
  py::class_<KeptFile, std::unique_ptr<KeptFile>>(m, "KeptFile", "What is kept of a file.")
      .def_property_readonly("data",
                             [](const KeptFile& found) {
                               return py::bytes(reinterpret_cast<const char*>(found.kept.data.data),
                                                found.kept.data.size);
                             })
      .def_property_readonly(
          "view",
          [](const KeptFile& found) {
            return py::memoryview::from_memory(found.kept.data.data,
                                               static_cast<py::ssize_t>(found.kept.data.size));
          },
          "The same without a copy, for as long as this and its store are there.")
      .def_property_readonly("width", [](const KeptFile& found) { return found.kept.width; })
      .def_property_readonly("height", [](const KeptFile& found) { return found.kept.height; });
}

std::unique_ptr<KeptFile> find(const FileStore& store, uint64_t item, FileStamp stamp) {
  auto found = std::make_unique<KeptFile>();
  const auto kept = store.find(item, stamp, found->buffer);
  if (!kept) return nullptr;
  found->kept = *kept;
  return found;
}

void bind_ledger(py::module_& m) {
  py::class_<Ledger>(m, "LedgerView", "How much the stores of a cache may take.")
      .def(py::init<int>(), "fd"_a)
      .def(
          "charge",
          [](Ledger& ledger, bool disk, uint64_t nbytes) {
            return ledger.charge(disk ? Medium::disk : Medium::memory, nbytes);
          },
          "disk"_a, "nbytes"_a, "False, and nothing is charged, if that is more than is left.")
      .def(
          "refund",
          [](Ledger& ledger, bool disk, uint64_t nbytes) {
            ledger.refund(disk ? Medium::disk : Medium::memory, nbytes);
          },
          "disk"_a, "nbytes"_a);
}

void bind_store(py::module_& m) {
  py::class_<FileStore>(m, "FileStoreView",
                        "What workers kept of files; a file is told by its bytes and its mtime.")
      .def(py::init([](int fd, size_t nbytes, std::optional<Ledger*> ledger) {
             return new FileStore(fd, nbytes, ledger.value_or(nullptr));
           }),
           py::keep_alive<1, 4>(), "fd"_a, "nbytes"_a, "ledger"_a = py::none())
      .def("lacks", &FileStore::lacks, "item"_a, "nbytes"_a,
           "Whether nothing is kept of the file, and there is room for so much.")
      .def_property_readonly("items", &FileStore::items, "How many files it has records of.")
      .def("holds", &FileStore::holds, "item"_a,
           "Whether something is kept of the file, current or not.")
      .def(
          "find",
          [](const FileStore& store, uint64_t item, uint64_t bytes, int64_t mtime_ns) {
            return find(store, item, {bytes, mtime_ns});
          },
          "item"_a, "nbytes"_a, "mtime_ns"_a, py::keep_alive<0, 1>())
      .def(
          "is_of",
          [](const FileStore& store, uint64_t item, uint64_t bytes, int64_t mtime_ns) {
            return store.is_of(item, {bytes, mtime_ns});
          },
          "item"_a, "nbytes"_a, "mtime_ns"_a,
          "Whether the record is this file's: filled, or being filled.")
      .def(
          "begin",
          [](FileStore& store, uint64_t item, uint64_t bytes, int64_t mtime_ns) {
            return store.begin(item, {bytes, mtime_ns}, bytes);
          },
          "item"_a, "nbytes"_a, "mtime_ns"_a,
          "Makes this process the one that fills the record; `put` does so itself.")
      .def("abandon", &FileStore::abandon, "item"_a)
      .def(
          "put",
          [](FileStore& store, uint64_t item, uint64_t bytes, int64_t mtime_ns, uint32_t width,
             uint32_t height, const py::buffer& data) {
            const Buffer from(data, readable);
            return store.put(item, {bytes, mtime_ns}, width, height, from.bytes());
          },
          "item"_a, "nbytes"_a, "mtime_ns"_a, "width"_a, "height"_a, "data"_a,
          "False if there is no room, or another process was faster.");
}

uint64_t to_ns(double seconds) { return static_cast<uint64_t>(seconds * 1e9); }

// What is measured with it decides which tier is best for a dataset.
void bind_opened(py::module_& m) {
  m.def(
      "best_decoded_share",
      [](double samples, double room, double encoded_bytes, double decoded_bytes, double read_s,
         double window_s, double pixels_s, double workers, double cores) {
        return best_decoded_share({samples, room, encoded_bytes, decoded_bytes, read_s, window_s,
                                   pixels_s, workers, cores});
      },
      py::kw_only(), "samples"_a, "room"_a, "encoded_bytes"_a, "decoded_bytes"_a, "read_s"_a,
      "window_s"_a, "pixels_s"_a, "workers"_a, "cores"_a,
      "The share of the samples kept that should be kept as pixels, for the shortest epoch.");
  using MaybeStore = std::optional<FileStore*>;
  py::class_<OpenedStores>(m, "OpenedStores", "The stores of a dataset, for a worker's loop.")
      .def(py::init([](MaybeStore index, MaybeStore encoded, MaybeStore decoded,
                       MaybeStore disk_encoded, MaybeStore disk_decoded, int control_fd) {
             auto opened = std::make_unique<OpenedStores>();
             opened->index = index.value_or(nullptr);
             opened->encoded = encoded.value_or(nullptr);
             opened->decoded = decoded.value_or(nullptr);
             opened->disk_encoded = disk_encoded.value_or(nullptr);
             opened->disk_decoded = disk_decoded.value_or(nullptr);
             if (control_fd >= 0) {
               opened->control.emplace(control_fd, 0, sizeof(CacheControl));
               CacheControl::of(*opened->control);
             }
             return opened;
           }),
           py::keep_alive<1, 2>(), py::keep_alive<1, 3>(), py::keep_alive<1, 4>(),
           py::keep_alive<1, 5>(), py::keep_alive<1, 6>(), py::kw_only(), "index"_a = py::none(),
           "encoded"_a = py::none(), "decoded"_a = py::none(), "disk_encoded"_a = py::none(),
           "disk_decoded"_a = py::none(), "control_fd"_a = -1)
      .def_property_readonly(
          "measuring", [](const OpenedStores& opened) { return opened.measured() != nullptr; },
          "Whether it is not decided yet which tier is best.")
      .def("wants_pixels", &OpenedStores::wants_pixels, "place"_a,
           "Whether the tier of a file is that of decoded pixels.")
      .def("tries_pixels", &OpenedStores::tries_pixels, "place"_a,
           "Whether a file's pixels are to be made only in order to be measured.")
      .def(
          "count_read",
          [](const OpenedStores& opened, double seconds, uint64_t nbytes) {
            if (CacheControl* at = opened.measured()) at->count_read(to_ns(seconds), nbytes);
          },
          "seconds"_a, "nbytes"_a)
      .def(
          "count_window",
          [](const OpenedStores& opened, double seconds) {
            if (CacheControl* at = opened.measured()) at->count_window(to_ns(seconds));
          },
          "seconds"_a)
      .def(
          "count_pixels",
          [](const OpenedStores& opened, double seconds) {
            if (CacheControl* at = opened.measured()) at->count_pixels(to_ns(seconds));
          },
          "seconds"_a)
      .def(
          "count_image",
          [](const OpenedStores& opened, uint64_t nbytes) {
            if (CacheControl* at = opened.measured()) at->count_image(nbytes);
          },
          "nbytes"_a);
}

}  // namespace

void bind_file_stores(py::module_& m) {
  bind_kept(m);
  bind_ledger(m);
  bind_store(m);
  bind_opened(m);
}

}  // namespace fusionloader
