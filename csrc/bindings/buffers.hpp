#pragma once
// Memory of Python's objects.
#include <pybind11/pybind11.h>

#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "ops/limits.hpp"
#include "plan/executor.hpp"

namespace fusionloader {

// A contiguous buffer, held for as long as this lives.
class Buffer {
 public:
  Buffer(const pybind11::handle& object, int flags) {
    if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) throw pybind11::error_already_set();
  }
  ~Buffer() { PyBuffer_Release(&view_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  ByteView bytes() const {
    return {static_cast<const uint8_t*>(view_.buf), static_cast<size_t>(view_.len)};
  }
  uint8_t* writable(size_t needed) const {
    if (needed == 0) throw std::invalid_argument("the plan's result has no fixed size");
    if (static_cast<size_t>(view_.len) < needed)
      throw std::invalid_argument("the output has " + std::to_string(view_.len) +
                                  " bytes, the result needs " + std::to_string(needed));
    return static_cast<uint8_t*>(view_.buf);
  }
  PixelView pixels() const {
    if (view_.ndim != 3 || view_.itemsize != 1 ||
        (view_.shape[2] != 4 && view_.shape[2] != 3 && view_.shape[2] != 1) || view_.shape[0] < 1 ||
        view_.shape[1] < 1)
      throw std::invalid_argument("pixels must be 8 bit, height x width x 4, 3 or 1");
    if (view_.shape[0] > longest_side || view_.shape[1] > longest_side ||
        view_.shape[0] * view_.shape[1] > INT32_MAX)
      throw std::invalid_argument(
          "an image of " + std::to_string(view_.shape[1]) + " x " + std::to_string(view_.shape[0]) +
          " pixels is too large: a side may have " + std::to_string(longest_side));
    return {static_cast<const uint8_t*>(view_.buf), static_cast<int>(view_.shape[1]),
            static_cast<int>(view_.shape[0]), static_cast<int>(view_.shape[2]),
            view_.shape[1] * view_.shape[2]};
  }

 private:
  Py_buffer view_;
};

// An entry index as Python keeps it, and back.
inline pybind11::bytes bytes_of(const std::vector<ScanEntry>& entries) {
  return {reinterpret_cast<const char*>(entries.data()), entries.size() * sizeof(ScanEntry)};
}
inline std::vector<ScanEntry> entries_of(std::string_view bytes) {
  std::vector<ScanEntry> entries(bytes.size() / sizeof(ScanEntry));
  if (!entries.empty())
    std::memcpy(entries.data(), bytes.data(), entries.size() * sizeof(ScanEntry));
  return entries;
}

inline constexpr int readable = PyBUF_SIMPLE, writable = PyBUF_WRITABLE,
                     shaped = PyBUF_C_CONTIGUOUS;

}  // namespace fusionloader
