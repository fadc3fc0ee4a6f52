// The native part of system.gpu_memory alone, so that variants of it are built in seconds.
#include "bindings/module.hpp"

PYBIND11_MODULE(_native, m) { fusionloader::bind_cuda(m); }
