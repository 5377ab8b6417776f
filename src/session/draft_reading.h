// What a session keeps for a draft model, or for the model's own draft layer.
#pragma once

namespace topkv {

/// The end of a session's text as a draft model or a draft layer has read it. The model's room
/// knows what it is. Forks do not share it: their text is read anew.
class DraftReading {
 public:
  DraftReading() = default;
  virtual ~DraftReading() = default;
  DraftReading(const DraftReading&) = delete;  // belongs to one session
  DraftReading& operator=(const DraftReading&) = delete;
};

}  // namespace topkv
