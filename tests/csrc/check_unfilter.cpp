// The kernels that undo a PNG's filters against their scalar reference.
#include <cstdio>
#include <string>

#include "kernel_trials.hpp"
#include "png/unfilter.hpp"

namespace fusionloader {
namespace {

void check(SimdLevel level, const char* name, size_t samples, const UnfilterRow* found_by,
           const UnfilterRow* expected_by) {
  for (int filter = 0; filter < filter_count; ++filter)
    for (int trial = 0; trial < 20; ++trial)
      for (size_t width = 1; width < 70; ++width) {
        const Bytes row = any_bytes(samples * width + filtered_slack);
        const Bytes above = any_bytes(4 * width + filtered_slack);
        Bytes found(4 * width + filtered_slack + 32, untouched), expected = found;
        found_by[filter](row.data(), above.data(), width, found.data());
        expected_by[filter](row.data(), above.data(), width, expected.data());
        compare(level, std::string(name) + ", filter " + std::to_string(filter), found, expected,
                4 * width, filtered_slack);
      }
}

}  // namespace
}  // namespace fusionloader

int main() {
  using namespace fusionloader;
  for (const SimdLevel level : simd_levels()) {
    if (level == SimdLevel::scalar) continue;
    const UnfilterKernels& kernels = unfilter_kernels(level);
    if (&kernels == &scalar_unfilter) fail(level, "there are no kernels of its own");
    check(level, "rgb", 3, kernels.rgb, scalar_unfilter.rgb);
    check(level, "rgba", 4, kernels.rgba, scalar_unfilter.rgba);
    std::printf("%s\n", simd_level_name(level));
  }
  return 0;
}
