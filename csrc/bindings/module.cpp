// The Python module: each subject binds itself in a file of its own in this folder.
#include "bindings/module.hpp"

namespace py = pybind11;

namespace {

// Values of a wrong type, or whole numbers out of range, inside tuples and stages.
void say_value_error(std::exception_ptr error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const py::cast_error& wrong) {
    py::set_error(PyExc_ValueError, wrong.what());
  }
}

}  // namespace

PYBIND11_MODULE(_native, m) {
  py::register_local_exception_translator(&say_value_error);
  m.doc() = "Native parts of fusionloader; private, see the Python modules that use them.";
  fusionloader::bind_color(m);
  fusionloader::bind_cuda(m);
  fusionloader::bind_device(m);
  fusionloader::bind_geometry(m);
  fusionloader::bind_jpeg(m);
  fusionloader::bind_lending(m);
  fusionloader::bind_plan(m);
  fusionloader::bind_queue(m);
}
