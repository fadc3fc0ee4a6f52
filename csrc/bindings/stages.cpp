#include "bindings/stages.hpp"

#include <pybind11/stl.h>

#include <cmath>
#include <functional>
#include <unordered_map>

#include "bindings/buffers.hpp"
#include "bindings/names.hpp"
#include "bindings/operations.hpp"
#include "ops/limits.hpp"

namespace py = pybind11;

namespace fusionloader {
namespace {

// A value of fusionloader.transforms.plan.stages, read by its fields' names.
class Fields {
 public:
  explicit Fields(py::handle object) : object_(object) {}
  std::string type() const { return py::str(py::type::of(object_).attr("__name__")); }
  py::object at(const char* name) const { return object_.attr(name); }
  template <class Value>
  Value get(const char* name) const {
    return at(name).cast<Value>();
  }
  int whole(const char* name) const { return between(name, -largest_number, largest_number); }
  std::optional<int> maybe_whole(const char* name) const {
    if (at(name).is_none()) return std::nullopt;
    return whole(name);
  }
  // How often something is done.
  int count(const char* name, int least) const { return between(name, least, 4096); }
  int between(const char* name, int least, int most) const {
    const int value = get<int>(name);
    if (value < least || value > most) out_of_range(name);
    return value;
  }
  double finite(const char* name) const {
    const double value = real(name);
    if (!std::isfinite(value)) out_of_range(name);
    return value;
  }
  // More than 0 and at most `most`.
  double positive(const char* name, double most) const {
    const double value = real(name);
    if (!(value > 0.0 && value <= most)) out_of_range(name);
    return value;
  }
  [[noreturn]] static void out_of_range(const char* name) {
    throw std::invalid_argument(std::string("a plan's ") + name + " is out of range");
  }
  double real(const char* name) const { return get<double>(name); }
  std::string text(const char* name) const { return get<std::string>(name); }
  Range range(const char* name) const { return get<Range>(name); }
  std::optional<Range> maybe_range(const char* name) const {
    return get<std::optional<Range>>(name);
  }
  std::optional<Point> centre() const {
    const std::optional<Range> pair = maybe_range("centre");
    if (!pair) return std::nullopt;
    return Point{(*pair)[0], (*pair)[1]};
  }
  Color fill() const { return get<Color>("fill"); }
  Filter filter() const { return filter_names.value(text("filter")); }
  Rounding rounding() const { return rounding_names.value(text("rounding")); }
  Interpolation interpolation() const { return interpolation_names.value(text("interpolation")); }

 private:
  py::handle object_;
};

Magnitude magnitude_from(const Fields& given) {
  static constexpr Names<Magnitude::Source, 3> sources{"source of levels",
                                                       {{"listed", Magnitude::Source::listed},
                                                        {"normal", Magnitude::Source::normal},
                                                        {"uniform", Magnitude::Source::uniform}}};
  static constexpr Names<Magnitude::RelativeTo, 3> sides{
      "side",
      {{"nothing", Magnitude::RelativeTo::nothing},
       {"width", Magnitude::RelativeTo::width},
       {"height", Magnitude::RelativeTo::height}}};
  Magnitude made{sources.value(given.text("source")),
                 given.get<std::vector<double>>("levels"),
                 given.range("clip"),
                 given.finite("scale"),
                 given.finite("offset"),
                 given.get<bool>("truncate"),
                 given.get<bool>("either_sign"),
                 sides.value(given.text("relative_to")),
                 given.whole("bins"),
                 given.range("bounds")};
  const size_t needed = made.source == Magnitude::Source::listed ? 1 : 2;
  if (made.levels.size() < needed) throw std::invalid_argument("a magnitude needs levels");
  for (const double level : made.levels)
    if (!std::isfinite(level)) Fields::out_of_range("level");
  if (!(made.clip[0] <= made.clip[1])) Fields::out_of_range("clip");
  if (!(made.bounds[0] <= made.bounds[1])) Fields::out_of_range("bounds");
  return made;
}

RandomPolicy policy_from(const Fields& given) {
  RandomPolicy made{{},
                    given.count("repeats", 0),
                    {},
                    given.fill(),
                    given.get<std::vector<double>>("weights"),
                    given.get<bool>("distinct"),
                    given.rounding(),
                    rounding_names.value(given.text("warp_rounding"))};
  for (const py::handle steps : given.at("policies")) {
    std::vector<PolicyStep> policy;
    for (const py::handle item : steps) {
      const Fields step(item);
      policy.push_back({policy_names.value(step.text("op")), step.real("probability"),
                        magnitude_from(Fields(step.at("magnitude")))});
    }
    made.policies.push_back(std::move(policy));
  }
  for (const py::handle name : given.at("interpolations"))
    made.interpolations.push_back(interpolation_names.value(name.cast<std::string>()));
  if (made.policies.empty() || made.interpolations.empty())
    throw std::invalid_argument("a policy needs operations and an interpolation");
  if (!made.weights.empty() && made.weights.size() != made.policies.size())
    throw std::invalid_argument("a policy needs a weight for each choice");
  if (made.distinct && made.weights.empty()) made.weights.assign(made.policies.size(), 1.0);
  return made;
}

class Reader {
 public:
  std::vector<StageNode> list(const py::handle& stages) {
    require_possible_nesting(depth_++);
    std::vector<StageNode> made;
    for (const py::handle stage : stages) {
      const unsigned number = next_++;
      made.push_back({one(Fields(stage)), number});
    }
    --depth_;
    return made;
  }

