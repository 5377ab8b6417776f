#include <fmt/format.h>

#include "index/exact_index.h"
#include "index/faiss_index.h"
#include "index/hnsw_index.h"
#include "index/spec.h"
#include "topkv/error.h"
#include "topkv/key_index.h"

namespace topkv {

std::unique_ptr<KeyIndex> make_index(std::string_view spec) {
  const std::size_t colon = spec.find(':');
  const std::string_view name = spec.substr(0, colon);
  const bool has_rest = colon != std::string_view::npos;
  const std::string_view rest = has_rest ? spec.substr(colon + 1) : std::string_view{};

  if (name == "exact") {
    if (has_rest) {
      throw InvalidArgument(
          fmt::format("index \"{}\": exact takes no options; write \"exact\"", one_line(spec)));
    }
    return std::make_unique<ExactIndex>();
  }
  if (name == "faiss") return make_faiss_index(spec, rest);
  if (name == "hnsw") {
    if (has_rest && rest.empty()) {
      throw InvalidArgument(fmt::format(
          "index \"{}\": options are missing after the colon; write \"hnsw\" or \"hnsw:M=16\"",
          one_line(spec)));
    }
    return make_hnsw_index(spec, rest);
  }
  const std::string_view near = nearest(name, {"exact", "faiss", "hnsw"});
  throw InvalidArgument(fmt::format(
      "index \"{}\": no index is named \"{}\"{}; known are exact, "
      "hnsw:M=16,efc=100,ef=0, faiss:IVF,SQ8, faiss:HNSW32",
      one_line(spec), one_line(name), near.empty() ? "" : fmt::format(", did you mean {}?", near)));
}

std::string normal_spec(std::string_view spec) { return make_index(spec)->spec(); }

}  // namespace topkv
