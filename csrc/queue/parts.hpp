#pragma once
#include <cstddef>

namespace fusionloader {
// Parts of a plan that a worker's record counts the time of.
constexpr size_t kParts = 32;

// Operations that are no part of a pass count for the stage that they were drawn from:
// Part::first_stage + its place. Plans with more stages than there are parts share the last.
enum class Part : size_t {
  read,    // files
  passes,  // decoding, windows, resizes, flips and the conversion, which run together
  python,  // what follows in Python
  write,   // of what Python made, into the row
  first_stage,
};
}  // namespace fusionloader
