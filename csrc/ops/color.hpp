#pragma once
// Color operations, in place. Each gives the levels that torchvision's function of that name gives
// for a Pillow image ("RGB", or "L" for 1 channel) with the same arguments, bit for bit, or for a
// uint8 tensor where a rounding is given.
#include "ops/planes.hpp"
#include "ops/rounding.hpp"
#include "simd/level.hpp"

namespace fusionloader {

// Memory that is kept from one call to the next.
struct ColorScratch {
  std::vector<uint8_t> rows;
  std::vector<float> floats;
};

void adjust_brightness(Planes& image, double factor, SimdLevel level);
void adjust_contrast(Planes& image, double factor, Rounding rounding, SimdLevel level);
void adjust_saturation(Planes& image, double factor, Rounding rounding, SimdLevel level);
void adjust_sharpness(Planes& image, double factor, Rounding rounding, ColorScratch& scratch,
                      SimdLevel level);
void adjust_hue(Planes& image, double factor, Rounding rounding, SimdLevel level);
void adjust_tensor_hue(Planes& image, double factor, Rounding rounding, SimdLevel level);

// The whole part; throws std::invalid_argument for what is no number or far out of range.
int whole_number(double value);

void posterize(Planes& image, int bits, SimdLevel level);
void solarize(Planes& image, double threshold, SimdLevel level);
// Not torchvision's: adds to the levels below the threshold, up to 255, as RandAugment's paper
// does.
void solarize_add(Planes& image, int add, double threshold, SimdLevel level);
void invert(Planes& image, SimdLevel level);
void autocontrast(Planes& image, Rounding rounding, SimdLevel level);
void equalize(Planes& image, SimdLevel level);

// The result has 1 or 3 channels, whatever the image had.
void to_grayscale(Planes& image, int channels, Rounding rounding, SimdLevel level);

// Kernel sizes are odd and the image is larger than half of them. Not bit for bit: torch adds up a
// square of products where this takes columns after rows, so a level may differ by 1.
void gaussian_blur(Planes& image, int kernel_width, int kernel_height, double sigma_x,
                   double sigma_y, ColorScratch& scratch, SimdLevel level);

// Pillow's ImageFilter.GaussianBlur(radius), bit for bit: three box blurs, each rows then columns.
void box_gaussian_blur(Planes& image, double radius, ColorScratch& scratch);

// To `out`: which channel of `in` each of its channels is. A grey image has but the one.
void select_channels(const Planes& in, Planes& out, const std::array<uint8_t, 3>& channels);

struct Rectangle {
  int x, y, width, height;
};
// Only the part of the rectangle within the image; a grey image takes the first value.
void erase(Planes& image, const Rectangle& where, const uint8_t (&values)[3]);

}  // namespace fusionloader
