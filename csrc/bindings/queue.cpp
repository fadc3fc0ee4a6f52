#include "bindings/module.hpp"

namespace fusionloader {
void bind_queue(pybind11::module_&) {}
}  // namespace fusionloader
