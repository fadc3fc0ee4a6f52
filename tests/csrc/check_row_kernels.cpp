// Program: the vector kernels between the decoder and the batch (resizes, interleaving, conversion
// to floats), at every level of this processor, against the scalar references. Prints the levels;
// ends with 1 at the first difference.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "convert/convert.hpp"
#include "kernel_trials.hpp"
#include "ops/interleave.hpp"
#include "resize/kernels.hpp"

namespace fusionloader {
namespace {

// --- resizes ----------------------------------------------------------------------------------

Weights any_weights(int most_inputs, int most_outputs) {
  constexpr Filter filters[] = {Filter::box, Filter::bilinear, Filter::hamming, Filter::bicubic,
                                Filter::lanczos};
  Axis axis{};
  axis.in_size = between(1, most_inputs);
  axis.out_size = between(1, most_outputs);
  axis.in_begin = between(0, 3) == 0 ? 0.25 * between(0, axis.in_size) : 0;
  if (axis.in_begin >= axis.in_size) axis.in_begin = 0;
  axis.in_length = axis.in_size - axis.in_begin;
  axis.keep_begin = between(0, axis.out_size - 1);
  axis.keep_count = between(1, axis.out_size - axis.keep_begin);
  axis.mirrored = between(0, 1) == 1;
  Weights weights;
  weights.compute(filters[between(0, 4)], axis);
  return weights;
}

std::vector<Bytes> horizontally(SimdLevel level, const Weights& weights,
                                const std::vector<Bytes>& rows) {
  const ResizeKernels& kernels = resize_kernels(level);
  HorizontalTaps taps;
  kernels.prepare(weights, weights.inputs_begin(), taps);
  std::vector<Bytes> results(rows.size(),
                             Bytes(static_cast<size_t>(weights.outputs()) * 4 + 96, untouched));
  const uint8_t* from[rows_at_once];
  uint8_t* to[rows_at_once];
  for (size_t i = 0; i < rows_at_once; ++i) {
    from[i] = rows[i].data();
    to[i] = results[i].data();
  }
  kernels.horizontal(from, taps, to);
  for (Bytes& result : results)  // the fourth bytes mean nothing
    for (size_t x = 0; x < static_cast<size_t>(weights.outputs()); ++x) result[4 * x + 3] = 0;
  return results;
}

void check_horizontal(SimdLevel level) {
  int groups_seen[6] = {};
  for (int trial = 0; trial < 4000; ++trial) {
    const Weights weights = any_weights(trial % 8 == 0 ? 2000 : 100, 60);
    const auto columns = static_cast<size_t>(weights.inputs_end() - weights.inputs_begin());
    std::vector<Bytes> rows;
    for (int i = 0; i < rows_at_once; ++i) rows.push_back(any_bytes(4 * columns + row_slack));
    const std::vector<Bytes> found = horizontally(level, weights, rows);
    const std::vector<Bytes> expected = horizontally(SimdLevel::scalar, weights, rows);
    for (size_t i = 0; i < rows.size(); ++i)
      compare(level, "horizontal", found[i], expected[i],
              4 * static_cast<size_t>(weights.outputs()), 12);
    ++groups_seen[std::min((weights.most_taps() + 3) / 4, 5)];
  }
  for (const int groups : {1, 2, 3, 4, 5})
    if (groups_seen[groups] < 50) fail(level, "horizontal was hardly tried");
}

Bytes vertically(SimdLevel level, const std::vector<const uint8_t*>& rows,
                 const std::vector<int32_t>& weights, size_t size) {
  Bytes result(size + row_slack + 32, untouched);
  resize_kernels(level).vertical(rows.data(), weights.data(), static_cast<int>(rows.size()),
                                 result.data(), size);
  return result;
}

// Weights of real filters, or any that are summed in 32 bits.
std::vector<int32_t> any_taps(int count) {
  if (between(0, 1)) {
    const Weights weights = any_weights(3 * count, 3);
    const int output = between(0, weights.outputs() - 1);
    return {weights.taps(output), weights.taps(output) + weights.count(output)};
  }
  constexpr int largest = 8 << 20;
  std::vector<int32_t> taps(static_cast<size_t>(count));
  for (int32_t& tap : taps) tap = between(-largest / count, largest / count);
  return taps;
}

void check_vertical(SimdLevel level) {
  for (int trial = 0; trial < 3000; ++trial) {
    const std::vector<int32_t> taps = any_taps(between(1, trial % 16 == 0 ? 700 : 12));
    const auto size = static_cast<size_t>(between(1, 200));
    const Bytes pixels = any_bytes(taps.size() * size + row_slack);
    std::vector<const uint8_t*> rows;
    for (size_t t = 0; t < taps.size(); ++t) rows.push_back(&pixels[t * size]);
    compare(level, "vertical", vertically(level, rows, taps, size),
            vertically(SimdLevel::scalar, rows, taps, size), size, row_slack);
  }
}

void check_split(SimdLevel level) {
  for (size_t width = 1; width < 150; ++width) {
    const size_t plane = width + 64;
    const Bytes row = any_bytes(4 * width + row_slack);
    Bytes found(3 * plane, untouched), expected = found;
    resize_kernels(level).split(row.data(), width, found.data(), plane);
    resize_kernels(SimdLevel::scalar).split(row.data(), width, expected.data(), plane);
    for (size_t channel = 0; channel < 3; ++channel) {
      const auto part = [&](const Bytes& bytes) {
        const auto begin = bytes.begin() + static_cast<ptrdiff_t>(channel * plane);
        return Bytes(begin, begin + static_cast<ptrdiff_t>(plane));
      };
      compare(level, "split", part(found), part(expected), width, 31);
    }
  }
}

// --- interleaving -----------------------------------------------------------------------------

template <class Call>
void check_interleaving(SimdLevel level, const char* name, size_t size, bool pixels_of_4,
                        const Call& call) {
  Bytes found(size + 96, untouched), expected = found;
  call(interleave_kernels(level), found.data());
  call(interleave_kernels(SimdLevel::scalar), expected.data());
  for (size_t i = 3; pixels_of_4 && i < size; i += 4) found[i] = expected[i] = 0;
  compare(level, name, found, expected, size, 0);
}

void check_interleaving(SimdLevel level) {
  for (int trial = 0; trial < 10; ++trial)
    for (size_t n = 1; n < 150; ++n) {
      // No more than is allowed to be read, so that a sanitizer sees what is read behind it.
      const Bytes a = any_bytes(n), b = any_bytes(n), c = any_bytes(n);
      const Bytes rgb = any_bytes(3 * n), rgbx = any_bytes(4 * n);
      check_interleaving(level, "join_rgb", 3 * n, false, [&](const auto& kernels, uint8_t* out) {
        kernels.join_rgb(a.data(), b.data(), c.data(), n, out);
      });
      check_interleaving(level, "join_rgbx", 4 * n, true, [&](const auto& kernels, uint8_t* out) {
        kernels.join_rgbx(a.data(), b.data(), c.data(), n, out);
      });
      check_interleaving(level, "pack_rgb", 3 * n, false, [&](const auto& kernels, uint8_t* out) {
        kernels.pack_rgb(rgbx.data(), n, out);
      });
      check_interleaving(level, "pack_bgr", 3 * n, false, [&](const auto& kernels, uint8_t* out) {
        kernels.pack_bgr(rgbx.data(), n, out);
      });
      check_interleaving(level, "spread_rgb", 4 * n, true, [&](const auto& kernels, uint8_t* out) {
        kernels.spread_rgb(rgb.data(), n, out);
      });
      check_interleaving(level, "mirror", 4 * n, false, [&](const auto& kernels, uint8_t* out) {
        kernels.mirror(rgbx.data(), n, out);
      });
    }
}

// --- conversion -------------------------------------------------------------------------------

// As torch computes it: every step rounded to float32.
std::vector<float> table_of(const FloatArithmetic& arithmetic) {
  std::vector<float> table(256);
  for (size_t level = 0; level < table.size(); ++level) {
    const auto value = static_cast<float>(level);
    const float unit = arithmetic.unit == Unit::level     ? value
                       : arithmetic.unit == Unit::product ? value * (1.0f / 255.0f)
                                                          : value / 255.0f;
    table[level] = (unit - arithmetic.mean[0]) / arithmetic.deviation[0];
  }
  return table;
}

void check_conversion(SimdLevel level) {
  const FloatKernel kernel = float_kernel(level);
  if (!kernel) return;
  const FloatArithmetic parameters[] = {
      {Unit::quotient, {0.485f}, {0.229f}},  {Unit::product, {0.485f}, {0.229f}},
      {Unit::quotient, {0.456f}, {0.224f}},  {Unit::product, {0.406f}, {0.225f}},
      {Unit::quotient, {0.5f}, {0.5f}},      {Unit::product, {0.0f}, {1.0f}},
      {Unit::level, {122.7709f}, {68.5005f}}};
  for (const FloatArithmetic& arithmetic : parameters) {
    const std::vector<float> table = table_of(arithmetic);
    for (size_t count = 0; count < 300; ++count) {
      Bytes levels = any_bytes(count);
      for (size_t i = 0; i < std::min<size_t>(count, 256); ++i) levels[i] = static_cast<uint8_t>(i);
      std::vector<float> found(count + 1, 1e9f), expected = found;
      kernel(levels.data(), count, arithmetic, 0, table.data(), found.data());
      for (size_t i = 0; i < count; ++i) expected[i] = table[levels[i]];
      if (std::memcmp(found.data(), expected.data(), found.size() * sizeof(float)) != 0)
        fail(level, "the conversion to floats differs");
    }
  }
}

// Every level has kernels of its own, or the comparisons would mean nothing.
void check_choice(SimdLevel level) {
  const ResizeKernels& resize = resize_kernels(level);
  if (resize.horizontal == scalar_kernels.horizontal || resize.split == scalar_kernels.split ||
      resize.vertical == scalar_kernels.vertical)
    fail(level, "resizes have no kernels of their own");
  if (&interleave_kernels(level) == &scalar_interleave)
    fail(level, "interleaving has no kernels of its own");
}

}  // namespace
}  // namespace fusionloader

int main() {
  using namespace fusionloader;
  for (const SimdLevel level : simd_levels()) {
    if (level == SimdLevel::scalar) continue;
    check_choice(level);
    check_horizontal(level);
    check_vertical(level);
    check_split(level);
    check_interleaving(level);
    check_conversion(level);
    std::printf("%s\n", simd_level_name(level));
  }
  return 0;
}
