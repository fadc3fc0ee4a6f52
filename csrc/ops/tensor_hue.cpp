// torchvision's adjust_hue of uint8 tensors: to float32, hue, saturation and value, and back.
#include <stdexcept>

#include "ops/color.hpp"
#include "ops/per_level.hpp"
#include "ops/vectors.hpp"

namespace fusionloader {
namespace {

// The steps of torchvision's _rgb_to_hsv and _hsv_to_rgb, each rounded. Its clamps to 0 .. 1 are
// left out: what they change is not more than a rounding error, which the last cut hides.
template <int lanes, bool v2>
FUSIONLOADER_INLINE void turn_vector(int32_t* reds, int32_t* greens, int32_t* blues, float turn) {
  using V = Vectors<lanes>;
  using Ints = typename V::Ints;
  using Floats = typename V::Floats;
  const Floats zero = {}, one = zero + 1.0f;
  const auto scaled = [](const int32_t* from) {
    const Floats levels = to_floats(V::load(from));
    return v2 ? levels * static_cast<float>(1.0 / 255.0) : levels / 255.0f;
  };
  const Floats red = scaled(reds), green = scaled(greens), blue = scaled(blues);
  const Floats most_of_two = green > blue ? green : blue,
               least_of_two = green < blue ? green : blue;
  const Floats value = red > most_of_two ? red : most_of_two;
  const Floats chroma = value - (red < least_of_two ? red : least_of_two);
  const Ints no_chroma = chroma == 0.0f;
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
  const Floats falling = (one - part) * value;
  const auto level = [](const Floats& of) {
    return to_ints(of * static_cast<float>(255 + 1.0 - 1e-3));
  };
  const Ints full = level(value), low = level(rest * value);
  const Ints changing = level(odd != 0 ? falling : rising);
  // Places go round in sixths: at 0 and 5 the channel is full, at 2 and 3 it is low.
  const auto at_place = [&](const Ints& from) {
    const Ints at = from >= 6 ? from - 6 : from;
    const Ints unless_full = ((at == 2) | (at == 3)) ? low : changing;
    return ((at == 0) | (at == 5)) ? full : unless_full;
  };
  const Ints first = sector >= 6 ? sector - 6 : sector;
  V::store(reds, at_place(first));
  V::store(greens, at_place(first + 4));
  V::store(blues, at_place(first + 2));
}

template <int most_lanes>
FUSIONLOADER_INLINE void hue_loop(uint8_t* reds, uint8_t* greens, uint8_t* blues, size_t count,
                                  float turn, bool v2) {
  // Wider vectors are slower here: GCC 12 takes their comparisons apart.
  constexpr int lanes = most_lanes > 8 ? 8 : most_lanes;
  constexpr size_t block = 64;
  int32_t wide[3][block];
  for (size_t begin = 0; begin < count; begin += block) {
    for (size_t i = 0; i < block; ++i) wide[0][i] = reds[begin + i];
    for (size_t i = 0; i < block; ++i) wide[1][i] = greens[begin + i];
    for (size_t i = 0; i < block; ++i) wide[2][i] = blues[begin + i];
    for (size_t i = 0; i < block; i += lanes) {
      if (v2)
        turn_vector<lanes, true>(wide[0] + i, wide[1] + i, wide[2] + i, turn);
      else
        turn_vector<lanes, false>(wide[0] + i, wide[1] + i, wide[2] + i, turn);
    }
    for (size_t i = 0; i < block; ++i) reds[begin + i] = static_cast<uint8_t>(wide[0][i]);
    for (size_t i = 0; i < block; ++i) greens[begin + i] = static_cast<uint8_t>(wide[1][i]);
    for (size_t i = 0; i < block; ++i) blues[begin + i] = static_cast<uint8_t>(wide[2][i]);
  }
}

FUSIONLOADER_PER_LEVEL(turn_hue, hue_loop)

}  // namespace

void adjust_tensor_hue(Planes& image, double factor, Rounding rounding, SimdLevel level) {
  if (!(factor >= -0.5 && factor <= 0.5))
    throw std::invalid_argument("a hue factor of tensors is -0.5 to 0.5");
  if (image.channels() != 3) return;
  turn_hue(level, image.plane(0), image.plane(1), image.plane(2), image.padded_size(),
           static_cast<float>(factor), rounding != Rounding::torch_v1);
}

}  // namespace fusionloader
