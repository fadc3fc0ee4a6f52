#include "ops/histogram.hpp"

#include <algorithm>
#include <cstring>

#include "arithmetic/levels.hpp"
#include "ops/per_level.hpp"

namespace fusionloader {
namespace {

template <int>
FUSIONLOADER_INLINE LevelRange range_loop(const uint8_t* plane, size_t count) {
  uint8_t least = 255, most = 0;
  for (size_t i = 0; i < count; ++i) {
    least = plane[i] < least ? plane[i] : least;
    most = plane[i] > most ? plane[i] : most;
  }
  return {least, most};
}

FUSIONLOADER_PER_LEVEL(find_range, range_loop)

}  // namespace

LevelRange range_of_levels(const uint8_t* plane, size_t count, SimdLevel level) {
  return find_range(level, plane, count);
}

Histogram histogram(const uint8_t* plane, size_t count) {
  // Neighbours are often the same level: counting them in one table would wait for the store
  // before.
  constexpr size_t tables = 8;
  uint32_t counts[tables][256] = {};
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    uint64_t eight;
    std::memcpy(&eight, plane + i, sizeof eight);
    for (size_t byte = 0; byte < 8; ++byte) ++counts[byte % tables][eight >> 8 * byte & 255];
  }
  for (; i < count; ++i) ++counts[0][plane[i]];
  Histogram sum;
  for (size_t bin = 0; bin < sum.size(); ++bin) {
    uint32_t total = 0;
    for (const auto& table : counts) total += table[bin];
    sum[bin] = total;
  }
  return sum;
}

LevelTable stretching_table(LevelRange range, Rounding rounding) {
  const Stretching by = stretching(range.least, range.most);
  LevelTable table;
  const auto least = static_cast<float>(range.least);
  const auto length = static_cast<float>(range.most - range.least);
  for (int i = 0; i < 256; ++i) {
    const float above = static_cast<float>(i) - least;
    table[static_cast<size_t>(i)] = rounding == Rounding::pillow ? stretched_level(i, by)
                                    : rounding == Rounding::torch_v1
                                        ? cut_off(above * (1.0f / length * 255.0f))
                                        : cut_off(above / (length * static_cast<float>(1 / 255.0)));
  }
  return table;
}

bool equalizing_table(const Histogram& counts, LevelTable& table) {
  uint64_t total = 0, last = 0;
  for (const uint32_t count : counts) {
    total += count;
    if (count != 0) last = count;
  }
  const uint64_t step = equalizing_step(total, last);
  if (step == 0) return false;
  uint64_t passed = step / 2;
  for (size_t i = 0; i < table.size(); ++i) {
    table[i] = equalized_level(passed, step);
    passed += counts[i];
  }
  return true;
}

}  // namespace fusionloader
