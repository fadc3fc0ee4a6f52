#include "ops/tensor_warp.hpp"

#include <algorithm>
#include <stdexcept>

#include "ops/per_level.hpp"
#include "ops/warp.hpp"

namespace fusionloader {
namespace {

// Zeros around an image, so that every place outside has its four pixels too.
constexpr int border = 2;
constexpr size_t most_places = 256;  // at a time
constexpr uint32_t mask_bit = 24;

// Torch multiplies small matrices by plain loops, others by a library.
constexpr size_t most_unfused = 66;

struct Grid {
  float across[3], down[3], depth[3];  // of a place's x, y and 1
  float first_x, first_y;
  float half_width, half_height, width, height;  // of the image
  int stride;                                    // of the image with its border
  bool fused;
};

// What places of a row show: where their first pixel is, and the weights of all four.
struct Footprints {
  int32_t corners[most_places];
  float upper_left[most_places], upper_right[most_places];
  float lower_left[most_places], lower_right[most_places];
};

struct Bilinear : std::true_type {};
struct Nearest : std::false_type {};
struct Affine : std::false_type {};
struct Perspective : std::true_type {};

template <bool fused>
FUSIONLOADER_INLINE float product(const float (&by)[3], float x, float y) {
  return (fused ? __builtin_fmaf(y, by[1], x * by[0]) : x * by[0] + y * by[1]) + by[2];
}

// Compilers do not vectorise their own, nor a comparison here.
FUSIONLOADER_INLINE float floor_of(float value) {
  const float whole = __builtin_rintf(value), rest = value - whole;
  int32_t bits;
  std::memcpy(&bits, &rest, sizeof bits);
  return whole + static_cast<float>(bits >> 31);  // less 1 where the rest is negative
}

// What is not a number becomes `least`.
FUSIONLOADER_INLINE float clamp_place(float value, float least, float most) {
  const float raised = value > least ? value : least;
  return raised < most ? raised : most;
}

template <bool fused, class Map, class Filter>
FUSIONLOADER_INLINE void places_of_row(Map map, Filter filter, const Grid& g, float x0, float y,
                                       size_t count, Footprints* __restrict found) {
  for (size_t i = 0; i < count; ++i) {
    const float x = x0 + static_cast<float>(static_cast<int>(i));
    float at_x = product<fused>(g.across, x, y), at_y = product<fused>(g.down, x, y);
    if (map()) {
      const float depth = product<fused>(g.depth, x, y);
      at_x = at_x / depth - 1.0f;
      at_y = at_y / depth - 1.0f;
    }
    const float to_x = __builtin_fmaf(at_x + 1.0f, g.half_width, -0.5f);
    const float to_y = __builtin_fmaf(at_y + 1.0f, g.half_height, -0.5f);
    const float left = filter() ? floor_of(to_x) : __builtin_rintf(to_x);
    const float top = filter() ? floor_of(to_y) : __builtin_rintf(to_y);
    constexpr float outside = -border;
    const int column = static_cast<int>(clamp_place(left, outside, g.width)) + border;
    const int row = static_cast<int>(clamp_place(top, outside, g.height)) + border;
    found->corners[i] = row * g.stride + column;
    if (filter()) {
      const float to_left = to_x - left, above = to_y - top;
      const float to_right = 1.0f - to_left, below = 1.0f - above;
      found->upper_left[i] = below * to_right;
      found->upper_right[i] = below * to_left;
      found->lower_left[i] = above * to_right;
      found->lower_right[i] = above * to_left;
    }
  }
}

template <int, class Map, class Filter>
FUSIONLOADER_INLINE void places_loop(Map map, Filter filter, const Grid* grid, float x0, float y,
                                     size_t count, Footprints* __restrict found) {
  const Grid g = *grid;
  if (g.fused)
    places_of_row<true>(map, filter, g, x0, y, count, found);
  else
    places_of_row<false>(map, filter, g, x0, y, count, found);
}

FUSIONLOADER_PER_LEVEL(find_places, places_loop)

FUSIONLOADER_INLINE float weigh(const float (&values)[4], const Footprints& places, size_t i) {
  float sum = values[0] * places.upper_left[i];
  sum = __builtin_fmaf(values[1], places.upper_right[i], sum);
  sum = __builtin_fmaf(values[2], places.lower_left[i], sum);
  return __builtin_fmaf(values[3], places.lower_right[i], sum);
}

// How a sample and its share of pixels inside the image become a value with the fill.
struct Unfilled {
  static FUSIONLOADER_INLINE float blend(float sample, float, float) { return sample; }
};
struct FilledByV1 {
  static FUSIONLOADER_INLINE float blend(float sample, float mask, float fill) {
    return sample * mask + (1.0f - mask) * fill;
  }
};
struct FilledByV2 {
  static FUSIONLOADER_INLINE float blend(float sample, float mask, float fill) {
    return (sample - fill) * mask + fill;
  }
};

struct Corners {
  uint32_t pixels[4][most_places];
};

template <int>
FUSIONLOADER_INLINE void corners_loop(const uint32_t* pixels, ptrdiff_t stride,
                                      const Footprints* places, size_t count,
                                      Corners* __restrict found) {
  const uint32_t *to_right = pixels + 1, *below = pixels + stride, *across = below + 1;
  for (size_t i = 0; i < count; ++i) {
    const int32_t at = places->corners[i];
    found->pixels[0][i] = pixels[at];
    found->pixels[1][i] = to_right[at];
    found->pixels[2][i] = below[at];
    found->pixels[3][i] = across[at];
  }
}

FUSIONLOADER_PER_LEVEL(find_corners, corners_loop)

FUSIONLOADER_INLINE float sample_level(const Corners& corners, const Footprints& places, size_t i,
                                       uint32_t place) {
  float levels[4];
  for (size_t corner = 0; corner < 4; ++corner)
    levels[corner] =
        static_cast<float>(static_cast<int>(corners.pixels[corner][i] >> place & uint32_t{255}));
  return weigh(levels, places, i);
}

template <int, class Blending>
FUSIONLOADER_INLINE void levels_loop(Blending, const Corners* corners, const Footprints* places,
                                     const float* fill, size_t count, uint32_t* __restrict out) {
  const float fills[3] = {fill[0], fill[1], fill[2]};
  for (size_t i = 0; i < count; ++i) {
    const float mask = sample_level(*corners, *places, i, mask_bit);
    uint32_t pixel = 0;
    for (uint32_t channel = 0; channel < 3; ++channel) {
      const float sample = sample_level(*corners, *places, i, 8 * channel);
      const float value = Blending::blend(sample, mask, fills[channel]);
      const float level = clamp_place(__builtin_rintf(value), 0.0f, 255.0f);
      pixel |= static_cast<uint32_t>(static_cast<int>(level)) << 8 * channel;
    }
    out[i] = pixel;
  }
}

FUSIONLOADER_PER_LEVEL(blend_levels, levels_loop)

template <int>
FUSIONLOADER_INLINE void nearest_loop(const uint32_t* pixels, const Footprints* places,
                                      uint32_t color, size_t count, uint32_t* __restrict out) {
  for (size_t i = 0; i < count; ++i) {
    const uint32_t pixel = pixels[places->corners[i]];
    out[i] = pixel >> mask_bit ? pixel : color;
  }
}

FUSIONLOADER_PER_LEVEL(take_nearest, nearest_loop)

template <int>
FUSIONLOADER_INLINE void frame_loop(const uint8_t* red, const uint8_t* green, const uint8_t* blue,
                                    size_t count, uint32_t* __restrict out) {
  for (size_t i = 0; i < count; ++i)
    out[i] = red[i] | static_cast<uint32_t>(green[i]) << 8 | static_cast<uint32_t>(blue[i]) << 16 |
             uint32_t{1} << mask_bit;
}

FUSIONLOADER_PER_LEVEL(pack_inside, frame_loop)

size_t padded_size(int width, int height) {
  return static_cast<size_t>(width + 2 * border) * static_cast<size_t>(height + 2 * border);
}

// Packed pixels with a mask of 1 inside, and zeros around them.
const uint32_t* padded_image(const Planes& in, GeometryWorkspace& workspace) {
  const auto width = static_cast<size_t>(in.width()), stride = width + 2 * border;
  at_least(workspace.packed, padded_size(in.width(), in.height()));
  uint32_t* to = std::fill_n(workspace.packed.data(), border * stride, 0u);
  const bool colors = in.channels() == 3;
  const uint8_t *red = in.plane(0), *green = in.plane(colors ? 1 : 0);
  const uint8_t* blue = in.plane(colors ? 2 : 0);
  for (int y = 0; y < in.height(); ++y, red += width, green += width, blue += width) {
    to = std::fill_n(to, border, 0u);
    pack_inside(workspace.simd, red, green, blue, width, to);
    to = std::fill_n(to + width, border, 0u);
  }
  std::fill_n(to, border * stride, 0u);
  return workspace.packed.data();
}

void scale_row(const double* from, float half, float (&to)[3]) {
  for (size_t i = 0; i < 3; ++i) to[i] = static_cast<float>(from[i]) / half;
}

Grid make_grid(const TensorWarp& warp, int width, int height) {
  Grid grid{};
  grid.width = static_cast<float>(width);
  grid.height = static_cast<float>(height);
  grid.half_width = 0.5f * grid.width;
  grid.half_height = 0.5f * grid.height;
  grid.stride = width + 2 * border;
  grid.fused = static_cast<size_t>(warp.width) * static_cast<size_t>(warp.height) > most_unfused;
  grid.first_x = grid.first_y = 0.5f;
  if (const auto* matrix = std::get_if<AffineMatrix>(&warp.map)) {
    scale_row(matrix->data(), grid.half_width, grid.across);
    scale_row(matrix->data() + 3, grid.half_height, grid.down);
    grid.first_x -= 0.5f * static_cast<float>(warp.width);
    grid.first_y -= 0.5f * static_cast<float>(warp.height);
  } else {
    const double* by = std::get<PerspectiveCoefficients>(warp.map).data();
    scale_row(by, grid.half_width, grid.across);
    scale_row(by + 3, grid.half_height, grid.down);
    grid.depth[0] = static_cast<float>(by[6]);
    grid.depth[1] = static_cast<float>(by[7]);
    grid.depth[2] = 1.0f;
  }
  return grid;
}

// Calls take(y, x, count, places) for all places of the result, some at a time.
template <class Map, class Filter, class Take>
void each_places(Map map, Filter filter, const TensorWarp& warp, const Grid& grid, SimdLevel simd,
                 Take take) {
  Footprints places;
  for (int y = 0; y < warp.height; ++y) {
    const float at_y = grid.first_y + static_cast<float>(y);
    for (int x = 0; x < warp.width; x += static_cast<int>(most_places)) {
      const size_t count = std::min(most_places, static_cast<size_t>(warp.width - x));
      find_places(simd, map, filter, &grid, grid.first_x + static_cast<float>(x), at_y, count,
                  &places);
      take(y, static_cast<size_t>(x), count, static_cast<const Footprints*>(&places));
    }
  }
}

template <class Filter, class Take>
void each_places(Filter filter, const TensorWarp& warp, const Grid& grid, SimdLevel simd,
                 Take take) {
  if (std::holds_alternative<AffineMatrix>(warp.map))
    each_places(Affine(), filter, warp, grid, simd, take);
  else
    each_places(Perspective(), filter, warp, grid, simd, take);
}

// Calls sample with the blending of a rounding.
template <class Sample>
void with_blending(Rounding rounding, Sample sample) {
  if (rounding == Rounding::torch_v1) return sample(FilledByV1());
  if (rounding == Rounding::torch_v2) return sample(FilledByV2());
  if (rounding == Rounding::torch_unfilled) return sample(Unfilled());
  throw std::invalid_argument("no warp of tensors is rounded like this");
}

}  // namespace

void warp_tensor(const Planes& in, Planes& out, const TensorWarp& warp,
                 GeometryWorkspace& workspace) {
  out.reset(in.channels(), warp.width, warp.height);
  if (in.size() == 0 || out.size() == 0) return;
  const SimdLevel simd = workspace.simd;
  const Grid grid = make_grid(warp, in.width(), in.height());
  const uint32_t* pixels = padded_image(in, workspace);
  const SamplingKernels& kernels = sampling_kernels(simd);
  const auto width = static_cast<size_t>(warp.width);
  at_least(workspace.row, width + PackedImage::slack);
  uint32_t* row = workspace.row.data();
  uint8_t* planes[3];
  for (int channel = 0; channel < out.channels(); ++channel) planes[channel] = out.plane(channel);
  const auto finish = [&](size_t end) {
    if (end < width) return;
    kernels.split(row, width, out.channels(), planes);
    for (int channel = 0; channel < out.channels(); ++channel) planes[channel] += width;
  };
  if (warp.interpolation == Interpolation::nearest) {
    Color levels{};
    for (size_t i = 0; i < 3; ++i) levels[i] = static_cast<uint8_t>(warp.fill[i]);
    const uint32_t color =
        warp.rounding == Rounding::torch_unfilled ? 0 : packed_color(levels, in.channels());
    return each_places(Nearest(), warp, grid, simd,
                       [&](int, size_t x, size_t count, const Footprints* places) {
                         take_nearest(simd, pixels, places, color, count, row + x);
                         finish(x + count);
                       });
  }
  with_blending(warp.rounding, [&](auto blending) {
    Corners corners;
    each_places(
        Bilinear(), warp, grid, simd, [&](int, size_t x, size_t count, const Footprints* places) {
          find_corners(simd, pixels, static_cast<ptrdiff_t>(grid.stride), places, count, &corners);
          blend_levels(simd, blending, static_cast<const Corners*>(&corners), places,
                       warp.fill.data(), count, row + x);
          finish(x + count);
        });
  });
}

}  // namespace fusionloader
