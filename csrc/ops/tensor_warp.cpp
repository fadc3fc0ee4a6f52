// torchvision's affine of uint8 tensors: a grid in float32, and grid_sample with the nearest
// filter.
#include "ops/per_level.hpp"
#include "ops/warp.hpp"

namespace fusionloader {
namespace {

struct Grid {
  float across[3], down[3];  // of the image's half sizes, for a place's x, y and 1
  float half_width, half_height;
  int width, height;
  bool fused;
};

// Torch multiplies small matrices by plain loops, others by a library.
constexpr size_t most_unfused = 66;

FUSIONLOADER_INLINE float product(const float (&by)[3], float x, float y, bool fused) {
  return (fused ? __builtin_fmaf(y, by[1], x * by[0]) : x * by[0] + y * by[1]) + by[2];
}

// The pixel that each place of a row shows, or -1.
template <int>
FUSIONLOADER_INLINE void places_loop(const Grid* grid, float first_x, float y, int* __restrict out,
                                     size_t count) {
  const Grid g = *grid;
  const auto width = static_cast<float>(g.width), height = static_cast<float>(g.height);
  for (size_t i = 0; i < count; ++i) {
    const float x = first_x + static_cast<float>(static_cast<int>(i));
    const float to_x = (product(g.across, x, y, g.fused) + 1.0f) * g.half_width - 0.5f;
    const float to_y = (product(g.down, x, y, g.fused) + 1.0f) * g.half_height - 0.5f;
    const float column = __builtin_rintf(to_x), row = __builtin_rintf(to_y);
    const bool inside = (column >= 0.0f) & (column < width) & (row >= 0.0f) & (row < height);
    const float column_inside = inside ? column : 0.0f, row_inside = inside ? row : 0.0f;
    const int place = static_cast<int>(row_inside) * g.width + static_cast<int>(column_inside);
    out[i] = inside ? place : -1;
  }
}

FUSIONLOADER_PER_LEVEL(find_places, places_loop)

}  // namespace

void tensor_affine(const Planes& in, Planes& out, const AffineMatrix& matrix, bool fused,
                   const Color& fill, GeometryWorkspace& workspace) {
  out.reset(in.channels(), in.width(), in.height());
  if (in.size() == 0) return;
  const float half_width = 0.5f * static_cast<float>(in.width());
  const float half_height = 0.5f * static_cast<float>(in.height());
  Grid grid{
      {}, {}, half_width, half_height, in.width(), in.height(), fused && in.size() > most_unfused};
  for (size_t i = 0; i < 3; ++i) {
    grid.across[i] = static_cast<float>(matrix[i]) / half_width;
    grid.down[i] = static_cast<float>(matrix[i + 3]) / half_height;
  }
  const PackedImage image = packed_image(in, workspace);
  const uint32_t color = packed_color(fill, in.channels());
  const auto width = static_cast<size_t>(in.width());
  at_least(workspace.columns, width);
  int* places = workspace.columns.data();
  make_rows(out, workspace, [&](int y, uint32_t* row) {
    find_places(workspace.simd, static_cast<const Grid*>(&grid), 0.5f - half_width,
                static_cast<float>(y) + 0.5f - half_height, places, width);
    for (size_t i = 0; i < width; ++i) row[i] = places[i] < 0 ? color : image.pixels[places[i]];
  });
}

}  // namespace fusionloader
