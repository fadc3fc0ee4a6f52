#include "convert/convert.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

namespace fusionloader {
namespace {

constexpr size_t levels = 256;

float apply(const FloatArithmetic& arithmetic, size_t channel, size_t level) {
  const auto value = static_cast<float>(level);
  const float unit = arithmetic.unit == Unit::level     ? value
                     : arithmetic.unit == Unit::product ? value * (1.0f / 255.0f)
                                                        : value / 255.0f;
  return (unit - arithmetic.mean[channel]) / arithmetic.deviation[channel];
}

bool same_bits(float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0; }

bool channel_matches(const float* table, const FloatArithmetic& arithmetic, size_t channel) {
  for (const size_t level : {size_t{255}, size_t{0}, size_t{128}})
    if (!same_bits(apply(arithmetic, channel, level), table[level])) return false;
  for (size_t level = 0; level < levels; ++level)
    if (!same_bits(apply(arithmetic, channel, level), table[level])) return false;
  return true;
}

float steps_away(float value, int steps) {
  const float towards = steps > 0 ? INFINITY : -INFINITY;
  for (int i = 0; i < std::abs(steps); ++i) value = std::nextafter(value, towards);
  return value;
}

// The ends of the table are -mean / deviation and (white - mean) / deviation but for rounding: the
// parameters are a few float32 steps from what these say.
bool recover_channel(const float* table, FloatArithmetic& arithmetic, size_t channel) {
  constexpr int reach = 12;
  const double low = table[0], high = table[levels - 1];
  if (!(std::isfinite(low) && std::isfinite(high)) || low == high) return false;
  const double white = arithmetic.unit == Unit::level ? levels - 1 : 1;
  const double deviation = white / (high - low), mean = -low * deviation;
  for (int i = -reach; i <= reach; ++i) {
    arithmetic.deviation[channel] = steps_away(static_cast<float>(deviation), i);
    for (int j = -reach; j <= reach; ++j) {
      arithmetic.mean[channel] = steps_away(static_cast<float>(mean), mean == 0.0 ? 0 : j);
      if (channel_matches(table, arithmetic, channel)) return true;
    }
  }
  return false;
}

template <class Element>
void look_up(const uint8_t* from, size_t count, const uint8_t* table, uint8_t* out) {
  const auto one = [&](size_t i) {
    std::memcpy(out + i * sizeof(Element), table + from[i] * sizeof(Element), sizeof(Element));
  };
  size_t i = 0;
  // A shorter loop takes up to twice as long, depending on where it comes to lie.
  for (; i + 4 <= count; i += 4)
    for (size_t j = 0; j < 4; ++j) one(i + j);
  for (; i < count; ++i) one(i);
}

void look_up(size_t element_size, const uint8_t* from, size_t count, const uint8_t* table,
             uint8_t* out) {
  switch (element_size) {
    case 1:
      return look_up<uint8_t>(from, count, table, out);
    case 2:
      return look_up<uint16_t>(from, count, table, out);
    case 4:
      return look_up<uint32_t>(from, count, table, out);
    default:
      return look_up<uint64_t>(from, count, table, out);
  }
}

bool is_identity(const ConvertSpec& spec) {
  if (spec.element_size != 1) return false;
  for (size_t i = 0; i < spec.table.size(); ++i)
    if (spec.table[i] != i % levels) return false;
  return true;
}

const float* as_floats(const uint8_t* bytes) { return reinterpret_cast<const float*>(bytes); }

}  // namespace

FloatKernel float_kernel(SimdLevel simd) {
#if defined(__x86_64__)
  if (simd == SimdLevel::avx512) return convert_float_avx512;
  if (simd == SimdLevel::avx2) return convert_float_avx2;
#elif defined(__aarch64__)
  if (simd == SimdLevel::bits128) return convert_float_neon;
#endif
  (void)simd;
  return nullptr;
}

bool recover_arithmetic(const float* table, size_t channels, FloatArithmetic& arithmetic) {
  for (const Unit unit : {Unit::quotient, Unit::product, Unit::level}) {
    arithmetic.unit = unit;
    bool found = true;
    for (size_t channel = 0; channel < channels && found; ++channel)
      found = recover_channel(table + channel * levels, arithmetic, channel);
    if (found) return true;
  }
  return false;
}

Converter::Converter(const ConvertSpec& spec, int width, int height, int channels, SimdLevel simd)
    : element_size_(spec.element_size),
      table_(spec.table),
      width_(static_cast<size_t>(width)),
      height_(static_cast<size_t>(height)),
      channels_(static_cast<size_t>(channels)),
      simd_(simd) {
  const size_t size = spec.element_size;
  if (size != 1 && size != 2 && size != 4 && size != 8)
    throw std::invalid_argument("elements of " + std::to_string(size) + " bytes are not supported");
  if (table_.size() != channels_ * levels * size)
    throw std::invalid_argument("the conversion table has " + std::to_string(table_.size()) +
                                " bytes, expected " + std::to_string(channels_ * levels * size));
  if (!spec.order.empty()) {
    order_.emplace(spec.order, width_, height_, channels_);
    line_.resize(width_ * size);
  }
  if (is_identity(spec))
    method_ = Method::copy;
  else if (spec.is_float32 && size == sizeof(float) && arithmetic_is_exact())
    method_ = Method::arithmetic;
}

bool Converter::arithmetic_is_exact() {
  kernel_ = float_kernel(simd_);
  const float* table = as_floats(table_.data());
  if (!kernel_ || !recover_arithmetic(table, channels_, arithmetic_)) return false;
  std::array<uint8_t, levels> all;
  std::array<float, levels> made;
  for (size_t level = 0; level < levels; ++level) all[level] = static_cast<uint8_t>(level);
  for (size_t channel = 0; channel < channels_; ++channel) {
    kernel_(all.data(), levels, arithmetic_, channel, table + channel * levels, made.data());
    if (std::memcmp(made.data(), table + channel * levels, sizeof made) != 0) return false;
  }
  return true;
}

const char* Converter::method() const {
  switch (method_) {
    case Method::copy:
      return "copy";
    case Method::arithmetic:
      return "arithmetic";
    default:
      return "lookup";
  }
}

void Converter::row(int y, const PlaneRow& in, uint8_t* out) const {
  for (size_t channel = 0; channel < channels_; ++channel) {
    const uint8_t* from = in.planes + channel * in.plane;
    const uint8_t* table = table_.data() + channel * levels * element_size_;
    const size_t row = channel * height_ + static_cast<size_t>(y);
    uint8_t* to = order_ ? line_.data() : out + row * width_ * element_size_;
    if (method_ == Method::copy)
      std::memcpy(to, from, width_);
    else if (method_ == Method::arithmetic)
      kernel_(from, width_, arithmetic_, channel, as_floats(table), reinterpret_cast<float*>(to));
    else
      look_up(element_size_, from, width_, table, to);
    if (order_) order_->write(to, static_cast<size_t>(y), channel, element_size_, out);
  }
}

}  // namespace fusionloader
