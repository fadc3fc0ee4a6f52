// Both transforms one block at a time, for vectors of 32 bytes. A level's file includes this behind
// inverse_dct_body.hpp, and defines load_quarter, store_quarter, low_half and high_half as well.

// Takes a block's coefficients out of it.
FUSIONLOADER_TARGET inline void take(Block& block, const BlockTarget& target, Vector* pairs,
                                     Vector* quantisers) {
  int16_t* coefficients = block.coefficients.data();
  const int16_t* values = target.quantisers->values.data();
  for (int k = 0; k < 4; ++k) {
    pairs[k] = load_quarter(coefficients + 16 * k);
    quantisers[k] = load_quarter(values + 16 * k);
    store_quarter(coefficients + 16 * k, fill(0));
  }
}

FUSIONLOADER_TARGET inline Vector128 with_column_4_further(Vector magnitudes) {
  return add_32(low_half(magnitudes), high_half(magnitudes));
}

FUSIONLOADER_TARGET inline void transform_each(Block* blocks, const BlockTarget* targets, int count,
                                               int32_t& magnitude) {
  Vector128 largest = filled_32(0);
  for (int i = 0; i < count; ++i) {
    Vector pairs[4], quantisers[4], samples[2];
    take(blocks[i], targets[i], pairs, quantisers);
    const Vector magnitudes = transform_blocks(pairs, quantisers, samples);
    largest = maximum_32(largest, with_column_4_further(magnitudes));
    store_rows(targets[i], low_half(samples[0]), low_half(samples[1]), high_half(samples[0]),
               high_half(samples[1]));
  }
  raise(magnitude, largest);
}

template <int side>
FUSIONLOADER_TARGET inline void reduce_pairs(const Vector* pairs, Vector* out, int shift) {
  shift += dct::more_bits(side);
  const Vector half = fill(1 << (shift - 1));
  // No factor has 16 bits: two outputs take it twice.
  Vector sum = multiply_add(pairs[0], fill_pairs(1 << (dct::fraction_bits + 1), 0));
  if (side == 2) {
    sum = add(add(sum, sum), half);
    const Vector odd = add(multiply_add(pairs[1], factors(dct::odd_15_of_2)),
                           multiply_add(pairs[3], factors(dct::odd_37_of_2)));
    out[0] = shift_right(add(sum, odd), shift);
    out[1] = shift_right(subtract(sum, odd), shift);
    return;
  }
  sum = add(sum, half);
  const Vector wide = multiply_add(pairs[2], factors(dct::even_26_of_4));
  const Vector even[2] = {add(sum, wide), subtract(sum, wide)};
  for (int k = 0; k < 2; ++k) {
    const Vector odd = add(multiply_add(pairs[1], factors(dct::odd_15_of_4[k])),
                           multiply_add(pairs[3], factors(dct::odd_37_of_4[k])));
    out[k] = shift_right(add(even[k], odd), shift);
    out[3 - k] = shift_right(subtract(even[k], odd), shift);
  }
}

template <int side>
FUSIONLOADER_TARGET inline void store_corner(const BlockTarget& target, Vector128 rows) {
  alignas(16) uint8_t bytes[16];  // rows of four
  store(bytes, rows);
  for (size_t row = 0; row < side; ++row)
    std::memcpy(target.samples + row * target.stride, bytes + 4 * row, side);
}

template <int side>
FUSIONLOADER_TARGET inline void reduce_each(Block* blocks, const BlockTarget* targets, int count,
                                            int32_t& magnitude) {
  Vector128 largest = filled_32(0);
  for (int i = 0; i < count; ++i) {
    const int first_product = blocks[i].coefficients[0] * int{targets[i].quantisers->values[0]};
    Vector pairs[4], quantisers[4];
    take(blocks[i], targets[i], pairs, quantisers);
    const Vector magnitudes = multiply_pairs(pairs, quantisers);
    largest = maximum_32(largest, with_column_4_further(magnitudes));
    if (side == 1) {
      // Of more than 16 bits: far too large, whatever is left of it.
      const int mean = (static_cast<int16_t>(first_product) + 4) >> 3;
      if (wraps_around(mean)) magnitude = std::max(magnitude, too_large);
      *targets[i].samples = static_cast<uint8_t>(std::clamp(mean + 128, 0, 255));
      continue;
    }
    Vector values[8] = {fill(0), fill(0), fill(0), fill(0), fill(0), fill(0), fill(0), fill(0)};
    reduce_pairs<side>(pairs, values, dct::column_shift);
    turn(values, pairs);
    reduce_pairs<side>(pairs, values, dct::row_shift);
    const Vector samples =
        turn_bytes(pack_bytes(pack(values[0], values[1]), pack(values[2], values[3])));
    store_corner<side>(targets[i], low_half(samples));
  }
  raise(magnitude, largest);
}
