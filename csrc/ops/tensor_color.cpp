#include "ops/tensor_color.hpp"

#include <cmath>
#include <cstring>
#include <type_traits>

#include "ops/histogram.hpp"
#include "ops/per_level.hpp"
#include "ops/tensor_block.hpp"

namespace fusionloader {
namespace {

// What differs by channel is repeated every `period` elements.
constexpr size_t period = 48;

template <class Element>
constexpr bool is_float = std::is_same_v<Element, float>;

// clamp to the range of the elements, and the cast; what is not a number stays so.
template <class Element>
FUSIONLOADER_INLINE Element clamped_element(float value) {
  if constexpr (is_float<Element>) {
    const float positive = value < 0.0f ? 0.0f : value;
    return positive > 1.0f ? 1.0f : positive;
  } else {
    return cut_off(value);
  }
}

template <class Element, bool fused>
FUSIONLOADER_INLINE float grey_of(float red, float green, float blue) {
  const float sum = fused ? grey_sum_fused(red, green, blue) : grey_sum_rounded(red, green, blue);
  return is_float<Element> ? sum : static_cast<float>(static_cast<int>(sum));
}

template <class Element, bool fused>
FUSIONLOADER_INLINE Element blend_of(float from, float to, float factor, float rest) {
  return clamped_element<Element>(fused ? __builtin_fmaf(rest, from, factor * to)
                                        : factor * to + rest * from);
}

template <int, class Element>
FUSIONLOADER_INLINE void scale_loop(const Element* __restrict in, Element* __restrict out,
                                    size_t count, float factor) {
  for (size_t i = 0; i < count; ++i)
    out[i] = clamped_element<Element>(static_cast<float>(in[i]) * factor);
}

template <int, class Element, class Grey, class Step, class Fused>
FUSIONLOADER_INLINE void grey_loop(const Element* __restrict in, size_t plane, Step step,
                                   Grey* __restrict out, size_t count, Fused) {
  const size_t green = channel_stride(step, plane), blue = 2 * green;
  for (size_t i = 0; i < count; ++i)
    out[i] = static_cast<Grey>(grey_of<Element, Fused::value>(
        static_cast<float>(in[i * step()]), static_cast<float>(in[green + i * step()]),
        static_cast<float>(in[blue + i * step()])));
}

template <int, class Element, class Fused>
FUSIONLOADER_INLINE void level_loop(const Element* __restrict in, float from,
                                    Element* __restrict out, size_t count, float factor, float rest,
                                    Fused) {
  for (size_t i = 0; i < count; ++i)
    out[i] = blend_of<Element, Fused::value>(from, static_cast<float>(in[i]), factor, rest);
}

template <class Element, bool fused, class Step>
FUSIONLOADER_INLINE void blend_block(const Element* __restrict in, size_t plane, Step step,
                                     Element* __restrict out, size_t count, float factor,
                                     float rest) {
  const size_t to_green = channel_stride(step, plane), to_blue = 2 * to_green;
  TensorBlock block;
  load_pixels(in, plane, step, count, block);
  for (size_t i = 0; i < count; ++i) {
    const float red = block.red[i], green = block.green[i], blue = block.blue[i];
    const float grey = grey_of<Element, fused>(red, green, blue);
    out[i * step()] = blend_of<Element, fused>(grey, red, factor, rest);
    out[to_green + i * step()] = blend_of<Element, fused>(grey, green, factor, rest);
    out[to_blue + i * step()] = blend_of<Element, fused>(grey, blue, factor, rest);
  }
}

template <int, class Element, class Step, class Fused>
FUSIONLOADER_INLINE void pixel_loop(const Element* in, size_t plane, Step step, Element* out,
                                    size_t count, float factor, float rest, Fused) {
  size_t at = 0;
  for (; at + TensorBlock::most <= count; at += TensorBlock::most)
    blend_block<Element, Fused::value>(in + at * step(), plane, step, out + at * step(),
                                       TensorBlock::most, factor, rest);
  blend_block<Element, Fused::value>(in + at * step(), plane, step, out + at * step(), count - at,
                                     factor, rest);
}

// Smooths by the 3 x 3 kernel (1 1 1, 1 5 1, 1 1 1) / 13, whose products torch's convolution adds
// up one after the other, with one rounding each. Neighbors lie `step` elements apart. Torch rounds
// levels to the nearest even one, which adding and taking off 1.5 x 2^23 does.
template <int, class Element, class Fused>
FUSIONLOADER_INLINE void smooth_loop(const Element* __restrict above,
                                     const Element* __restrict here,
                                     const Element* __restrict below, Element* __restrict out,
                                     size_t count, size_t step, float factor, float rest, Fused) {
  const float side = 1.0f / 13.0f, middle = 5.0f / 13.0f;
  constexpr float whole = 12582912.0f;
  for (size_t i = 0; i < count; ++i) {
    const auto center = static_cast<float>(here[i + step]);
    float sum = __builtin_fmaf(static_cast<float>(above[i]), side, 0.0f);
    sum = __builtin_fmaf(static_cast<float>(above[i + step]), side, sum);
    sum = __builtin_fmaf(static_cast<float>(above[i + 2 * step]), side, sum);
    sum = __builtin_fmaf(static_cast<float>(here[i]), side, sum);
    sum = __builtin_fmaf(center, middle, sum);
    sum = __builtin_fmaf(static_cast<float>(here[i + 2 * step]), side, sum);
    sum = __builtin_fmaf(static_cast<float>(below[i]), side, sum);
    sum = __builtin_fmaf(static_cast<float>(below[i + step]), side, sum);
    sum = __builtin_fmaf(static_cast<float>(below[i + 2 * step]), side, sum);
    const float smooth = is_float<Element> ? sum : sum + whole - whole;
    out[i] = Fused::value ? clamped_element<Element>(__builtin_fmaf(rest, smooth - center, center))
                          : blend_of<Element, false>(smooth, center, factor, rest);
  }
}

// What sharpness makes of a pixel at the border: v1 blends it with itself.
template <class Element>
FUSIONLOADER_INLINE Element border_of(Element element, bool fused, const TensorFactor& by) {
  const auto value = static_cast<float>(element);
  return clamped_element<Element>(fused ? value : by.factor * value + by.rest * value);
}

template <int>
FUSIONLOADER_INLINE void to_float_loop(const uint8_t* __restrict in, float* __restrict out,
                                       size_t count) {
  constexpr auto by = static_cast<float>(1.0 / 255.0);
  for (size_t i = 0; i < count; ++i) out[i] = static_cast<float>(in[i]) * by;
}

template <int>
FUSIONLOADER_INLINE void normalize_loop(const float* __restrict in, float* __restrict out,
                                        size_t count, const float* __restrict mean,
                                        const float* __restrict deviation) {
  for (; count >= period; count -= period, in += period, out += period)
    for (size_t i = 0; i < period; ++i) out[i] = (in[i] - mean[i]) / deviation[i];
  for (size_t i = 0; i < count; ++i) out[i] = (in[i] - mean[i]) / deviation[i];
}

template <int>
FUSIONLOADER_INLINE void invert_loop(const float* __restrict in, float* __restrict out,
                                     size_t count) {
  for (size_t i = 0; i < count; ++i) out[i] = 1.0f - in[i];
}

template <int, class Element>
FUSIONLOADER_INLINE void solarize_loop(const Element* __restrict in, Element* __restrict out,
                                       size_t count, Element threshold) {
  constexpr Element most = is_float<Element> ? 1 : 255;
  for (size_t i = 0; i < count; ++i)
    out[i] = in[i] >= threshold ? static_cast<Element>(most - in[i]) : in[i];
}

// The least and the most of the elements that are `period` apart, of `period` or more elements.
template <class Element>
struct Ranges {
  Element least[period], most[period];
  int32_t are_numbers[period], signs[period];

