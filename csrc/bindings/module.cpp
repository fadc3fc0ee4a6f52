// The Python module: each subject binds itself in a file of its own in this folder.
#include "bindings/module.hpp"

PYBIND11_MODULE(_native, m) {
  m.doc() = "Native parts of fusionloader; private, see the Python modules that use them.";
  fusionloader::bind_colour(m);
  fusionloader::bind_geometry(m);
  fusionloader::bind_plan(m);
  fusionloader::bind_queue(m);
}
