#pragma once
// Groups operations into as few passes over pixels as keep the result the same.
#include <vector>

#include "plan/program.hpp"
#include "resize/resampler.hpp"

namespace fusionloader {

// At least one pass. Throws std::invalid_argument for sizes below 1 or beyond reason.
std::vector<Pass> group_into_passes(const Parameters& operations, int width, int height);

}  // namespace fusionloader