  FUSIONLOADER_INLINE void take(const Element* __restrict in, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      least[i] = in[i] < least[i] ? in[i] : least[i];
      most[i] = in[i] > most[i] ? in[i] : most[i];
      if constexpr (is_float<Element>) {
        int32_t bits;
        std::memcpy(&bits, &in[i], sizeof bits);
        are_numbers[i] &= in[i] == in[i];
        signs[i] |= bits;
      }
    }
  }
};

template <int, class Element>
FUSIONLOADER_INLINE void range_loop(const Element* in, size_t count, Ranges<Element>* ranges) {
  for (size_t i = 0; i < period; ++i) {
    ranges->least[i] = ranges->most[i] = in[count < period ? i % count : i];
    ranges->are_numbers[i] = 1;
    ranges->signs[i] = 0;
  }
  for (; count >= period; count -= period, in += period) ranges->take(in, period);
  ranges->take(in, count);
}

template <bool v2, class Element>
FUSIONLOADER_INLINE void stretch_part(const Element* __restrict in, Element* __restrict out,
                                      size_t count, const float* __restrict least,
                                      const float* __restrict scale) {
  for (size_t i = 0; i < count; ++i) {
    const float change = static_cast<float>(in[i]) - least[i];
    out[i] = clamped_element<Element>(v2 ? change / scale[i] : change * scale[i]);
  }
}

template <int, class Element, class V2>
FUSIONLOADER_INLINE void stretch_loop(const Element* in, Element* out, size_t count,
                                      const float* least, const float* scale, V2) {
  for (; count >= period; count -= period, in += period, out += period)
    stretch_part<V2::value>(in, out, period, least, scale);
  stretch_part<V2::value>(in, out, count, least, scale);
}

FUSIONLOADER_PER_LEVEL(invert_each, invert_loop)
FUSIONLOADER_PER_LEVEL(solarize_each, solarize_loop)
FUSIONLOADER_PER_LEVEL(range_of, range_loop)
FUSIONLOADER_PER_LEVEL(stretch_each, stretch_loop)
FUSIONLOADER_PER_LEVEL(scale_each, scale_loop)
FUSIONLOADER_PER_LEVEL(grey_each, grey_loop)
FUSIONLOADER_PER_LEVEL(blend_each_level, level_loop)
FUSIONLOADER_PER_LEVEL(blend_each_pixel, pixel_loop)
FUSIONLOADER_PER_LEVEL(blend_smoothed_row, smooth_loop)
FUSIONLOADER_PER_LEVEL(to_float_each, to_float_loop)
FUSIONLOADER_PER_LEVEL(normalize_each, normalize_loop)

// Calls work(plane, step, fused) with constants for the layout and the rounding.
template <class Work>
void with_constants(const TensorShape& shape, bool fused, Work work) {
  const auto with_rounding = [&](auto rounding) {
    if (shape.interleaved)
      work(size_t{1}, InterleavedStep(), rounding);
    else
      work(shape.pixels(), PlanarStep(), rounding);
  };
  fused ? with_rounding(std::true_type()) : with_rounding(std::false_type());
}

}  // namespace

