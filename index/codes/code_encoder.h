// Coding vectors elsewhere than on the host's threads, with what these have learned of them.
#pragma once

#include <cstdint>

#include "index/codes/key_codes.h"
#include "index/codes/value_codes.h"
#include "topkv/view.h"

namespace topkv {

/// Safe from many threads, of which those wait that it does not serve.
/// REQUIRES: vectors in bf16, each right behind the last.
class CodeEncoder {
 public:
  virtual ~CodeEncoder() = default;

  /// Codes all keys: what KeyCoder::encode(keys, 0, keys.count, codes, residuals) does, up to the
  /// rounding of sums, which decides between two levels where a key lies in the middle of them.
  virtual void encode(const KeyCoder& coder, const KeyView& keys, std::uint8_t* codes,
                      float* residuals) = 0;
  /// Likewise all values (ValueCoder::encode). REQUIRES: coder.bits() > 0.
  virtual void encode(const ValueCoder& coder, const KeyView& values, std::uint8_t* codes) = 0;
};

}  // namespace topkv
