// The kernels of sampling.hpp on vectors, which are the compiler's: operators work on all elements,
// and whole numbers wrap around. A level's file defines FUSIONLOADER_TARGET (the function
// attribute), and what is said below, and includes this in an unnamed namespace.
//
//   Points, Ints, Pairs      doubles, 32 bits and 64 bits, as many points at a time
//   Wide                     twice as many of 32 bits
//   counted                  the Wide 0, 1, 2 ...
//   gathered_fixed           pixels at coordinates in 16.16 fixed point, the color outside
//   Inside, inside_image     which points are, by two comparisons: with 0, with the sides
//   none, chosen             whether none is; one or the other value, point by point
//   gathered, gathered_pairs pixels by index; pixels with their right neighbours in the upper half
//   truncated, widened       Points to Ints, Ints to Pairs
//   floor_of, clamp          the latter to 0 .. last, signed
//   biased_level             the lowest byte of each Pair, as the double 2^52 + that byte
// and of the bicubic filter, in which a vector holds `rows_per_vector` rows of four taps:
//   FourTaps, by_channel     bytes of the rows' pixels, the four of a channel side by side
//   weighted                 of each four the sum by weights, the first's in the lowest byte
//   split_rows, to_pixel     Points to rows of four doubles; four levels to a pixel

// The same in every element. Subtracting zero changes nothing, so compilers leave it out.
template <class Vector, class Element>
FUSIONLOADER_TARGET inline Vector all(Element value) {
  return value - Vector{};
}

template <class Vector, class Element>
FUSIONLOADER_TARGET inline Vector load(const Element* from) {
  Vector values;
  std::memcpy(&values, from, sizeof values);
  return values;
}

template <class Vector>
FUSIONLOADER_TARGET inline void store(uint32_t* to, Vector values) {
  std::memcpy(to, &values, sizeof values);
}

FUSIONLOADER_TARGET void pack(const uint8_t* const* planes, int channels, size_t size,
                              uint32_t* out) {
  pack_loop(planes, channels, size, out);
}

FUSIONLOADER_TARGET void affine(const double* matrix, int y, size_t count, double* xs, double* ys) {
  affine_loop(matrix, y, count, xs, ys);
}

FUSIONLOADER_TARGET void perspective(const double* coefficients, int y, size_t count, double* xs,
                                     double* ys) {
  perspective_loop(coefficients, y, count, xs, ys);
}

FUSIONLOADER_TARGET void fixed(const PackedImage& image, FixedLine line, size_t count,
                               uint32_t fill, uint32_t* out) {
  if (image.width > 32767 || image.height > 32767)  // sizes that 16-bit products cannot take
    return scalar_sampling.fixed(image, line, count, fill, out);
  const auto width = static_cast<uint32_t>(image.width);
  const auto height = static_cast<uint32_t>(image.height);
  constexpr uint32_t lanes = sizeof(Wide) / sizeof(uint32_t);
  Wide x = line.x + counted * line.step_x, y = line.y + counted * line.step_y;
  const Wide end_x = all<Wide>(width << 16), end_y = all<Wide>(height << 16);
  const Wide factors = all<Wide>(width | 1 << 16), color = all<Wide>(fill);
  for (size_t i = 0; i < count; i += lanes) {
    store(out + i, gathered_fixed(image, x, y, end_x, end_y, factors, color));
    x += line.step_x * lanes;
    y += line.step_y * lanes;
  }
}

constexpr size_t points = sizeof(Points) / sizeof(double);

FUSIONLOADER_TARGET void nearest(const PackedImage& image, const double* xs, const double* ys,
                                 size_t count, uint32_t fill, uint32_t* out) {
  const Points width = all<Points>(image.width), height = all<Points>(image.height);
  const Ints stride = all<Ints>(static_cast<uint32_t>(image.width)), color = all<Ints>(fill);
  for (size_t i = 0; i < count; i += points) {
    const Points x = load<Points>(xs + i), y = load<Points>(ys + i);
    const Inside inside = inside_image<_CMP_GE_OQ, _CMP_LT_OQ>(x, y, width, height);
    store(out + i, gathered(image, truncated(y) * stride + truncated(x), inside, color));
  }
}

FUSIONLOADER_TARGET inline Points lerp(Points a, Points difference, Points distance) {
  return a + difference * distance;
}

