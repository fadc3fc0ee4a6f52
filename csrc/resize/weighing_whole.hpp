// Sums of bytes times weights on 64-bit Arm, which multiplies and adds 32 bits at once. Included in
// front of kernels_body.hpp.

struct Sums {
  Vector all;
};

inline Sums started() { return {filled_32(1 << (weight_bits - 1))}; }

inline Vector rounded(const Sums& sums) { return shift_right_signed_32(sums.all, weight_bits); }

using TapWeights = Vector;

inline TapWeights loaded(const TapGroup& group) { return load(group.words); }

inline void weigh_pixels(Sums& sums, Vector pixels, TapWeights weights) {
  sums.all = add_product_32<0>(sums.all, quarter_words<0>(pixels), weights);
  sums.all = add_product_32<1>(sums.all, quarter_words<1>(pixels), weights);
  sums.all = add_product_32<2>(sums.all, quarter_words<2>(pixels), weights);
  sums.all = add_product_32<3>(sums.all, quarter_words<3>(pixels), weights);
}

constexpr int rows_of_taps = 1;

struct RowTaps {
  const uint8_t* row;
  int32_t weight;
};

inline RowTaps row_taps(const uint8_t* const* rows, const int32_t* weights, int) {
  return {rows[0], weights[0]};
}

inline void weigh_rows(Sums (&sums)[parts], const RowTaps& taps, size_t at) {
  const Vector bytes = load(taps.row + at), weights = filled_32(taps.weight);
  sums[0].all = add_product_32<0>(sums[0].all, quarter_words<0>(bytes), weights);
  sums[1].all = add_product_32<0>(sums[1].all, quarter_words<1>(bytes), weights);
  sums[2].all = add_product_32<0>(sums[2].all, quarter_words<2>(bytes), weights);
  sums[3].all = add_product_32<0>(sums[3].all, quarter_words<3>(bytes), weights);
}
