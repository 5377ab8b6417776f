// The results of scans over codes for the steps of a session: lists of rows in page-locked host
// memory, partials in device memory.
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
  /// A layout for scans over the codes of at most `most_rows` rows of a KV head.
  ScanLayout(const SessionShape& shape, std::int64_t most_rows);

  /// The capacity of a list, in rows, in a scan for `rows` rows of each query head.
  std::int64_t list_rows(std::int64_t rows) const { return list_rows(rows, lists); }
  /// The most tokens of a scan for `rows` rows of each query head.
  std::int64_t scan_tokens(std::int64_t rows) const;
  /// The bytes of a token's lists in a scan for `rows` rows of each query head.
  std::int64_t token_bytes(std::int64_t rows) const;
  /// The capacity of the one list of a KV head whose rows the device attends.
  std::int64_t listed_rows(std::int64_t rows) const { return list_rows(rows, 1); }

  std::int64_t lists = 0;  // for each token and KV head
  std::int64_t kv_heads = 0, group = 0, most_rows = 0, max_tokens = 0;
  std::int64_t rare = 0, estimate = 0, noise = 0, listed = 0, device_lists = 0, device_bytes = 0;
  std::int64_t host_bytes = 0;

  bool operator==(const ScanLayout&) const = default;

 private:
  std::int64_t list_rows(std::int64_t rows, std::int64_t lists_of_head) const;
};

/// A view of memory that it does not own. One thread adds tokens to scans; other threads read the
/// lists.
class ScanWorkspace {
 public:
  static constexpr int not_listed = -1;

  /// Empties the lists. device, host: memory of layout.device_bytes and layout.host_bytes bytes.
  ScanWorkspace(const SessionShape& shape, const ScanLayout& layout, std::byte* device,
                std::byte* host);

  /// The rows that the tokens of a step may find.
  struct Allowed {
    std::span<const PositionRange> rows;  ///< [tokens, kv_heads]
    std::int64_t first = 0;               ///< position of row 0
  };
  /// Adds token number i of a step to a scan over the codes of its layer. Returns false, and
  /// changes nothing, if the scan is full or its other tokens want something else.
  bool add_token(const CudaCodes& codes, const CodeScanner::Scan& wanted, const Allowed& allowed,
                 std::int64_t i, const AttentionStep& step, CodeScan& scan) const;

  /// The partials of the scans for the tokens of a step; exact: over rare rows. tail: whether the
  /// scans estimate the tail.
  TailParts given(bool tail) const;

  /// Has the device attend the rows that a scan of one token finds, in place of the host.
  /// rows: of the scan's layer; the rest of it is set here.
  void attend_listed(ListedRows rows, const CodeScanner::Scan& wanted, CodeScan& scan) const;
  /// The partial that attend_listed gives.
  PartialView listed() const;

  /// The list: its length, or not_listed while the device still adds rows, then the rows.
  int* list(const CodeScanner::List& list) const;
  /// Prepares a list for the next scan: removes its length and its rows.
  static void empty(int* list);
  /// Prepares all lists for the next scan.
  void empty_all() const;

 private:
  const AttentionShape& attention_;
  std::int64_t heads_;  // of all tokens of a step
  ScanLayout layout_;
  std::byte* device_;
  std::byte* host_;
};

}  // namespace topkv::gpu