 private:
  std::vector<std::vector<StageNode>> branches(const Fields& given) {
    std::vector<std::vector<StageNode>> made;
    for (const py::handle branch : given.at("branches")) made.push_back(list(branch));
    if (made.empty()) throw std::invalid_argument("a choice needs branches");
    return made;
  }

  Stage one(const Fields& given) {
    const std::string type = given.type();
    if (type == "RandomApply")
      return RandomApply{given.real("probability"), list(given.at("stages"))};
    if (type == "RandomOrder") return RandomOrder{branches(given)};
    if (type == "RandomChoice") {
      RandomChoice made{branches(given), given.get<std::vector<double>>("weights")};
      if (made.weights.size() != made.branches.size())
        throw std::invalid_argument("a choice needs a weight for each branch");
      return made;
    }
    const auto reader = plain().find(type);
    if (reader == plain().end()) throw std::invalid_argument("unknown stage " + type);
    return reader->second(given);
  }

  using Plain = std::unordered_map<std::string, std::function<Stage(const Fields&)>>;
  static const Plain& plain() {
    static const Plain readers{
        {"RandomResizedCrop", random_resized_crop},
        {"ResizeShorterSide",
         [](const Fields& given) {
           return ResizeShorterSide{given.whole("size"), given.maybe_whole("max_size"),
                                    given.filter()};
         }},
        {"Resize",
         [](const Fields& given) {
           return ResizeStage{given.whole("height"), given.whole("width"), given.filter()};
         }},
        {"CenterCrop",
         [](const Fields& given) {
           return CenterCrop{given.whole("height"), given.whole("width"),
                             given.get<bool>("truncated")};
         }},
        {"ResizeKeepRatio", resize_keep_ratio},
        {"CropOrPad",
         [](const Fields& given) {
           return CropOrPad{given.whole("height"), given.whole("width"), given.get<bool>("random"),
                            pad_mode_names.value(given.text("mode")), given.fill()};
         }},
        {"TrimBorder", [](const Fields& given) { return TrimBorder{given.whole("border")}; }},
        {"RandomCrop", random_crop},
        {"RandomHorizontalFlip",
         [](const Fields& given) { return RandomHorizontalFlip{given.real("probability")}; }},
        {"RandomVerticalFlip",
         [](const Fields& given) { return RandomVerticalFlip{given.real("probability")}; }},
        {"ColorJitter",
         [](const Fields& given) {
           return ColorJitter{given.maybe_range("brightness"), given.maybe_range("contrast"),
                              given.maybe_range("saturation"), given.maybe_range("hue"),
                              given.rounding()};
         }},
        {"GaussianBlur",
         [](const Fields& given) {
           return GaussianBlur{given.whole("kernel_width"), given.whole("kernel_height"),
                               given.range("sigma"), given.rounding()};
         }},
        {"RandomRotation",
         [](const Fields& given) {
           return RandomRotation{
               given.range("degrees"), given.interpolation(), given.get<bool>("expand"),
               given.centre(),         given.fill(),          given.rounding()};
         }},
        {"RandomAffine",
         [](const Fields& given) {
           return RandomAffine{given.range("degrees"),
                               given.maybe_range("translate"),
                               given.maybe_range("scale"),
                               given.maybe_range("shear_x"),
                               given.maybe_range("shear_y"),
                               given.interpolation(),
                               given.centre(),
                               given.fill(),
                               given.rounding()};
         }},
        {"RandomPerspective",
         [](const Fields& given) {
           // 0 is possible too: nothing moves.
           const double distortion = given.real("distortion");
           if (!(distortion >= 0.0 && distortion <= 1.0)) Fields::out_of_range("distortion");
           return RandomPerspective{distortion, given.interpolation(), given.fill(),
                                    given.rounding()};
         }},
        {"Fixed",
         [](const Fields& given) { return Fixed{operation_from_tuple(given.at("operation"))}; }},
        {"RandomPolicy", [](const Fields& given) { return policy_from(given); }},
        {"AugMix",
         [](const Fields& given) {
           return AugMix{policy_from(Fields(given.at("operations"))), given.count("width", 1),
                         given.count("depth", -4096), given.positive("alpha", 1e6),
                         mixing_names.value(given.text("mixing"))};
         }},
        {"RandomErasing", random_erasing},
    };
    return readers;
  }

