#include "index/codes/codes_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "index/codes/code_pass.h"
#include "index/codes/code_tail.h"
#include "index/common/index_factory.h"
#include "index/common/scratch.h"
#include "index/common/spec.h"
#include "src/core/threads/threads.h"
#include "topkv/error.h"

namespace topkv {
namespace {

constexpr std::int64_t encode_keys = 8192;  // that a thread encodes at a time

/// Of 128 dims, that bytes of codes are given for.
std::int64_t units_of(std::int64_t dim) { return (dim + 127) / 128; }

class CodesFactory : public IndexFactory {
 public:
  explicit CodesFactory(const CodesParams& params)
      : CodesFactory(params, {.has_tail = params.value_bytes > 0, .has_codes = true}) {}
  std::string text() const override { return params_.text(); }
  std::unique_ptr<HeadIndex> make() const override { return std::make_unique<CodesIndex>(params_); }
  void check(std::int64_t dim, std::int64_t /*keys*/) const override {
    CodeAxes::check(text(), dim);
  }
  void build(KeyIndex& index, const KeyView& keys, const Accelerator& accelerator,
             const std::stop_token& stop) const override {
    dynamic_cast<CodesIndex&>(index).build_with(accelerator.encoder, keys, stop);
  }
  std::unique_ptr<RowTail> make_tail(const KeyIndex& index, const RowsView& rows,
                                     const Accelerator& accelerator,
                                     const std::stop_token& stop) const override {
    if (!traits().has_tail) return nullptr;
    return std::make_unique<CodeTail>(dynamic_cast<const CodesIndex&>(index), rows,
                                      params_.bits_of_value(rows.dim()), stop, accelerator.encoder);
  }
  std::unique_ptr<RowTail> transfer_tail(RowTail* tail, const KeyIndex& index, const RowsView& rows,
                                         Archive& archive) const override {
    if (!traits().has_tail) return nullptr;
    return transfer_codes(tail, index, rows, params_.bits_of_value(rows.dim()), archive);
  }

 protected:
  CodesFactory(const CodesParams& params, const IndexTraits& traits)
      : IndexFactory(traits), params_(params) {}

  static std::unique_ptr<RowTail> transfer_codes(RowTail* tail, const KeyIndex& index,
                                                 const RowsView& rows, std::int64_t bits,
                                                 Archive& archive) {
    std::unique_ptr<CodeTail> read;
    if (archive.reading())
      read = std::make_unique<CodeTail>(dynamic_cast<const CodesIndex&>(index), rows);
    (read ? *read : dynamic_cast<CodeTail&>(*tail)).fields(bits, archive);
    return read;
  }

