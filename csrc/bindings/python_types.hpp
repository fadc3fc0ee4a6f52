#pragma once
// Python types that a signature names more closely than pybind11's own classes do.
#include <pybind11/pybind11.h>

namespace fusionloader {

// Operations as in operations.hpp, as they come in and as they go out.
class OperationSequence : public pybind11::sequence {
  using pybind11::sequence::sequence;
};
class OperationList : public pybind11::list {
 public:
  OperationList() = default;
};
// Values of fusionloader.transforms.plan.stages.
class StageSequence : public pybind11::sequence {
  using pybind11::sequence::sequence;
};

// Memory that is only looked into.
inline pybind11::memoryview view_of(std::string_view bytes) {
  return pybind11::memoryview::from_memory(bytes.data(),
                                           static_cast<pybind11::ssize_t>(bytes.size()));
}
inline pybind11::memoryview view_of(uint8_t* data, size_t bytes) {
  return pybind11::memoryview::from_memory(data, static_cast<pybind11::ssize_t>(bytes));
}

inline double to_seconds(uint64_t ns) { return static_cast<double>(ns) / 1e9; }
inline int64_t to_ns(double seconds) { return static_cast<int64_t>(seconds * 1e9); }

// A getter for a field of nanoseconds.
template <class Struct>
auto in_seconds(uint64_t Struct::* ns) {
  return [ns](const Struct& value) { return to_seconds(value.*ns); };
}

}  // namespace fusionloader

namespace pybind11::detail {
template <>
struct handle_type_name<fusionloader::OperationSequence> {
  static constexpr auto name = const_name("collections.abc.Sequence[tuple[typing.Any, ...]]");
};
template <>
struct handle_type_name<fusionloader::OperationList> {
  static constexpr auto name = const_name("list[tuple[typing.Any, ...]]");
};
template <>
struct handle_type_name<fusionloader::StageSequence> {
  static constexpr auto name = const_name("collections.abc.Sequence[typing.Any]");
};
}  // namespace pybind11::detail
