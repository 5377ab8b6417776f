// An open file of a context, whose sections fit its description.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "src/context/file/file_format.h"
#include "src/context/file/file_meta.h"
#include "src/context/file/file_sections.h"
#include "src/core/io/open_file.h"

namespace topkv {

inline bool is_rows(const Section& section) {
  return section.kind == SectionKind::keys || section.kind == SectionKind::values;
}

/// Returns whether a section lies in a mapped file as it lies in memory.
inline bool is_mapped(const Section& section) {
  return is_rows(section) || section.kind == SectionKind::index_keys;
}

inline bool is_of_index(const Section& section) {
  return section.kind == SectionKind::index || section.kind == SectionKind::tail;
}

/// An open file of a context. Safe from many threads.
class OpenContext {
 public:
  /// Opens a file. Throws FileError for a file that is not a context's, and for sections or sizes
  /// other than its description requires. Throws Unsupported for a file of another version.
  explicit OpenContext(const std::filesystem::path& path);

  const ReadableFile& file() const { return file_; }
  const FileTable& table() const { return table_; }
  const FileMeta& meta() const { return meta_; }
  const SectionsOf& has() const { return has_; }

  /// Returns the sections of a kind.
  std::vector<const Section*> of(SectionKind kind) const;

  /// Reads and checks a section that lies in memory as it lies in the file.
  void read_all(const Section& section, void* to) const;

 private:
  void check_sections();

  ReadableFile file_;
  FileTable table_;
  std::string text_;
  FileMeta meta_;
  SectionsOf has_;
};

}  // namespace topkv
