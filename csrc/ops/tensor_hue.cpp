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

// The steps of torchvision's _rgb_to_hsv and _hsv_to_rgb, each rounded. Its clamps to 0 .. 1 are
// left out: no step leaves that range where red, green and blue are within it.
template <int lanes, bool v2>
FUSIONLOADER_INLINE void turn_vector(float* reds, float* greens, float* blues, float turn) {
  using V = Vectors<lanes>;
  using Ints = typename V::Ints;
  using Floats = typename V::Floats;
  const Floats zero = {}, one = zero + 1.0f;
  const Floats red = V::load(reds), green = V::load(greens), blue = V::load(blues);
  const Floats most_of_two = green > blue ? green : blue,
               least_of_two = green < blue ? green : blue;
  const Floats value = red > most_of_two ? red : most_of_two;
  const Floats least = red < least_of_two ? red : least_of_two;
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
  const Floats rising = v2 ? (part + rest) * value : value * (one - saturation * (one - within));
  const Floats low = rest * value, falling = (one - part) * value;
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

// Whether all are 0 to 1: the bits of others, as whole numbers, are more than those of 1.
FUSIONLOADER_INLINE bool are_fractions(const float* values, size_t count) {
  uint32_t most = 0;
  for (size_t i = 0; i < count; ++i) {
    uint32_t bits;
    std::memcpy(&bits, values + i, sizeof bits);
    most = bits > most ? bits : most;
  }
  return most <= 0x3F800000;
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
  for (; blocks != 0; --blocks, in += count * step(), out += count) {
    TensorBlock block;
    load_pixels(in, plane, step, count, block);
    to_fractions<Element, V2::value>(block.red, count);
    to_fractions<Element, V2::value>(block.green, count);
    to_fractions<Element, V2::value>(block.blue, count);
    if (std::is_same_v<Element, float> &&
        !(are_fractions(block.red, count) && are_fractions(block.green, count) &&
          are_fractions(block.blue, count)))
      return false;
    for (size_t i = 0; i < count; i += lanes)
      turn_vector<lanes, V2::value>(block.red + i, block.green + i, block.blue + i, turn);
    for (size_t i = 0; i < count; ++i) {
      out[i] = element_of<Element>(block.red[i]);
      out[out_plane + i] = element_of<Element>(block.green[i]);
      out[2 * out_plane + i] = element_of<Element>(block.blue[i]);
    }
  }
  return true;
}

FUSIONLOADER_PER_LEVEL(hue_of_blocks, hue_loop)

template <class Element, class Step>
bool turn_pixels(const Element* in, size_t plane, Step step, Element* out, size_t out_plane,
                 size_t count, float turn, SimdLevel level) {
  constexpr size_t most = TensorBlock::most;
  const size_t whole = count / most * most, left = count - whole;
  if (!hue_of_blocks(level, in, plane, step, out, out_plane, count / most, turn, std::true_type()))
    return false;
  if (left == 0) return true;
  // The last pixels as a block of their own.
  Element rest[3 * most] = {}, turned[3 * most];
  const size_t parts = step() == 1 ? 3 : 1, part = left * step();
  for (size_t i = 0; i < parts; ++i)
    std::memcpy(rest + i * most, in + i * plane + whole * step(), part * sizeof(Element));
  if (!hue_of_blocks(level, static_cast<const Element*>(rest), most, step,
                     static_cast<Element*>(turned), most, size_t{1}, turn, std::true_type()))
    return false;
  for (size_t i = 0; i < 3; ++i)
    std::memcpy(out + i * out_plane + whole, turned + i * most, left * sizeof(Element));
  return true;
}

}  // namespace

template <class Element>
bool turn_hue(const Element* in, Element* out, const TensorShape& shape, float turn,
              SimdLevel level) {
  const size_t pixels = shape.pixels();
  for (size_t image = 0; image < shape.images; ++image) {
    const Element* from = in + image * shape.elements();
    Element* to = out + image * shape.elements();
    const bool done =
        shape.interleaved
            ? turn_pixels(from, size_t{1}, InterleavedStep(), to, pixels, pixels, turn, level)
            : turn_pixels(from, pixels, PlanarStep(), to, pixels, pixels, turn, level);
    if (!done) return false;
  }
  return true;
}
template bool turn_hue(const uint8_t*, uint8_t*, const TensorShape&, float, SimdLevel);
template bool turn_hue(const float*, float*, const TensorShape&, float, SimdLevel);

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
