#include "ops/tensor_warp.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "ops/per_level.hpp"
#include "ops/tensor_block.hpp"
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
  const float* given;  // or x and y of each place
  size_t given_width;
};

// What places of a row show: where their first pixel is, and the weights of all four.
struct Footprints {
  int32_t corners[most_places];
  float upper_left[most_places], upper_right[most_places];
  float lower_left[most_places], lower_right[most_places];
};

struct Bilinear : std::true_type {};
struct Nearest : std::false_type {};
struct Affine {};
struct Perspective {};
struct Given {};

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
FUSIONLOADER_INLINE void places_of_row(Map, Filter filter, const Grid& g, int first_x, int first_y,
                                       size_t count, Footprints* __restrict found) {
  const float x0 = g.first_x + static_cast<float>(first_x);
  const float y = g.first_y + static_cast<float>(first_y);
  const float* given = nullptr;
  if constexpr (std::is_same_v<Map, Given>)
    given =
        g.given + 2 * (static_cast<size_t>(first_y) * g.given_width + static_cast<size_t>(first_x));
  for (size_t i = 0; i < count; ++i) {
    const float x = x0 + static_cast<float>(static_cast<int>(i));
    float at_x, at_y;
    if constexpr (std::is_same_v<Map, Given>) {
      at_x = given[2 * i];
      at_y = given[2 * i + 1];
    } else {
      at_x = product<fused>(g.across, x, y);
      at_y = product<fused>(g.down, x, y);
    }
    if constexpr (std::is_same_v<Map, Perspective>) {
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
FUSIONLOADER_INLINE void places_loop(Map map, Filter filter, const Grid* grid, int x, int y,
                                     size_t count, Footprints* __restrict found) {
  const Grid g = *grid;
  if (g.fused)
    places_of_row<true>(map, filter, g, x, y, count, found);
  else
    places_of_row<false>(map, filter, g, x, y, count, found);
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

// Floats of places: red, green, blue and the mask.
constexpr size_t floats_per_place = 4;
struct Samples {
  float values[floats_per_place * most_places];
};

// One place after the other, its four floats at once.
template <int, class Filter>
FUSIONLOADER_INLINE void samples_loop(Filter filter, const float* pixels, ptrdiff_t stride,
                                      const Footprints* places, size_t count,
                                      Samples* __restrict found) {
  for (size_t i = 0; i < count; ++i) {
    const float* at = pixels + static_cast<ptrdiff_t>(floats_per_place) * places->corners[i];
    const float* below = at + static_cast<ptrdiff_t>(floats_per_place) * stride;
    float* to = found->values + floats_per_place * i;
    const float a = places->upper_left[i], b = places->upper_right[i];
    const float c = places->lower_left[i], d = places->lower_right[i];
    for (size_t k = 0; k < floats_per_place; ++k) {
      if (!filter()) {
        to[k] = at[k];
        continue;
      }
      float sum = at[k] * a;
      sum = __builtin_fmaf(at[k + floats_per_place], b, sum);
      sum = __builtin_fmaf(below[k], c, sum);
      to[k] = __builtin_fmaf(below[k + floats_per_place], d, sum);
    }
  }
}

FUSIONLOADER_PER_LEVEL(find_samples, samples_loop)

template <int, class Filter, class Blending>
FUSIONLOADER_INLINE void floats_loop(Filter filter, Blending, const Samples* samples,
                                     size_t channel, float fill, size_t count,
                                     float* __restrict out) {
  const float* values = samples->values + channel;
  const float* masks = samples->values + floats_per_place - 1;
  for (size_t i = 0; i < count; ++i) {
    const float value = values[floats_per_place * i], mask = masks[floats_per_place * i];
    if (filter())
      out[i] = Blending::blend(value, mask, fill);
    else
      out[i] = std::is_same_v<Blending, Unfilled> || mask > 0.0f ? value : fill;
  }
}

FUSIONLOADER_PER_LEVEL(blend_floats, floats_loop)

template <int, class Step>
FUSIONLOADER_INLINE void spread_loop(Step step, const float* red, size_t plane, size_t count,
                                     float* __restrict out) {
  const float *green = red + plane, *blue = green + plane;
  for (size_t i = 0; i < count; ++i) {
    out[floats_per_place * i] = red[i * step()];
    out[floats_per_place * i + 1] = green[i * step()];
    out[floats_per_place * i + 2] = blue[i * step()];
    out[floats_per_place * i + 3] = 1.0f;
  }
}

FUSIONLOADER_PER_LEVEL(spread_pixels, spread_loop)

// Pixels `step` elements apart.
template <int, class Step>
FUSIONLOADER_INLINE void pack_loop_inside(Step step, const uint8_t* red, const uint8_t* green,
                                          const uint8_t* blue, size_t count,
                                          uint32_t* __restrict out) {
  for (size_t i = 0; i < count; ++i)
    out[i] = red[i * step()] | static_cast<uint32_t>(green[i * step()]) << 8 |
             static_cast<uint32_t>(blue[i * step()]) << 16 | uint32_t{1} << mask_bit;
}

FUSIONLOADER_PER_LEVEL(pack_inside, pack_loop_inside)

template <int>
FUSIONLOADER_INLINE void split_loop(const uint32_t* pixels, uint32_t place, size_t count,
                                    uint8_t* __restrict out) {
  for (size_t i = 0; i < count; ++i) out[i] = static_cast<uint8_t>(pixels[i] >> place);
}

FUSIONLOADER_PER_LEVEL(split_pixels, split_loop)

// Writes an image, of `each` elements a pixel, with zeros around it: copy_row(y, to) writes its
// rows.
template <class Element, class CopyRow>
void add_border(Element* to, size_t each, size_t width, size_t height, CopyRow copy_row) {
  const size_t beside = border * each, above = border * (width + 2 * border) * each;
  to = std::fill_n(to, above, Element{});
  for (size_t y = 0; y < height; ++y) {
    to = std::fill_n(to, beside, Element{});
    copy_row(y, to);
    to = std::fill_n(to + width * each, beside, Element{});
  }
  std::fill_n(to, above, Element{});
}

size_t padded_size(size_t width, size_t height) {
  return (width + 2 * border) * (height + 2 * border);
}

// Packed pixels with a mask of 1 inside, and zeros around them. Channels are `plane` bytes apart.
template <class Step>
const uint32_t* padded_image(Step step, const uint8_t* in, size_t plane, size_t width,
                             size_t height, GeometryWorkspace& workspace) {
  grow(workspace.packed, padded_size(width, height));
  add_border(workspace.packed.data(), 1, width, height, [&](size_t y, uint32_t* to) {
    const uint8_t* red = in + y * width * step();
    pack_inside(workspace.simd, step, red, red + plane, red + 2 * plane, width, to);
  });
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
  grid.fused = !is_unfused(warp.rounding) &&
               static_cast<size_t>(warp.width) * static_cast<size_t>(warp.height) > most_unfused;
  grid.first_x = grid.first_y = 0.5f;
  if (const auto* matrix = std::get_if<AffineMatrix>(&warp.map)) {
    scale_row(matrix->data(), grid.half_width, grid.across);
    scale_row(matrix->data() + 3, grid.half_height, grid.down);
    grid.first_x -= 0.5f * static_cast<float>(warp.width);
    grid.first_y -= 0.5f * static_cast<float>(warp.height);
  } else if (const auto* by = std::get_if<PerspectiveCoefficients>(&warp.map)) {
    scale_row(by->data(), grid.half_width, grid.across);
    scale_row(by->data() + 3, grid.half_height, grid.down);
    grid.depth[0] = static_cast<float>((*by)[6]);
    grid.depth[1] = static_cast<float>((*by)[7]);
    grid.depth[2] = 1.0f;
  } else {
    grid.given = std::get<const float*>(warp.map);
    grid.given_width = static_cast<size_t>(warp.width);
  }
  return grid;
}

// Calls take(x, count, places) for all places of the result, some at a time.
template <class Map, class Filter, class Take>
void each_places(Map map, Filter filter, const TensorWarp& warp, const Grid& grid, SimdLevel simd,
                 Take take) {
  Footprints places;
  for (int y = 0; y < warp.height; ++y) {
    for (int x = 0; x < warp.width; x += static_cast<int>(most_places)) {
      const size_t count = std::min(most_places, static_cast<size_t>(warp.width - x));
      find_places(simd, map, filter, &grid, x, y, count, &places);
      take(static_cast<size_t>(x), count, static_cast<const Footprints*>(&places));
    }
  }
}

template <class Filter, class Take>
void each_places(Filter filter, const TensorWarp& warp, const Grid& grid, SimdLevel simd,
                 Take take) {
  if (std::holds_alternative<AffineMatrix>(warp.map))
    each_places(Affine(), filter, warp, grid, simd, take);
  else if (std::holds_alternative<PerspectiveCoefficients>(warp.map))
    each_places(Perspective(), filter, warp, grid, simd, take);
  else
    each_places(Given(), filter, warp, grid, simd, take);
}

// Calls sample with the blending of a rounding.
template <class Sample>
void with_blending(Rounding rounding, Sample sample) {
  if (is_v1(rounding)) return sample(FilledByV1());
  if (is_v2(rounding)) return sample(FilledByV2());
  if (is_unfilled(rounding)) return sample(Unfilled());
  throw std::invalid_argument("no warp of tensors is rounded like this");
}

uint8_t nearest_level(float fill) { return static_cast<uint8_t>(std::nearbyint(fill)); }

// Calls take(x, count, pixels) with packed pixels of each row of the result, some at a time.
template <class Take>
void each_pixels(const uint32_t* pixels, const Grid& grid, const TensorWarp& warp, SimdLevel simd,
                 Take take) {
  uint32_t made[most_places];
  if (warp.interpolation == Interpolation::nearest) {
    const bool filled = !is_unfilled(warp.rounding);
    const auto& fill = warp.fill;
    const uint32_t color =
        filled ? packed(nearest_level(fill[0]), nearest_level(fill[1]), nearest_level(fill[2])) : 0;
    return each_places(Nearest(), warp, grid, simd,
                       [&](size_t x, size_t count, const Footprints* places) {
                         take_nearest(simd, pixels, places, color, count, made);
                         take(x, count, static_cast<const uint32_t*>(made));
                       });
  }
  with_blending(warp.rounding, [&](auto blending) {
    Corners corners;
    each_places(
        Bilinear(), warp, grid, simd, [&](size_t x, size_t count, const Footprints* places) {
          find_corners(simd, pixels, static_cast<ptrdiff_t>(grid.stride), places, count, &corners);
          blend_levels(simd, blending, static_cast<const Corners*>(&corners), places,
                       warp.fill.data(), count, made);
          take(x, count, static_cast<const uint32_t*>(made));
        });
  });
}

// One image, of the channels that are `plane` elements apart.
template <class Step>
void warp_image(Step step, const uint8_t* in, size_t plane, size_t width, size_t height,
                uint8_t* out, const Grid& grid, const TensorWarp& warp,
                GeometryWorkspace& workspace) {
  const uint32_t* pixels = padded_image(step, in, plane, width, height, workspace);
  const size_t places = static_cast<size_t>(warp.width) * static_cast<size_t>(warp.height);
  each_pixels(pixels, grid, warp, workspace.simd, [&](size_t, size_t count, const uint32_t* made) {
    for (uint32_t channel = 0; channel < 3; ++channel)
      split_pixels(workspace.simd, made, 8 * channel, count, out + channel * places);
    out += count;
  });
}

template <class Step>
void warp_image(Step step, const float* in, size_t plane, size_t width, size_t height, float* out,
                const Grid& grid, const TensorWarp& warp, GeometryWorkspace& workspace,
                size_t channels = 3) {
  const SimdLevel simd = workspace.simd;
  grow(workspace.floats, floats_per_place * padded_size(width, height));
  add_border(workspace.floats.data(), floats_per_place, width, height, [&](size_t y, float* to) {
    spread_pixels(simd, step, in + y * width * step(), plane, width, to);
  });
  const float* pixels = workspace.floats.data();
  const size_t places = static_cast<size_t>(warp.width) * static_cast<size_t>(warp.height);
  const auto stride = static_cast<ptrdiff_t>(grid.stride);
  const auto each = [&](auto filter, auto blending) {
    Samples samples;
    each_places(filter, warp, grid, simd, [&](size_t, size_t count, const Footprints* at) {
      find_samples(simd, filter, pixels, stride, at, count, &samples);
      for (size_t channel = 0; channel < channels; ++channel)
        blend_floats(simd, filter, blending, static_cast<const Samples*>(&samples), channel,
                     warp.fill[channel], count, out + channel * places);
      out += count;
    });
  };
  if (warp.interpolation == Interpolation::bilinear)
    return with_blending(warp.rounding, [&](auto blending) { each(Bilinear(), blending); });
  if (is_unfilled(warp.rounding)) return each(Nearest(), Unfilled());
  each(Nearest(), FilledByV1());  // as by v2
}

}  // namespace

void warp_tensor(const Planes& in, Planes& out, const TensorWarp& warp,
                 GeometryWorkspace& workspace) {
  out.reset(in.channels(), warp.width, warp.height);
  if (in.size() == 0 || out.size() == 0) return;
  const size_t plane = in.channels() == 3 ? in.plane_stride() : 0;
  const uint32_t* pixels =
      padded_image(PlanarStep(), in.plane(0), plane, static_cast<size_t>(in.width()),
                   static_cast<size_t>(in.height()), workspace);
  uint8_t* to = out.plane(0);
  each_pixels(pixels, make_grid(warp, in.width(), in.height()), warp, workspace.simd,
              [&](size_t, size_t count, const uint32_t* made) {
                for (int channel = 0; channel < out.channels(); ++channel)
                  split_pixels(workspace.simd, made, 8 * static_cast<uint32_t>(channel), count,
                               to + static_cast<size_t>(channel) * out.plane_stride());
                to += count;
              });
}

template <class Element>
void warp_tensor(const Element* in, const TensorShape& shape, Element* out, size_t planes,
                 const TensorWarp& warp, GeometryWorkspace& workspace) {
  const Grid grid = make_grid(warp, static_cast<int>(shape.width), static_cast<int>(shape.height));
  const size_t made = planes * static_cast<size_t>(warp.width) * static_cast<size_t>(warp.height);
  for (size_t image = 0; image < shape.images; ++image, in += shape.elements(), out += made) {
    if (shape.interleaved)
      warp_image(InterleavedStep(), in, 1, shape.width, shape.height, out, grid, warp, workspace);
    else
      warp_image(PlanarStep(), in, shape.pixels(), shape.width, shape.height, out, grid, warp,
                 workspace);
  }
}

void warp_planes(const float* in, size_t channels, const TensorShape& shape, float* out,
                 const TensorWarp& warp, GeometryWorkspace& workspace) {
  const Grid grid = make_grid(warp, static_cast<int>(shape.width), static_cast<int>(shape.height));
  warp_image(PlanarStep(), in, channels == 3 ? shape.pixels() : 0, shape.width, shape.height, out,
             grid, warp, workspace, channels);
}

template void warp_tensor(const uint8_t*, const TensorShape&, uint8_t*, size_t, const TensorWarp&,
                          GeometryWorkspace&);
template void warp_tensor(const float*, const TensorShape&, float*, size_t, const TensorWarp&,
                          GeometryWorkspace&);

}  // namespace fusionloader
