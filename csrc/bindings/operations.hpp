#pragma once
// Operations as tuples: a name and its arguments.
#include <pybind11/pybind11.h>

#include "bindings/python_types.hpp"
#include "plan/operations.hpp"

namespace fusionloader {

OperationList list_from_operations(const Parameters& operations);

// Throws std::invalid_argument for an unknown name and lists in lists that are too deep, pybind11's
// errors for other arguments. `depth` lists hold this one.
Parameters operations_from_list(const pybind11::handle& operations, int depth = 0);
Operation operation_from_tuple(const pybind11::handle& fields, int depth = 0);

}  // namespace fusionloader
