// The submodule `testing`: parts that only tests and measurements call by themselves.
#include "bindings/testing.hpp"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/module.hpp"
#include "rng/philox.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace fusionloader {

py::object testing_module(py::module_& m) {
  py::module_ testing = m.def_submodule(
      "testing", "Parts of the native code that only tests and measurements call by themselves.");
  testing.def(
      "philox4x32", [](PhiloxCounter counter, PhiloxKey key) { return philox4x32(counter, key); },
      "counter"_a, "key"_a);
  bind_color(testing);
  bind_geometry(testing);
  bind_jpeg(testing);
  bind_ledgers(testing);
  return testing;
}

}  // namespace fusionloader
