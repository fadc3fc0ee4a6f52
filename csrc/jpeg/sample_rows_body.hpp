// The kernels of rows on vectors of bytes. A level's file defines FUSIONLOADER_TARGET (the function
// attribute), Vector and the operations on it used here, and includes this in an unnamed namespace.
// Those on low and high halves need not split a vector in its middle: what packs or alternates them
// puts the samples in order again, if they were loaded accordingly.

constexpr size_t lanes = sizeof(Vector);

struct Sums {
  Vector low, high;
};

// 3 * near + far, 16 bits each.
FUSIONLOADER_TARGET inline Sums weighed(Vector near, Vector far) {
  return {three_and_one_low(near, far), three_and_one_high(near, far)};
}

FUSIONLOADER_TARGET inline Sums weighed_rows(const uint8_t* near, const uint8_t* far) {
  return weighed(load_for_alternating(near), load_for_alternating(far));
}

// Sums of an even and an odd output each, 16 bits, to the outputs side by side.
template <int shift>
FUSIONLOADER_TARGET inline Vector side_by_side(Vector even, Vector odd, int even_bias,
                                               int odd_bias) {
  return alternated(shift_right_16(add_16(even, filled_16(even_bias)), shift),
                    shift_right_16(add_16(odd, filled_16(odd_bias)), shift));
}

FUSIONLOADER_TARGET void widen(const uint8_t* from, size_t count, uint8_t* out) {
  for (size_t i = 0; i < count; i += lanes) {
    const Vector here = load_for_alternating(from + i);
    const Sums even = weighed(here, load_for_alternating(from + i - 1));
    const Sums odd = weighed(here, load_for_alternating(from + i + 1));
    store(out + 2 * i, side_by_side<2>(even.low, odd.low, 1, 2));
    if (i + lanes / 2 < count)
      store(out + 2 * i + lanes, side_by_side<2>(even.high, odd.high, 1, 2));
  }
}

FUSIONLOADER_TARGET void blend(const uint8_t* near, const uint8_t* far, bool far_is_below,
                               size_t count, uint8_t* out) {
  const Vector bias = filled_16(far_is_below ? 2 : 1);
  for (size_t i = 0; i < count; i += lanes) {
    const Sums sums = weighed(load(near + i), load(far + i));
    store(out + i, pack_16_unsigned(shift_right_16(add_16(sums.low, bias), 2),
                                    shift_right_16(add_16(sums.high, bias), 2)));
  }
}

FUSIONLOADER_TARGET inline Vector times_3_plus(Vector here, Vector beside) {
  return add_16(add_16(here, here), add_16(here, beside));
}

FUSIONLOADER_TARGET void blend_and_widen(const uint8_t* near, const uint8_t* far, size_t count,
                                         uint8_t* out) {
  for (size_t i = 0; i < count; i += lanes) {
    const Sums before = weighed_rows(near + i - 1, far + i - 1);
    const Sums here = weighed_rows(near + i, far + i);
    const Sums behind = weighed_rows(near + i + 1, far + i + 1);
    store(out + 2 * i, side_by_side<4>(times_3_plus(here.low, before.low),
                                       times_3_plus(here.low, behind.low), 8, 7));
    if (i + lanes / 2 < count)
      store(out + 2 * i + lanes, side_by_side<4>(times_3_plus(here.high, before.high),
                                                 times_3_plus(here.high, behind.high), 8, 7));
  }
}

// (chroma * factor + 2^15) >> 16 for chroma within +-128: the product of twice the chroma keeps one
// bit more, which rounds.
FUSIONLOADER_TARGET inline Vector rounded_product(Vector chroma, int factor) {
  return shift_right_signed_16(add_16(doubled_product_high(chroma, factor), filled_16(1)), 1);
}

struct Colors {
  Vector red, green, blue;
};

// Pixels of 16 bits a color.
FUSIONLOADER_TARGET inline Colors converted(Vector y, Vector cb, Vector cr) {
  const Vector middle = filled_16(128);
  cb = subtract_16(cb, middle);
  cr = subtract_16(cr, middle);
  const Vector red = add_16(rounded_product(cr, color::red_cr), cr);
  const Vector blue = add_16(rounded_product(cb, color::blue_cb), add_16(cb, cb));
  const Vector green =
      subtract_16(rounded_sum_of_products(cb, color::green_cb, cr, color::green_cr), cr);
  return {add_16(y, red), add_16(y, green), add_16(y, blue)};
}

FUSIONLOADER_TARGET void to_rgbx(const uint8_t* y, const uint8_t* cb, const uint8_t* cr,
                                 size_t count, uint8_t* out) {
  for (size_t i = 0; i < count; i += lanes) {
    const Vector luma = load(y + i), blues = load(cb + i), reds = load(cr + i);
    const Colors low = converted(low_words(luma), low_words(blues), low_words(reds));
    const Colors high = converted(high_words(luma), high_words(blues), high_words(reds));
    store_pixels(out + 4 * i, count - i, pack_16_unsigned(low.red, high.red),
                 pack_16_unsigned(low.green, high.green), pack_16_unsigned(low.blue, high.blue));
  }
}

FUSIONLOADER_TARGET void grey_to_rgbx(const uint8_t* y, size_t count, uint8_t* out) {
  for (size_t i = 0; i < count; i += lanes) {
    const Vector luma = load(y + i);
    store_pixels(out + 4 * i, count - i, luma, luma, luma);
  }
}
