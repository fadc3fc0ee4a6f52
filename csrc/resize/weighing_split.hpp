// Sums of bytes times weights on x86, which multiplies 16 bits best: a weight is split into an
// upper part (weight >> 11, signed) and a lower one (11 bits), so that multiply-adds of 16 bits are
// exact; the sums are put together in 32 bits. Included in front of kernels_body.hpp, by levels
// that define
//
//   filled_32, add_32, shift_left_32, shift_right_signed_32
//   add_products     sum + the sums of the products of neighbours, to 32 bits
//   shuffled_rows    the same shuffle of every row's 16 bytes
//   row_pairs        of two rows: the bytes side by side, as 16 bits, `parts` vectors of them

struct Sums {
  Vector upper, lower;
};

FUSIONLOADER_TARGET FUSIONLOADER_INLINE Sums started() {
  return {filled_32(0), filled_32(1 << (weight_bits - 1))};
}

FUSIONLOADER_TARGET FUSIONLOADER_INLINE Vector rounded(const Sums& sums) {
  return shift_right_signed_32(add_32(shift_left_32(sums.upper, lower_bits), sums.lower),
                               weight_bits);
}

FUSIONLOADER_TARGET FUSIONLOADER_INLINE void weigh(Sums& sums, Vector pairs, Vector upper,
                                                   Vector lower) {
  sums.upper = add_products(sums.upper, pairs, upper);
  sums.lower = add_products(sums.lower, pairs, lower);
}

struct TapWeights {
  Vector upper_01, upper_23, lower_01, lower_23;
};

FUSIONLOADER_TARGET FUSIONLOADER_INLINE TapWeights loaded(const TapGroup& group) {
  return {filled_32(group.words[0]), filled_32(group.words[1]), filled_32(group.words[2]),
          filled_32(group.words[3])};
}

FUSIONLOADER_TARGET FUSIONLOADER_INLINE void weigh_pixels(Sums& sums, Vector pixels,
                                                          const TapWeights& weights) {
  alignas(16) static constexpr int8_t first_two[] = {0, -1, 4, -1, 1, -1, 5, -1,
                                                     2, -1, 6, -1, 3, -1, 7, -1};
  alignas(16) static constexpr int8_t last_two[] = {8,  -1, 12, -1, 9,  -1, 13, -1,
                                                    10, -1, 14, -1, 11, -1, 15, -1};
  const Vector a = shuffled_rows(pixels, first_two), b = shuffled_rows(pixels, last_two);
  sums.upper = add_products(add_products(sums.upper, a, weights.upper_01), b, weights.upper_23);
  sums.lower = add_products(add_products(sums.lower, a, weights.lower_01), b, weights.lower_23);
}

constexpr int rows_of_taps = 2;

struct RowTaps {
  const uint8_t *first, *second;
  SplitPair weights;
};

// Of the rows that are left; a second one that is none has no weight.
inline RowTaps row_taps(const uint8_t* const* rows, const int32_t* weights, int left) {
  return {rows[0], rows[left > 1 ? 1 : 0], split_pair(weights[0], left > 1 ? weights[1] : 0)};
}

FUSIONLOADER_TARGET FUSIONLOADER_INLINE void weigh_rows(Sums (&sums)[parts], const RowTaps& taps,
                                                        size_t at) {
  Vector pairs[parts];
  row_pairs(taps.first + at, taps.second + at, pairs);
  const Vector upper = filled_32(taps.weights.upper), lower = filled_32(taps.weights.lower);
  for (size_t part = 0; part < parts; ++part) weigh(sums[part], pairs[part], upper, lower);
}
