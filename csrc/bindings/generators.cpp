// Seeds the process's generators of random numbers where they lie in memory.
#include "bindings/generators.hpp"

#include <pybind11/stl.h>

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "bindings/module.hpp"
#include "bindings/operations.hpp"
#include "bindings/stages.hpp"
#include "plan/torch_drawing.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace fusionloader {
namespace {

constexpr uint32_t kWatched = 32;

// The last word changes with each turn of a twister, the position with each draw.
uint64_t place_of(int32_t position, const MersenneWords& words) {
  return static_cast<uint64_t>(words.back()) << 32 | static_cast<uint32_t>(position);
}

// Transforms of torchvision that are drawn from torch's generator.
class TorchRecorder {
 public:
  TorchRecorder(py::object generators, const StageSequence& stages, std::vector<Range> log_ratios,
                py::object exp)
      : generators_(std::move(generators)),
        engine_(generators_.cast<Generators&>().torch_engine()),
        transforms_{stages_from_python(stages), std::move(log_ratios),
                    [exp = std::move(exp)](double value) { return exp(value).cast<double>(); }} {
    if (transforms_.log_ratios.size() != transforms_.stages.size())
      throw std::invalid_argument("each stage needs the logarithms of a ratio");
  }

  using Drawn = std::tuple<OperationList, std::pair<int, int>, size_t, bool>;
  Drawn draw(int width, int height, int least_side, double most_pixels) {
    const TorchDrawn drawn =
        draw_as_torch(transforms_, engine_, {width, height}, {least_side, most_pixels});
    return {list_from_operations(drawn.operations),
            {drawn.size.width, drawn.size.height},
            drawn.done,
            drawn.is_new};
  }

 private:
  py::object generators_;
  TorchEngine& engine_;
  TorchTransforms transforms_;
};

}  // namespace

Generators::Generators(py::object python, py::object owners, uintptr_t python_at,
                       uintptr_t torch_at, uintptr_t numpy_at, uintptr_t numpy_normal_at)
    : python_(std::move(python)),
      owners_(std::move(owners)),
      of_python_(reinterpret_cast<PythonTwister*>(python_at)),
      of_torch_(reinterpret_cast<TorchTwister*>(torch_at)),
      of_numpy_(reinterpret_cast<NumpyTwister*>(numpy_at)),
      numpy_normal_(reinterpret_cast<NumpyNormal*>(numpy_normal_at)),
      gauss_next_("gauss_next") {}

void Generators::seed(uint64_t seed, Chosen chosen) {
  prepare(&seed, 1, chosen);
  use(0, chosen);
}

void Generators::prepare(const uint64_t* seeds, size_t count, Chosen chosen) {
  std::copy_n(seeds, count, seeds_.begin());
  words_->fill(seeds, count, chosen.torch || chosen.numpy, chosen.python);
}

void Generators::use(size_t place, Chosen chosen) {
  if (chosen.python) {
    of_python_->words = words_->by_key(place);
    of_python_->position = static_cast<int32_t>(of_python_->words.size());
    python_.attr(gauss_next_) = py::none();
  }
  if (chosen.torch) {
    of_torch_->engine = {seeds_[place], 1, true, 0, words_->by_number(place)};
    of_torch_->next_float.reset();
    of_torch_->next_double.reset();
  }
  if (chosen.numpy) {
    of_numpy_->words = words_->by_number(place);
    of_numpy_->position = static_cast<int32_t>(of_numpy_->words.size());
    *numpy_normal_ = {0, 0.0};
  }
  before_ = positions().first;
}

std::pair<uint64_t, uint64_t> Generators::positions() const {
  return {place_of(of_python_->position, of_python_->words),
          place_of(of_numpy_->position, of_numpy_->words)};
}

std::tuple<uint64_t, py::object, uint64_t, bool> Generators::places() const {
  const auto [python, numpy] = positions();
  return {python, python_.attr(gauss_next_), numpy, numpy_normal_->is_there != 0};
}

Chosen Generators::without_idle(Chosen chosen) {
  if (!chosen.python || draws_ || watched_ < kWatched) return chosen;
  // A sample that seeds the generator itself would not be seen where it was just seeded.
  constexpr auto begun = static_cast<int32_t>(std::tuple_size_v<MersenneWords>);
  if (of_python_->position == begun) python_.attr("random")();
  return {false, chosen.torch, chosen.numpy};
}

bool Generators::has_drawn() {
  ++watched_;
  const bool drawn = positions().first != before_;
  draws_ = draws_ || drawn;
  return drawn;
}

void bind_generators(py::module_& m) {
  py::class_<Generators>(m, "Generators",
                         "Generators of Python, torch and NumPy that are seeded in memory.")
      .def(py::init<py::object, py::object, uintptr_t, uintptr_t, uintptr_t, uintptr_t>(),
           "python"_a, "owners"_a, "python_at"_a, "torch_at"_a, "numpy_at"_a, "numpy_normal_at"_a,
           "Of the addresses of their states, which `owners` keep alive.")
      .def(
          "seed",
          [](Generators& self, uint64_t seed, bool python, bool torch, bool numpy) {
            self.seed(seed, {python, torch, numpy});
          },
          "seed"_a, "python"_a = true, "torch"_a = true, "numpy"_a = true,
          "NumPy's by the low 32 bits.")
      .def_property_readonly("places", &Generators::places,
                             "Of Python's and NumPy's; each draw changes one.");
  py::class_<TorchRecorder>(m, "TorchRecorder", "Transforms of torchvision.")
      .def(
          py::init<py::object, const StageSequence&, std::vector<Range>, py::object>(),
          "generators"_a, "stages"_a, "log_ratios"_a, "exp"_a,
          "Draws the stages, one after the other.\n\n"
          "`log_ratios` has, for each stage, torch's logarithms of RandomResizedCrop's ratio, and\n"
          "`exp` is torch.exp, both in float32.")
      .def("draw", &TorchRecorder::draw, "width"_a, "height"_a, "least_side"_a = 1,
           "most_pixels"_a = std::numeric_limits<double>::infinity(),
           "Operations, size of the result, drawn stages, and whether it is another image.\n\n"
           "It stops before a stage whose image is smaller or larger than allowed, or that\n"
           "torchvision has to do.");
}

}  // namespace fusionloader
