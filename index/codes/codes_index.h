// An index of codes: every search scores all keys by a few bytes each (key_codes.h) and then, as
// all approximate indices do, the best of them exactly.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "index/codes/code_encoder.h"
#include "index/codes/key_codes.h"
#include "index/common/approximate_index.h"
#include "src/core/memory/huge_vector.h"
#include "topkv/index_spec.h"

namespace topkv {

/// codes:k=16,v=8
struct CodesParams {
  std::int64_t key_bytes = 16;   ///< of a key's code for each 128 dims or part of them
  std::int64_t value_bytes = 8;  ///< and of a value's, which the tail is made of; 0: no tail

  std::string text() const;
  /// Bytes of a key's code, and bits of a value's, where they have so many dims.
  std::int64_t bytes_of_key(std::int64_t dim) const;
  std::int64_t bits_of_value(std::int64_t dim) const;
};

class CodesIndex final : public ApproximateIndex {
 public:
  /// Of so many keys one is rare.
  static constexpr std::int64_t keys_per_rare = 256;

  explicit CodesIndex(const CodesParams& params)
      : ApproximateIndex(keys_per_rare), params_(params) {}

  /// add(keys) and build(); encoder: has the keys coded, if not null, and may go afterwards.
  void build_with(CodeEncoder* encoder, const KeyView& keys, const std::stop_token& stop);

  std::int64_t memory() const override;
  std::int64_t bytes_searched() const override { return memory(); }
  std::string spec() const override { return params_.text(); }
  const CodesIndex* codes_index() const override { return this; }

  const CodesParams& params() const { return params_; }
  const KeyCoder& coder() const { return coder_; }
  const std::uint8_t* codes() const { return codes_.data(); }

 protected:
  void insert_judged(std::int64_t first, std::vector<float>& residuals,
                     const std::stop_token& stop) override;
  void clear_structure() override;
  void structure_fields(Archive& archive) override;
  void candidates(const float* query, PositionRange allowed, std::int64_t want,
                  std::vector<std::int64_t>& found) const override;
  void all_candidates(const QueryBlock& queries, std::int64_t want,
                      std::span<std::vector<std::int64_t>> found) const override;

 private:
  void encode(std::int64_t first, float* residuals, const std::stop_token& stop);

  CodesParams params_;
  CodeEncoder* encoder_ = nullptr;  // during build_with
  KeyCoder coder_;
  HugeVector<std::uint8_t> codes_;
};

/// spec: the whole string; options: what follows "codes:". Throws InvalidArgument.
std::shared_ptr<const IndexFactory> codes_factory(std::string_view spec, std::string_view options);

/// "mean", a tail alone: keys' codes of 16 bytes tell the masses of rows, and the mean of all rows'
/// values is what they add. Any index of such codes serves it.
std::shared_ptr<const IndexFactory> mean_factory();

}  // namespace topkv
