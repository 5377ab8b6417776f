// The layout of a context file: a header, a table of sections, checksums of their blocks, and the
// sections. Each section begins on a page. docs/reference/context-files.md describes it byte by
// byte.
//
// Bytes from a file are hostile. parse() returns a table whose sections lie within the file and do
// not overlap, whoever wrote it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/io/open_file.h"
#include "topkv/error.h"

namespace topkv {

/// The content of a section. A number is never used for another kind.
enum class SectionKind : std::uint32_t {
  meta = 1,      ///< JSON (file_meta.h)
  tokens = 2,    ///< token ids, int32
  channels = 3,  ///< scales of keys' channels, float32 [layers, kv_heads, head_dim]
  keys = 4,      ///< keys of a layer and KV head, each of vector_bytes
  values = 5,    ///< values of a layer and KV head, each of vector_bytes
  queries = 6,   ///< kept queries of a layer (PrefillQuerySample)
  index = 7,     ///< data of an index, for a layer and KV head
  tail = 8,      ///< data of an index's tail, for a layer and KV head
  bias = 9,    ///< bias of keys, float32 [layers, kv_heads, 3, head_dim] (ContextOptions::key_bias)
  state = 10,  ///< recurrent state of a layer, and its snapshots (RecurrentState)
  application = 11,  ///< bytes of an application (ContextOrigin::application_data)
  index_keys = 12,   ///< index keys of a layer, each of IndexerShape::key_bytes
};

/// The largest number of a kind.
inline constexpr SectionKind last_section_kind = SectionKind::index_keys;

inline bool is_known(SectionKind kind) {
  return kind >= SectionKind::meta && kind <= last_section_kind;
}

/// One section of a file.
struct Section {
  SectionKind kind = {};
  bool required = true;  ///< a reader that does not know its kind must refuse the file
  std::uint32_t index = 0;
  std::uint32_t layer = 0;
  std::uint32_t kv_head = 0;
  std::int64_t bytes = 0;
  std::int64_t at = 0;              ///< offset in the file, a multiple of `page`
  std::int64_t first_checksum = 0;  ///< number of the checksum of its first block

  /// Returns whether a class reads and writes it field by field (Archive). Other sections lie in
  /// memory as they lie in the file.
  bool is_archived() const {
    return kind == SectionKind::queries || kind == SectionKind::index ||
           kind == SectionKind::tail || kind == SectionKind::state ||
           kind == SectionKind::application;
  }
  /// Returns its name for messages, such as "K of layer 3, KV head 1".
  std::string name() const;
};

/// The table of a file: where each section lies, and the checksums.
struct FileTable {
  /// Version 2 has layers without the rows of all tokens: layers that keep the rows of a sliding
  /// window, that attend the rows of another layer, or that have a recurrent state. Version 3 has
  /// rows whose key is their value. Version 4 has a trained indexer. Version 5 has a tail of codes
  /// that knows its shared error. An older topkv reads older versions alone.
  static constexpr std::uint32_t newest_version = 5;
  static constexpr std::int64_t page = 4096;
  static constexpr std::int64_t block = std::int64_t{4} << 20;  // bytes that one checksum covers
  static constexpr std::int64_t header_bytes = 64;
  static constexpr std::int64_t section_bytes = 48;
  static constexpr std::int64_t most_sections = std::int64_t{1} << 24;

  std::uint32_t version = 1;
  std::vector<Section> sections;         ///< in the order of their offsets
  std::vector<std::uint64_t> checksums;  ///< one for each block, section by section

  static std::int64_t whole_pages(std::int64_t bytes) { return (bytes + page - 1) / page * page; }
  static std::int64_t blocks(std::int64_t bytes) { return (bytes + block - 1) / block; }
  /// Returns the bytes of block number i of a section.
  static std::int64_t block_bytes(const Section& section, std::int64_t i) {
    return std::min(block, section.bytes - i * block);
  }
  std::uint64_t& checksum(const Section& section, std::int64_t i) {
    return checksums[static_cast<std::size_t>(section.first_checksum + i)];
  }
  std::uint64_t checksum(const Section& section, std::int64_t i) const {
    return checksums[static_cast<std::size_t>(section.first_checksum + i)];
  }

  /// Sets the offsets of all sections, whose kinds and sizes are known. Returns the length of the
  /// file.
  std::int64_t place();
  /// Returns the bytes before the first section.
  std::int64_t bytes() const;
  /// Returns header, table and checksums, as they stand in a file of file_bytes bytes.
  std::vector<std::byte> encode(std::int64_t file_bytes) const;

  /// Returns whether a file begins as contexts' files do. False if it cannot be read.
  static bool begins(const std::filesystem::path& path);
  /// Reads and checks header, table and checksums. Throws FileError for a file that is not a
  /// context's, is damaged, or is cut off. Throws Unsupported for a version beyond newest_version,
  /// and for a required section of an unknown kind.
  static FileTable parse(const ReadableFile& file);
};

/// Throws FileError unless all bytes from `end` to the next page are 0. what: the part that ends
/// there, for the message.
void check_zeros(const ReadableFile& file, std::int64_t end, std::string_view what);

/// Returns an error with the message "path: section: what".
FileError section_error(const std::filesystem::path& path, const Section& section,
                        std::string_view what);

/// Throws section_error(path, section, what).
[[noreturn]] void fail_section(const std::filesystem::path& path, const Section& section,
                               std::string_view what);

}  // namespace topkv
