#pragma once
#include <cstddef>

namespace fusionloader {
// Parts of a plan that a worker's record counts the time of.
constexpr size_t kParts = 32;
}  // namespace fusionloader
