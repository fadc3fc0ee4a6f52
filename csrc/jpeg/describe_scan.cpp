#include "jpeg/describe_scan.hpp"

#include <algorithm>

namespace fusionloader {
namespace {

bool describe_code(const JHUFF_TBL* table, HuffmanCode& code) {
  if (!table) return false;
  std::copy(std::begin(table->bits), std::end(table->bits), code.counts.begin());
  std::copy(std::begin(table->huffval), std::end(table->huffval), code.symbols.begin());
  return true;
}

// Tables are numbered from 0 to 3.
template <class Table>
const Table* numbered(Table* const (&tables)[NUM_HUFF_TBLS], int number) {
  return number >= 0 && number < NUM_HUFF_TBLS ? tables[number] : nullptr;
}

bool describe_component(const jpeg_decompress_struct& info, const jpeg_component_info& from,
                        FrameComponent& to, ScanCodes& codes) {
  const JQUANT_TBL* quantisers = numbered(info.quant_tbl_ptrs, from.quant_tbl_no);
  if (!quantisers) return false;
  std::copy(std::begin(quantisers->quantval), std::end(quantisers->quantval),
            to.quantisers.begin());
  // A component by itself has one block in an MCU, whatever its factors say.
  const bool alone = info.num_components == 1;
  to.h = alone ? 1 : from.h_samp_factor;
  to.v = alone ? 1 : from.v_samp_factor;
  return describe_code(numbered(info.dc_huff_tbl_ptrs, from.dc_tbl_no), codes.dc) &&
         describe_code(numbered(info.ac_huff_tbl_ptrs, from.ac_tbl_no), codes.ac);
}

}  // namespace

bool describe_scan(const jpeg_decompress_struct& info, BaselineScan& scan) {
  const bool color = info.num_components == 3 && info.jpeg_color_space == JCS_YCbCr;
  const bool grey = info.num_components == 1 && info.jpeg_color_space == JCS_GRAYSCALE;
  if (!(color || grey) || info.progressive_mode || info.arith_code || info.data_precision != 8 ||
      info.comps_in_scan != info.num_components || info.Ss != 0 || info.Se != DCTSIZE2 - 1 ||
      info.Ah != 0 || info.Al != 0)
    return false;
  scan.width = static_cast<int>(info.image_width);
  scan.height = static_cast<int>(info.image_height);
  scan.count = info.num_components;
  scan.restart_interval = static_cast<int>(info.restart_interval);
  scan.data = {info.src->next_input_byte, info.src->bytes_in_buffer};
  for (size_t i = 0; i < static_cast<size_t>(scan.count); ++i)
    if (info.cur_comp_info[i] != &info.comp_info[i] ||
        !describe_component(info, info.comp_info[i], scan.components[i], scan.codes[i]))
      return false;
  return true;
}

}  // namespace fusionloader
