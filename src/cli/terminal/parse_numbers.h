// Numbers as people type them: "128K" tokens, "8GiB", "5,50,95" percent.
//
// Token counts and bytes are binary: K = Ki = 1024, M = Mi = 1024², G = Gi = 1024³; but of bytes
// KB, MB, GB and TB are powers of 1000, as those who sell memory count. All functions are pure;
// they throw UsageError naming the flag, the text found and what was expected.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace topkv::cli {

/// A command line that cannot be understood; ends the program with status 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Above every count that is taken; sums of a few still fit into 64 bits.
inline constexpr std::int64_t most_count = std::int64_t{1} << 62;

/// "4096", "128K", "128Ki", "1M", "1.5M": a count from `least` to `most`.
std::int64_t parse_count(std::string_view flag, std::string_view text, std::int64_t least = 1,
                         std::int64_t most = most_count);

/// "8GiB", "8Gi", "8G": 8 * 2^30; "8GB": 8 * 10^9; "1073741824": bytes, at least 1 MiB. Less is a
/// unit forgotten ("8").
std::int64_t parse_bytes(std::string_view flag, std::string_view text);

/// "0.7", "1": a decimal number from `least` to `most`; with `above`, more than `least`.
double parse_real(std::string_view flag, std::string_view text, double least, double most,
                  bool above = false);

/// "a number from 0 to 1", as parse_real expects it.
std::string range_text(double least, double most, bool above);

/// "42": a whole number below 2^64.
std::uint64_t parse_seed(std::string_view flag, std::string_view text);

/// "128K,1M": counts separated by commas, without repetition, in the order given.
std::vector<std::int64_t> parse_counts(std::string_view flag, std::string_view text);

/// Depths in percent, ascending and distinct. "10" means that many, evenly spaced from the middle
/// of the first tenth to the middle of the last (5, 15, …, 95); "5,50,95" or "50%" are the depths
/// themselves, each from 0 to 100.
std::vector<double> parse_depths(std::string_view flag, std::string_view text);

}  // namespace topkv::cli
