// Program: the vector kernels of csrc/jpeg, at every level of this processor, against the scalar
// references. Prints the levels; ends with 1 at the first difference.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "jpeg/inverse_dct.hpp"
#include "jpeg/reduced_dct.hpp"
#include "jpeg/sample_rows.hpp"
#include "kernel_trials.hpp"

namespace fusionloader {
namespace {

// --- transforms -------------------------------------------------------------------------------

constexpr int most_blocks_at_once = 7;
constexpr size_t canvas_stride = 8 * most_blocks_at_once + 16;

struct Result {
  std::vector<Block> blocks;
  std::vector<uint8_t> canvas;
  int32_t magnitude = 0;
};

Result transformed(InverseDct kernel, std::vector<Block> blocks,
                   const std::vector<Quantisers>& quantisers) {
  Result result{std::move(blocks), std::vector<uint8_t>(10 * canvas_stride, 77)};
  std::vector<BlockTarget> targets;
  for (size_t i = 0; i < result.blocks.size(); ++i)
    targets.push_back({&quantisers[i], &result.canvas[canvas_stride + 8 * (i + 1)], canvas_stride});
  kernel(result.blocks.data(), targets.data(), static_cast<int>(targets.size()), result.magnitude);
  return result;
}

// Fills a pair of columns (c, c + 4) with coefficients whose magnitudes come to `total` at most.
void fill_columns(Block& block, const Quantisers& quantisers, size_t column, int total) {
  const int parts = between(1, 16);
  for (int part = 0; part < parts && total > 0; ++part) {
    const auto row = static_cast<size_t>(between(0, 7));
    const size_t place = coefficient_place(row, column + 4 * static_cast<size_t>(between(0, 1)));
    if (block.coefficients[place] != 0) continue;
    const int share = part + 1 == parts ? total : between(0, total);
    const int value = std::min(share / quantisers.values[place], 32767);
    block.coefficients[place] = static_cast<int16_t>(between(0, 1) ? value : -value);
    total -= value * quantisers.values[place];
  }
}

// As an encoder writes them, up to the limit, or beyond it.
Block any_block(const Quantisers& quantisers, int kind) {
  Block block{};
  const int total = kind == 0 ? 1000 : kind == 1 ? largest_magnitude : between(5901, 1 << 26);
  for (size_t column = 0; column < 4; ++column)
    if (kind != 0 || between(0, 2) == 0)
      fill_columns(block, quantisers, column, kind == 1 ? total : between(0, total));
  return block;
}

void check_transforms(SimdLevel level, int side) {
  const InverseDct kernel = reduced_dct(level, side);
  const InverseDct reference = reduced_dct(SimdLevel::scalar, side);
  const std::string name = "transform to " + std::to_string(side);
  int within = 0, beyond = 0;
  for (int trial = 0; trial < 6000; ++trial) {
    const int most = between(0, 2) == 0 ? 1 : between(1, 2047);
    std::vector<Quantisers> quantisers(static_cast<size_t>(between(1, most_blocks_at_once)));
    std::vector<Block> blocks;
    const int kind = between(0, 9);
    for (Quantisers& each : quantisers) {
      for (int16_t& value : each.values) value = static_cast<int16_t>(between(1, most));
      blocks.push_back(any_block(each, std::min(kind, 1)));
    }
    if (kind == 9) blocks.back() = any_block(quantisers.back(), 2);
    const Result found = transformed(kernel, blocks, quantisers);
    const Result expected = transformed(reference, blocks, quantisers);
    for (const Block& block : found.blocks)
      if (block.coefficients != Block{}.coefficients) fail(level, name + " leaves coefficients");
    if ((found.magnitude > largest_magnitude) != (expected.magnitude > largest_magnitude))
      fail(level, name + " judges magnitudes otherwise");
    if (expected.magnitude > largest_magnitude) {
      ++beyond;  // the samples mean nothing
      continue;
    }
    ++within;
    if (found.magnitude != expected.magnitude) fail(level, name + " finds other magnitudes");
    if (found.canvas != expected.canvas) fail(level, name + " gives other samples");
  }
  if (within < 1000 || beyond < 100) fail(level, name + " was hardly tried");
}

// --- rows -------------------------------------------------------------------------------------

constexpr size_t longest_row = 150;

struct Rows {
  std::vector<uint8_t> inputs[3];

