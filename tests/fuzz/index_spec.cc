// Strings that name an index, rows' types, numbers of rows and weights' formats.
#include "topkv/index_spec.h"

#include "tests/fuzz/target.h"
#include "topkv/key_index.h"
#include "topkv/model.h"
#include "topkv/session.h"
#include "topkv/types.h"

namespace fuzz = topkv::fuzz;

FUZZ_TARGET(index_spec)(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = fuzz::text_of(data, size);
  fuzz::accepts([&] {
    const topkv::IndexSpec spec(text);
    fuzz::require(topkv::IndexSpec(spec.text()) == spec, "a spelling that is another index", text);
    for (const std::int64_t dim : {1, 64, 96}) fuzz::accepts([&] { spec.check(dim, 1000); });
    fuzz::accepts([&] { spec.make(); });
  });
  fuzz::accepts([&] {
    const auto dtype = topkv::KvDType::parse(text);
    fuzz::require(topkv::KvDType::parse(dtype.name()) == dtype, "a spelling of another type", text);
  });
  fuzz::accepts([&] { topkv::parse_dtype(text); });
  fuzz::accepts([&] { topkv::parse_weight_format(text); });
  fuzz::accepts([&] { topkv::TopK::parse(text).resolve(8); });
  return 0;
}
