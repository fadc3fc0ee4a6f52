#pragma once
// The last stage: 8-bit planes to the elements of the batch, through a table of all levels.
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "convert/convert_spec.hpp"
#include "convert/element_order.hpp"
#include "simd/level.hpp"

namespace fusionloader {

// How torch makes float32 of a level, where the table turns out to be made that way:
// (unit - mean) / deviation, each step rounded to float32. The unit is level / 255,
// level * float32(1 / 255), or the level itself.
enum class Unit { quotient, product, level };
struct FloatArithmetic {
  Unit unit;
  std::array<float, 3> mean, deviation;
};

// `out[i]` from `levels[i]`, the arithmetic of `channel`; `table` for what does not fill a vector.
using FloatKernel = void (*)(const uint8_t* levels, size_t count, const FloatArithmetic& arithmetic,
                             size_t channel, const float* table, float* out);
// None where the lookup is as good as anything.
FloatKernel float_kernel(SimdLevel simd);

struct PlaneRow {
  const uint8_t* planes;  // with row_slack readable bytes behind each
  size_t plane;           // bytes between planes
};

// Not thread-safe where the spec has an order.
class Converter {
 public:
  // Throws std::invalid_argument when the table's size is not channels x 256 elements, or the order
  // does not give all of the image.
  Converter(const ConvertSpec& spec, int width, int height, int channels, SimdLevel simd);

  size_t result_bytes() const {
    return channels_ * width_ * height_ * element_size_ * (order_ ? order_->repeats() : 1);
  }
  // Which of the ways below was chosen: "copy", "arithmetic" or "lookup".
  const char* method() const;
  void row(int y, const PlaneRow& in, uint8_t* out) const;

 private:
  enum class Method { copy, arithmetic, lookup };

  bool arithmetic_is_exact();

  size_t element_size_;
  std::vector<uint8_t> table_;
  size_t width_, height_, channels_;
  SimdLevel simd_;
  Method method_ = Method::lookup;
  FloatArithmetic arithmetic_{};
  FloatKernel kernel_ = nullptr;
  std::optional<ElementOrder> order_;
  mutable std::vector<uint8_t> line_;  // a converted row, before it is put in order
};

// Whether `table` (channels x 256 float32) is what `arithmetic` gives on every level of every
// channel, bit for bit; finds the parameters from the table itself.
bool recover_arithmetic(const float* table, size_t channels, FloatArithmetic& arithmetic);

#if defined(__x86_64__)
extern const FloatKernel convert_float_avx2, convert_float_avx512;
#elif defined(__aarch64__)
extern const FloatKernel convert_float_neon;
#endif

}  // namespace fusionloader
