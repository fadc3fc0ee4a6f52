#include "bindings/operations.hpp"

#include <pybind11/stl.h>

#include <cstdlib>

#include "bindings/names.hpp"
#include "ops/color.hpp"
#include "ops/limits.hpp"

namespace py = pybind11;

namespace fusionloader {
namespace {

struct AsTuple {
  py::tuple operator()(const CropTo& crop) const {
    return py::make_tuple("crop", crop.x, crop.y, crop.width, crop.height, fill(crop.fill));
  }
  py::tuple operator()(const ResizeTo& resize) const {
    const py::tuple plain =
        py::make_tuple("resize", resize.width, resize.height, filter_names.name(resize.filter));
    if (!resize.box) return plain;
    const SourceBox& box = *resize.box;
    return plain + py::make_tuple(py::make_tuple(box.left, box.top, box.right, box.bottom));
  }
  py::tuple operator()(const ReduceBy& reduce) const {
    return py::make_tuple("reduce", reduce.columns, reduce.rows);
  }
  py::tuple operator()(const LookUp& by) const {
    return py::make_tuple(
        "lookup", py::bytes(reinterpret_cast<const char*>(by.tables.data()), by.tables.size()));
  }
  py::tuple operator()(const SelectChannels& by) const {
    return py::make_tuple("channels", by.channels[0], by.channels[1], by.channels[2]);
  }
  py::tuple operator()(const FlipHorizontally&) const { return py::make_tuple("hflip"); }
  py::tuple operator()(const FlipVertically&) const { return py::make_tuple("vflip"); }
  py::tuple operator()(const ColorTo& color) const {
    const char* name = color_names.name(color.kind);
    const py::tuple plain = with_arguments(name, color);
    return with_rounding(plain, color.rounding);
  }
  static py::tuple with_rounding(const py::tuple& plain, Rounding rounding) {
    if (rounding == Rounding::pillow) return plain;
    return plain + py::make_tuple(rounding_names.name(rounding));
  }
  static py::tuple with_arguments(const char* name, const ColorTo& color) {
    switch (color.kind) {
      case ColorKind::invert:
      case ColorKind::autocontrast:
      case ColorKind::equalize:
      case ColorKind::grayscale:
        return py::make_tuple(name);
      case ColorKind::posterize:
        return py::make_tuple(name, whole_number(color.value));
      default:
        return py::make_tuple(name, color.value);
    }
  }
  py::tuple operator()(const BlurWith& blur) const {
    const py::tuple plain =
        py::make_tuple("blur", blur.kernel_width, blur.kernel_height, blur.sigma_x, blur.sigma_y);
    return with_rounding(plain, blur.rounding);
  }
  py::tuple operator()(const BoxBlurWith& blur) const {
    return py::make_tuple("box_blur", blur.radius);
  }
  py::tuple operator()(const AffineWith& affine) const {
    const py::tuple plain =
        py::make_tuple("affine", py::tuple(py::cast(affine.matrix)),
                       interpolation_names.name(affine.interpolation), fill(affine.fill));
    if (!affine.size) return with_rounding(plain, affine.rounding);
    return with_rounding(plain + py::make_tuple(py::tuple(py::cast(*affine.size))),
                         affine.rounding);
  }
  py::tuple operator()(const PerspectiveWith& perspective) const {
    const py::tuple plain =
        py::make_tuple("perspective", py::tuple(py::cast(perspective.coefficients)),
                       interpolation_names.name(perspective.interpolation), fill(perspective.fill));
    return with_rounding(plain, perspective.rounding);
  }
  py::tuple operator()(const RotateBy& rotate) const {
    py::object centre = py::none();
    if (rotate.centre) centre = py::make_tuple(rotate.centre->x, rotate.centre->y);
    return py::make_tuple("rotate", rotate.angle, interpolation_names.name(rotate.interpolation),
                          rotate.expand, centre, fill(rotate.fill));
  }
  py::tuple operator()(const PadBy& pad) const {
    const Padding& sides = pad.padding;
    return py::make_tuple("pad", sides.left, sides.top, sides.right, sides.bottom,
                          pad_mode_names.name(pad.mode), fill(pad.fill));
  }
  py::tuple operator()(const EraseBox& erase) const {
    return py::make_tuple("cutout", erase.x, erase.y, erase.width, erase.height, fill(erase.fill));
  }
  py::tuple operator()(const EraseResult& erase) const {
    const py::bytes values(reinterpret_cast<const char*>(erase.values.data()), erase.values.size());
    return py::make_tuple("erase", erase.x, erase.y, erase.width, erase.height, values,
                          erase.noise_per_pixel, erase.noise);
  }
  py::tuple operator()(const ToFloats& floats) const {
    return py::make_tuple("to_floats", layout_names.name(floats.layout));
  }
  py::tuple operator()(const NormalizeBy& by) const {
    return py::make_tuple("normalize", py::tuple(py::cast(by.mean)),
                          py::tuple(py::cast(by.deviation)));
  }
  py::tuple operator()(const MixOf& mix) const {
    py::list chains;
    for (const Parameters& chain : mix.chains) chains.append(list_from_operations(chain));
    return py::make_tuple("mix", mix.weight, mix.weights, chains, mixing_names.name(mix.mixing));
  }