template <class Element>
void scale_elements(const Element* in, Element* out, size_t count, float factor, SimdLevel level) {
  scale_each(level, in, out, count, factor);
}

template <class Element, class Grey>
void grey_of_tensor(const Element* in, Grey* out, const TensorShape& shape, bool fused,
                    SimdLevel level) {
  with_constants(shape, fused, [&](size_t plane, auto step, auto rounding) {
    for (size_t image = 0; image < shape.images; ++image)
      grey_each(level, in + image * shape.elements(), plane, step, out + image * shape.pixels(),
                shape.pixels(), rounding);
  });
}

template <class Element>
void blend_from_levels(const Element* in, const float* from, Element* out, const TensorShape& shape,
                       const TensorFactor& by, bool fused, SimdLevel level, bool ends_interleaved) {
  const size_t count = shape.elements();
  with_constants(shape, fused, [&](size_t, auto, auto rounding) {
    for (size_t image = 0; image < shape.images; ++image)
      blend_each_level(level, in + image * count, from[image], out + image * count, count,
                       by.factor, by.rest, rounding);
  });
  if (!fused) return;
  // Torch adds the level times a number to 16 elements at a time, and rounds once. Of the up to 15
  // that are left at the end of an image in memory, it does the same to the first, and to the last
  // (left - 1) % 4. It rounds the product, too, for those in between.
  const size_t left = count % 16, unfused = left == 0 ? 0 : (left - 1) / 4 * 4;
  for (size_t image = 0; image < shape.images; ++image)
    for (size_t i = 0; i < unfused; ++i) {
      size_t element = count - left + 1 + i;
      if (ends_interleaved) element = element % 3 * shape.pixels() + element / 3;
      element += image * count;
      out[element] = blend_of<Element, false>(from[image], static_cast<float>(in[element]),
                                              by.factor, by.rest);
    }
}

