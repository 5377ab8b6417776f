// The tensors of a model directory in Hugging Face layout: one file `model.safetensors`, or the
// shards that `model.safetensors.index.json` names. As in transformers, the single file wins when
// both are there.
//
// Ownership: files are memory-mapped, nothing is copied; a Tensor's data lives as long as the
// SafeTensors it came from (moving that keeps it). The files must not change meanwhile.
// Threads: const members are safe from many threads.
// Every header is checked when the directory is opened; see safetensors_file.h.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/model/weights/safetensors_file.h"
#include "topkv/types.h"

namespace topkv {

/// Whether a directory has weights of any kind, also such as are not read, so that only opening
/// tells what is wrong with them: files of tensors, not an index alone.
bool has_weight_files(const std::filesystem::path& directory);

class SafeTensors {
 public:
  struct Tensor {
    /// Row-major elements. Not necessarily aligned to their size: a file may begin its data at any
    /// byte. Read them with memcpy or through to_float (convert.h), never through a float pointer.
    const std::byte* data = nullptr;
    DType dtype = DType::f32;
    std::vector<std::int64_t> shape;
  };

  /// Throws FileError. In an index every shard must lie in the directory itself (it may be a
  /// symbolic link, as in a download cache) and hold the tensors that are said to be in it; tensors
  /// of a shard that the index does not list are ignored.
  static SafeTensors open(const std::filesystem::path& directory);

  bool has(std::string_view name) const;
  /// The single file, or the index.
  const std::filesystem::path& source() const { return source_; }
  /// Those that hold tensors: the single file, or the shards that the index names.
  std::vector<std::filesystem::path> files() const;

  /// Throws FileError when there is no such tensor or it has another shape, Unsupported when its
  /// elements are not F32, F16 or BF16.
  Tensor get(std::string_view name, std::span<const std::int64_t> expected_shape) const;

  /// The bytes of a tensor whose elements topkv has no type for. dtype: as the file names it
  /// ("I32"). Throws FileError when there is no such tensor, or it has another shape or dtype.
  std::span<const std::byte> raw(std::string_view name,
                                 std::span<const std::int64_t> expected_shape,
                                 std::string_view dtype) const;
  /// Whether its elements are F32, F16 or BF16. REQUIRES: has(name).
  bool is_float(std::string_view name) const;
  /// As the file names it. REQUIRES: has(name).
  std::string_view dtype(std::string_view name) const;
  /// REQUIRES: has(name).
  std::span<const std::int64_t> shape(std::string_view name) const;

  /// Of a tensor, for messages: the file that holds it; source() where there is none.
  const std::filesystem::path& path_of(std::string_view name) const;
  /// Throws FileError for the first of those that get has given which is not finite.
  void check_finite() const;

  /// All of a tensor, which does not count as read. REQUIRES: has(name).
  std::span<const std::byte> bytes(std::string_view name) const;

  /// Counts a tensor as read. REQUIRES: has(name).
  void leave(std::string_view name) const { places_.find(name)->second.read = true; }

  /// Names of all tensors, ascending.
  std::vector<std::string> names() const;
  /// Those that neither get nor raw has given, ascending.
  std::vector<std::string> unread() const;

 private:
  void open_shards();
  /// REQUIRES: has(name).
  const SafeTensorsFile& file_of(std::string_view name) const;
  const SafeTensorsFile::Entry& stored(std::string_view name) const;
  /// Throws FileError.
  const SafeTensorsFile::Entry& entry(std::string_view name,
                                      std::span<const std::int64_t> expected_shape) const;

  std::filesystem::path source_;  // what lists the tensors: file or index
  std::vector<SafeTensorsFile> files_;
  struct Place {
    std::size_t file = 0;  // of files_
    mutable std::atomic<bool> read = false;
  };
  std::map<std::string, Place, std::less<>> places_;  // by the name of the tensor
};

}  // namespace topkv
