#include "index/graphs/faiss_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "index/common/spec.h"
#include "topkv/error.h"

namespace topkv {
namespace {

using Code = FaissSpec::Code;

constexpr std::array<std::pair<std::string_view, Code>, 5> plain_codes = {
    {{"Flat", Code::flat},
     {"SQ8", Code::sq8},
     {"SQ6", Code::sq6},
     {"SQ4", Code::sq4},
     {"SQfp16", Code::sqfp16}}};

constexpr std::string_view known =
    "HNSW32, and Flat, SQ8, SQ6, SQ4, SQfp16, PQ16 and PQ16x4, each alone or after IVF or IVF4096 "
    "and a comma";

/// Reads the parts of a factory string, and says what is wrong with it.
class Reader {
 public:
  explicit Reader(std::string_view spec) : spec_(spec) {}

  void read(std::string_view factory, FaissSpec& out) const {
    std::vector<std::string_view> tokens = split(factory, ',');
    const std::string_view first = tokens.front();
    if (first.starts_with("IVF")) {
      out.has_lists = true;
      out.code = Code::sq8;
      if (first != "IVF") out.lists = number(first.substr(3), first, 1, 1 << 24);
      tokens.erase(tokens.begin());
    } else if (first.starts_with("HNSW")) {
      out.links = first == "HNSW" ? 32 : number(first.substr(4), first, 2, 512);
      tokens.erase(tokens.begin());
    }
    if (tokens.empty()) return;
    if (tokens.size() > 1) refuse(factory);
    read_code(tokens.front(), out);
    if (out.links > 0 && out.code != Code::flat) refuse(factory);
  }

 private:
  void read_code(std::string_view token, FaissSpec& out) const {
    for (const auto& [name, code] : plain_codes) {
      if (token != name) continue;
      out.code = code;
      return;
    }
    if (!token.starts_with("PQ")) refuse(token);
    const std::size_t x = std::min(token.find('x'), token.size());
    out.code = Code::pq;
    out.parts = number(token.substr(2, x - 2), token, 1, 1 << 16);
    out.bits = x == token.size() ? 8 : number(token.substr(x + 1), token, 4, 8);
  }

  /// digits: all that may be a number in this token.
  std::int64_t number(std::string_view digits, std::string_view token, std::int64_t low,
                      std::int64_t high) const {
    if (digits.find_first_not_of("0123456789-") != std::string_view::npos) refuse(token);
    const std::int64_t value = parse_count(digits);
    if (value >= low && value <= high) return value;
    throw InvalidArgument(fmt::format("index \"{}\": the number \"{}\" in {} must be from {} to {}",
                                      one_line(spec_), one_line(digits), one_line(token), low,
                                      high));
  }

  [[noreturn]] void refuse(std::string_view token) const {
    throw InvalidArgument(
        fmt::format("index \"{}\": \"{}\" is not among the indices of FAISS that topkv takes: {}",
                    one_line(spec_), one_line(token), known));
  }

  std::string_view spec_;
};

}  // namespace

FaissSpec FaissSpec::parse(std::string_view spec, std::string_view text) {
  const std::size_t semicolon = text.find(';');
  FaissSpec out;
  Reader(spec).read(text.substr(0, semicolon), out);
  if (semicolon == std::string_view::npos) return out;
  const std::string_view options = text.substr(semicolon + 1);
  if (options.empty() || (!out.has_lists && out.links == 0)) {
    throw InvalidArgument(
        fmt::format("index \"{}\": after the semicolon an IVF index takes nprobe=…, and an HNSW "
                    "index ef=… and efc=…; leave the semicolon out otherwise",
                    one_line(spec)));
  }
  if (out.has_lists) {
    parse_options(spec, options, {{"nprobe", &out.nprobe, 0, 1 << 24}});
  } else {
    parse_options(spec, options, {{"ef", &out.ef, 0, 1000000}, {"efc", &out.efc, 1, 100000}});
  }
  return out;
}

std::int64_t FaissSpec::lists_for(std::int64_t keys) const {
  if (!has_lists || lists > 0) return lists;
  // About sqrt(N): reading the centroids and reading a few lists then cost alike.
  const auto root = static_cast<std::int64_t>(std::sqrt(static_cast<double>(keys)));
  return std::max<std::int64_t>(1, root);
}

std::string FaissSpec::factory(std::int64_t list_count) const {
  std::string code_name = fmt::format("PQ{}x{}", parts, bits);
  for (const auto& [name, plain] : plain_codes) {
    if (code == plain) code_name = name;
  }
  if (has_lists) {
    return fmt::format("IVF{},{}", list_count > 0 ? std::to_string(list_count) : "", code_name);
  }
  if (links > 0) return fmt::format("HNSW{}", links);
  return code_name;
}

std::string FaissSpec::text() const {
  if (has_lists) return fmt::format("faiss:{};nprobe={}", factory(lists), nprobe);
  if (links > 0) return fmt::format("faiss:{};ef={},efc={}", factory(0), ef, efc);
  return fmt::format("faiss:{}", factory(0));
}

}  // namespace topkv
