// The transform on vectors that hold a block in each 32 bytes. A level's file defines
// FUSIONLOADER_TARGET (the function attribute), Vector and the operations on it used here, in an
// unnamed namespace, and includes this there.

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
  for (int r = 0; r < 4; ++r) halves[r] = pair_columns(pack(rows[r], rows[r + 4]));
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

FUSIONLOADER_TARGET inline void store_two_rows(uint8_t* first, uint8_t* second, __m128i rows) {
  _mm_storel_epi64(reinterpret_cast<__m128i*>(first), rows);
  _mm_storeh_pd(reinterpret_cast<double*>(second), _mm_castsi128_pd(rows));
}

FUSIONLOADER_TARGET inline void store_rows(const BlockTarget& target, __m256i rows_0145,
                                           __m256i rows_2367) {
  uint8_t* const to = target.samples;
  const size_t stride = target.stride;
  store_two_rows(to, to + stride, _mm256_castsi256_si128(rows_0145));
  store_two_rows(to + 2 * stride, to + 3 * stride, _mm256_castsi256_si128(rows_2367));
  store_two_rows(to + 4 * stride, to + 5 * stride, _mm256_extracti128_si256(rows_0145, 1));
  store_two_rows(to + 6 * stride, to + 7 * stride, _mm256_extracti128_si256(rows_2367, 1));
}

FUSIONLOADER_TARGET inline __m256i load_quarter(const int16_t* from) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(from));
}

// The largest sum of columns c and c + 4, of which `found` has four.
FUSIONLOADER_TARGET inline void raise(int32_t& magnitude, __m128i found) {
  found = _mm_max_epi32(found, _mm_shuffle_epi32(found, 0x4E));
  found = _mm_max_epi32(found, _mm_shuffle_epi32(found, 0xB1));
  const int32_t largest = _mm_cvtsi128_si32(found);
  if (largest > magnitude) magnitude = largest;
}

FUSIONLOADER_TARGET inline __m128i with_column_4_further(__m256i magnitudes) {
  return _mm_add_epi32(_mm256_castsi256_si128(magnitudes), _mm256_extracti128_si256(magnitudes, 1));
}
