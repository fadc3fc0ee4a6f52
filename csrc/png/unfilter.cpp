// The scalar reference, and the choice of kernels.
#include "png/unfilter.hpp"

#include <cstdlib>

namespace fusionloader {
namespace {

// Whichever neighbour is nearest to left + above - corner; of equals the first.
inline int paeth(int left, int above, int corner) {
  const int to_left = std::abs(above - corner), to_above = std::abs(left - corner);
  const int to_corner = std::abs(above - corner + left - corner);
  if (to_left <= to_above && to_left <= to_corner) return left;
  return to_above <= to_corner ? above : corner;
}

template <int filter>
inline int predicted(int left, int above, int corner) {
  if constexpr (filter == 1) return left;
  if constexpr (filter == 2) return above;
  if constexpr (filter == 3) return (left + above) / 2;
  if constexpr (filter == 4) return paeth(left, above, corner);
  return 0;
}

// `from` bytes a pixel to `to`.
template <int filter, size_t from, size_t to>
void unfilter(const uint8_t* filtered, const uint8_t* above, size_t width, uint8_t* out) {
  for (size_t x = 0; x < width; ++x) {
    for (size_t sample = 0; sample < from; ++sample) {
      const size_t at = to * x + sample;
      const int left = x > 0 ? out[at - to] : 0, corner = x > 0 ? above[at - to] : 0;
      out[at] = static_cast<uint8_t>(filtered[from * x + sample] +
                                     predicted<filter>(left, above[at], corner));
    }
    if (from == 3) out[to * x + 3] = 255;
  }
}

}  // namespace

const UnfilterKernels scalar_unfilter{
    {unfilter<0, 3, 4>, unfilter<1, 3, 4>, unfilter<2, 3, 4>, unfilter<3, 3, 4>, unfilter<4, 3, 4>},
    {unfilter<0, 4, 4>, unfilter<1, 4, 4>, unfilter<2, 4, 4>, unfilter<3, 4, 4>,
     unfilter<4, 4, 4>}};

void unfilter_bytes(int filter, const uint8_t* filtered, const uint8_t* above, size_t width,
                    uint8_t* out) {
  constexpr UnfilterRow of_filter[] = {unfilter<0, 1, 1>, unfilter<1, 1, 1>, unfilter<2, 1, 1>,
                                       unfilter<3, 1, 1>, unfilter<4, 1, 1>};
  of_filter[filter](filtered, above, width, out);
}

const UnfilterKernels& unfilter_kernels(SimdLevel level) {
#if defined(__x86_64__) || defined(__aarch64__)
  // A pixel depends on the one before: wider vectors would wait for it as well.
  if (level >= SimdLevel::bits128) return unfilter_128;
#endif
  (void)level;
  return scalar_unfilter;
}

}  // namespace fusionloader
