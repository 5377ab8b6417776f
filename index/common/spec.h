// Reading spec strings such as "hnsw:M=16,efc=100".
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace topkv {

/// A whole number option: where it goes and what it may be.
struct IntOption {
  std::string_view key;
  std::int64_t* value;  ///< holds the default; overwritten when the option is given
  std::int64_t min;
  std::int64_t max;
};

/// Reads "key=value,key=value" (or nothing) into options. spec is the whole string, for messages.
/// Throws InvalidArgument on an unknown or repeated key and on a value that is no number in range.
void parse_options(std::string_view spec, std::string_view text,
                   std::initializer_list<IntOption> options);

/// The non-negative number that all of text is, -1 if it is none or above 2^31.
std::int64_t parse_count(std::string_view text);

/// Text split at every separator; "" gives one empty part.
std::vector<std::string_view> split(std::string_view text, char separator);

/// The known name nearest to what was typed, or "" when none is near: more than two letters
/// differ, or more than half of them.
std::string_view nearest(std::string_view typed, std::span<const std::string_view> known);

/// Text fit for one line of a message (printable_beginning).
std::string one_line(std::string_view text);

}  // namespace topkv