 private:
  static py::tuple fill(const Color& color) { return py::make_tuple(color[0], color[1], color[2]); }
};

// The arguments of one tuple, by place.
class Arguments {
 public:
  explicit Arguments(const py::handle& tuple) : fields_(tuple.cast<py::tuple>()) {}
  std::string name() const { return fields_[0].cast<std::string>(); }
  int whole(size_t place) const {
    const int value = at<int>(place);
    if (std::abs(int64_t{value}) > largest_number)
      throw std::invalid_argument(name() + ": out of range");
    return value;
  }
  bool has(size_t place) const { return place < fields_.size(); }
  double real(size_t place) const { return at<double>(place); }
  Color fill(size_t place) const { return at<Color>(place); }
  // Pillow's if there is none at that place.
  Rounding rounding(size_t place, bool rounds) const {
    if (!has(place)) return Rounding::pillow;
    if (!rounds) throw std::invalid_argument(name() + " has no rounding like this");
    return rounding_names.value(at<std::string>(place));
  }
  // Of a warp, which has none with the bicubic filter.
  Rounding warp_rounding(size_t place, Interpolation filter) const {
    const Rounding made = rounding(place, filter != Interpolation::bicubic);
    if (made == Rounding::torch_v2_interleaved)
      throw std::invalid_argument(name() + " has no rounding like this");
    return made;
  }
  Interpolation interpolation(size_t place) const {
    return interpolation_names.value(at<std::string>(place));
  }
  template <class Value>
  Value at(size_t place) const {
    if (!has(place)) throw std::invalid_argument(name() + " needs more arguments than it has");
    return fields_[place].cast<Value>();
  }