  static Stage random_resized_crop(const Fields& given) {
    RandomResizedCrop made{given.whole("height"),
                           given.whole("width"),
                           given.range("scale"),
                           given.range("ratio"),
                           {}};
    made.filters = filters(given);
    return made;
  }

  static Stage resize_keep_ratio(const Fields& given) {
    return ResizeKeepRatio{given.whole("height"),
                           given.whole("width"),
                           given.real("longest"),
                           given.real("scale_probability"),
                           given.real("aspect_probability"),
                           given.range("scale"),
                           given.range("aspect"),
                           given.get<bool>("scale_is_area"),
                           filters(given)};
  }

  static std::vector<Filter> filters(const Fields& given) {
    std::vector<Filter> made;
    for (const py::handle name : given.at("filters"))
      made.push_back(filter_names.value(name.cast<std::string>()));
    if (made.empty()) throw std::invalid_argument("a resize needs a filter");
    return made;
  }

  static Stage random_crop(const Fields& given) {
    const auto padding = given.get<std::array<int, 4>>("padding");
    for (const int side : padding)
      if (std::abs(int64_t{side}) > largest_number) Fields::out_of_range("padding");
    return RandomCrop{given.whole("height"),
                      given.whole("width"),
                      padding[0],
                      padding[1],
                      padding[2],
                      padding[3],
                      given.get<bool>("pad_if_needed"),
                      given.fill()};
  }

  static Stage random_erasing(const Fields& given) {
    const auto values = given.get<std::string>("values");
    const int least = given.count("least_boxes", 1);
    return RandomErasing{given.real("probability"),
                         given.range("scale"),
                         given.range("ratio"),
                         {values.begin(), values.end()},
                         given.get<bool>("noise_per_pixel"),
                         least,
                         given.count("most_boxes", least)};
  }

  unsigned next_ = 0;
  int depth_ = 0;  // of the list being read
};

}  // namespace

std::vector<StageNode> stages_from_python(const py::handle& stages) {
  return Reader().list(stages);
}

ConvertSpec convert_from_tuple(const py::tuple& fields) {
  const auto type = fields[0].cast<std::string>();
  ConvertSpec spec{};
  if (type == "uint8")
    spec.element_size = 1;
  else if (type == "float16" || type == "bfloat16")
    spec.element_size = 2;
  else if (type == "float32")
    spec.element_size = 4;
  else if (type == "float64")
    spec.element_size = 8;
  else
    throw std::invalid_argument("unknown element type " + type);
  spec.is_float32 = type == "float32";
  const Buffer table(fields[1], readable);
  spec.table.assign(table.bytes().data, table.bytes().data + table.bytes().size);
  return spec;
}

}  // namespace fusionloader