  explicit Rows(bool extreme) {
    for (std::vector<uint8_t>& input : inputs) {
      input.resize(longest_row + 2 * sample_slack);
      for (uint8_t& sample : input)
        sample = static_cast<uint8_t>(extreme ? 255 * between(0, 1) : between(0, 255));
    }
  }
  const uint8_t* operator[](size_t i) const { return &inputs[i][sample_slack]; }
};

// What a kernel writes, its slack filled again and the bytes that mean nothing cleared.
template <class Call>
std::vector<uint8_t> written(SimdLevel level, const Call& call, size_t bytes, bool pixels) {
  std::vector<uint8_t> out(bytes + sample_slack + 64, 77);
  call(sample_kernels(level), out.data());
  std::fill_n(&out[bytes], sample_slack, uint8_t{0});
  if (pixels)
    for (size_t i = 3; i < bytes; i += 4) out[i] = 0;
  return out;
}

template <class Call>
void check_rows(SimdLevel level, const char* name, size_t bytes, bool pixels, const Call& call) {
  if (written(level, call, bytes, pixels) != written(SimdLevel::scalar, call, bytes, pixels))
    fail(level, std::string(name) + " differs");
}

void check_rows(SimdLevel level) {
  for (int trial = 0; trial < 20; ++trial)
    for (size_t n = 1; n <= longest_row; ++n) {
      const Rows in(trial % 4 == 0);
      check_rows(level, "widen", 2 * n, false,
                 [&](const SampleKernels& k, uint8_t* out) { k.widen(in[0], n, out); });
      for (const bool below : {false, true})
        check_rows(level, "blend", n, false, [&](const SampleKernels& k, uint8_t* out) {
          k.blend(in[0], in[1], below, n, out);
        });
      check_rows(level, "blend_and_widen", 2 * n, false, [&](const SampleKernels& k, uint8_t* out) {
        k.blend_and_widen(in[0], in[1], n, out);
      });
      check_rows(level, "to_rgbx", 4 * n, true, [&](const SampleKernels& k, uint8_t* out) {
        k.to_rgbx(in[0], in[1], in[2], n, out);
      });
      check_rows(level, "grey_to_rgbx", 4 * n, true,
                 [&](const SampleKernels& k, uint8_t* out) { k.grey_to_rgbx(in[0], n, out); });
    }
}

// Every color that there is.
void check_colors(SimdLevel level) {
  std::vector<uint8_t> y(256 + sample_slack), cb(256 + sample_slack), cr(256 + sample_slack);
  for (int level_of_y = 0; level_of_y < 256; ++level_of_y)
    y[static_cast<size_t>(level_of_y)] = static_cast<uint8_t>(level_of_y);
  for (int blue = 0; blue < 256; ++blue)
    for (int red = 0; red < 256; ++red) {
      std::fill(cb.begin(), cb.end(), static_cast<uint8_t>(blue));
      std::fill(cr.begin(), cr.end(), static_cast<uint8_t>(red));
      check_rows(level, "to_rgbx", 4 * 256, true, [&](const SampleKernels& k, uint8_t* out) {
        k.to_rgbx(y.data(), cb.data(), cr.data(), 256, out);
      });
    }
}

}  // namespace
}  // namespace fusionloader

int main() {
  using namespace fusionloader;
  for (const SimdLevel level : simd_levels()) {
    if (level == SimdLevel::scalar) continue;
    for (const int side : {8, 4, 2, 1}) check_transforms(level, side);
    check_rows(level);
    check_colors(level);
    std::printf("%s\n", simd_level_name(level));
  }
  return 0;
}
