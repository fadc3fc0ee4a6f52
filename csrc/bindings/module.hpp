#pragma once
#include <pybind11/pybind11.h>

namespace fusionloader {
void bind_cuda(pybind11::module_& m);
void bind_delivery(pybind11::module_& m);
void bind_device(pybind11::module_& m);
void bind_generators(pybind11::module_& m);
void bind_manager_queue(pybind11::module_& m);
void bind_opened_jpeg(pybind11::module_& m);
void bind_plan(pybind11::module_& m);
void bind_file_stores(pybind11::module_& m);
void bind_plan_worker(pybind11::module_& m);
void bind_remote_rows(pybind11::module_& m);
void bind_tensor_color(pybind11::module_& m);
void bind_worker_queue(pybind11::module_& m);
void bind_worker_sharing(pybind11::module_& m);
}  // namespace fusionloader
