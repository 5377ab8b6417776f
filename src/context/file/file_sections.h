// The sections of a context's file, in their order, and archives that read and write one of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "src/context/file/file_format.h"
#include "src/context/file/file_meta.h"
#include "src/core/format/archive.h"
#include "src/core/io/open_file.h"

namespace topkv {

/// The optional parts of a context that a file has.
struct SectionsOf {
  bool tokens = false;
  bool queries = false;
  bool bias = false;         ///< bias of keys, for keys in q8 or q4
  bool application = false;  ///< bytes of an application
};

/// Checks a description before sections_of lists its sections: whether a file with this number of
/// sections can have it. Returns what is wrong, or an empty text.
std::string too_few_sections(const FileMeta& meta, std::int64_t sections);

/// Returns all sections of a context's file, without two kinds: the description, which is the
/// first, and sections of unknown indices. A section has its size if that follows from the
/// description, else 0.
std::vector<Section> sections_of(const FileMeta& meta, const SectionsOf& has);

/// Counts the bytes that an archive takes.
class CountingArchive final : public Archive {
 public:
  /// section: for messages; it outlives this.
  explicit CountingArchive(const Section& section) : section_(section) {}
  bool reading() const override { return false; }
  std::int64_t bytes() const { return bytes_; }

 protected:
  void transfer(void* data, std::int64_t bytes) override;
  std::int64_t left() const override { return 0; }
  [[noreturn]] void fail(std::string_view what) const override;

 private:
  const Section& section_;
  std::int64_t bytes_ = 0;
};

/// Writes a section block by block, and notes the checksums of its blocks.
class SectionWriter final : public Archive {
 public:
  /// written: called with the bytes of each block; it may throw.
  SectionWriter(ReplacingFile& file, FileTable& table, const Section& section,
                const std::function<void(std::int64_t)>& written);
  bool reading() const override { return false; }
  /// Writes the last block. REQUIRES: all bytes of the section were written.
  void finish();

 protected:
  void transfer(void* data, std::int64_t bytes) override;
  std::int64_t left() const override { return 0; }
  [[noreturn]] void fail(std::string_view what) const override;

 private:
  void flush();

  ReplacingFile& file_;
  FileTable& table_;
  const Section& section_;
  const std::function<void(std::int64_t)>& written_;
  std::vector<std::byte> block_;
  std::int64_t full_ = 0;    // bytes in block_
  std::int64_t number_ = 0;  // number of the block
};

/// Reads a section block by block. Each block is checked before any of its bytes are returned.
class SectionReader final : public Archive {
 public:
  SectionReader(const ReadableFile& file, const FileTable& table, const Section& section,
                const std::function<void(std::int64_t)>& read);
  bool reading() const override { return true; }
  /// Throws FileError when the section has bytes that were not read.
  void finish() const;

 protected:
  void transfer(void* data, std::int64_t bytes) override;
  std::int64_t left() const override { return section_.bytes - given_; }
  [[noreturn]] void fail(std::string_view what) const override;

 private:
  const ReadableFile& file_;
  const FileTable& table_;
  const Section& section_;
  const std::function<void(std::int64_t)>& read_;
  std::vector<std::byte> block_;
  std::int64_t given_ = 0;  // bytes that were returned
};

/// Reads block number i of a section to `to`, and checks it. Throws FileError when it is damaged.
void read_block(const ReadableFile& file, const FileTable& table, const Section& section,
                std::int64_t i, std::byte* to);

}  // namespace topkv
