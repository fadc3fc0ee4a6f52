// JPEG files that are opened in place of Pillow: one read, one look at their markers.
#include <fcntl.h>
#include <pybind11/pybind11.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "bindings/buffers.hpp"
#include "bindings/gil.hpp"
#include "bindings/module.hpp"
#include "jpeg/pillow_header.hpp"

namespace py = pybind11;

namespace fusionloader {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor() { reset(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }
  void reset() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }

 private:
  int fd_;
};

class OpenedJpeg {
 public:
  // Nothing for a file that Pillow has to open.
  static std::unique_ptr<OpenedJpeg> open(const py::object& path, size_t most_bytes,
                                          size_t first_bytes) {
    PyObject* encoded = nullptr;
    if (!PyUnicode_FSConverter(path.ptr(), &encoded)) throw py::error_already_set();
    const auto name = py::reinterpret_steal<py::bytes>(encoded);
    Descriptor file;
    {
      const char* text = PyBytes_AS_STRING(name.ptr());
      const GilReleased released;
      // Without waiting for a writer where the path is a FIFO's.
      file = Descriptor(::open(text, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    }
    if (file.get() < 0) return nullptr;
    auto opened = read(file.get(), most_bytes, first_bytes);
    if (opened) opened->file_ = std::move(file);
    return opened;
  }

  static std::unique_ptr<OpenedJpeg> read(int fd, size_t most_bytes, size_t first_bytes) {
    struct stat info{};
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size <= 0 ||
        static_cast<size_t>(info.st_size) > most_bytes)
      return nullptr;
    const auto file_bytes = static_cast<size_t>(info.st_size);
    const size_t bytes = std::min(file_bytes, first_bytes);
    const bool is_whole = bytes == file_bytes;
    const size_t content_bytes = bytes + (is_whole ? 0 : sizeof end_of_image);
    auto content = py::reinterpret_steal<py::bytes>(
        PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(content_bytes)));
    if (!content) throw py::error_already_set();
    auto* to = reinterpret_cast<uint8_t*>(PyBytes_AS_STRING(content.ptr()));
    PillowHeader header{};
    {
      const GilReleased released;
      size_t done = 0;
      while (done < bytes) {
        const ssize_t got = pread(fd, to + done, bytes - done, static_cast<off_t>(done));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return nullptr;
        done += static_cast<size_t>(got);
      }
      if (!is_whole) std::memcpy(to + bytes, end_of_image, sizeof end_of_image);
      if (!read_pillow_header({to, content_bytes}, header)) return nullptr;
    }
    return std::make_unique<OpenedJpeg>(std::move(content), header, is_whole);
  }

  static std::unique_ptr<OpenedJpeg> of(py::bytes content) {
    PillowHeader header{};
    {
      const ByteView view{reinterpret_cast<const uint8_t*>(PyBytes_AS_STRING(content.ptr())),
                          static_cast<size_t>(PyBytes_GET_SIZE(content.ptr()))};
      const GilReleased released;
      if (!read_pillow_header(view, header)) return nullptr;
    }
    return std::make_unique<OpenedJpeg>(std::move(content), header);
  }

  OpenedJpeg(py::bytes encoded, PillowHeader header, bool is_whole = true)
      : encoded(std::move(encoded)), header(header), is_whole(is_whole) {}

  int descriptor() const { return file_.get(); }
  int take_descriptor() { return file_.release(); }
  void close() { file_.reset(); }

  const py::bytes encoded;
  const PillowHeader header;
  const bool is_whole;

 private:
  // Stands for the rest of a file.
  static constexpr uint8_t end_of_image[] = {0xFF, 0xD9};

  Descriptor file_;
};

}  // namespace

void bind_opened_jpeg(py::module_& m) {
  using namespace py::literals;
  py::class_<OpenedJpeg>(
      m, "OpenedJpeg",
      "The content of a JPEG file that Pillow opens and decodes without an error or a warning.\n\n"
      "Functions that make one return None for any other file, and for one that cannot be read.")
      .def_static(
          "open", &OpenedJpeg::open, "path"_a, "most_bytes"_a, "first_bytes"_a = SIZE_MAX,
          "Reads a regular file of at most `most_bytes`, and leaves it open.\n\n"
          "Of a file that has more than `first_bytes`, it reads only these; then nothing is\n"
          "known of what follows the header.")
      .def_static("read", &OpenedJpeg::read, "fd"_a, "most_bytes"_a, "first_bytes"_a = SIZE_MAX,
                  "Reads a regular file that is open; its position stays.")
      .def_static("of", &OpenedJpeg::of, "content"_a)
      .def_readonly("encoded", &OpenedJpeg::encoded,
                    "Of a file that was not read whole, the part that was, and an end.")
      .def_readonly("is_whole", &OpenedJpeg::is_whole, "Whether all of the file was read.")
      .def_property_readonly("descriptor", &OpenedJpeg::descriptor,
                             "Of the open file; -1 if there is none.")
      .def_property_readonly(
          "size",
          [](const OpenedJpeg& self) { return std::pair(self.header.width, self.header.height); },
          "Width and height.")
      .def_property_readonly(
          "components", [](const OpenedJpeg& self) { return self.header.components; },
          "1 for levels of gray, 3 for colors.")
      .def_property_readonly(
          "header_bytes", [](const OpenedJpeg& self) { return self.header.end; },
          "Offset behind the header of the first scan, which Pillow reads up to.")
      .def("take_descriptor", &OpenedJpeg::take_descriptor,
           "The descriptor of the open file, which the caller closes; -1 if there is none.")
      .def("close", &OpenedJpeg::close, "Closes the file, if it is open.");
}

}  // namespace fusionloader
