// The transform on vectors that hold a block in each 32 bytes. A level's file includes
// simd/vector128.hpp, defines FUSIONLOADER_TARGET (the function attribute), Vector and the
// operations on it used here, in an unnamed namespace, and includes this there.

// Eight values in each column, as pairs (k, k + 4); eight outputs, 32 bits each.
FUSIONLOADER_TARGET inline Vector factors(dct::Factors pair) {
  return fill_pairs(pair.first, pair.second);
}

FUSIONLOADER_TARGET inline void transform_pairs(const Vector* pairs, Vector* out, int shift) {
  const Vector half = fill(1 << (shift - 1));
  const Vector sum = add(multiply_add(pairs[0], factors(dct::sum_04)), half);
  const Vector difference = add(multiply_add(pairs[0], factors(dct::difference_04)), half);
  const Vector wide = multiply_add(pairs[2], factors(dct::sum_26));
  const Vector narrow = multiply_add(pairs[2], factors(dct::difference_26));
  const Vector even[4] = {add(sum, wide), add(difference, narrow), subtract(difference, narrow),
                          subtract(sum, wide)};
  for (int k = 0; k < 4; ++k) {
    const Vector odd = add(multiply_add(pairs[1], factors(dct::odd_15[k])),
                           multiply_add(pairs[3], factors(dct::odd_37[k])));
    out[k] = shift_right(add(even[k], odd), shift);
    out[7 - k] = shift_right(subtract(even[k], odd), shift);
  }
}

// Rows of 32-bit values, one vector each, to pairs (k, k + 4) of columns, 16 bits each.
FUSIONLOADER_TARGET inline void turn(const Vector* rows, Vector* pairs) {
  Vector halves[4];  // rows r and r + 4, in each the columns 0 4 1 5 2 6 3 7
  for (int r = 0; r < 4; ++r) halves[r] = pair_columns(rows[r], rows[r + 4]);
  const Vector low_01 = interleave_low_32(halves[0], halves[1]);
  const Vector low_23 = interleave_low_32(halves[2], halves[3]);
  const Vector high_01 = interleave_high_32(halves[0], halves[1]);
  const Vector high_23 = interleave_high_32(halves[2], halves[3]);
  pairs[0] = interleave_low_64(low_01, low_23);
  pairs[1] = interleave_high_64(low_01, low_23);
  pairs[2] = interleave_low_64(high_01, high_23);
  pairs[3] = interleave_high_64(high_01, high_23);
}

// Columns of 32-bit values, one vector each, to bytes: rows 0, 1 and 4, 5 in the first vector, rows
// 2, 3 and 6, 7 in the second.
FUSIONLOADER_TARGET inline void to_samples(const Vector* columns, Vector* samples) {
  const Vector left =
      turn_bytes(pack_bytes(pack(columns[0], columns[1]), pack(columns[2], columns[3])));
  const Vector right =
      turn_bytes(pack_bytes(pack(columns[4], columns[5]), pack(columns[6], columns[7])));
  samples[0] = interleave_low_32(left, right);
  samples[1] = interleave_high_32(left, right);
}

// Multiplies coefficients; gives their magnitudes, column by column.
FUSIONLOADER_TARGET inline Vector multiply_pairs(Vector* pairs, const Vector* quantisers) {
  Vector magnitudes = multiply_add(magnitude_of(pairs[0]), quantisers[0]);
  for (int k = 1; k < 4; ++k)
    magnitudes = add(magnitudes, multiply_add(magnitude_of(pairs[k]), quantisers[k]));
  for (int k = 0; k < 4; ++k) pairs[k] = multiply(pairs[k], quantisers[k]);
  return magnitudes;
}

// `pairs` are coefficients, not yet multiplied; gives their magnitudes.
FUSIONLOADER_TARGET inline Vector transform_blocks(Vector* pairs, const Vector* quantisers,
                                                   Vector* samples) {
  const Vector magnitudes = multiply_pairs(pairs, quantisers);
  Vector values[8];
  transform_pairs(pairs, values, dct::column_shift);
  turn(values, pairs);
  transform_pairs(pairs, values, dct::row_shift);
  to_samples(values, samples);
  return magnitudes;
}

FUSIONLOADER_TARGET inline void store_rows(const BlockTarget& target, Vector128 rows_01,
                                           Vector128 rows_23, Vector128 rows_45,
                                           Vector128 rows_67) {
  uint8_t* const to = target.samples;
  const size_t stride = target.stride;
  store_two(to, to + stride, rows_01);
  store_two(to + 2 * stride, to + 3 * stride, rows_23);
  store_two(to + 4 * stride, to + 5 * stride, rows_45);
  store_two(to + 6 * stride, to + 7 * stride, rows_67);
}

// The largest sum of columns c and c + 4, of which `found` has four.
FUSIONLOADER_TARGET inline void raise(int32_t& magnitude, Vector128 found) {
  const int32_t largest = largest_32(found);
  if (largest > magnitude) magnitude = largest;
}
