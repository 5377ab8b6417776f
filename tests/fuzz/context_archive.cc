// What an index, a tail or kept queries have in a context's file: a byte that says which, and the
// bytes. What is taken is searched.
#include <cstring>
#include <memory>
#include <vector>

#include "index/common/index_factory.h"
#include "src/context/prefill_query_sample.h"
#include "src/core/format/archive.h"
#include "tests/fuzz/context_specs.h"
#include "tests/fuzz/target.h"

namespace fuzz = topkv::fuzz;

namespace {

constexpr std::int64_t rows = 24;
constexpr std::int64_t dim = 16;

class BytesArchive final : public topkv::Archive {
 public:
  explicit BytesArchive(std::string_view bytes) : bytes_(bytes) {}
  bool reading() const override { return true; }
  void finish() const { check(bytes_.empty(), "there is more"); }

 protected:
  void transfer(void* data, std::int64_t bytes) override {
    if (bytes > left()) fail("it ends too early");
    if (bytes == 0) return;
    std::memcpy(data, bytes_.data(), static_cast<std::size_t>(bytes));
    bytes_.remove_prefix(static_cast<std::size_t>(bytes));
  }
  std::int64_t left() const override { return std::ssize(bytes_); }
  [[noreturn]] void fail(std::string_view what) const override {
    throw topkv::FileError("f: " + std::string(what));
  }

 private:
  std::string_view bytes_;
};

topkv::RowsView some_rows() {
  static const std::vector<float> values = [] {
    std::vector<float> all;
    std::uint32_t state = 1;
    for (std::int64_t i = 0; i < 2 * rows * dim; ++i) {
      state = state * 1664525U + 1013904223U;
      all.push_back(static_cast<float>(state >> 8U) / 0x1p23F - 1);
    }
    return all;
  }();
  const auto view = [](std::int64_t first) {
    return topkv::KeyView{reinterpret_cast<const std::byte*>(values.data() + first * dim),
                          topkv::DType::f32, rows, dim, dim * 4};
  };
  return {view(0), view(rows)};
}

void search(const topkv::KeyIndex& index) {
  const std::vector<float> queries(2 * dim, 0.5F);
  const topkv::PositionRange allowed[] = {{3, rows}, {3, rows}};
  topkv::SearchResult result;
  index.search({.data = queries.data(), .count = 2, .dim = dim, .allowed = allowed, .group = 2}, 8,
               result);
  for (std::int64_t q = 0; q < 2; ++q) {
    for (const std::int64_t position : result.positions(q))
      fuzz::require(position >= 3 && position < rows, "a row that is not there");
  }
}

void attend(const topkv::RowTail& tail) {
  const std::vector<float> queries(2 * dim, 0.5F);
  const topkv::PositionRange allowed[] = {{3, rows}, {3, rows}};
  const std::vector<std::int64_t> taken = {3, 9};
  const std::span<const std::int64_t> both[] = {taken, taken};
  const float ceilings[] = {INFINITY, INFINITY};
  std::vector<float> out(4 * dim);
  float lse[4];
  topkv::TailNoise noise[2];
  tail.attend({.data = queries.data(), .count = 2, .dim = dim, .allowed = allowed, .group = 2},
              both, ceilings, 0.125F, 0,
              {{out.data(), lse, 2, dim}, {out.data() + 2 * dim, lse + 2, 2, dim}, noise});
}

void queries_of(std::string_view bytes) {
  topkv::AttentionShape shape{.layers = 1, .q_heads = 2, .kv_heads = 1, .head_dim = dim};
  topkv::PrefillQuerySample queries(shape);
  BytesArchive archive(bytes);
  queries.fields(0, rows, archive);
  archive.finish();
  std::vector<float> gathered;
  std::vector<std::int64_t> positions;
  const auto some = queries.of(shape, 0, 0, rows, gathered, positions);
  for (const std::int64_t position : some.positions)
    fuzz::require(position >= 0 && position < rows, "a query of no row");
}

}  // namespace

FUZZ_TARGET(context_archive)(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::size_t which = data[0] % (std::size(fuzz::context_specs) + 1);
  const std::string_view bytes = fuzz::text_of(data + 1, size - 1);
  fuzz::accepts(
      [&] {
        if (which == std::size(fuzz::context_specs)) return queries_of(bytes);
        const topkv::IndexSpec spec(fuzz::context_specs[which]);
        const auto index = spec.factory().make();
        BytesArchive archive(bytes);
        // An index, and its tail behind it.
        index->transfer(some_rows().keys, archive);
        fuzz::require(index->size() == rows, "an index of other keys");
        if (spec.factory().traits().finds) search(*index);
        const auto tail = spec.factory().transfer_tail(nullptr, *index, some_rows(), archive);
        archive.finish();
        if (tail != nullptr) attend(*tail);
      },
      "f: ");
  return 0;
}
