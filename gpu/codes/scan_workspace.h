// Where a session has what scans over some codes give it: lists in page-locked memory, partials in
// the device's.
#pragma once

#include <cstdint>
#include <span>

#include "gpu/attention/step_io.h"
#include "gpu/codes/code_scan.h"
#include "gpu/codes/codes.h"
#include "src/device/decode_backend.h"

namespace topkv::gpu {

/// Sizes and offsets of a scan workspace, in bytes.
struct ScanLayout {
  ScanLayout() = default;
  /// For scans over at most so many rows of a KV head.
  ScanLayout(const SessionShape& shape, std::int64_t most_rows);

  /// Of a scan for so many rows of each query head: that a list has room for, and tokens.
  std::int64_t list_rows(std::int64_t rows) const;
  std::int64_t scan_tokens(std::int64_t rows) const;
  /// Likewise, bytes of a token's lists.
  std::int64_t token_bytes(std::int64_t rows) const;

  std::int64_t lists = 0;  // of a token and KV head
  std::int64_t kv_heads = 0, group = 0, most_rows = 0, max_tokens = 0;
  std::int64_t rare = 0, estimate = 0, noise = 0, device_bytes = 0;
  std::int64_t host_bytes = 0;

  bool operator==(const ScanLayout&) const = default;
};

/// Does not own its memory. One thread gives it to scans, others read lists.
class ScanWorkspace {
 public:
  static constexpr int not_listed = -1;

  /// Lists are empty. device, host: of the layout's bytes.
  ScanWorkspace(const SessionShape& shape, const ScanLayout& layout, std::byte* device,
                std::byte* host);

  /// Has a scan over the codes of a layer find rows for number i of the tokens. allowed: [tokens,
  /// kv_heads]; queries: of the step, [tokens x q_heads, head_dim]. False, and nothing is changed:
  /// it has as many as it can, or others want something else.
  bool add_token(const CudaCodes& codes, std::int64_t layer, const CodeScanner::Scan& wanted,
                 std::span<const PositionRange> allowed, std::int64_t i, const float* queries,
                 CodeScan& scan) const;

  /// What scans gave for the tokens of a step; tail: they were asked for one.
  GivenScan given(bool tail) const;

  /// Its length, or not_listed, and then its rows.
  int* list(const CodeScanner::List& list) const;
  /// As scans expect it: nothing is listed that the last one left there.
  static void empty(int* list);
  void empty_all() const;

 private:
  DevicePartial partial(std::int64_t offset) const;
  TailNoise* noise() const { return reinterpret_cast<TailNoise*>(device_ + layout_.noise); }

  const AttentionShape& attention_;
  std::int64_t heads_;  // of all tokens of a step
  ScanLayout layout_;
  std::byte* device_;
  std::byte* host_;
};

}  // namespace topkv::gpu