 private:
  CodesParams params_;
};

class MeanFactory final : public CodesFactory {
 public:
  MeanFactory()
      : CodesFactory(CodesParams{}, {.has_tail = true, .is_tail = true, .has_codes = true}) {}
  std::string text() const override { return "mean"; }
  bool is_served_by(const KeyIndex& index) const override {
    const auto* codes = dynamic_cast<const CodesIndex*>(&index);
    return codes != nullptr && codes->params().key_bytes == CodesParams{}.key_bytes;
  }
  std::unique_ptr<RowTail> make_tail(const KeyIndex& index, const RowsView& rows,
                                     const Accelerator& /*accelerator*/,
                                     const std::stop_token& stop) const override {
    return std::make_unique<CodeTail>(dynamic_cast<const CodesIndex&>(index), rows, 0, stop);
  }
  std::unique_ptr<RowTail> transfer_tail(RowTail* tail, const KeyIndex& index, const RowsView& rows,
                                         Archive& archive) const override {
    return transfer_codes(tail, index, rows, 0, archive);
  }
};

}  // namespace

std::string CodesParams::text() const {
  return fmt::format("codes:k={},v={}", key_bytes, value_bytes);
}

std::int64_t CodesParams::bytes_of_key(std::int64_t dim) const {
  return std::min(key_bytes * units_of(dim), (dim + 1) / 2);
}

std::int64_t CodesParams::bits_of_value(std::int64_t dim) const {
  return std::min(8 * value_bytes * units_of(dim), dim);
}

std::int64_t CodesIndex::memory() const {
  return static_cast<std::int64_t>(sizeof *this + codes_.capacity() * sizeof(codes_[0])) +
         rare_memory() + coder_.memory();
}

void CodesIndex::build_with(CodeEncoder* encoder, const KeyView& keys,
                            const std::stop_token& stop) {
  add(keys, stop);
  encoder_ = encoder;
  try {
    build(stop);
  } catch (...) {
    encoder_ = nullptr;
    throw;
  }
  encoder_ = nullptr;
}

/// Residuals are squared distances of keys from what their codes stand for.
void CodesIndex::insert_judged(std::int64_t first, std::vector<float>& residuals,
                               const std::stop_token& stop) {
  if (first == 0) {
    CodesFactory(params_).check(keys().dim, 0);
    coder_ = KeyCoder(keys(), params_.bytes_of_key(keys().dim));
  }
  const std::int64_t count = keys().count - first;
  codes_.resize(static_cast<std::size_t>(coder_.bytes_for(keys().count)));
  residuals.resize(static_cast<std::size_t>(count));
  if (encoder_ != nullptr) {
    check_stop(stop);
    encoder_->encode(coder_, keys(), codes_.data(), residuals.data());
    note_inserted(count);
  } else {
    encode(first, residuals.data(), stop);
  }
}

/// By the host's threads. residuals: of keys first and on.
void CodesIndex::encode(std::int64_t first, float* residuals, const std::stop_token& stop) {
  // Blocks of codes are whole, so that threads do not share them.
  const std::int64_t begin = first / encode_keys;
  const std::int64_t end = (keys().count + encode_keys - 1) / encode_keys;
  parallel_for(end - begin, 1, [&](std::int64_t from, std::int64_t to) {
    for (std::int64_t block = begin + from; block < begin + to; ++block) {
      check_stop(stop);
      const std::int64_t at = std::max(first, block * encode_keys);
      const std::int64_t size = std::min((block + 1) * encode_keys, keys().count) - at;
      coder_.encode(keys(), at, size, codes_.data(), residuals + (at - first));
      note_inserted(size);
    }
  });
}

void CodesIndex::structure_fields(Archive& archive) {
  coder_.fields(keys().dim, params_.bytes_of_key(keys().dim), archive);
  archive.array(codes_);
  if (!archive.reading()) return;
  archive.check(std::ssize(codes_) == coder_.bytes_for(size()), "it has not one code for each key");
}

void CodesIndex::clear_structure() {
  coder_ = {};
  codes_ = {};
}

void CodesIndex::candidates(const float* query, PositionRange allowed, std::int64_t want,
                            std::vector<std::int64_t>& found) const {
  all_candidates({query, 1, keys().dim, {&allowed, 1}}, want, {&found, 1});
}

void CodesIndex::all_candidates(const QueryBlock& queries, std::int64_t want,
                                std::span<std::vector<std::int64_t>> found) const {
  const Scratch<std::vector<PassToken>> workspace;
  std::vector<PassToken>& tokens = *workspace;
  tokens.clear();
  for (std::int64_t q = 0; q < queries.count; ++q) {
    const auto at = static_cast<std::size_t>(q);
    tokens.push_back(
        {.queries = queries.query(q), .allowed = queries.allowed[at], .listed = &found[at]});
  }
  const CodePass pass{.index = this, .rows = {keys(), {}}, .wanted = listed_per_row * want};
  pass.run(tokens);
}

std::shared_ptr<const IndexFactory> codes_factory(std::string_view spec, std::string_view options) {
  CodesParams params;
  parse_options(spec, options,
                {{"k", &params.key_bytes, 1, 64}, {"v", &params.value_bytes, 0, 16}});
  return std::make_shared<CodesFactory>(params);
}

std::shared_ptr<const IndexFactory> mean_factory() { return std::make_shared<MeanFactory>(); }

}  // namespace topkv
