// One file of the safetensors format, memory-mapped:
//
//   8 bytes    length of the header, unsigned little-endian
//   header     JSON: {"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]}, …}
//              and optionally "__metadata__": {"key": "string"}; may end in spaces
//   data       the tensors, row-major, little-endian, without holes or overlap; offsets count from
//              its beginning
//
// All of the header is checked when the file is opened, as strictly as the format's reference
// implementation does and for duplicate keys besides. The data may hold any bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/io/mapped_file.h"
#include "topkv/types.h"

namespace topkv {

/// An element type of the format. Some are smaller than a byte.
struct SafeTensorsDType {
  std::string_view name;
  std::int64_t bits = 0;
  std::optional<DType> dtype;  ///< topkv's type, where it has one
};

/// Immutable; safe from many threads.
class SafeTensorsFile {
 public:
  struct Entry {
    SafeTensorsDType dtype;
    std::vector<std::int64_t> shape;
    std::span<const std::byte> bytes;  ///< valid while the file lives
  };
  using Entries = std::map<std::string, Entry, std::less<>>;
  using Metadata = std::map<std::string, std::string, std::less<>>;

  /// Throws FileError.
  static SafeTensorsFile open(const std::filesystem::path& path);

  const Entries& entries() const { return entries_; }
  /// The strings of "__metadata__", by their keys.
  const Metadata& metadata() const { return metadata_; }
  const std::filesystem::path& path() const { return file_.path(); }
  std::int64_t header_bytes() const { return header_bytes_; }

 private:
  MappedFile file_;
  std::int64_t header_bytes_ = 0;
  Entries entries_;
  Metadata metadata_;
};

/// "[2, 3]"
std::string shown_shape(std::span<const std::int64_t> shape);

}  // namespace topkv
