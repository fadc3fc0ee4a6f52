#include "ops/lookup.hpp"

#include <algorithm>

#if defined(__x86_64__)
#include "simd/avx512.hpp"
#endif

namespace fusionloader {
namespace {

void look_up_scalar(uint8_t* plane, size_t count, const LevelTable& table) {
  for (size_t i = 0; i < count; ++i) plane[i] = table[plane[i]];
}

#if defined(__x86_64__)
#define FUSIONLOADER_AVX2 __attribute__((target("avx2")))
#define FUSIONLOADER_VBMI __attribute__((target("avx512f,avx512bw,avx512vbmi")))

FUSIONLOADER_AVX2 inline __m256i sixteen_levels(const uint8_t* from) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

// A shuffle looks up 16 levels and gives zero where the index is negative. With `above` holding the
// level minus 16 * row, rows up to the level's own contribute and further ones do not: as each row
// is stored as the difference (xor) to the row before, the sum over rows is the entry sought.
FUSIONLOADER_AVX2 void look_up_avx2(uint8_t* plane, size_t count, const LevelTable& table) {
  __m256i rows[16];
  for (size_t row = 0; row < 16; ++row) {
    rows[row] = sixteen_levels(table.data() + 16 * row);
    if (row != 0 && row != 8)
      rows[row] = _mm256_xor_si256(rows[row], sixteen_levels(table.data() + 16 * (row - 1)));
  }
  const __m256i sixteen = _mm256_set1_epi8(16), half = _mm256_set1_epi8(-128);
  for (size_t i = 0; i < count; i += 32) {
    auto* at = reinterpret_cast<__m256i*>(plane + i);
    __m256i above = _mm256_loadu_si256(at), above_half = _mm256_xor_si256(above, half);
    __m256i lower = _mm256_shuffle_epi8(rows[0], above);
    __m256i upper = _mm256_shuffle_epi8(rows[8], above_half);
    for (size_t row = 1; row < 8; ++row) {
      above = _mm256_subs_epi8(above, sixteen);
      above_half = _mm256_subs_epi8(above_half, sixteen);
      lower = _mm256_xor_si256(lower, _mm256_shuffle_epi8(rows[row], above));
      upper = _mm256_xor_si256(upper, _mm256_shuffle_epi8(rows[row + 8], above_half));
    }
    _mm256_storeu_si256(at, _mm256_xor_si256(lower, upper));
  }
}

FUSIONLOADER_VBMI void look_up_vbmi(uint8_t* plane, size_t count, const LevelTable& table) {
  const __m512i first = _mm512_loadu_si512(table.data());
  const __m512i second = _mm512_loadu_si512(table.data() + 64);
  const __m512i third = _mm512_loadu_si512(table.data() + 128);
  const __m512i fourth = _mm512_loadu_si512(table.data() + 192);
#pragma GCC unroll 4
  for (size_t i = 0; i < count; i += 64) {
    const __m512i levels = _mm512_loadu_si512(plane + i);
    const __m512i lower = _mm512_permutex2var_epi8(first, levels, second);
    const __m512i upper = _mm512_permutex2var_epi8(third, levels, fourth);
    _mm512_storeu_si512(plane + i,
                        _mm512_mask_blend_epi8(_mm512_movepi8_mask(levels), lower, upper));
  }
}
#endif

}  // namespace

bool has_byte_permutes() {
#if defined(__x86_64__)
  static const bool has = [] {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512vbmi") != 0;
  }();
  return has;
#else
  return false;
#endif
}

void look_up(uint8_t* plane, size_t count, const LevelTable& table, SimdLevel level) {
#if defined(__x86_64__)
  if (level == SimdLevel::avx512 && has_byte_permutes()) return look_up_vbmi(plane, count, table);
  if (level >= SimdLevel::avx2) return look_up_avx2(plane, count, table);
#endif
  (void)level;
  look_up_scalar(plane, count, table);
}

void look_up(Planes& image, const LevelTable& table, SimdLevel level) {
  for (int channel = 0; channel < image.channels(); ++channel)
    look_up(image.plane(channel), image.size(), table, level);
}

void look_up(Planes& image, const std::vector<uint8_t>& tables, SimdLevel level) {
  LevelTable table;
  for (int channel = 0; channel < image.channels(); ++channel) {
    const size_t begin = static_cast<size_t>(channel) * table.size();
    std::copy_n(&tables.at(begin < tables.size() ? begin : 0), table.size(), table.begin());
    look_up(image.plane(channel), image.size(), table, level);
  }
}

}  // namespace fusionloader
