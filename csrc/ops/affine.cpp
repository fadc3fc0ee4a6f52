// Affine transforms. With the nearest filter Pillow has three ways, which round differently:
// scaling (by adding up steps), 16.16 fixed point and, for huge coordinates, double precision.
#include <limits>

#include "ops/warp.hpp"

namespace fusionloader {
namespace {

constexpr uint32_t fixed_one = 1 << 16;
constexpr int32_t steepest = fixed_one / 4;

// What is shown at each place along one axis; adding up rounds as Pillow does.
void scaled_axis(double offset, double step, int length, int out_length, std::vector<int>& table) {
  grow(table, static_cast<size_t>(out_length));
  double position = offset + step * 0.5;
  for (int i = 0; i < out_length; ++i, position += step)
    table[static_cast<size_t>(i)] = pixel_at(position, length);
}

// A row moved by `shift`: out[x] = in[x + shift]; a row outside is null.
void shifted_row(const uint8_t* in, int in_width, int64_t shift, uint8_t fill, uint8_t* out,
                 int out_width) {
  const auto within = [&](int64_t x) { return std::clamp<int64_t>(x, 0, out_width); };
  const int64_t begin = in ? within(-shift) : out_width, end = in ? within(in_width - shift) : 0;
  if (end <= begin) {
    std::memset(out, fill, static_cast<size_t>(out_width));
    return;
  }
  if (begin > 0) std::memset(out, fill, static_cast<size_t>(begin));
  std::memcpy(out + begin, in + begin + shift, static_cast<size_t>(end - begin));
  if (end < out_width) std::memset(out + end, fill, static_cast<size_t>(out_width - end));
}

// The places [begin, end) that show something.
struct Span {
  int begin, end;
};
Span inside(const std::vector<int>& table, int length) {
  Span span{0, length};
  while (span.begin < length && table[static_cast<size_t>(span.begin)] < 0) ++span.begin;
  while (span.end > span.begin && table[static_cast<size_t>(span.end - 1)] < 0) --span.end;
  return span;
}

bool consecutive(const std::vector<int>& table, Span span) {
  for (int i = span.begin + 1; i < span.end; ++i)
    if (table[static_cast<size_t>(i)] != table[static_cast<size_t>(i - 1)] + 1) return false;
  return true;
}

void scale(const Planes& in, Planes& out, const AffineMatrix& m, const Color& fill,
           GeometryWorkspace& workspace) {
  scaled_axis(m[2], m[0], in.width(), out.width(), workspace.columns);
  scaled_axis(m[5], m[4], in.height(), out.height(), workspace.rows);
  const int* columns = workspace.columns.data();
  const Span across = inside(workspace.columns, out.width());
  if (across.begin == across.end) return fill_planes(out, fill);
  const bool copies = consecutive(workspace.columns, across);
  const int first = columns[across.begin];
  const Span down = inside(workspace.rows, out.height());
  const auto width = static_cast<size_t>(out.width());
  const auto begin = static_cast<size_t>(across.begin), end = static_cast<size_t>(across.end);
  const auto in_row = [&](int y) {
    return static_cast<size_t>(workspace.rows[static_cast<size_t>(y)]) *
           static_cast<size_t>(in.width());
  };
  const bool in_one_piece = copies && in.width() == out.width() && end - begin == width &&
                            down.begin < down.end && consecutive(workspace.rows, down);
  for (int channel = 0; channel < in.channels(); ++channel) {
    const uint8_t color = fill[static_cast<size_t>(channel)];
    const uint8_t* from = in.plane(channel);
    uint8_t* to = out.plane(channel);
    std::memset(to, color, static_cast<size_t>(down.begin) * width);
    to += static_cast<size_t>(down.begin) * width;
    if (in_one_piece) {
      const size_t size = static_cast<size_t>(down.end - down.begin) * width;
      std::memcpy(to, from + in_row(down.begin), size);
      to += size;
    } else {
      for (int y = down.begin; y < down.end; ++y, to += width) {
        const uint8_t* row = from + in_row(y);
        std::memset(to, color, begin);
        if (copies)
          std::memcpy(to + begin, row + first, end - begin);
        else
          for (size_t x = begin; x < end; ++x) to[x] = row[columns[x]];
        std::memset(to + end, color, width - end);
      }
    }
    std::memset(to, color, static_cast<size_t>(out.height() - down.end) * width);
  }
}

int whole(uint32_t fixed) { return static_cast<int32_t>(fixed) >> 16; }

// Every row is a row of the image, moved: horizontal shears.
void shift_rows(const Planes& in, Planes& out, FixedLine line, uint32_t row_x, uint32_t row_y,
                const Color& fill) {
  for (int channel = 0; channel < in.channels(); ++channel) {
    FixedLine at = line;
    uint8_t* to = out.plane(channel);
    for (int y = 0; y < out.height(); ++y, at.x += row_x, at.y += row_y, to += out.width()) {
      const int from = whole(at.y);
      const bool shown = from >= 0 && from < in.height();
      shifted_row(shown ? in.plane(channel) + static_cast<ptrdiff_t>(from) * in.width() : nullptr,
                  in.width(), whole(at.x), fill[static_cast<size_t>(channel)], to, out.width());
    }
  }
}

constexpr int run_bytes = 16;

// Every column is that column of the image, moved: vertical shears. Runs of columns that move
// alike are copied at a fixed width; what is too much the next run overwrites.
void shift_columns(const Planes& in, Planes& out, FixedLine line, const Color& fill,
                   GeometryWorkspace& workspace) {
  const int width = out.width();
  workspace.runs.clear();
  int least = std::numeric_limits<int>::max(), most = std::numeric_limits<int>::min();
  for (int x = 0, run = 0; x < width; ++x, line.y += line.step_y) {
    const int rows = whole(line.y);
    if (x > 0 && rows == workspace.runs.back().rows && x - run < run_bytes) continue;
    run = x;
    workspace.runs.push_back({x, rows, static_cast<ptrdiff_t>(rows) * width + x});
    least = std::min(least, rows);
    most = std::max(most, rows);
  }
  const ColumnRun *begin = workspace.runs.data(), *end = begin + workspace.runs.size();
  for (int channel = 0; channel < in.channels(); ++channel) {
    const uint8_t* from = in.plane(channel);
    uint8_t* to = out.plane(channel);
    uint8_t outside[run_bytes];
    std::memset(outside, fill[static_cast<size_t>(channel)], run_bytes);
    for (int y = 0; y < out.height(); ++y, from += width, to += width) {
      if (y + least >= 0 && y + most < in.height()) {
        for (const ColumnRun* run = begin; run != end; ++run)
          std::memcpy(to + run->column, from + run->offset, run_bytes);
        continue;
      }
      for (const ColumnRun* run = begin; run != end; ++run) {
        const bool shown = y + run->rows >= 0 && y + run->rows < in.height();
        std::memcpy(to + run->column, shown ? from + run->offset : outside, run_bytes);
      }
    }
  }
}

void fixed_point(const Planes& in, Planes& out, const AffineMatrix& m, const Color& fill,
                 GeometryWorkspace& workspace) {
  FixedLine line = first_fixed_line(m.data());
  const uint32_t row_x = to_fixed(m[1]), row_y = to_fixed(m[4]);
  // Within these sizes a point that has wrapped around is outside, as it is without wrapping.
  const bool small = in.width() < 1 << 15 && in.height() < 1 << 15;
  if (small && line.step_x == fixed_one && line.step_y == 0)
    return shift_rows(in, out, line, row_x, row_y, fill);
  // Steeper shears have so many runs that vector gathers are faster.
  const auto slope = static_cast<int32_t>(line.step_y);
  const bool flat = workspace.simd < SimdLevel::avx2 || (slope > -steepest && slope < steepest);
  if (small && flat && line.step_x == fixed_one && row_x == 0 && whole(line.x) == 0 &&
      row_y == fixed_one && in.width() == out.width())
    return shift_columns(in, out, line, fill, workspace);
  const SamplingKernels& kernels = sampling_kernels(workspace.simd);
  const PackedImage image = packed_image(in, workspace);
  const uint32_t color = packed_color(fill, in.channels());
  const auto width = static_cast<size_t>(out.width());
  make_rows(out, workspace, [&](int, uint32_t* row) {
    kernels.fixed(image, line, width, color, row);
    line.x += row_x;
    line.y += row_y;
  });
}

// Rare, and plain for that: only coordinates of 32768 and more come here.
void floating_point(const Planes& in, Planes& out, const AffineMatrix& m, const Color& fill) {
  for (int channel = 0; channel < in.channels(); ++channel) {
    uint8_t* to = out.plane(channel);
    double row_x = m[2] + m[1] * 0.5 + m[0] * 0.5, row_y = m[5] + m[4] * 0.5 + m[3] * 0.5;
    for (int y = 0; y < out.height(); ++y, row_x += m[1], row_y += m[4]) {
      double at_x = row_x, at_y = row_y;
      for (int x = 0; x < out.width(); ++x, at_x += m[0], at_y += m[3]) {
        const int column = pixel_at(at_x, in.width()), row = pixel_at(at_y, in.height());
        *to++ = column < 0 || row < 0
                    ? fill[static_cast<size_t>(channel)]
                    : in.plane(channel)[static_cast<ptrdiff_t>(row) * in.width() + column];
      }
    }
  }
}

}  // namespace

void affine_transform(const Planes& in, Planes& out, int out_width, int out_height,
                      const AffineMatrix& matrix, Interpolation interpolation, const Color& fill,
                      GeometryWorkspace& workspace) {
  out.reset(in.channels(), out_width, out_height);
  if (in.size() == 0 || out.size() == 0) return fill_planes(out, fill);
  if (interpolation != Interpolation::nearest && !moves_whole_pixels(matrix.data()))
    return warp(in, out, PointMap::affine, matrix.data(), interpolation, fill, workspace);
  if (matrix[1] == 0 && matrix[3] == 0) return scale(in, out, matrix, fill, workspace);
  if (fits_fixed_everywhere(matrix.data(), out_width, out_height))
    return fixed_point(in, out, matrix, fill, workspace);
  floating_point(in, out, matrix, fill);
}

}  // namespace fusionloader
