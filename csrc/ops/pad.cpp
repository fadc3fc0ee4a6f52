// Borders around an image: each axis gets a table of what its places show.
#include <stdexcept>

#include "ops/limits.hpp"
#include "ops/warp.hpp"

namespace fusionloader {
namespace {

int* table_of(const PaddedAxis& axis, PadMode mode, std::vector<int>& table) {
  grow(table, static_cast<size_t>(axis.length));
  for (int i = 0; i < axis.length; ++i) table[static_cast<size_t>(i)] = axis.source(i, mode);
  return table.data();
}

}  // namespace

// Other modes than constant crop first, so that what is cropped shows nowhere.
PaddedAxis padded_axis(int length, int before, int after, PadMode mode) {
  if (std::min(before, after) < -longest_side || std::max(before, after) > longest_side)
    throw std::invalid_argument("padding that wide is not possible");
  const int crop_before = mode == PadMode::constant ? 0 : std::max(-before, 0);
  const int crop_after = mode == PadMode::constant ? 0 : std::max(-after, 0);
  const int kept = length - crop_before - crop_after;
  const int padded = length + before + after;
  if (padded < 0 || kept < 0 || (kept == 0 && padded > 0 && mode != PadMode::constant))
    throw std::invalid_argument("padding leaves nothing of the image");
  return {crop_before, kept, before, padded};
}

void pad(const Planes& in, Planes& out, const Padding& padding, PadMode mode, const Color& fill,
         GeometryWorkspace& workspace) {
  const PaddedAxis across = padded_axis(in.width(), padding.left, padding.right, mode);
  const PaddedAxis down = padded_axis(in.height(), padding.top, padding.bottom, mode);
  const int width = across.length, height = down.length;
  require_possible_size(width, height);
  out.reset(in.channels(), width, height);
  const int* columns = table_of(across, mode, workspace.columns);
  const int* rows = table_of(down, mode, workspace.rows);
  // Between the borders rows are copied as they are.
  const int begin = std::clamp(padding.left, 0, width);
  const int end = std::clamp(width - std::max(padding.right, 0), begin, width);
  for (int channel = 0; channel < in.channels(); ++channel) {
    const uint8_t color = fill[static_cast<size_t>(channel)];
    uint8_t* to = out.plane(channel);
    for (int y = 0; y < height; ++y, to += width) {
      if (rows[y] < 0) {
        std::memset(to, color, static_cast<size_t>(width));
        continue;
      }
      const uint8_t* row = in.plane(channel) + static_cast<ptrdiff_t>(rows[y]) * in.width();
      const auto show = [&](int x) { to[x] = columns[x] < 0 ? color : row[columns[x]]; };
      for (int x = 0; x < begin; ++x) show(x);
      if (begin < end)
        std::memcpy(to + begin, row + columns[begin], static_cast<size_t>(end - begin));
      for (int x = end; x < width; ++x) show(x);
    }
  }
}

}  // namespace fusionloader