 private:
  py::tuple fields_;
};

std::optional<Point> point(const std::optional<std::array<double, 2>>& pair) {
  if (!pair) return std::nullopt;
  return Point{(*pair)[0], (*pair)[1]};
}

EraseResult erase_result(const Arguments& given) {
  const auto values = given.at<std::string>(5);
  return {given.whole(1),
          given.whole(2),
          given.whole(3),
          given.whole(4),
          {values.begin(), values.end()},
          given.at<bool>(6),
          given.at<uint64_t>(7)};
}

std::optional<SourceBox> source_box(const Arguments& given, size_t place) {
  if (!given.has(place)) return std::nullopt;
  const auto sides = given.at<std::array<float, 4>>(place);
  return SourceBox{sides[0], sides[1], sides[2], sides[3]};
}

std::array<int, 2> size(const Arguments& given, size_t place) {
  const auto sides = given.at<std::array<int, 2>>(place);
  if (sides[0] < 1 || sides[1] < 1) throw std::invalid_argument("a size is of a pixel or more");
  return sides;
}

LookUp look_up(const Arguments& given) {
  const auto tables = given.at<std::string>(1);
  if (tables.size() != 256 && tables.size() != 3 * 256)
    throw std::invalid_argument("lookup needs a table of 256 levels, or one for each channel");
  return {{tables.begin(), tables.end()}};
}

SelectChannels select_channels(const Arguments& given) {
  SelectChannels made{};
  for (size_t i = 0; i < 3; ++i) {
    const int channel = given.whole(i + 1);
    if (channel < 0 || channel > 2) throw std::invalid_argument("channels are 0, 1 and 2");
    made.channels[i] = static_cast<uint8_t>(channel);
  }
  return made;
}

MixOf mix_of(const Arguments& given, int depth) {
  MixOf mix{given.at<float>(1),
            given.at<std::vector<float>>(2),
            {},
            mixing_names.value(given.at<std::string>(4))};
  for (const py::handle chain : given.at<py::list>(3))
    mix.chains.push_back(operations_from_list(chain, depth + 1));
  if (mix.chains.size() != mix.weights.size())
    throw std::invalid_argument("mix needs a weight for each chain");
  return mix;
}

}  // namespace

OperationList list_from_operations(const Parameters& operations) {
  OperationList result;
  for (const Operation& operation : operations) result.append(std::visit(AsTuple{}, operation));
  return result;
}

Operation operation_from_tuple(const py::handle& fields, int depth) {
  const Arguments given(fields);
  const std::string name = given.name();
  if (name == "crop")
    return CropTo{given.whole(1), given.whole(2), given.whole(3), given.whole(4), given.fill(5)};
  if (name == "resize")
    return ResizeTo{given.whole(1), given.whole(2), filter_names.value(given.at<std::string>(3)),
                    source_box(given, 4)};
  if (name == "reduce") return ReduceBy{given.whole(1), given.whole(2)};
  if (name == "lookup") return look_up(given);
  if (name == "channels") return select_channels(given);
  if (name == "hflip") return FlipHorizontally{};
  if (name == "vflip") return FlipVertically{};
  if (name == "blur")
    return BlurWith{given.whole(1), given.whole(2), given.real(3), given.real(4),
                    given.rounding(5, true)};
  if (name == "box_blur") return BoxBlurWith{given.real(1)};
  if (name == "affine") {
    const Interpolation interpolation = given.interpolation(2);
    const bool sized = given.has(5);
    AffineWith made{given.at<std::array<double, 6>>(1), interpolation, given.fill(3),
                    given.warp_rounding(sized ? 5 : 4, interpolation)};
    if (sized && made.rounding == Rounding::pillow)
      throw std::invalid_argument("a size is of a warp of tensors");
    if (sized) made.size = size(given, 4);
    return made;
  }
  if (name == "perspective") {
    const Interpolation interpolation = given.interpolation(2);
    return PerspectiveWith{given.at<std::array<double, 8>>(1), interpolation, given.fill(3),
                           given.warp_rounding(4, interpolation)};
  }
  if (name == "rotate")
    return RotateBy{given.real(1), given.interpolation(2), given.at<bool>(3),
                    point(given.at<std::optional<std::array<double, 2>>>(4)), given.fill(5)};
  if (name == "pad")
    return PadBy{{given.whole(1), given.whole(2), given.whole(3), given.whole(4)},
                 pad_mode_names.value(given.at<std::string>(5)),
                 given.fill(6)};
  if (name == "cutout")
    return EraseBox{given.whole(1), given.whole(2), given.whole(3), given.whole(4), given.fill(5)};
  if (name == "erase") return erase_result(given);
  if (name == "to_floats") return ToFloats{layout_names.value(given.at<std::string>(1))};
  if (name == "normalize")
    return NormalizeBy{given.at<std::array<float, 3>>(1), given.at<std::array<float, 3>>(2)};
  if (name == "mix") return mix_of(given, depth);
  const ColorKind kind = color_names.value(name);
  const bool plain = kind == ColorKind::invert || kind == ColorKind::autocontrast ||
                     kind == ColorKind::equalize || kind == ColorKind::grayscale;
  const bool rounds = rounds_on_tensors(kind) || kind == ColorKind::brightness;
  return ColorTo{kind, plain ? 0.0 : given.real(1), given.rounding(plain ? 1 : 2, rounds)};
}

Parameters operations_from_list(const py::handle& operations, int depth) {
  require_possible_nesting(depth);
  Parameters parameters;
  for (const py::handle item : operations.cast<py::sequence>())
    parameters.push_back(operation_from_tuple(item, depth));
  return parameters;
}

}  // namespace fusionloader
