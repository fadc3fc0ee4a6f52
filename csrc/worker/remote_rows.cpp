#include "worker/remote_rows.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace fusionloader {

RemoteRows::RemoteRows(DatasetTable* table, size_t received_bytes,
                       const std::optional<ConvertSpec>& convert, int channels, SimdLevel simd)
    : table_(table), received_bytes_(received_bytes), row_bytes_(received_bytes), plane_(0) {
  if (received_bytes == 0) throw std::invalid_argument("a result has at least one byte");
  if (!convert) return;
  if (channels < 1 || received_bytes % static_cast<size_t>(channels) != 0)
    throw std::invalid_argument("levels come in planes of equal size");
  plane_ = received_bytes / static_cast<size_t>(channels);
  converter_ =
      std::make_unique<const Converter>(*convert, static_cast<int>(plane_), 1, channels, simd);
  row_bytes_ = converter_->result_bytes();
}

uint32_t RemoteRows::samples(const Claim& claim, uint32_t tiny_batch) {
  const BatchHeader& header = claim.header();
  const uint32_t begin = tiny_batch * header.tiny_size;
  return std::min(begin + header.tiny_size, header.samples) - begin;
}

void RemoteRows::write(WorkerQueue& queue, const Claim& claim, uint32_t tiny_batch,
                       const uint8_t* results) const {
  const BatchHeader& header = claim.header();
  const uint32_t begin = tiny_batch * header.tiny_size, count = samples(claim, tiny_batch);
  const size_t images = (header.payload_rows.load() * row_bytes_ + kAlign - 1) / kAlign * kAlign;
  uint8_t* payload = queue.rows(claim).data();
  auto* targets = reinterpret_cast<int64_t*>(payload + images);
  for (uint32_t i = 0; i < count; ++i, results += received_bytes_) {
    const SampleEntry entry = claim.entry(begin + i);
    uint8_t* row = payload + entry.row * row_bytes_;
    if (converter_)
      converter_->row(0, {results, plane_}, row);
    else
      std::memcpy(row, results, row_bytes_);
    targets[entry.row] = table_->target(static_cast<uint64_t>(entry.item));
  }
}

}  // namespace fusionloader
