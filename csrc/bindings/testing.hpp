#pragma once
#include <pybind11/pybind11.h>

namespace fusionloader {

// Makes the submodule `testing` of `m`.
pybind11::object testing_module(pybind11::module_& m);

void bind_color(pybind11::module_& m);
void bind_geometry(pybind11::module_& m);
void bind_jpeg(pybind11::module_& m);
void bind_ledgers(pybind11::module_& m);

}  // namespace fusionloader
