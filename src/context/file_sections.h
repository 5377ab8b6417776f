// Which sections a context's file has, in their order, and the bytes of one on their way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "src/context/file_format.h"
#include "src/context/file_meta.h"
#include "src/core/archive.h"
#include "src/core/open_file.h"

namespace topkv {

/// What of a context is optional.
struct SectionsOf {
  bool tokens = false;
  bool queries = false;
  bool bias = false;  ///< of keys; those that are not in q8 or q4 have none
};

/// What a file of so many sections cannot be described as, before sections_of lists as many as it
/// says; empty: nothing.
std::string too_few_sections(const FileMeta& meta, std::int64_t sections);

/// All sections of such a context but for the description, which is the first, and for those of
/// indices that are not known; those whose size follows from it have that, others have 0.
std::vector<Section> sections_of(const FileMeta& meta, const SectionsOf& has);

/// Bytes that an archive takes.
class CountingArchive final : public Archive {
 public:
  /// section: outlives it; for messages.
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

/// Writes a section block by block, and notes their checksums.
class SectionWriter final : public Archive {
 public:
  /// written: is told of bytes; may throw.
  SectionWriter(ReplacingFile& file, FileTable& table, const Section& section,
                const std::function<void(std::int64_t)>& written);
  bool reading() const override { return false; }
  /// REQUIRES: as many bytes as the section has were given.
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
  std::int64_t full_ = 0;    // of the block
  std::int64_t number_ = 0;  // of the block
};

/// Reads a section block by block, each checked before any of its bytes are given.
class SectionReader final : public Archive {
 public:
  SectionReader(const ReadableFile& file, const FileTable& table, const Section& section,
                const std::function<void(std::int64_t)>& read);
  bool reading() const override { return true; }
  /// Throws FileError when there is more than was asked for.
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
  std::int64_t given_ = 0;  // bytes
};

/// Reads number i of a section's blocks to `to`, and checks it. Throws FileError.
void read_block(const ReadableFile& file, const FileTable& table, const Section& section,
                std::int64_t i, std::byte* to);

}  // namespace topkv