template <class Element>
void blend_from_pixels(const Element* in, Element* out, const TensorShape& shape,
                       const TensorFactor& by, bool fused, SimdLevel level) {
  with_constants(shape, fused, [&](size_t plane, auto step, auto rounding) {
    for (size_t image = 0; image < shape.images; ++image)
      blend_each_pixel(level, in + image * shape.elements(), plane, step,
                       out + image * shape.elements(), shape.pixels(), by.factor, by.rest,
                       rounding);
  });
}

template <class Element>
void blend_from_smoothed(const Element* in, Element* out, const TensorShape& shape,
                         const TensorFactor& by, bool fused, SimdLevel level) {
  const size_t step = shape.interleaved ? 3 : 1, row = shape.width * step;
  const size_t parts = shape.images * (shape.interleaved ? 1 : 3);
  for (size_t part = 0; part < parts; ++part)
    for (size_t y = 0; y < shape.height; ++y, in += row, out += row) {
      const bool is_border = y == 0 || y + 1 == shape.height;
      if (!is_border)
        with_constants(shape, fused, [&](size_t, auto, auto rounding) {
          blend_smoothed_row(level, in - row, in, in + row, out + step, row - 2 * step, step,
                             by.factor, by.rest, rounding);
        });
      const size_t side = is_border ? row : step;
      for (size_t i = 0; i < side; ++i) out[i] = border_of(in[i], fused, by);
      for (size_t i = row - step; i < row; ++i) out[i] = border_of(in[i], fused, by);
    }
}

void invert_floats(const float* in, float* out, size_t count, SimdLevel level) {
  invert_each(level, in, out, count);
}

template <class Element>
void solarize_elements(const Element* in, Element* out, size_t count, double threshold,
                       SimdLevel level) {
  const auto least = static_cast<float>(threshold);
  solarize_each(level, in, out, count,
                static_cast<Element>(is_float<Element> ? least : std::ceil(least)));
}

