#include "jpeg/window_decoder.hpp"

namespace fusionloader {
namespace {

constexpr int block_side = 8;

int divide_up(int value, int divisor) { return (value + divisor - 1) / divisor; }

}  // namespace

WindowDecoder::WindowDecoder(SimdLevel level, bool strict) : strict_(strict), rows_(level) {}

bool WindowDecoder::start(const BaselineScan& scan, Rect window, int denominator,
                          EntryIndex index) {
  if (!reader_.start(scan, index, strict_)) return false;
  rows_.place(scan, window, denominator);
  // An irregular block may have been left half read.
  for (Block& block : blocks_) block.coefficients.fill(0);
  return true;
}

bool WindowDecoder::record(const BaselineScan& scan, std::vector<ScanEntry>& entries) {
  const int across = divide_up(scan.width, block_side * scan.most_h());
  const int down = divide_up(scan.height, block_side * scan.most_v());
  return reader_.start(scan) &&
         reader_.record(static_cast<size_t>(across) * static_cast<size_t>(down), entries);
}

// The blocks of an MCU: all at once where all come to the same number of samples.
void WindowDecoder::transform(const BlockTarget* targets, int blocks, int32_t& magnitude) {
  const bool alike = rows_.components() == 1 || rows_.side(1) == rows_.side(0);
  const int first = alike ? blocks : rows_.blocks_across(0) * rows_.blocks_down(0);
  rows_.inverse_dct(0)(blocks_.data(), targets, first, magnitude);
  if (!alike)
    rows_.inverse_dct(1)(&blocks_[static_cast<size_t>(first)], targets + first, blocks - first,
                         magnitude);
}

bool WindowDecoder::decode_band(int band) {
  std::array<BlockTarget, most_blocks> targets;
  std::array<size_t, most_blocks> steps;
  int blocks = 0;
  for (size_t i = 0; i < static_cast<size_t>(rows_.components()); ++i) {
    const int across = rows_.blocks_across(i), side = rows_.side(i);
    for (int v = 0; v < rows_.blocks_down(i); ++v) {
      const BlockTarget first = rows_.target(i, band, v);
      for (int h = 0; h < across; ++h, ++blocks) {
        targets[static_cast<size_t>(blocks)] = first;
        targets[static_cast<size_t>(blocks)].samples += h * side;
        steps[static_cast<size_t>(blocks)] = static_cast<size_t>(across * side);
      }
    }
  }
  const size_t row_begin = static_cast<size_t>(band) * static_cast<size_t>(rows_.mcus_across());
  if (!reader_.go_to(row_begin + static_cast<size_t>(rows_.first_mcu()))) return false;
  int32_t magnitude = 0;
  bool regular = true;
  for (int mcu = rows_.first_mcu(), end = rows_.end_mcu(); mcu < end; ++mcu) {
    // Segments may end anywhere in a row; what is checked is checked before the next begins.
    regular = regular && reader_.regular();
    if (!reader_.go_to(row_begin + static_cast<size_t>(mcu))) return false;
    reader_.read(blocks_.data());
    transform(targets.data(), blocks, magnitude);
    for (size_t i = 0; i < static_cast<size_t>(blocks); ++i) targets[i].samples += steps[i];
  }
  return regular && reader_.regular() && magnitude <= largest_magnitude;
}

bool WindowDecoder::row(int y, uint8_t* out) {
  return rows_.row(y, out, [this](int band) { return decode_band(band); });
}

void WindowDecoder::release_large_buffers() {
  reader_.release_large_buffers();
  rows_.release_large_buffers();
}

}  // namespace fusionloader
