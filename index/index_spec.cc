#include "topkv/index_spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "index/codes/codes_index.h"
#include "index/common/index_factory.h"
#include "index/common/none_index.h"
#include "index/common/registered_index.h"
#include "index/common/spec.h"
#include "index/exact/exact_index.h"
#include "index/graphs/faiss_index.h"
#include "index/graphs/hnsw_index.h"
#include "index/lists/ivf_index.h"
#include "index/methods/cluster_index.h"
#include "index/methods/evicting_index.h"
#include "index/methods/lowrank_index.h"
#include "index/methods/quest_index.h"
#include "index/methods/sparq_index.h"
#include "index/methods/squeezed_index.h"
#include "index/tails/sample_tail.h"
#include "index/tails/summary_tail.h"
#include "topkv/error.h"

namespace topkv {
namespace {

struct Plain {
  std::string_view name;
  std::shared_ptr<const IndexFactory> (*make)();
};
constexpr Plain plain_kinds[] = {{"exact", exact_factory},
                                 {"mean", mean_factory},
                                 {"none", none_factory},
                                 {"h2o", h2o_factory},
                                 {"tova", tova_factory}};

struct WithOptions {
  std::string_view name;
  std::string_view example;  // empty: the kind itself tells what is missing
  std::shared_ptr<const IndexFactory> (*make)(std::string_view spec, std::string_view options);
};
constexpr WithOptions kinds_with_options[] = {
    {"codes", "codes:k=16", codes_factory},
    {"faiss", "", faiss_factory},
    {"hnsw", "hnsw:M=16", hnsw_factory},
    {"ivf", "ivf:size=32", ivf_factory},
    {"quest", "quest:page=16", quest_factory},
    {"sparq", "sparq:r=32", sparq_factory},
    {"squeezed", "squeezed:c=5", squeezed_factory},
    {"retroinfer", "retroinfer:size=16", retroinfer_factory},
    {"lowrank", "lowrank:r=16", lowrank_factory},
    {"pages", "pages:size=16", pages_factory},
    {"sample", "sample:rows=256", sample_factory},
};

std::vector<std::string_view> built_in_names() {
  std::vector<std::string_view> names;
  for (const Plain& plain : plain_kinds) names.push_back(plain.name);
  for (const WithOptions& kind : kinds_with_options) names.push_back(kind.name);
  return names;
}

std::shared_ptr<const IndexFactory> parse(std::string_view spec) {
  const std::size_t colon = spec.find(':');
  const std::string_view name = spec.substr(0, colon);
  const bool has_rest = colon != std::string_view::npos;
  const std::string_view rest = has_rest ? spec.substr(colon + 1) : std::string_view{};

  for (const Plain& plain : plain_kinds) {
    if (name != plain.name) continue;
    if (has_rest) {
      throw InvalidArgument(fmt::format("index \"{}\": {} takes no options; write \"{}\"",
                                        one_line(spec), name, name));
    }
    return plain.make();
  }
  for (const WithOptions& kind : kinds_with_options) {
    if (name != kind.name) continue;
    if (has_rest && rest.empty() && !kind.example.empty()) {
      throw InvalidArgument(
          fmt::format("index \"{}\": options are missing after the colon; write \"{}\" or \"{}\"",
                      one_line(spec), name, kind.example));
    }
    return kind.make(spec, rest);
  }
  if (auto registered = registered_factory(spec)) return registered;
  const std::vector<std::string> own = registered_names();
  std::vector<std::string_view> names = built_in_names();
  names.insert(names.end(), own.begin(), own.end());
  const std::string_view near = nearest(name, names);
  throw InvalidArgument(fmt::format(
      "index \"{}\": no index is named \"{}\"{}; known are exact, codes:k=16, "
      "ivf:size=32,share=32, hnsw:M=16,efc=100,ef=0, faiss:IVF,SQ8, faiss:HNSW32, "
      "quest:page=16, sparq:r=32, squeezed:c=5, retroinfer:size=16, lowrank:r=16, h2o, tova, "
      "none, and the tails mean, "
      "pages:size=16, "
      "sample:rows=256{}",
      one_line(spec), one_line(name), near.empty() ? "" : fmt::format(", did you mean {}?", near),
      own.empty() ? "" : fmt::format("; registered are {}", fmt::join(own, ", "))));
}

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

bool is_name(std::string_view name) {
  constexpr std::size_t longest = 64;
  return !name.empty() && name.size() <= longest && is_letter(name[0]) &&
         std::ranges::all_of(name, [](char c) {
           return is_letter(c) || (c >= '0' && c <= '9') || c == '-' || c == '_';
         });
}

}  // namespace

IndexSpec::IndexSpec(std::string_view text) : factory_(parse(text)), text_(factory_->text()) {}

bool IndexSpec::grows() const { return factory_->traits().grows; }

void IndexSpec::check(std::int64_t dim, std::int64_t keys) const {
  if (dim < 1 || keys < 0) {
    throw InvalidArgument(fmt::format(
        "index {}: {} keys of {} elements; expected 0 or more keys of at least 1 element", text_,
        keys, dim));
  }
  factory_->check(dim, keys);
}

bool IndexSpec::has_tail() const { return factory_->traits().has_tail; }

bool IndexSpec::has_code_tail() const {
  return factory_->traits().has_codes && factory_->traits().has_tail;
}

bool IndexSpec::learns_queries() const { return factory_->traits().learns_queries; }

void IndexSpec::check_index() const {
  if (!factory_->traits().is_tail) return;
  throw InvalidArgument(
      fmt::format("index \"{}\": is a tail, which estimates rows and finds none; expected an index "
                  "such as exact or codes, with {} as its tail",
                  text_, text_));
}

std::unique_ptr<KeyIndex> IndexSpec::make() const {
  check_index();
  return factory_->make();
}

std::unique_ptr<KeyIndex> make_index(std::string_view spec) { return IndexSpec(spec).make(); }

void register_index(std::string_view name, IndexRegistration registration) {
  if (!is_name(name)) {
    throw InvalidArgument(
        fmt::format("register_index \"{}\": the name is invalid; expected a letter, followed by at "
                    "most 63 letters, digits, '-' and '_'",
                    one_line(name)));
  }
  if (std::ranges::count(built_in_names(), name) > 0) {
    throw InvalidArgument(fmt::format(
        "register_index \"{}\": topkv has an index or a tail of this name; expected another name",
        name));
  }
  add_registration(name, std::move(registration));
}

IndexSpec IndexSpec::default_for(std::int64_t dim) {
  if (dim < 1)
    throw InvalidArgument(fmt::format("keys of {} dims; they must have at least 1", dim));
  return IndexSpec(dim <= 256 ? "codes:k=32,v=8" : "codes:k=16,v=8");
}

}  // namespace topkv
