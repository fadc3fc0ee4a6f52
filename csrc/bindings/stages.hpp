#pragma once
// The values of fusionloader.transforms.plan.stages to stages.
#include <pybind11/pybind11.h>
#include <pybind11/typing.h>

#include <vector>

#include "plan/program.hpp"
#include "plan/stages.hpp"

namespace fusionloader {

// Throws std::invalid_argument for a stage that is not known or makes no sense.
std::vector<StageNode> stages_from_python(const pybind11::handle& stages);

// A type of elements and their table, as fusionloader.transforms.plan.stages.Convert has them.
using Convert = pybind11::typing::Tuple<pybind11::str, pybind11::bytes>;
ConvertSpec convert_from_tuple(const pybind11::tuple& fields);

}  // namespace fusionloader
