#include "jpeg/progressive_decoder.hpp"

#include <algorithm>

#include "ops/limits.hpp"

namespace fusionloader {
namespace {

constexpr size_t block_side = 8;

size_t divide_up(size_t value, size_t divisor) { return (value + divisor - 1) / divisor; }

}  // namespace

bool ProgressiveDecoder::supports(const ScanScript& script, int denominator) {
  return WindowRows::supports(script.frame, denominator) && script.is_complete();
}

bool ProgressiveDecoder::start(const ScanScript& script, Rect window, int denominator) {
  rows_.place(script.frame, window, denominator);
  // A bit for each MCU at least: a small file takes no large buffers.
  const size_t mcus =
      static_cast<size_t>(rows_.mcus_across()) * static_cast<size_t>(rows_.end_band());
  if (mcus > script.scans[0].data.size * 8) return false;
  place(script.frame);
  return std::all_of(script.scans.begin(), script.scans.end(), [&](const ScriptedScan& scan) {
    return reader_.read(scan, script.codes, script.progressive, planes_);
  });
}

void ProgressiveDecoder::place(const Frame& frame) {
  const auto width = static_cast<size_t>(frame.width), height = static_cast<size_t>(frame.height);
  const auto most_h = static_cast<size_t>(frame.most_h()),
             most_v = static_cast<size_t>(frame.most_v());
  const auto first_mcu = static_cast<size_t>(rows_.first_mcu());
  const auto end_mcu = static_cast<size_t>(rows_.end_mcu());
  const auto first_band = static_cast<size_t>(rows_.first_band());
  const auto end_band = static_cast<size_t>(rows_.end_band());
  // What a file that was given up has left, of all planes: the next one may not have them all.
  if (!zero_)
    for (CoefficientPlane& plane : planes_)
      for (Block& block : plane.blocks) block.coefficients.fill(0);
  zero_ = false;
  for (size_t i = 0; i < static_cast<size_t>(frame.count); ++i) {
    CoefficientPlane& plane = planes_[i];
    plane.h = static_cast<size_t>(frame.components[i].h);
    plane.v = static_cast<size_t>(frame.components[i].v);
    plane.across = static_cast<size_t>(rows_.mcus_across()) * plane.h;
    plane.width = divide_up(width * plane.h, block_side * most_h);
    plane.height = divide_up(height * plane.v, block_side * most_v);
    plane.first_column = first_mcu * plane.h;
    plane.end_column = end_mcu * plane.h;
    plane.first_row = first_band * plane.v;
    plane.end_row = end_band * plane.v;
    plane.nonzero.assign(plane.across * plane.end_row, 0);
    const size_t blocks = plane.columns() * (plane.end_row - plane.first_row);
    if (plane.blocks.size() < blocks) plane.blocks.resize(blocks);
  }
  bands_left_ = rows_.end_band() - rows_.first_band();
}

// A row of a component's blocks.
void ProgressiveDecoder::transform(size_t component, int band, int row, int32_t& magnitude) {
  CoefficientPlane& plane = planes_[component];
  const size_t y = static_cast<size_t>(band) * plane.v + static_cast<size_t>(row);
  const uint64_t* const nonzero = plane.nonzero_of(y, plane.first_column);
  Block* const blocks = plane.block(y, plane.first_column);
  const int side = rows_.side(component);
  targets_.resize(plane.columns());
  BlockTarget target = rows_.target(component, band, row);
  for (BlockTarget& each : targets_) {
    each = target;
    target.samples += side;
  }
  for (size_t i = 0, end; i < targets_.size(); i = end) {
    end = i + 1;
    if (!nonzero[i]) {
      fill_with_mean(blocks[i], targets_[i], side, magnitude);
      continue;
    }
    while (end < targets_.size() && nonzero[end]) ++end;
    rows_.inverse_dct(component)(blocks + i, &targets_[i], static_cast<int>(end - i), magnitude);
  }
}

bool ProgressiveDecoder::decode_band(int band) {
  int32_t magnitude = 0;
  for (size_t i = 0; i < static_cast<size_t>(rows_.components()); ++i)
    for (int row = 0; row < rows_.blocks_down(i); ++row) transform(i, band, row, magnitude);
  // The transforms leave zeros in all that they take.
  zero_ = --bands_left_ == 0;
  return magnitude <= largest_magnitude;
}

bool ProgressiveDecoder::row(int y, uint8_t* out) {
  return rows_.row(y, out, [this](int band) { return decode_band(band); });
}

void ProgressiveDecoder::release_large_buffers() {
  reader_.release_large_buffers();
  rows_.release_large_buffers();
  for (CoefficientPlane& plane : planes_) {
    if (plane.blocks.size() * sizeof(Block) > largest_kept_buffer)
      std::vector<Block>().swap(plane.blocks);
    if (plane.nonzero.capacity() * sizeof(uint64_t) > largest_kept_buffer)
      std::vector<uint64_t>().swap(plane.nonzero);
  }
}

}  // namespace fusionloader
