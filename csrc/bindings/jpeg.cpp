// The decoder alone, for tests and measurements.
#include <pybind11/native_enum.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "bindings/buffers.hpp"
#include "bindings/testing.hpp"
#include "image/rows.hpp"
#include "jpeg/region_decoder.hpp"

namespace py = pybind11;

namespace fusionloader {
namespace {

class WindowReader {
 public:
  WindowReader(BaselineDecoder baseline, const std::optional<std::string>& simd)
      : decoder_(simd ? simd_level_from_name(*simd) : best_simd_level(), baseline) {}

  // RGB of a window of the image at 1/`denominator` of its size; none where the file is left to
  // Pillow. `index` is the file's, as index() gives it.
  std::optional<py::bytes> read(const py::buffer& encoded, int x, int y, int width, int height,
                                const py::bytes& index, int denominator) {
    const Opened opened(decoder_, encoded);
    const std::vector<ScanEntry> entries = entries_of(index);
    if (!opened.started({x, y, width, height}, {entries.data(), entries.size()}, denominator))
      return std::nullopt;
    std::string pixels(static_cast<size_t>(width) * static_cast<size_t>(height) * 3, '\0');
    char* to = pixels.data();
    const auto keep = [&](const uint8_t* row) {
      for (int i = 0; i < width; ++i, to += 3, row += 4) std::memcpy(to, row, 3);
    };
    if (!each_row(height, keep)) return std::nullopt;
    return py::bytes(pixels);
  }

  // The same work without keeping the pixels; false where the file is left to Pillow.
  bool skim(const py::buffer& encoded, int x, int y, int width, int height, const py::bytes& index,
            int denominator) {
    const Opened opened(decoder_, encoded);
    const std::vector<ScanEntry> entries = entries_of(index);
    return opened.started({x, y, width, height}, {entries.data(), entries.size()}, denominator) &&
           each_row(height, [](const uint8_t*) {});
  }

  // The file's entry index; none where it can have none.
  std::optional<py::bytes> index(const py::buffer& encoded) {
    const Opened opened(decoder_, encoded);
    std::vector<ScanEntry> entries;
    if (!opened.recorded(entries)) return std::nullopt;
    return bytes_of(entries);
  }

  BaselineDecoder started() const { return decoder_.started(); }

 private:
  // A file for as long as this lives.
  class Opened {
   public:
    Opened(RegionDecoder& decoder, const py::buffer& encoded)
        : decoder_(decoder),
          bytes_(encoded.request()),
          open_(decoder.open({static_cast<const uint8_t*>(bytes_.ptr),
                              static_cast<size_t>(bytes_.size * bytes_.itemsize)})) {}
    ~Opened() { decoder_.close(); }
    Opened(const Opened&) = delete;
    Opened& operator=(const Opened&) = delete;
    bool started(Rect window, EntryIndex index, int denominator) const {
      return open_ && decoder_.start(window, denominator, index);
    }
    bool recorded(std::vector<ScanEntry>& entries) const {
      return open_ && decoder_.record(entries);
    }

   private:
    RegionDecoder& decoder_;
    const py::buffer_info bytes_;
    const bool open_;
  };

  template <class Visit>
  bool each_row(int height, Visit visit) {
    for (int y = 0; y < height; y += rows_at_once) {
      const uint8_t* rows[rows_at_once];
      const int count = std::min(rows_at_once, height - y);
      if (!decoder_.rows(y, count, rows)) return false;
      for (int i = 0; i < count; ++i) visit(rows[i]);
    }
    return true;
  }

  RegionDecoder decoder_;
};

}  // namespace

void bind_jpeg(py::module_& m) {
  using namespace py::literals;
  py::native_enum<BaselineDecoder>(m, "BaselineDecoder", "enum.Enum",
                                   "What decodes the baseline files that both can.")
      .value("OWN", BaselineDecoder::own)
      .value("LIBJPEG", BaselineDecoder::libjpeg)
      .finalize();
  py::class_<WindowReader>(
      m, "WindowReader",
      "Windows of JPEG files; nothing where Pillow has to decode.\n\n"
      "`index` is the file's entry index, as `index()` gives it; a window is one\n"
      "of the image at 1/`denominator` of its size.")
      .def(py::init<BaselineDecoder, const std::optional<std::string>&>(),
           "baseline"_a = BaselineDecoder::own, "simd"_a = py::none())
      .def("read", &WindowReader::read, "encoded"_a, "x"_a, "y"_a, "width"_a, "height"_a,
           "index"_a = py::bytes(), "denominator"_a = 1, "RGB, row by row.")
      .def("skim", &WindowReader::skim, "encoded"_a, "x"_a, "y"_a, "width"_a, "height"_a,
           "index"_a = py::bytes(), "denominator"_a = 1,
           "The same work without keeping the pixels.")
      .def("index", &WindowReader::index, "encoded"_a)
      .def_property_readonly("started", &WindowReader::started);
}

}  // namespace fusionloader
