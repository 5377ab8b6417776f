// Steps that go ahead: the call returns before the lists of the step's scan are attended.
#pragma once

#include "topkv/attention.h"

namespace topkv {

/// The steps of one token that go ahead of their lists, on a device that scans.
///
/// Such a step calls DecodeInputs::begin, CodeScanner::scan, ResidentWindow::attend,
/// DecodeInputs::wait_for_inputs and finish_async. Other threads read the lists meanwhile: they
/// call wait_for_scan, wait_for_queries and CodeScanner::drain_list, write to
/// DecodeInputs::host_partial_buffer(), and call publish_partial. They do not call the device's
/// driver. The device itself waits for them, and the caller may go on with the next step. Steps
/// that do not go ahead may follow after publish_partial.
class AsyncScan {
 public:
  virtual ~AsyncScan() = default;

  /// Returns the number of the step that has begun, which is unlike the numbers of the steps around
  /// it.
  virtual int step_id() const = 0;
  /// Waits, busily, until the device comes to the scan of a step that goes ahead. Safe from any
  /// thread, as are wait_for_queries and publish_partial.
  virtual void wait_for_scan(int id) = 0;
  /// Waits, busily, for the queries of a step that goes ahead, and returns them: [passes, q_heads,
  /// head_dim], valid until publish_partial.
  virtual const float* wait_for_queries(int id) = 0;
  /// Says that the partial of a step that goes ahead lies in host_partial_buffer().
  virtual void publish_partial(int id) = 0;
  /// Ends the step as DecodeInputs::finish does with host_partial_buffer() as the host's partial,
  /// enqueued before that buffer holds the partial. host_attends: false if there is no such
  /// partial, and publish_partial is not called. The caller holds the device's lock.
  virtual void finish_async(const AttentionStep& step, bool host_attends) = 0;
  /// Returns the rows that the device itself has attended of those that scans found
  /// (CodeScanner::Scan::attend_found), over layers and KV heads. Waits for the steps. The caller
  /// holds the device's lock.
  virtual std::int64_t rows_attended() const = 0;
  /// Releases threads that wait with Wait::spin when there is nothing left to wait for: their
  /// calls then throw. Throws when the device no longer works.
  virtual void release_abandoned_waiters() = 0;
};

}  // namespace topkv
