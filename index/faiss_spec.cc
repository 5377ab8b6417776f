#include "index/faiss_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <vector>

#include "index/spec.h"
#include "topkv/error.h"

namespace topkv {
namespace {

constexpr std::string_view examples =
    "for example faiss:IVF,SQ8, faiss:IVF4096,SQ8 or faiss:HNSW32";

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

/// FAISS allocates what the numbers in its string ask for as soon as it reads them, and loops
/// forever on a graph of 0 or 1 links: refuse those before it sees them.
void check_numbers(std::string_view spec, std::string_view factory) {
  for (std::size_t i = 0; i < factory.size();) {
    if (!is_digit(factory[i])) {
      ++i;
      continue;
    }
    std::size_t end = i;
    while (end < factory.size() && is_digit(factory[end])) ++end;
    const std::string_view digits = factory.substr(i, end - i);
    const std::string_view before = factory.substr(0, i);
    std::int64_t low = 0;
    std::int64_t high = 1 << 24;
    if (before.ends_with("HNSW") || before.ends_with("NSG")) {
      low = 2;
      high = 512;
    } else if (before.ends_with("IVF")) {
      low = 1;
    } else if (before.ends_with("x")) {
      high = 16;  // bits of a code
    }
    const std::int64_t value = parse_count(digits);
    if (value < low || value > high) {
      throw InvalidArgument(fmt::format("index \"{}\": the number {} must be from {} to {}",
                                        one_line(spec), one_line(digits), low, high));
    }
    i = end;
  }
}

/// The number behind a name ("HNSW32" → 32), `none` when the token is the name alone, -1 when it is
/// neither.
std::int64_t number_behind(std::string_view token, std::string_view name, std::int64_t none) {
  if (!token.starts_with(name)) return -1;
  return token.size() == name.size() ? none : parse_count(token.substr(name.size()));
}

}  // namespace

FaissSpec FaissSpec::parse(std::string_view spec, std::string_view text) {
  constexpr std::size_t longest = 128;  // FAISS matches with recursive regular expressions
  const std::size_t semicolon = text.find(';');
  const std::string_view factory = text.substr(0, semicolon);
  if (factory.empty() || factory.size() > longest) {
    throw InvalidArgument(
        fmt::format("index \"{}\": a factory string of FAISS of 1 to {} characters must follow "
                    "\"faiss:\", {}",
                    one_line(spec), longest, examples));
  }
  if (std::any_of(factory.begin(), factory.end(), [](char c) { return c <= ' ' || c > '~'; })) {
    throw InvalidArgument(fmt::format(
        "index \"{}\": a factory string of FAISS holds no spaces and no control characters, {}",
        one_line(spec), examples));
  }
  check_numbers(spec, factory);

  FaissSpec out;
  out.factory = factory;
  const std::vector<std::string_view> tokens = split(factory, ',');
  for (const std::string_view token : tokens) {
    out.has_lists |= token.starts_with("IVF") || token.starts_with("IMI");
    out.lists_follow_keys |= token == "IVF";
  }
  if (number_behind(tokens.back(), "IVF", 0) >= 0) out.factory += ",SQ8";
  out.is_graph = tokens.front().starts_with("HNSW");
  if (out.is_graph && (tokens.size() == 1 || (tokens.size() == 2 && tokens[1] == "Flat"))) {
    out.graph_links = std::max<std::int64_t>(0, number_behind(tokens.front(), "HNSW", 32));
    if (out.graph_links > 0) out.factory = fmt::format("HNSW{}", out.graph_links);
  }

  if (semicolon == std::string_view::npos) return out;
  const std::string_view options = text.substr(semicolon + 1);
  if (options.empty() || (!out.has_lists && !out.is_graph)) {
    throw InvalidArgument(fmt::format(
        "index \"{}\": nprobe=… may follow the semicolon of an IVF index, ef=… and efc=… that of "
        "an HNSW index; leave the semicolon out otherwise",
        one_line(spec)));
  }
  if (out.has_lists) {
    parse_options(spec, options, {{"nprobe", &out.nprobe, 0, 1 << 24}});
  } else {
    parse_options(spec, options, {{"ef", &out.ef, 0, 1000000}, {"efc", &out.efc, 1, 100000}});
  }
  return out;
}

std::string FaissSpec::factory_with(std::int64_t lists) const {
  std::string out;
  for (const std::string_view token : split(factory, ',')) {
    if (!out.empty()) out += ',';
    out += token;
    if (token == "IVF") out += std::to_string(lists);
  }
  return out;
}

std::string FaissSpec::text() const {
  if (has_lists) return fmt::format("faiss:{};nprobe={}", factory, nprobe);
  if (is_graph) return fmt::format("faiss:{};ef={},efc={}", factory, ef, efc);
  return fmt::format("faiss:{}", factory);
}

}  // namespace topkv
