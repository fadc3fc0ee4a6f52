#pragma once
// Names of enumerations as Python writes them.
#include <stdexcept>
#include <string>
#include <utility>

#include "plan/stages.hpp"

namespace fusionloader {

template <class Value, size_t count>
struct Names {
  const char* what;
  std::pair<const char*, Value> all[count];

  Value value(const std::string& name) const {
    for (const auto& [known, value] : all)
      if (name == known) return value;
    throw std::invalid_argument(std::string("unknown ") + what + " " + name);
  }
  const char* name(Value value) const {
    for (const auto& [known, candidate] : all)
      if (candidate == value) return known;
    throw std::logic_error(std::string("a nameless ") + what);
  }
};

inline constexpr Names<Filter, 10> filter_names{
    "filter",
    {{"box", Filter::box},
     {"bilinear", Filter::bilinear},
     {"hamming", Filter::hamming},
     {"bicubic", Filter::bicubic},
     {"lanczos", Filter::lanczos},
     {"torch_bilinear", Filter::torch_bilinear},
     {"torch_bicubic", Filter::torch_bicubic},
     {"float_bilinear", Filter::float_bilinear},
     {"float_bicubic", Filter::float_bicubic},
     {"float_aliased_bilinear", Filter::float_aliased_bilinear}}};

inline constexpr Names<Interpolation, 3> interpolation_names{"interpolation",
                                                             {{"nearest", Interpolation::nearest},
                                                              {"bilinear", Interpolation::bilinear},
                                                              {"bicubic", Interpolation::bicubic}}};

inline constexpr Names<Rounding, 8> rounding_names{
    "rounding",
    {{"pillow", Rounding::pillow},
     {"torch_v1", Rounding::torch_v1},
     {"torch_v2", Rounding::torch_v2},
     {"torch_v2_interleaved", Rounding::torch_v2_interleaved},
     {"torch_unfilled", Rounding::torch_unfilled},
     {"torch_v1_unfused", Rounding::torch_v1_unfused},
     {"torch_v2_unfused", Rounding::torch_v2_unfused},
     {"torch_unfilled_unfused", Rounding::torch_unfilled_unfused}}};

inline constexpr Names<Layout, 2> layout_names{
    "layout", {{"planar", Layout::planar}, {"kept", Layout::kept}}};

inline constexpr Names<PadMode, 4> pad_mode_names{"padding mode",
                                                  {{"constant", PadMode::constant},
                                                   {"edge", PadMode::edge},
                                                   {"reflect", PadMode::reflect},
                                                   {"symmetric", PadMode::symmetric}}};

inline constexpr Names<ColorKind, 12> color_names{"color operation",
                                                  {{"brightness", ColorKind::brightness},
                                                   {"contrast", ColorKind::contrast},
                                                   {"saturation", ColorKind::saturation},
                                                   {"hue", ColorKind::hue},
                                                   {"sharpness", ColorKind::sharpness},
                                                   {"posterize", ColorKind::posterize},
                                                   {"solarize", ColorKind::solarize},
                                                   {"solarize_add", ColorKind::solarize_add},
                                                   {"invert", ColorKind::invert},
                                                   {"autocontrast", ColorKind::autocontrast},
                                                   {"equalize", ColorKind::equalize},
                                                   {"grayscale", ColorKind::grayscale}}};

inline constexpr Names<PolicyOp, 24> policy_names{"policy operation",
                                                  {{"identity", PolicyOp::identity},
                                                   {"shear_x", PolicyOp::shear_x},
                                                   {"shear_y", PolicyOp::shear_y},
                                                   {"translate_x", PolicyOp::translate_x},
                                                   {"translate_y", PolicyOp::translate_y},
                                                   {"skew_x", PolicyOp::skew_x},
                                                   {"skew_y", PolicyOp::skew_y},
                                                   {"shift_x", PolicyOp::shift_x},
                                                   {"shift_y", PolicyOp::shift_y},
                                                   {"rotate", PolicyOp::rotate},
                                                   {"brightness", PolicyOp::brightness},
                                                   {"contrast", PolicyOp::contrast},
                                                   {"saturation", PolicyOp::saturation},
                                                   {"sharpness", PolicyOp::sharpness},
                                                   {"posterize", PolicyOp::posterize},
                                                   {"solarize", PolicyOp::solarize},
                                                   {"solarize_add", PolicyOp::solarize_add},
                                                   {"invert", PolicyOp::invert},
                                                   {"autocontrast", PolicyOp::autocontrast},
                                                   {"equalize", PolicyOp::equalize},
                                                   {"cutout", PolicyOp::cutout},
                                                   {"hflip", PolicyOp::hflip},
                                                   {"box_blur", PolicyOp::box_blur},
                                                   {"box_blur_up_to", PolicyOp::box_blur_up_to}}};

inline constexpr Names<Mixing, 3> mixing_names{
    "way of mixing",
    {{"sum", Mixing::sum}, {"over", Mixing::over}, {"successive", Mixing::successive}}};

}  // namespace fusionloader
