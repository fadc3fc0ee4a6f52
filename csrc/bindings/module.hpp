#pragma once
#include <pybind11/pybind11.h>

namespace fusionloader {
void bind_color(pybind11::module_& m);
void bind_cuda(pybind11::module_& m);
void bind_device(pybind11::module_& m);
void bind_geometry(pybind11::module_& m);
void bind_jpeg(pybind11::module_& m);
void bind_lending(pybind11::module_& m);
void bind_plan(pybind11::module_& m);
void bind_queue(pybind11::module_& m);
}  // namespace fusionloader
