#include "ops/warp.hpp"

namespace fusionloader {

PackedImage packed_image(const Planes& in, GeometryWorkspace& workspace) {
  grow(workspace.packed, in.size() + PackedImage::slack);
  const uint8_t* planes[3];
  for (int channel = 0; channel < in.channels(); ++channel) planes[channel] = in.plane(channel);
  sampling_kernels(workspace.simd).pack(planes, in.channels(), in.size(), workspace.packed.data());
  return {workspace.packed.data(), in.width(), in.height()};
}

void warp(const Planes& in, Planes& out, PointMap map, const double* coefficients,
          Interpolation interpolation, const Color& fill, GeometryWorkspace& workspace) {
  if (in.size() == 0) return fill_planes(out, fill);
  const SamplingKernels& kernels = sampling_kernels(workspace.simd);
  const auto points = map == PointMap::affine ? kernels.affine : kernels.perspective;
  const Sampler sample = interpolation == Interpolation::nearest    ? kernels.nearest
                         : interpolation == Interpolation::bilinear ? kernels.bilinear
                                                                    : kernels.bicubic;
  const PackedImage image = packed_image(in, workspace);
  const uint32_t color = packed_color(fill, in.channels());
  // Vector kernels take whole groups, so the row's points go on past its end.
  const size_t group = PackedImage::slack;
  const auto width = static_cast<size_t>(out.width());
  const size_t count = (width + group - 1) / group * group;
  grow(workspace.xs, count);
  grow(workspace.ys, count);
  double *xs = workspace.xs.data(), *ys = workspace.ys.data();
  make_rows(out, workspace, [&](int y, uint32_t* row) {
    points(coefficients, y, count, xs, ys);
    sample(image, xs, ys, width, color, row);
  });
}

void perspective_transform(const Planes& in, Planes& out,
                           const PerspectiveCoefficients& coefficients, Interpolation interpolation,
                           const Color& fill, GeometryWorkspace& workspace) {
  out.reset(in.channels(), in.width(), in.height());
  warp(in, out, PointMap::perspective, coefficients.data(), interpolation, fill, workspace);
}

}  // namespace fusionloader
