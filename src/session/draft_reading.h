// What a session keeps for a draft model.
#pragma once

namespace topkv {

/// The end of a session's text as a draft model has read it. The model's room knows what it is.
/// Forks do not share it: a draft model reads a fork's text anew.
class DraftReading {
 public:
  DraftReading() = default;
  virtual ~DraftReading() = default;
  DraftReading(const DraftReading&) = delete;  // belongs to one session
  DraftReading& operator=(const DraftReading&) = delete;
};

}  // namespace topkv
