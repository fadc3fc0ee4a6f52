#pragma once
#include <pybind11/pybind11.h>

namespace fusionloader {

// The arena and the driver.
void bind_cuda_parts(pybind11::module_& m);

}  // namespace fusionloader
