#pragma once
// Rows that CPU workers have begun: the pixels before a plan's last stages, and behind them the
// program of what was drawn for these, which the device runs on the way into the batch.
#include "device/body.hpp"

namespace fusionloader::device {

constexpr uint32_t most_rows_augmented = 4096;

// A kernel's argument. `which` has a bit for each row that is to be augmented. A program is a batch
// of one sample without a conversion's table; its addresses are not used.
struct ProgramRows {
  uint64_t rows, results, table;  // addresses of row 0 of both; channels x 256 elements
  uint64_t work;                  // of the first of these rows
  uint64_t row_bytes, program;    // where the program begins, in bytes from the row's beginning
  uint64_t result_bytes, work_bytes;
  uint32_t first_row;
  uint32_t which[most_rows_augmented / 32];
};

// A row counted from `first_row`.
template <class Team>
FUSIONLOADER_BOTH void augment_row(Team& team, const ProgramRows& rows, uint32_t number) {
  if ((rows.which[number / 32] >> (number % 32) & 1) == 0) return;
  const uint64_t row = rows.first_row + uint64_t{number};
  const auto* pixels = reinterpret_cast<const uint8_t*>(rows.rows + row * rows.row_bytes);
  const uint8_t* program = pixels + rows.program;
  const Batch& batch = *reinterpret_cast<const Batch*>(program);
  if (batch.samples != 1) return;  // a sample that was left out: its row is no sample's
  run_record(team, program, *reinterpret_cast<const Record*>(program + batch.records),
             {pixels, reinterpret_cast<const uint8_t*>(rows.table),
              reinterpret_cast<uint8_t*>(rows.work + number * rows.work_bytes),
              reinterpret_cast<void*>(rows.results + row * rows.result_bytes)});
}

}  // namespace fusionloader::device
