#include "queue/worker_sharing.hpp"

#include <pybind11/native_enum.h>
#include <pybind11/stl.h>

#include "bindings/module.hpp"
#include "queue/identity.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace fusionloader {

void bind_worker_sharing(py::module_& m) {
  m.def("process_identity", &identity_of, "pid"_a,
        "Start time and pid of a running process in one number, never used twice; else 0.");
  py::native_enum<WorkerActivity>(m, "WorkerActivity", "enum.Enum", "What a worker does.")
      .value("ABSENT", WorkerActivity::absent, "There is no such worker now.")
      .value("IDLE", WorkerActivity::idle)
      .value("HOME", WorkerActivity::home, "It works for its own rank.")
      .value("BORROWED", WorkerActivity::borrowed, "It works for another one.")
      .finalize();
  py::class_<MiniBatchProgress>(m, "MiniBatchProgress", "Of a mini-batch in flight.")
      .def_readonly("sequence", &MiniBatchProgress::sequence)
      .def_readonly("waiting", &MiniBatchProgress::waiting, "Tiny-batches that nobody holds.")
      .def_readonly("half_done", &MiniBatchProgress::half_done,
                    "Tiny-batches under way of which more than half is done.");
  py::class_<WorkerView>(m, "WorkerView", "A worker that may be sent to other ranks.")
      .def_readonly("activity", &WorkerView::activity)
      .def_readonly("member", &WorkerView::member,
                    "Where it is sent by an assignment that it has not answered; 0: nowhere.")
      .def_readonly("guest_slot", &WorkerView::guest_slot);
  py::class_<MemberView>(m, "MemberView",
                         "A loader's queue as the global manager sees it; assigns its workers.")
      .def(py::init<int, int>(), "control_fd"_a, "data_fd"_a)
      .def("progress", &MemberView::progress, "Of the mini-batches in flight, the oldest first.")
      .def("workers", &MemberView::workers)
      .def("free_guest_slots", &MemberView::free_guest_slots)
      .def("borrowed_at_work", &MemberView::borrowed_at_work)
      .def("send", &MemberView::send, "worker"_a, "last"_a, "member"_a, "guest_slot"_a,
           "Sends a worker to a guest slot of a member, for mini-batches up to `last`.")
      .def("watch", &MemberView::watch, "on"_a, "Whether the member tells of what it publishes.");
  py::class_<SharedWorker>(m, "SharedWorker",
                           "A worker's side: claims for other ranks beside its own queue.")
      .def(py::init<WorkerQueue&, int, bool>(), py::keep_alive<1, 2>(), "home"_a, "event_fd"_a,
           "of_pool"_a)
      .def("obey", &SharedWorker::obey,
           "Answers an assignment; False where the queue of `assignment` is to be attached.")
      .def("assignment", &SharedWorker::assignment, "The member whose queue is wanted, 0 for none.")
      .def("attach", &SharedWorker::attach, "member"_a, "queue"_a,
           "The caller keeps the queue until it calls `detach`.")
      .def("detach", &SharedWorker::detach)
      .def("decline", &SharedWorker::decline)
      .def("claim", &SharedWorker::claim, "count"_a,
           "Claims up to `count` tiny-batches of the attached queue, or leaves the guest slot.")
      .def("leave_guest_slot", &SharedWorker::leave_guest_slot)
      .def("report", &SharedWorker::report, "activity"_a, "Tells what the worker does.")
      .def("withdraw", &SharedWorker::withdraw, "The worker goes to another loader of its pool.");
}

}  // namespace fusionloader
