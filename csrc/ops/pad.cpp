// Borders around an image: each axis gets a table of what its places show.
#include <stdexcept>

#include "ops/limits.hpp"
#include "ops/warp.hpp"

namespace fusionloader {
namespace {

// The pixel of `length` that stands for `position`, which may be outside; -1 for the fill.
int source_of(int position, int length, PadMode mode) {
  if (position >= 0 && position < length) return position;
  if (mode == PadMode::constant) return -1;
  if (mode == PadMode::edge || (mode == PadMode::reflect && length == 1))
    return std::clamp(position, 0, length - 1);
  const int period = 2 * (mode == PadMode::reflect ? length - 1 : length);
  const int phase = (position % period + period) % period;
  if (phase < length) return phase;
  return mode == PadMode::reflect ? period - phase : period - 1 - phase;
}

// Pads one axis of `length` pixels: what each place of the result shows. Other modes than constant
// crop first, so that what is cropped shows nowhere.
int padded_axis(int length, int before, int after, PadMode mode, std::vector<int>& table) {
  if (std::min(before, after) < -longest_side || std::max(before, after) > longest_side)
    throw std::invalid_argument("padding that wide is not possible");
  const int crop_before = mode == PadMode::constant ? 0 : std::max(-before, 0);
  const int crop_after = mode == PadMode::constant ? 0 : std::max(-after, 0);
  const int kept = length - crop_before - crop_after;
  const int padded = length + before + after;
  if (padded < 0 || kept < 0 || (kept == 0 && padded > 0 && mode != PadMode::constant))
    throw std::invalid_argument("padding leaves nothing of the image");
  at_least(table, static_cast<size_t>(padded));
  for (int i = 0; i < padded; ++i) {
    const int source = source_of(i - before - crop_before, kept, mode);
    table[static_cast<size_t>(i)] = source < 0 ? -1 : source + crop_before;
  }
  return padded;
}

}  // namespace

void pad(const Planes& in, Planes& out, const Padding& padding, PadMode mode, const Colour& fill,
         GeometryWorkspace& workspace) {
  const int width = padded_axis(in.width(), padding.left, padding.right, mode, workspace.columns);
  const int height = padded_axis(in.height(), padding.top, padding.bottom, mode, workspace.rows);
  require_possible_size(width, height);
  out.reset(in.channels(), width, height);
  const int *columns = workspace.columns.data(), *rows = workspace.rows.data();
  // Between the borders rows are copied as they are.
  const int begin = std::clamp(padding.left, 0, width);
  const int end = std::clamp(width - std::max(padding.right, 0), begin, width);
  for (int channel = 0; channel < in.channels(); ++channel) {
    const uint8_t colour = fill[static_cast<size_t>(channel)];
    uint8_t* to = out.plane(channel);
    for (int y = 0; y < height; ++y, to += width) {
      if (rows[y] < 0) {
        std::memset(to, colour, static_cast<size_t>(width));
        continue;
      }
      const uint8_t* row = in.plane(channel) + static_cast<ptrdiff_t>(rows[y]) * in.width();
      const auto show = [&](int x) { to[x] = columns[x] < 0 ? colour : row[columns[x]]; };
      for (int x = 0; x < begin; ++x) show(x);
      if (begin < end)
        std::memcpy(to + begin, row + columns[begin], static_cast<size_t>(end - begin));
      for (int x = end; x < width; ++x) show(x);
    }
  }
}

}  // namespace fusionloader
