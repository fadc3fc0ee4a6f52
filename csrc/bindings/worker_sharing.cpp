#include "queue/worker_sharing.hpp"

#include <pybind11/stl.h>

#include "bindings/module.hpp"
#include "queue/identity.hpp"

namespace py = pybind11;

namespace fusionloader {

void bind_lending(py::module_& m) {
  m.def("process_identity", &identity_of);
  py::class_<MemberView>(m, "MemberView")
      .def(py::init<int, int>())
      .def("progress",
           [](MemberView& view) {
             py::list all;
             for (const MiniBatchProgress& p : view.progress())
               all.append(py::make_tuple(p.sequence, p.waiting, p.half_done));
             return all;
           })
      .def("workers",
           [](MemberView& view) {
             py::list all;
             for (const WorkerView& w : view.workers()) {
               const bool answered = w.assignment == w.answered;
               all.append(py::make_tuple(static_cast<uint32_t>(w.place),
                                         answered ? 0 : Assignment::member(w.assignment),
                                         answered ? 0 : Assignment::guest_slot(w.assignment)));
             }
             return all;
           })
      .def("free_guest_slots", &MemberView::free_guest_slots)
      .def("borrowed_at_work", &MemberView::borrowed_at_work)
      .def("send", &MemberView::send)
      .def("watch", &MemberView::watch);
}

}  // namespace fusionloader
