#include "bindings/module.hpp"

namespace fusionloader {
void bind_plan(pybind11::module_&) {}
}  // namespace fusionloader
