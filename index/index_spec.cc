#include "topkv/index_spec.h"

#include <fmt/format.h>

#include "index/codes_index.h"
#include "index/exact_index.h"
#include "index/faiss_index.h"
#include "index/hnsw_index.h"
#include "index/index_kind.h"
#include "index/spec.h"
#include "topkv/error.h"

namespace topkv {
namespace {

std::shared_ptr<const IndexSpec::Kind> parse(std::string_view spec) {
  const std::size_t colon = spec.find(':');
  const std::string_view name = spec.substr(0, colon);
  const bool has_rest = colon != std::string_view::npos;
  const std::string_view rest = has_rest ? spec.substr(colon + 1) : std::string_view{};

  if (name == "exact" || name == "mean") {
    if (has_rest) {
      throw InvalidArgument(fmt::format("index \"{}\": {} takes no options; write \"{}\"",
                                        one_line(spec), name, name));
    }
    return name == "exact" ? exact_kind() : mean_kind();
  }
  const auto require_options = [&](std::string_view example) {
    if (!has_rest || !rest.empty()) return;
    throw InvalidArgument(
        fmt::format("index \"{}\": options are missing after the colon; write \"{}\" or \"{}\"",
                    one_line(spec), name, example));
  };
  if (name == "codes") {
    require_options("codes:k=16");
    return codes_kind(spec, rest);
  }
  if (name == "faiss") return faiss_kind(spec, rest);
  if (name == "hnsw") {
    require_options("hnsw:M=16");
    return hnsw_kind(spec, rest);
  }
  const std::string_view near = nearest(name, {"exact", "codes", "faiss", "hnsw", "mean"});
  throw InvalidArgument(fmt::format(
      "index \"{}\": no index is named \"{}\"{}; known are exact, codes:k=16, "
      "hnsw:M=16,efc=100,ef=0, faiss:IVF,SQ8, faiss:HNSW32, and mean, a tail",
      one_line(spec), one_line(name), near.empty() ? "" : fmt::format(", did you mean {}?", near)));
}

}  // namespace

IndexSpec::IndexSpec(std::string_view text) : kind_(parse(text)), text_(kind_->text()) {}

bool IndexSpec::grows() const { return kind_->grows(); }

void IndexSpec::check(std::int64_t dim, std::int64_t keys) const {
  if (dim < 1 || keys < 0) {
    throw InvalidArgument(
        fmt::format("index {}: {} keys of {} elements; expected none or more, of at least 1", text_,
                    keys, dim));
  }
  kind_->check(dim, keys);
}

bool IndexSpec::has_tail() const { return kind_->has_tail(); }

void IndexSpec::check_index() const { kind_->check_index(); }

std::unique_ptr<KeyIndex> IndexSpec::make() const {
  check_index();
  return kind_->make();
}

std::unique_ptr<KeyIndex> make_index(std::string_view spec) { return IndexSpec(spec).make(); }

IndexSpec IndexSpec::default_for(std::int64_t dim) {
  if (dim < 1)
    throw InvalidArgument(fmt::format("keys of {} dims; they must have at least 1", dim));
  return IndexSpec(dim < 128 ? "codes:k=32,v=8" : "codes:k=16,v=8");
}

}  // namespace topkv
