#include "ops/float_sum.hpp"

#include <algorithm>

#include "ops/per_level.hpp"

namespace fusionloader {
namespace {

constexpr size_t lanes_of_torch = 8;

template <int, class Element>
FUSIONLOADER_INLINE void rows_loop(const Element* elements, size_t rows, float* sums) {
  constexpr size_t row = FloatSum::row;
  float made[row];
  for (size_t i = 0; i < row; ++i) made[i] = sums[i];
  for (; rows != 0; --rows, elements += row)
    for (size_t i = 0; i < row; ++i) made[i] += static_cast<float>(elements[i]);
  for (size_t i = 0; i < row; ++i) sums[i] = made[i];
}

FUSIONLOADER_PER_LEVEL(add_rows, rows_loop)

template <size_t count>
void add_sums(std::array<float, count>& to, const std::array<float, count>& from) {
  for (size_t i = 0; i < count; ++i) to[i] += from[i];
}

unsigned bits_for(size_t count) {
  unsigned bits = 0;
  while (size_t{1} << bits < count) ++bits;
  return bits;
}

}  // namespace

FloatSum::FloatSum(size_t count) : step_bits_(std::max(4u, bits_for(count / row) / 4)) {}

template <class Element>
void FloatSum::add(const Element* elements, size_t count, SimdLevel level) {
  const size_t step = size_t{1} << step_bits_;
  while (count >= row) {
    const size_t rows = std::min(count / row, step);
    add_rows(level, elements, rows, sums_[0].data());
    elements += rows * row;
    count -= rows * row;
    rows_ += rows;
    if (rows < step) break;
    for (unsigned at = 1; at < sums_.size(); ++at) {
      add_sums(sums_[at], sums_[at - 1]);
      sums_[at - 1] = {};
      if ((rows_ & (step - 1) << at * step_bits_) != 0) break;
    }
  }
  std::copy_n(elements, count, rest_.begin());
  rest_count_ = count;
}
template void FloatSum::add(const uint8_t*, size_t, SimdLevel);
template void FloatSum::add(const float*, size_t, SimdLevel);

float FloatSum::total() const {
  if (rows_ == 0 && rest_count_ < lanes_of_torch) {  // torch adds up 4 without vectors
    std::array<float, 4> lanes{};
    for (size_t i = 0; i < rest_count_; ++i) lanes[i < rest_count_ / 4 * 4 ? i % 4 : 0] += rest_[i];
    return lanes[0] + lanes[1] + lanes[2] + lanes[3];
  }
  Sums sums = sums_[0];
  for (size_t at = 1; at < sums_.size(); ++at) add_sums(sums, sums_[at]);
  const size_t in_vectors = rest_count_ / lanes_of_torch * lanes_of_torch;
  for (size_t i = 0; i < in_vectors; ++i) sums[i % lanes_of_torch] += rest_[i];
  float total = 0.0f;
  for (size_t i = in_vectors; i < rest_count_; ++i) total += rest_[i];
  for (size_t i = 0; i < lanes_of_torch; ++i) {
    float lane = sums[i];
    for (size_t more = i + lanes_of_torch; more < row; more += lanes_of_torch) lane += sums[more];
    total += lane;
  }
  return total;
}

}  // namespace fusionloader
