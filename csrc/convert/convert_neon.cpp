// NEON: 16 floats at a time, in four vectors. SSE4.1 has no fused multiply-adds: there the lookup,
// which a division is no faster than, stays.
#if defined(__aarch64__)
#include "convert/convert.hpp"
#include "simd/inline.hpp"
#include "simd/vector128.hpp"

#define FUSIONLOADER_TARGET

namespace fusionloader {
namespace {

struct Floats {
  float32x4_t quarters[4];
};

template <class Operation>
inline Floats each(Operation operation) {
  return {{operation(0), operation(1), operation(2), operation(3)}};
}

inline Floats filled(float value) {
  return each([&](int) { return vdupq_n_f32(value); });
}
inline Floats multiply(const Floats& a, const Floats& b) {
  return each([&](int i) { return vmulq_f32(a.quarters[i], b.quarters[i]); });
}
inline Floats subtract(const Floats& a, const Floats& b) {
  return each([&](int i) { return vsubq_f32(a.quarters[i], b.quarters[i]); });
}
inline Floats multiply_add(const Floats& a, const Floats& b, const Floats& c) {
  return each([&](int i) { return vfmaq_f32(c.quarters[i], a.quarters[i], b.quarters[i]); });
}
inline Floats subtract_product(const Floats& a, const Floats& b, const Floats& c) {
  return each([&](int i) { return vfmsq_f32(c.quarters[i], a.quarters[i], b.quarters[i]); });
}
inline Floats floats_of(const uint8_t* levels) {
  const Vector128 sixteen = load(levels);
  return {{vcvtq_f32_s32(quarter_words<0>(sixteen)), vcvtq_f32_s32(quarter_words<1>(sixteen)),
           vcvtq_f32_s32(quarter_words<2>(sixteen)), vcvtq_f32_s32(quarter_words<3>(sixteen))}};
}
inline void store(float* to, const Floats& a) {
  for (size_t i = 0; i < 4; ++i) vst1q_f32(to + 4 * i, a.quarters[i]);
}

#include "convert/convert_body.hpp"

}  // namespace

const FloatKernel convert_float_neon = convert;

}  // namespace fusionloader
#endif
