// The layout of a context file: a header, a table of sections, checksums of their blocks, and the
// sections, each on a page of its own. docs/reference/context-files.md has it byte by byte.
//
// Bytes from a file are hostile: parse() gives a table whose places lie within the file and do not
// overlap, whoever wrote it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "src/core/open_file.h"

namespace topkv {

/// What a section holds. Numbers are never given anew.
enum class SectionKind : std::uint32_t {
  meta = 1,      ///< JSON (file_meta.h)
  tokens = 2,    ///< ids, int32
  channels = 3,  ///< scales of keys' channels, float32 [layers, kv_heads, head_dim]
  keys = 4,      ///< of a layer and KV head: rows, each of vector_bytes
  values = 5,    ///< likewise
  queries = 6,   ///< of a layer: what KeptQueries keeps
  index = 7,     ///< of an index, a layer and a KV head: what it has learned
  tail = 8,      ///< likewise, of its tail
  bias = 9,      ///< of keys, float32 [layers, kv_heads, 3, head_dim] (ContextOptions::key_bias)
};

inline bool is_known(SectionKind kind) {
  return kind >= SectionKind::meta && kind <= SectionKind::bias;
}

struct Section {
  SectionKind kind = {};
  bool required = true;  ///< a reader that does not know its kind must refuse the file
  std::uint32_t index = 0;
  std::uint32_t layer = 0;
  std::uint32_t kv_head = 0;
  std::int64_t bytes = 0;
  std::int64_t at = 0;              ///< of the file, a multiple of `page`
  std::int64_t first_checksum = 0;  ///< of its blocks

  /// Whether a class says what it has (Archive); others lie in memory as in the file.
  bool is_archived() const {
    return kind == SectionKind::queries || kind == SectionKind::index || kind == SectionKind::tail;
  }
  /// "K of layer 3, KV head 1": for messages.
  std::string name() const;
};

/// Where everything lies.
struct FileTable {
  static constexpr std::uint32_t version = 1;
  static constexpr std::int64_t page = 4096;
  static constexpr std::int64_t block = std::int64_t{4} << 20;  // that a checksum is of
  static constexpr std::int64_t header_bytes = 64;
  static constexpr std::int64_t section_bytes = 48;
  static constexpr std::int64_t most_sections = std::int64_t{1} << 24;

  std::vector<Section> sections;         ///< by their places
  std::vector<std::uint64_t> checksums;  ///< of all blocks

  static std::int64_t whole_pages(std::int64_t bytes) { return (bytes + page - 1) / page * page; }
  static std::int64_t blocks(std::int64_t bytes) { return (bytes + block - 1) / block; }
  /// Bytes of number i of a section's blocks.
  static std::int64_t block_bytes(const Section& section, std::int64_t i) {
    return std::min(block, section.bytes - i * block);
  }
  std::uint64_t& checksum(const Section& section, std::int64_t i) {
    return checksums[static_cast<std::size_t>(section.first_checksum + i)];
  }
  std::uint64_t checksum(const Section& section, std::int64_t i) const {
    return checksums[static_cast<std::size_t>(section.first_checksum + i)];
  }

  /// Gives sections, of which kind and size are known, their places. Of the file: how long it is.
  std::int64_t place();
  /// Bytes before the first section.
  std::int64_t bytes() const;
  /// Header, table and checksums, as they stand in a file of so many bytes.
  std::vector<std::byte> encode(std::int64_t file_bytes) const;

  /// Whether the file begins as contexts' files do. False where it cannot be read.
  static bool begins(const std::filesystem::path& path);
  /// Reads and checks them. Throws FileError, which says what is wrong: no context file, damaged or
  /// cut off; Unsupported for another version, and a section of a kind that is required and not
  /// known.
  static FileTable parse(const ReadableFile& file);
};

/// Throws FileError unless what follows `what`, which ends there, is 0 up to the next page.
void check_zeros(const ReadableFile& file, std::int64_t end, std::string_view what);

/// Throws FileError: "path: section: what".
[[noreturn]] void fail_section(const std::filesystem::path& path, const Section& section,
                               std::string_view what);

}  // namespace topkv
