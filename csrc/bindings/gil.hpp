// Releasing the GIL for what takes time or waits.
#pragma once
#include <pybind11/pybind11.h>
#include <unistd.h>

#ifdef __GLIBCXX__
#include <cxxabi.h>
#endif

namespace fusionloader {

// Takes the GIL again, or waits until the process is gone where the interpreter ends meanwhile.
//
// Before Python 3.14, PyEval_RestoreThread calls pthread_exit in a daemonic thread then. That
// unwinds the stack: a noexcept frame, as every destructor is, ends the process by SIGABRT, and
// references to Python objects would be dropped without the GIL. No frame but this one is unwound:
// the thread stays in the handler, as Python 3.14 makes it stay in PyEval_RestoreThread.
inline void restore_gil(PyThreadState* state) {
#ifdef __GLIBCXX__
  try {
    PyEval_RestoreThread(state);
  } catch (const abi::__forced_unwind&) {
    while (true) pause();
  }
#else
  PyEval_RestoreThread(state);
#endif
}

// The GIL is released while one exists. py::gil_scoped_release lacks what restore_gil is for.
class GilReleased {
 public:
  GilReleased() : state_(PyEval_SaveThread()) {}
  ~GilReleased() { restore_gil(state_); }
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;

 private:
  PyThreadState* state_;
};

// Of a binding that runs without the GIL.
using Unlocked = pybind11::call_guard<GilReleased>;

}  // namespace fusionloader
