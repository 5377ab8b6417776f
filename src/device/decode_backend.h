// A device's side of a session's decode steps, which the CUDA device and the host both implement.
//
// A step attends up to three kinds of rows: rows that are attended in any case, rows that are
// found, and all others by the estimate of a tail. The device attends the first kind. It may find
// rows, too: it scans codes (code_scanner.h), or it chooses entries by key summaries
// (entry_chooser.h). The host attends the rows that were found, where they lie.
#pragma once

#include <memory>

#include "src/device/async_scan.h"
#include "src/device/code_scanner.h"
#include "src/device/decode_inputs.h"
#include "src/device/entry_chooser.h"
#include "src/device/resident_window.h"
#include "src/device/session_shape.h"

namespace topkv {

/// The parts of one session's backend. ComputeDevice::decode_backend makes it for a SessionShape.
struct DecodeBackend {
  std::shared_ptr<void> owner;       ///< owns what the others point to
  DecodeInputs* inputs = nullptr;    ///< never null
  ResidentWindow* window = nullptr;  ///< never null
  CodeScanner* scanner = nullptr;    ///< null: not SessionShape::scans
  EntryChooser* chooser = nullptr;   ///< null: not SessionShape::chooses
  AsyncScan* async = nullptr;        ///< null: no step goes ahead of its lists
};

}  // namespace topkv
