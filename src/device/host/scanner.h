// Scans over codes by the host, where the codes lie.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "index/codes/code_pass.h"
#include "src/device/code_scanner.h"
#include "src/device/host/codes.h"
#include "src/device/session_shape.h"

namespace topkv {

/// Scans are complete when scan returns. A list is an equal part of the rows that a scan found.
class HostScanner final : public CodeScanner {
 public:
  /// shape: of the session, which outlives this.
  explicit HostScanner(const SessionShape& shape);

  void scan(std::int64_t layer, std::span<const Scan> parts) override;
  std::int64_t scan_tokens(std::int64_t /*rows*/) const override { return shape_.max_tokens; }
  void scan_own(std::shared_ptr<const DeviceIndex> codes) override;
  TailParts scanned() override { return of_context_.parts(); }
  void drain_list(const List& list, Wait wait, ArrivingRows& rows) override;

  /// A step begins: it has no scans. out: the place for the partials of the step's scans.
  void begin_step(const TokenQueries& queries, PartialView out);
  /// Returns whether the step's scans made an estimate that is to be added to the step. The caller
  /// of a step with SessionShape::has_row_rules adds it.
  bool has_estimate() const { return has_estimate_; }

 private:
  /// The results of scans over some codes, for the tokens of a step.
  struct Found {
    Partial rare;
    EstimateBuffer estimate;
    std::vector<std::vector<std::int64_t>> listed;  // by the last scan, [tokens, kv_heads]

    TailParts parts() { return estimate.with(rare.view()); }
    void reset(std::int64_t heads, std::int64_t head_dim) {
      estimate.reset(heads, head_dim);
      rare.reset(heads, head_dim);
    }
    void reset_lists(std::int64_t count) {
      if (std::ssize(listed) < count) listed.resize(static_cast<std::size_t>(count));
    }
  };

  static void scan(const HostCodes& codes, std::int64_t layer, std::span<const Scan> parts,
                   Found HostScanner::*to);
  void begin_scan(const Scan& scan);
  void add_tokens(const Scan& scan, std::int64_t head, Found HostScanner::*to,
                  std::vector<PassToken>& tokens);
  void end_scan(const Scan& scan);

  const SessionShape& shape_;
  TokenQueries queries_;
  PartialView out_;
  std::shared_ptr<const DeviceIndex> own_codes_;  // null: own rows have no codes
  Found of_context_;
  Found of_own_;
  bool scanned_ = false;  // in this step
  bool has_estimate_ = false;
};

}  // namespace topkv