FUSIONLOADER_TARGET void bilinear(const PackedImage& image, const double* xs, const double* ys,
                                  size_t count, uint32_t fill, uint32_t* out) {
  const Points width = all<Points>(image.width), height = all<Points>(image.height);
  const Points half = all<Points>(0.5), bias = all<Points>(0x1p52);
  const Ints stride = all<Ints>(static_cast<uint32_t>(image.width)), color = all<Ints>(fill);
  const Ints last_x = stride - 1, last_y = all<Ints>(static_cast<uint32_t>(image.height - 1));
  for (size_t i = 0; i < count; i += points) {
    Points x = load<Points>(xs + i), y = load<Points>(ys + i);
    // As in Pillow, what is not a number counts as inside; it ends up black.
    const Inside inside = inside_image<_CMP_NLT_UQ, _CMP_NGE_UQ>(x, y, width, height);
    if (none(inside)) {
      store(out + i, color);
      continue;
    }
    x -= half;
    y -= half;
    const Points whole_x = floor_of(x), whole_y = floor_of(y);
    const Points distance_x = x - whole_x, distance_y = y - whole_y;
    const Ints column = truncated(whole_x), row = truncated(whole_y);
    // Clamped even outside, so that every load is within the image.
    const Ints left = clamp(column, last_x), right = clamp(column + 1, last_x);
    const Ints top = clamp(row, last_y), bottom = clamp(row + 1, last_y);
    // A load gives two pixels; at the image's sides the second has to be the first.
    const Pairs to_right = widened((right - left) << 5);
    Pairs upper = gathered_pairs(image, top * stride + left);
    Pairs lower = gathered_pairs(image, bottom * stride + left);
    Pairs upper_right = upper >> to_right, lower_right = lower >> to_right;
    Ints result{};
    for (int channel = 0; channel < 3; ++channel) {
      const Points a = biased_level(upper, bias), b = biased_level(upper_right, bias);
      const Points c = biased_level(lower, bias), d = biased_level(lower_right, bias);
      const Points above = lerp(a - bias, b - a, distance_x);
      const Points below = lerp(c - bias, d - c, distance_x);
      const Points value = lerp(above, below - above, distance_y);
      result |= (truncated(value) & 255) << 8 * channel;
      upper >>= 8;
      lower >>= 8;
      upper_right >>= 8;
      lower_right >>= 8;
    }
    store(out + i, chosen(inside, result, color));
  }
}

// p1 + d * (p2 + d * (p3 + d * p4)), in Pillow's order
template <class Values>
FUSIONLOADER_TARGET inline Values polynomial(Values p1, Values p2, Values p3, Values p4, Values d) {
  return p1 + d * (p2 + d * (p3 + d * p4));
}

// Four pixels of each row to one, all channels at once. The differences of levels are exact in
// integers.
FUSIONLOADER_TARGET inline Points cubic_rows(const __m128i (&rows)[rows_per_vector],
                                             Points distance) {
  const FourTaps taps = by_channel(rows);
  return polynomial(weighted(taps, 0x00000100), weighted(taps, 0x000100FF),
                    weighted(taps, static_cast<int>(0xFF01FE02)), weighted(taps, 0x01FF01FF),
                    distance);
}

FUSIONLOADER_TARGET inline __m128i four_pixels(const PackedImage& image, int column, int row) {
  const ptrdiff_t y = std::min(std::max(row, 0), image.height - 1);
  const uint32_t* from = image.pixels + y * image.width;
  if (column >= 0 && column + 4 <= image.width) return load<__m128i>(from + column);
  const __m128i columns = _mm_add_epi32(_mm_set1_epi32(column), _mm_setr_epi32(0, 1, 2, 3));
  const __m128i inside =
      _mm_min_epi32(_mm_max_epi32(columns, _mm_setzero_si128()), _mm_set1_epi32(image.width - 1));
  return _mm_i32gather_epi32(reinterpret_cast<const int*>(from), inside, 4);
}

FUSIONLOADER_TARGET void bicubic(const PackedImage& image, const double* xs, const double* ys,
                                 size_t count, uint32_t fill, uint32_t* out) {
  for (size_t i = 0; i < count; ++i) {
    if (xs[i] < 0 || xs[i] >= image.width || ys[i] < 0 || ys[i] >= image.height) {
      out[i] = fill;
      continue;
    }
    if (std::isnan(xs[i]) || std::isnan(ys[i])) {  // as Pillow, see the scalar kernel
      out[i] = 0;
      continue;
    }
    const double x = xs[i] - 0.5, y = ys[i] - 0.5;
    // Floors: neither is below -0.5.
    const int whole_x = x < 0 ? -1 : static_cast<int>(x);
    const int whole_y = y < 0 ? -1 : static_cast<int>(y);
    const Points distance = all<Points>(x - whole_x);
    __m256d v[4];
    for (int line = 0; line < 4; line += rows_per_vector) {
      __m128i rows[rows_per_vector];
      for (int row = 0; row < rows_per_vector; ++row)
        rows[row] = four_pixels(image, whole_x - 1, whole_y - 1 + line + row);
      split_rows(cubic_rows(rows, distance), v + line);
    }
    const __m256d p2 = v[2] - v[0];
    const __m256d p3 = 2.0 * (v[0] - v[1]) + v[2] - v[3];
    const __m256d p4 = v[1] - v[0] - v[2] + v[3];
    const __m256d value = polynomial(v[1], p2, p3, p4, _mm256_set1_pd(y - whole_y));
    const __m256d zero = _mm256_setzero_pd(), most = _mm256_set1_pd(255);
    out[i] = to_pixel(_mm256_cvttpd_epi32(_mm256_min_pd(_mm256_max_pd(value, zero), most)));
  }
}
