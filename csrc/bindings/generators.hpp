#pragma once
// The process's generators of random numbers: those of Python, NumPy and torch.
#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <tuple>

#include "rng/mersenne.hpp"
#include "rng/torch_twister.hpp"

namespace fusionloader {

// As they lie in memory: _randommodule.c, and numpy/random/_common.pxd with
// legacy/legacy-distributions.h and mt19937.h.
struct PythonTwister {
  int32_t position;
  MersenneWords words;
};
struct NumpyTwister {
  MersenneWords words;
  int32_t position;
};
struct NumpyNormal {
  int32_t is_there;
  double value;
};
// Which of the generators are seeded.
struct Chosen {
  bool python, torch, numpy;
};

class Generators {
 public:
  // `python` is one of them, the objects of the others are among the `owners`.
  Generators(pybind11::object python, pybind11::object owners, uintptr_t python_at,
             uintptr_t torch_at, uintptr_t numpy_at, uintptr_t numpy_normal_at);
  void seed(uint64_t seed, Chosen chosen);
  // Makes the states of up to SeededWords::most seeds; then use() puts one into the generators.
  void prepare(const uint64_t* seeds, size_t count, Chosen chosen);
  void use(size_t place, Chosen chosen);
  TorchEngine& torch_engine() const { return of_torch_->engine; }
  // Each changes when anything is drawn from Python's or NumPy's generator.
  std::pair<uint64_t, uint64_t> positions() const;
  // The same, with the normal numbers that they hold in advance.
  std::tuple<uint64_t, pybind11::object, uint64_t, bool> places() const;

  // Seeding Python's generator takes longer than the others. It is left out when none of the first
  // samples has drawn from it. The first that draws after all is made once more, and it is seeded
  // for all later ones, so that results are the same as if it had always been.
  Chosen without_idle(Chosen chosen);
  // To be called after each sample; returns whether it has drawn from Python's generator.
  bool has_drawn();

 private:
  pybind11::object python_, owners_;
  PythonTwister* of_python_;
  TorchTwister* of_torch_;
  NumpyTwister* of_numpy_;
  NumpyNormal* numpy_normal_;
  pybind11::str gauss_next_;
  std::array<uint64_t, SeededWords::most> seeds_{};
  bool draws_ = false;
  uint32_t watched_ = 0;
  uint64_t before_ = 0;  // Python's position when the sample was begun
  std::unique_ptr<SeededWords> words_ = std::make_unique<SeededWords>();
};

}  // namespace fusionloader
