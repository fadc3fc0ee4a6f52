// (unit - mean) / deviation in float32, every step rounded as torch rounds it; the unit is of a
// level.
//
// A quotient a / b is taken as q + r * (a - q * b), with r the reciprocal of b, q = a * r and fused
// multiply-adds: correctly rounded but for rare operands, and cheaper than a division. The
// converter tries all 256 levels of every channel once, and looks them up if one comes out
// differently.
//
// A level's file defines FUSIONLOADER_TARGET (the function attribute), Floats, and these on it, and
// includes this in an unnamed namespace:
//   filled, multiply, subtract
//   multiply_add, subtract_product    a * b + c, c - a * b, rounded once
//   floats_of, store                  as many levels as floats; the floats

constexpr size_t lanes = sizeof(Floats) / sizeof(float);

FUSIONLOADER_TARGET FUSIONLOADER_INLINE Floats divide(const Floats& a, const Floats& b,
                                                      const Floats& reciprocal) {
  const Floats quotient = multiply(a, reciprocal);
  return multiply_add(subtract_product(quotient, b, a), reciprocal, quotient);
}

FUSIONLOADER_TARGET void convert(const uint8_t* levels, size_t count,
                                 const FloatArithmetic& arithmetic, size_t channel,
                                 const float* table, float* out) {
  const Floats mean = filled(arithmetic.mean[channel]);
  const Floats deviation = filled(arithmetic.deviation[channel]);
  const Floats deviation_reciprocal = filled(1.0f / arithmetic.deviation[channel]);
  const Floats white = filled(255.0f), white_reciprocal = filled(1.0f / 255.0f);
  const Unit kind = arithmetic.unit;
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const Floats value = floats_of(levels + i);
    const Floats unit = kind == Unit::level     ? value
                        : kind == Unit::product ? multiply(value, white_reciprocal)
                                                : divide(value, white, white_reciprocal);
    store(out + i, divide(subtract(unit, mean), deviation, deviation_reciprocal));
  }
  for (; i < count; ++i) out[i] = table[levels[i]];
}
