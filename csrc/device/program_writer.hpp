#pragma once
// Writes the programs of rows that a device finishes, see program_rows.hpp.
#include "device/builder.hpp"
#include "plan/row_tail.hpp"

namespace fusionloader::device {

class ProgramWriter final : public RowTail {
 public:
  // For the plan's last stages, which change no size. A program takes `bytes` at most, and working
  // memory of `work_bytes`.
  ProgramWriter(const PlanSpec& plan, size_t bytes, size_t work_bytes);

  size_t bytes() const override { return bytes_; }
  void clear(uint8_t* to) override;
  // Throws std::logic_error for a program that takes more.
  void write(const Parameters& operations, uint8_t* to) override;

 private:
  BatchBuilder program_;
  int width_, height_;
  size_t bytes_, work_bytes_;
};

}  // namespace fusionloader::device
