#pragma once
// Rows that another machine has made, written into a batch slot as this machine's workers do.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "convert/convert.hpp"
#include "queue/worker_queue.hpp"
#include "simd/level.hpp"
#include "worker/dataset_table.hpp"

namespace fusionloader {

class RemoteRows {
 public:
  // A result comes as `received_bytes`: as it is, or as 8-bit levels of `channels` planes.
  RemoteRows(DatasetTable* table, size_t received_bytes, const std::optional<ConvertSpec>& convert,
             int channels, SimdLevel simd);

  DatasetTable& table() const { return *table_; }
  size_t received_bytes() const { return received_bytes_; }
  // Of the samples of a claim, how many it has.
  static uint32_t samples(const Claim& claim);
  // The samples of a claim as fusionloader/sharing/remote/protocol.py encodes them, and the paths
  // of their files; empty where a sample has no file of its own with an absolute path.
  struct Paths {
    std::string samples, paths;
  };
  Paths paths(const Claim& claim) const;
  // Where the results of a claim's samples go, if they are rows as they come.
  bool receives_rows() const { return converter_ == nullptr; }
  uint8_t* row(WorkerQueue& queue, const Claim& claim, uint32_t position) const;
  // Writes the targets of a claim.
  void write_targets(WorkerQueue& queue, const Claim& claim) const;
  // Writes the results of all samples of a claim, which lie one after the other, and the
  // targets. The caller holds the tiny-batch, and has checked that the table has its items.
  void write(WorkerQueue& queue, const Claim& claim, const uint8_t* results) const;

 private:
  int64_t* targets(WorkerQueue& queue, const Claim& claim) const;
  DatasetTable* table_;
  size_t received_bytes_, row_bytes_, plane_;
  std::unique_ptr<const Converter> converter_;  // none: results are copied
};

}  // namespace fusionloader
