#pragma once
// vector128.hpp's operations for 64-bit Arm, where every processor has them.
#include <arm_neon.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#define FUSIONLOADER_128

namespace fusionloader {

using Vector128 = int32x4_t;

// The same bits as elements of another size.
inline int8x16_t as_s8(Vector128 a) { return vreinterpretq_s8_s32(a); }
inline uint8x16_t as_u8(Vector128 a) { return vreinterpretq_u8_s32(a); }
inline int16x8_t as_s16(Vector128 a) { return vreinterpretq_s16_s32(a); }
inline int64x2_t as_s64(Vector128 a) { return vreinterpretq_s64_s32(a); }
inline Vector128 bits_of(int8x16_t a) { return vreinterpretq_s32_s8(a); }
inline Vector128 bits_of(uint8x16_t a) { return vreinterpretq_s32_u8(a); }
inline Vector128 bits_of(int16x8_t a) { return vreinterpretq_s32_s16(a); }
inline Vector128 bits_of(uint16x8_t a) { return vreinterpretq_s32_u16(a); }
inline Vector128 bits_of(int64x2_t a) { return vreinterpretq_s32_s64(a); }

inline Vector128 load(const void* from) {
  return bits_of(vld1q_u8(static_cast<const uint8_t*>(from)));
}
inline void store(void* to, Vector128 a) { vst1q_u8(static_cast<uint8_t*>(to), as_u8(a)); }
inline void store_two(void* first, void* second, Vector128 a) {
  vst1_u8(static_cast<uint8_t*>(first), vget_low_u8(as_u8(a)));
  vst1_u8(static_cast<uint8_t*>(second), vget_high_u8(as_u8(a)));
}

inline Vector128 filled_8(int value) { return bits_of(vdupq_n_s8(static_cast<int8_t>(value))); }
inline Vector128 filled_16(int value) { return bits_of(vdupq_n_s16(static_cast<int16_t>(value))); }
inline Vector128 filled_32(int value) { return vdupq_n_s32(value); }

inline Vector128 add_16(Vector128 a, Vector128 b) {
  return bits_of(vaddq_s16(as_s16(a), as_s16(b)));
}
inline Vector128 add_32(Vector128 a, Vector128 b) { return vaddq_s32(a, b); }
inline Vector128 subtract_8(Vector128 a, Vector128 b) {
  return bits_of(vsubq_s8(as_s8(a), as_s8(b)));
}
inline Vector128 subtract_16(Vector128 a, Vector128 b) {
  return bits_of(vsubq_s16(as_s16(a), as_s16(b)));
}
inline Vector128 subtract_32(Vector128 a, Vector128 b) { return vsubq_s32(a, b); }
inline Vector128 multiply_16(Vector128 a, Vector128 b) {
  return bits_of(vmulq_s16(as_s16(a), as_s16(b)));
}
inline Vector128 magnitude_16(Vector128 a) { return bits_of(vabsq_s16(as_s16(a))); }
inline Vector128 maximum_32(Vector128 a, Vector128 b) { return vmaxq_s32(a, b); }
inline int32_t largest_32(Vector128 a) { return vmaxvq_s32(a); }
// A shift to the left by less than nothing, which the compiler turns into one to the right.
inline Vector128 shift_right_16(Vector128 a, int bits) {
  return bits_of(vshlq_u16(vreinterpretq_u16_s32(a), vdupq_n_s16(static_cast<int16_t>(-bits))));
}
inline Vector128 shift_right_signed_16(Vector128 a, int bits) {
  return bits_of(vshlq_s16(as_s16(a), vdupq_n_s16(static_cast<int16_t>(-bits))));
}
inline Vector128 shift_right_signed_32(Vector128 a, int bits) {
  return vshlq_s32(a, vdupq_n_s32(-bits));
}

inline Vector128 pack_32(Vector128 a, Vector128 b) {
  return bits_of(vqmovn_high_s32(vqmovn_s32(a), b));
}
inline Vector128 pack_16(Vector128 a, Vector128 b) {
  return bits_of(vqmovn_high_s16(vqmovn_s16(as_s16(a)), as_s16(b)));
}
inline Vector128 pack_16_unsigned(Vector128 a, Vector128 b) {
  return bits_of(vqmovun_high_s16(vqmovun_s16(as_s16(a)), as_s16(b)));
}
inline Vector128 interleave_low_32(Vector128 a, Vector128 b) { return vzip1q_s32(a, b); }
inline Vector128 interleave_high_32(Vector128 a, Vector128 b) { return vzip2q_s32(a, b); }
inline Vector128 interleave_low_64(Vector128 a, Vector128 b) {
  return bits_of(vzip1q_s64(as_s64(a), as_s64(b)));
}
inline Vector128 interleave_high_64(Vector128 a, Vector128 b) {
  return bits_of(vzip2q_s64(as_s64(a), as_s64(b)));
}
inline Vector128 shuffled(Vector128 a, Vector128 order) {
  return bits_of(vqtbl1q_u8(as_u8(a), as_u8(order)));
}
inline Vector128 low_words(Vector128 bytes) { return bits_of(vmovl_u8(vget_low_u8(as_u8(bytes)))); }
inline Vector128 high_words(Vector128 bytes) { return bits_of(vmovl_high_u8(as_u8(bytes))); }

inline Vector128 multiply_add(Vector128 a, Vector128 b) {
  const int32x4_t low = vmull_s16(vget_low_s16(as_s16(a)), vget_low_s16(as_s16(b)));
  return vpaddq_s32(low, vmull_high_s16(as_s16(a), as_s16(b)));
}
inline Vector128 doubled_product_high(Vector128 a, int factor) {
  return bits_of(vqdmulhq_n_s16(as_s16(a), static_cast<int16_t>(factor)));
}
inline Vector128 rounded_sum_of_products(Vector128 a, int of_a, Vector128 b, int of_b) {
  const auto a_factor = static_cast<int16_t>(of_a), b_factor = static_cast<int16_t>(of_b);
  const int16x8_t x = as_s16(a), y = as_s16(b);
  const int32x4_t low =
      vmlal_n_s16(vmull_n_s16(vget_low_s16(x), a_factor), vget_low_s16(y), b_factor);
  const int32x4_t high = vmlal_high_n_s16(vmull_high_n_s16(x, a_factor), y, b_factor);
  return bits_of(vrshrn_high_n_s32(vrshrn_n_s32(low, 16), high, 16));
}
inline Vector128 three_and_one_low(Vector128 a, Vector128 b) {
  const uint16x8_t one = vmovl_u8(vget_low_u8(as_u8(b)));
  return bits_of(vmlal_u8(one, vget_low_u8(as_u8(a)), vdup_n_u8(3)));
}
inline Vector128 three_and_one_high(Vector128 a, Vector128 b) {
  return bits_of(vmlal_high_u8(vmovl_high_u8(as_u8(b)), as_u8(a), vdupq_n_u8(3)));
}

inline Vector128 alternated(Vector128 a, Vector128 b) {
  return bits_of(vtrn1q_u8(as_u8(a), as_u8(b)));
}
inline void store_alternated(uint8_t* to, Vector128 a, Vector128 b, Vector128 c, Vector128 d) {
  const uint8x16x4_t bytes{{as_u8(a), as_u8(b), as_u8(c), as_u8(d)}};
  vst4q_u8(to, bytes);
}

inline void store_alternated(uint8_t* to, Vector128 a, Vector128 b, Vector128 c) {
  const uint8x16x3_t bytes{{as_u8(a), as_u8(b), as_u8(c)}};
  vst3q_u8(to, bytes);
}

struct Alternated {
  Vector128 a, b, c;
};
inline Alternated load_alternated(const uint8_t* from) {
  const uint8x16x4_t bytes = vld4q_u8(from);
  return {bits_of(bytes.val[0]), bits_of(bytes.val[1]), bits_of(bytes.val[2])};
}

inline Vector128 add_8(Vector128 a, Vector128 b) { return bits_of(vaddq_u8(as_u8(a), as_u8(b))); }
inline Vector128 minimum_16(Vector128 a, Vector128 b) {
  return bits_of(vminq_s16(as_s16(a), as_s16(b)));
}
inline Vector128 equal_16(Vector128 a, Vector128 b) {
  return bits_of(vceqq_s16(as_s16(a), as_s16(b)));
}
inline Vector128 either(Vector128 a, Vector128 b) { return vorrq_s32(a, b); }
inline Vector128 chosen(Vector128 which, Vector128 a, Vector128 b) {
  return bits_of(vbslq_u8(as_u8(which), as_u8(a), as_u8(b)));
}
inline Vector128 load_32(const void* from) {
  int32_t bits;
  std::memcpy(&bits, from, sizeof bits);
  return vsetq_lane_s32(bits, vdupq_n_s32(0), 0);
}
inline void store_32(void* to, Vector128 a) {
  const int32_t bits = vgetq_lane_s32(a, 0);
  std::memcpy(to, &bits, sizeof bits);
}
template <int bytes>
inline Vector128 moved_up(Vector128 a) {
  return bits_of(vextq_u8(vdupq_n_u8(0), as_u8(a), 16 - bytes));
}
inline Vector128 last_of_four_32(Vector128 a) { return vdupq_laneq_s32(a, 3); }

// For kernels of Arm alone: bytes 4 * i .. 4 * i + 3 as 32 bits; sum + a * the number in a lane of
// b.
template <int i>
inline Vector128 quarter_words(Vector128 bytes) {
  constexpr auto none = static_cast<int8_t>(-1), first = static_cast<int8_t>(4 * i);
  static constexpr int8_t order[] = {first,     none, none, none, first + 1, none, none, none,
                                     first + 2, none, none, none, first + 3, none, none, none};
  return shuffled(bytes, load(order));
}
template <int lane>
inline Vector128 add_product_32(Vector128 sum, Vector128 a, Vector128 b) {
  return vmlaq_laneq_s32(sum, a, b, lane);
}

}  // namespace fusionloader
