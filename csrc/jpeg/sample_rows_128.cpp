// SSE4.1 or NEON: 16 samples at a time.
#include "simd/vector128.hpp"
#if defined(FUSIONLOADER_128)
#include "jpeg/sample_rows.hpp"

#define FUSIONLOADER_TARGET FUSIONLOADER_128

namespace fusionloader {
namespace {

using Vector = Vector128;

FUSIONLOADER_TARGET inline Vector load_for_alternating(const uint8_t* from) { return load(from); }

FUSIONLOADER_TARGET inline void store_pixels(uint8_t* out, size_t, Vector red, Vector green,
                                             Vector blue) {
  store_alternated(out, red, green, blue, filled_8(-1));
}

#include "jpeg/sample_rows_body.hpp"

}  // namespace

const SampleKernels sample_kernels_128{widen, blend, blend_and_widen, to_rgbx, grey_to_rgbx};

}  // namespace fusionloader
#endif
