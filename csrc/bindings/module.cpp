// The Python module: each subject binds itself in a file of its own in this folder.
#include "bindings/module.hpp"

#include <string>
#include <system_error>

#include "bindings/testing.hpp"
#include "queue/mapping.hpp"

namespace py = pybind11;

namespace {

// Values of a wrong type, or whole numbers out of range, inside tuples and stages; and what the
// system has refused.
void say_error(std::exception_ptr error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const py::cast_error& wrong) {
    py::set_error(PyExc_ValueError, wrong.what());
  } catch (const std::system_error& refused) {
    PyErr_SetObject(PyExc_OSError, py::make_tuple(refused.code().value(), refused.what()).ptr());
  }
}

}  // namespace

PYBIND11_MODULE(_native, m) {
  py::register_local_exception_translator(&say_error);
  py::register_local_exception<fusionloader::MappingMismatch>(m, "SharedMemoryMismatch",
                                                              PyExc_RuntimeError);
  m.doc() = "Native parts of fusionloader; private, see the Python modules that use them.";
  // Classes before the signatures that name them.
  fusionloader::bind_plan(m);
  fusionloader::bind_opened_jpeg(m);
  fusionloader::bind_device(m);
  fusionloader::bind_generators(m);
  fusionloader::bind_manager_queue(m);
  fusionloader::bind_worker_queue(m);
  fusionloader::bind_file_stores(m);
  fusionloader::bind_plan_worker(m);
  fusionloader::bind_remote_rows(m);
  fusionloader::bind_tensor_color(m);
  fusionloader::bind_worker_sharing(m);
  fusionloader::bind_cuda(m);
  fusionloader::bind_delivery(m);
  // Training needs nothing of the submodule `testing`: it is made when somebody asks for it.
  m.def("__getattr__", [self = py::handle(m)](const std::string& name) {
    auto native = py::reinterpret_borrow<py::module_>(self);
    if (name == "testing") return fusionloader::testing_module(native);
    throw py::attribute_error("module 'fusionloader._native' has no attribute '" + name + "'");
  });
}