template <class Element>
bool stretch_tensor(const Element* in, Element* out, const TensorShape& shape, bool v2,
                    SimdLevel level) {
  bool is_torchs = true;
  constexpr float bound = is_float<Element> ? 1.0f : 255.0f;
  const size_t channels = shape.interleaved ? 3 : 1, count = shape.pixels() * channels;
  for (size_t part = 0; part < 3 * shape.images / channels; ++part, in += count, out += count) {
    Ranges<Element> ranges;
    range_of(level, in, count, &ranges);
    float least[period], scales[period];
    for (size_t channel = 0; channel < channels; ++channel) {
      float low = INFINITY, high = -INFINITY;
      for (size_t i = channel; i < period; i += channels) {
        low = std::fmin(low, static_cast<float>(ranges.least[i]));
        high = std::fmax(high, static_cast<float>(ranges.most[i]));
      }
      for (size_t i = channel; i < period; i += channels) {
        // The sign of the least of both zeros depends on the order in which torch compares them.
        if (ranges.signs[i] < 0 && low == 0.0f) is_torchs = false;
        if (!ranges.are_numbers[i]) low = high = NAN;
      }
      const float length = high - low;
      float scale = v2 ? length * static_cast<float>(1.0 / bound) : 1.0f / length * bound;
      if (v2 ? low == high : !std::isfinite(scale)) low = 0.0f, scale = 1.0f;
      for (size_t i = channel; i < period; i += channels) least[i] = low, scales[i] = scale;
    }
    const float *from = least, *by = scales;
    if (v2)
      stretch_each(level, in, out, count, from, by, std::true_type());
    else
      stretch_each(level, in, out, count, from, by, std::false_type());
  }
  return is_torchs;
}

void equalize_tensor(const uint8_t* in, uint8_t* out, const TensorShape& shape, SimdLevel level) {
  const size_t count = shape.pixels(), step = shape.interleaved ? 3 : 1;
  for (size_t image = 0; image < shape.images; ++image, in += shape.elements())
    for (size_t channel = 0; channel < 3; ++channel, out += count) {
      const uint8_t* from = in + channel * (shape.interleaved ? 1 : count);
      for (size_t i = 0; i < count; ++i) out[i] = from[i * step];
      LevelTable table;
      if (!equalizing_table(histogram(out, count), table)) continue;
      const size_t whole = count / Planes::slack * Planes::slack;
      look_up(out, whole, table, level);
      for (size_t i = whole; i < count; ++i) out[i] = table[out[i]];
    }
}

void scale_levels(const uint8_t* in, float* out, size_t count, SimdLevel level) {
  to_float_each(level, in, out, count);
}

void normalize_tensor(const float* in, float* out, const TensorShape& shape,
                      const std::array<float, 3>& mean, const std::array<float, 3>& deviation,
                      SimdLevel level) {
  float means[period], deviations[period];
  const size_t parts = shape.interleaved ? shape.images : 3 * shape.images;
  const size_t count = shape.interleaved ? shape.elements() : shape.pixels();
  for (size_t part = 0; part < parts; ++part) {
    for (size_t i = 0; i < period; ++i) {
      const size_t channel = (shape.interleaved ? i : part) % 3;
      means[i] = mean[channel];
      deviations[i] = deviation[channel];
    }
    normalize_each(level, in + part * count, out + part * count, count,
                   static_cast<const float*>(means), static_cast<const float*>(deviations));
  }
}

#define FUSIONLOADER_OF_ELEMENTS(Element)                                                      \
  template void scale_elements(const Element*, Element*, size_t, float, SimdLevel);            \
  template void grey_of_tensor(const Element*, float*, const TensorShape&, bool, SimdLevel);   \
  template void blend_from_levels(const Element*, const float*, Element*, const TensorShape&,  \
                                  const TensorFactor&, bool, SimdLevel, bool);                 \
  template void blend_from_pixels(const Element*, Element*, const TensorShape&,                \
                                  const TensorFactor&, bool, SimdLevel);                       \
  template void solarize_elements(const Element*, Element*, size_t, double, SimdLevel);        \
  template bool stretch_tensor(const Element*, Element*, const TensorShape&, bool, SimdLevel); \
  template void blend_from_smoothed(const Element*, Element*, const TensorShape&,              \
                                    const TensorFactor&, bool, SimdLevel);
FUSIONLOADER_OF_ELEMENTS(uint8_t)
FUSIONLOADER_OF_ELEMENTS(float)
#undef FUSIONLOADER_OF_ELEMENTS
template void grey_of_tensor(const uint8_t*, uint8_t*, const TensorShape&, bool, SimdLevel);

}  // namespace fusionloader
