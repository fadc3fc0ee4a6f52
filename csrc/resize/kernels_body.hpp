// The two passes on vectors. A level's file defines FUSIONLOADER_TARGET (the function attribute),
// Vector, and what is said below, and includes this in an unnamed namespace.
//
//   rows_per_vector, vectors_together    pixels of so many rows lie in a vector; vectors whose sums
//                                        are made with weights that are loaded once
//   load_rows, store_rows                16 bytes of each of a vector's rows
//   pack_32, pack_16_unsigned            clipped to half the bits, in each row's 16 bytes
//   parts, store_row                     so many vectors of sums make a piece of a row; the piece
// and of the weighing (weighing_split.hpp, weighing_whole.hpp):
//   Sums, started, rounded               sums under way: one half at first; what they come to
//   TapWeights, loaded, weigh_pixels     four taps of the horizontal pass
//   RowTaps, rows_of_taps, row_taps, weigh_rows    so many taps of the vertical one

// As the stack has room for; it takes Lanczos' filter and an image that becomes 85 times smaller to
// need more.
constexpr int most_vertical_taps = 512;

using Values = Vector[vectors_together];

// One output of the rows of as many vectors: R G B X as int32, rounded, not clipped.
template <int fixed_groups>
FUSIONLOADER_TARGET FUSIONLOADER_INLINE void one_output(const uint8_t* const* rows,
                                                        const HorizontalTaps& taps, size_t x,
                                                        Values& values) {
  const TapGroup* weights = taps.output(x);
  size_t offset = taps.offsets[x];
  Sums sums[vectors_together];
  for (Sums& sum : sums) sum = started();
  for (int g = 0; g < (fixed_groups ? fixed_groups : taps.groups); ++g, offset += 16) {
    const TapWeights four = loaded(weights[g]);
    for (size_t v = 0; v < vectors_together; ++v)
      weigh_pixels(sums[v], load_rows(rows + v * rows_per_vector, offset), four);
  }
  for (size_t v = 0; v < vectors_together; ++v) values[v] = rounded(sums[v]);
}

template <int fixed_groups>
FUSIONLOADER_TARGET FUSIONLOADER_INLINE void two_outputs(const uint8_t* const* rows,
                                                         const HorizontalTaps& taps, size_t x,
                                                         Values& values) {
  Values first, second;
  one_output<fixed_groups>(rows, taps, x, first);
  one_output<fixed_groups>(rows, taps, x + 1, second);
  for (size_t v = 0; v < vectors_together; ++v) values[v] = pack_32(first[v], second[v]);
}

template <int fixed_groups>
FUSIONLOADER_TARGET void horizontal_groups(const uint8_t* const* rows, const HorizontalTaps& taps,
                                           uint8_t* const* out) {
  for (size_t x = 0; x < static_cast<size_t>(taps.outputs); x += 4)
    for (size_t row = 0; row < rows_at_once; row += rows_per_vector * vectors_together) {
      Values low, high;
      two_outputs<fixed_groups>(rows + row, taps, x, low);
      two_outputs<fixed_groups>(rows + row, taps, x + 2, high);
      for (size_t v = 0; v < vectors_together; ++v)
        store_rows(out + row + v * rows_per_vector, 4 * x, pack_16_unsigned(low[v], high[v]));
    }
}

void horizontal(const uint8_t* const* rows, const HorizontalTaps& taps, uint8_t* const* out) {
  switch (taps.groups) {
    case 1:
      return horizontal_groups<1>(rows, taps, out);
    case 2:
      return horizontal_groups<2>(rows, taps, out);
    case 3:
      return horizontal_groups<3>(rows, taps, out);
    default:
      return horizontal_groups<0>(rows, taps, out);
  }
}

FUSIONLOADER_TARGET void vertical(const uint8_t* const* rows, const int32_t* weights, int count,
                                  uint8_t* out, size_t size) {
  if (count > most_vertical_taps) return scalar_kernels.vertical(rows, weights, count, out, size);
  RowTaps taps[most_vertical_taps / rows_of_taps];
  RowTaps* end = taps;
  for (int t = 0; t < count; t += rows_of_taps) *end++ = row_taps(rows + t, weights + t, count - t);
  for (size_t i = 0; i < size; i += parts * sizeof(Vector) / sizeof(int32_t)) {
    Sums sums[parts];
    for (Sums& sum : sums) sum = started();
    for (const RowTaps* each = taps; each != end; ++each) weigh_rows(sums, *each, i);
    Vector values[parts];
    for (size_t part = 0; part < parts; ++part) values[part] = rounded(sums[part]);
    store_row(out + i, values);
  }
}
