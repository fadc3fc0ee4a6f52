#include "device/program_writer.hpp"

#include <cstring>
#include <stdexcept>
#include <string>

namespace fusionloader::device {

ProgramWriter::ProgramWriter(const PlanSpec& plan, size_t bytes, size_t work_bytes)
    : program_(plan, BatchBuilder::Table::elsewhere),
      width_(plan.width),
      height_(plan.height),
      bytes_(bytes),
      work_bytes_(work_bytes) {
  if (bytes % BatchBuilder::alignment != 0 || bytes < sizeof(Batch))
    throw std::invalid_argument("a program takes at least a header, and a multiple of 16 bytes");
}

void ProgramWriter::clear(uint8_t* to) {
  const Batch none{};
  std::memcpy(to, &none, sizeof none);
}

void ProgramWriter::write(const Parameters& operations, uint8_t* to) {
  program_.clear();
  program_.add(operations, {0, width_, height_}, 0);
  if (program_.bytes() > bytes_ || program_.work_bytes() > work_bytes_)
    throw std::logic_error("a program takes " + std::to_string(program_.bytes()) + " of " +
                           std::to_string(bytes_) + " bytes, and " +
                           std::to_string(program_.work_bytes()) + " of " +
                           std::to_string(work_bytes_) + " to work in");
  program_.write(to);
}

}  // namespace fusionloader::device
