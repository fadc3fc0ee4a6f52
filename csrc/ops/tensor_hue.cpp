// torchvision's adjust_hue of tensors: in float32, to hue, saturation and value, and back.
#include <cstring>
#include <stdexcept>
#include <type_traits>

#include "ops/color.hpp"
#include "ops/per_level.hpp"
#include "ops/tensor_block.hpp"
#include "ops/tensor_color.hpp"
#include "ops/vectors.hpp"

namespace fusionloader {
namespace {

// The steps of torchvision's _rgb_to_hsv and _hsv_to_rgb, each rounded. Without `clamps` those to
// 0 .. 1 are left out: no step leaves that range where red, green and blue are within it.
template <int lanes, bool v2, bool clamps>
FUSIONLOADER_INLINE void turn_vector(float* reds, float* greens, float* blues, float turn) {
  using V = Vectors<lanes>;
  using Ints = typename V::Ints;
  using Floats = typename V::Floats;
  const Floats zero = {}, one = zero + 1.0f;
  const Floats red = V::load(reds), green = V::load(greens), blue = V::load(blues);
  // Of equals the first: zeros may differ in their signs.
  const Floats most_of_two = green > red ? green : red, least_of_two = green < red ? green : red;
  const Floats value = blue > most_of_two ? blue : most_of_two;
  const Floats least = blue < least_of_two ? blue : least_of_two;
  const Floats chroma = value - least;
  const Ints no_chroma = value == least;
  const Floats saturation = chroma / (no_chroma ? one : value), by = no_chroma ? one : chroma;
  const Floats to_red = (value - red) / by, to_green = (value - green) / by;
  const Floats to_blue = (value - blue) / by;
  const Floats sixths = value == red     ? to_blue - to_green
                        : value == green ? (to_red + 2.0f) - to_blue
                                         : (to_green + 4.0f) - to_red;
  // fmod by 1 takes off a one, which is exact.
  const Floats positive = (v2 ? sixths * static_cast<float>(1.0 / 6.0) : sixths / 6.0f) + 1.0f;
  const Floats turned = (positive >= 1.0f ? positive - 1.0f : positive) + turn;
  const Floats hue = turned >= 1.0f ? turned - 1.0f : turned < 0.0f ? turned + 1.0f : turned;

  const Floats place = hue * 6.0f;
  const Ints sector = to_ints(place), odd = sector & 1;
  const Floats within = place - to_floats(sector);
  const Floats rest = one - saturation, part = saturation * within;
  const auto clamped = [&](const Floats& of) {
    if (!clamps) return of;
    const Floats positive_part = of < 0.0f ? zero : of;
    return positive_part > 1.0f ? one : positive_part;
  };
  const Floats rising =
      clamped(v2 ? (part + rest) * value : value * (one - saturation * (one - within)));
  const Floats low = clamped(rest * value), falling = clamped((one - part) * value);
  const Floats changing = odd != 0 ? falling : rising;
  // Places go round in sixths: at 0 and 5 the channel is full, at 2 and 3 it is low.
  const auto at_place = [&](const Ints& from) {
    const Ints at = from >= 6 ? from - 6 : from;
    const Floats unless_full = ((at == 2) | (at == 3)) ? low : changing;
    return ((at == 0) | (at == 5)) ? value : unless_full;
  };
  const Ints first = sector >= 6 ? sector - 6 : sector;
  V::store(reds, at_place(first));
  V::store(greens, at_place(first + 4));
  V::store(blues, at_place(first + 2));
}

// Whether all are within 1e38, so that their differences are finite: by their bits without the
// sign, as whole numbers.
FUSIONLOADER_INLINE bool are_finite(const float* values, size_t count) {
  uint32_t most = 0;
  for (size_t i = 0; i < count; ++i) {
    uint32_t bits;
    std::memcpy(&bits, values + i, sizeof bits);
    bits &= 0x7FFFFFFF;
    most = bits > most ? bits : most;
  }
  return most < 0x7E967699;
}

template <class Element, bool v2>
FUSIONLOADER_INLINE void to_fractions(float* levels, size_t count) {
  if constexpr (std::is_same_v<Element, float>) return;
  for (size_t i = 0; i < count; ++i)
    levels[i] = v2 ? levels[i] * static_cast<float>(1.0 / 255.0) : levels[i] / 255.0f;
}

template <class Element>
FUSIONLOADER_INLINE Element element_of(float fraction) {
  if constexpr (std::is_same_v<Element, float>)
    return fraction;
  else
    return static_cast<Element>(static_cast<int>(fraction * static_cast<float>(255 + 1.0 - 1e-3)));
}

template <int most_lanes, class Element, class Step, class V2>
FUSIONLOADER_INLINE bool hue_loop(const Element* in, size_t plane, Step step, Element* out,
                                  size_t out_plane, size_t blocks, float turn, V2) {
  // Wider vectors are slower here: GCC 12 takes their comparisons apart.
  constexpr int lanes = most_lanes > 8 ? 8 : most_lanes;
  constexpr size_t count = TensorBlock::most;
  constexpr bool is_float = std::is_same_v<Element, float>;
  bool finite = true;
  for (; blocks != 0; --blocks, in += count * step(), out += count) {
    TensorBlock block;
    load_pixels(in, plane, step, count, block);
    to_fractions<Element, V2::value>(block.red, count);
    to_fractions<Element, V2::value>(block.green, count);
    to_fractions<Element, V2::value>(block.blue, count);
    if (is_float)
      finite = finite && are_finite(block.red, count) && are_finite(block.green, count) &&
               are_finite(block.blue, count);
    for (size_t i = 0; i < count; i += lanes)
      turn_vector<lanes, V2::value, is_float>(block.red + i, block.green + i, block.blue + i, turn);
    for (size_t i = 0; i < count; ++i) {
      out[i] = element_of<Element>(block.red[i]);
      out[out_plane + i] = element_of<Element>(block.green[i]);
      out[2 * out_plane + i] = element_of<Element>(block.blue[i]);
    }
  }
  return finite;
}

FUSIONLOADER_PER_LEVEL(hue_of_blocks, hue_loop)

template <class Element, class Step, class V2>
bool turn_pixels(const Element* in, size_t plane, Step step, Element* out, size_t out_plane,
                 size_t count, float turn, SimdLevel level, V2 v2) {
  constexpr size_t most = TensorBlock::most;
  const size_t whole = count / most * most, left = count - whole;
  const bool finite = hue_of_blocks(level, in, plane, step, out, out_plane, count / most, turn, v2);
  if (left == 0) return finite;
  // The last pixels as a block of their own.
  Element rest[3 * most] = {}, turned[3 * most];
  const size_t parts = step() == 1 ? 3 : 1, part = left * step();
  for (size_t i = 0; i < parts; ++i)
    std::memcpy(rest + i * most, in + i * plane + whole * step(), part * sizeof(Element));
  const bool rest_finite = hue_of_blocks(level, static_cast<const Element*>(rest), most, step,
                                         static_cast<Element*>(turned), most, size_t{1}, turn, v2);
  for (size_t i = 0; i < 3; ++i)
    std::memcpy(out + i * out_plane + whole, turned + i * most, left * sizeof(Element));
  return finite && rest_finite;
}

}  // namespace

template <class Element>
bool turn_hue(const Element* in, Element* out, const TensorShape& shape, float turn, bool v2,
              SimdLevel level) {
  const size_t pixels = shape.pixels();
  bool finite = true;
  const auto turn_all = [&](size_t plane, auto step, auto version) {
    for (size_t image = 0; image < shape.images; ++image)
      finite = turn_pixels(in + image * shape.elements(), plane, step,
                           out + image * shape.elements(), pixels, pixels, turn, level, version) &&
               finite;
  };
  const auto turn_layout = [&](auto version) {
    if (shape.interleaved)
      turn_all(size_t{1}, InterleavedStep(), version);
    else
      turn_all(pixels, PlanarStep(), version);
  };
  v2 ? turn_layout(std::true_type()) : turn_layout(std::false_type());
  return finite;
}
template bool turn_hue(const uint8_t*, uint8_t*, const TensorShape&, float, bool, SimdLevel);
template bool turn_hue(const float*, float*, const TensorShape&, float, bool, SimdLevel);

void adjust_tensor_hue(Planes& image, double factor, Rounding rounding, SimdLevel level) {
  if (!(factor >= -0.5 && factor <= 0.5))
    throw std::invalid_argument("a hue factor of tensors is -0.5 to 0.5");
  if (image.channels() != 3) return;
  uint8_t* planes = image.plane(0);
  const auto* from = static_cast<const uint8_t*>(planes);
  const size_t plane = image.plane_stride(), blocks = image.padded_size() / TensorBlock::most;
  const auto turn = static_cast<float>(factor);
  if (rounding == Rounding::torch_v1)
    hue_of_blocks(level, from, plane, PlanarStep(), planes, plane, blocks, turn, std::false_type());
  else
    hue_of_blocks(level, from, plane, PlanarStep(), planes, plane, blocks, turn, std::true_type());
}

}  // namespace fusionloader
