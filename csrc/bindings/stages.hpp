#pragma once
// The values of fusionloader.plan.stages to stages.
#include <pybind11/pybind11.h>

#include <vector>

#include "plan/stages.hpp"

namespace fusionloader {

// Throws std::invalid_argument for a stage that is not known or makes no sense.
std::vector<StageNode> stages_from_python(const pybind11::handle& stages);

}  // namespace fusionloader
