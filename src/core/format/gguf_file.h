// A GGUF file (versions 2 and 3): metadata, and tensors in ggml's types. Read as the format's
// specification says (github.com/ggml-org/ggml, docs/gguf.md).
//
// The whole header is checked when the file is opened: lengths and counts against the file's size,
// that no key and no tensor is there twice, and that each tensor lies within the file.
//
// A model may be split into several files, NAME-00001-of-00003.gguf and on, which lie in one
// folder. The first has the metadata of the model, each has some of the tensors, and each says
// which part it is and of how many (split.no from 0, split.count), and how many tensors all have
// together (split.tensors.count).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/io/mapped_file.h"

namespace topkv {

/// How ggml lays elements out: `inputs` consecutive ones of a row in `bytes`.
struct GgmlType {
  std::uint32_t id = 0;
  std::string_view name;  ///< "q4_K"
  std::int64_t inputs = 1;
  std::int64_t bytes = 0;
};

/// Null: not known.
const GgmlType* find_ggml_type(std::uint32_t id);

/// Immutable; safe from many threads. Views live as long as the file (moving it keeps them).
class GgufFile {
 public:
  struct Tensor {
    const GgmlType* type = nullptr;
    /// Rows first, as elsewhere: the last is what rows are long. (The file has them the other way
    /// round.)
    std::vector<std::int64_t> shape;
    std::span<const std::byte> bytes;
    std::size_t file = 0;  ///< which of paths() it lies in
  };
  using Tensors = std::map<std::string, Tensor, std::less<>>;

  /// path: of a file, or of the first part of a model. Throws FileError, also naming a part that is
  /// missing or of another model, Unsupported for other versions and big-endian files.
  static GgufFile open(const std::filesystem::path& path);

  /// Of the file, or of the first part.
  const std::filesystem::path& path() const { return files_.front().path(); }
  /// Of all parts, the first in front.
  std::vector<std::filesystem::path> paths() const;
  const std::filesystem::path& path_of(const Tensor& tensor) const {
    return files_[tensor.file].path();
  }
  /// All of a file, in which its tensors' bytes lie.
  std::span<const std::byte> bytes(std::size_t file) const { return files_[file].bytes(); }
  const Tensors& tensors() const { return tensors_; }

  bool has(std::string_view key) const { return values_.find(key) != values_.end(); }
  /// Of all metadata, ascending.
  std::vector<std::string_view> keys() const;
  /// A value on one line, fit for a message; "missing" for none.
  std::string shown_value(std::string_view key) const;

  // Each returns `missing` when there is no such key, and throws FileError when the value has
  // another type or is out of the range [low, high], or when there is neither the key nor a value
  // for it. Texts are checked to be UTF-8.
  std::int64_t integer(std::string_view key, std::int64_t low, std::int64_t high,
                       std::optional<std::int64_t> missing = {}) const;
  double number(std::string_view key, double low, double high,
                std::optional<double> missing = {}) const;
  bool flag(std::string_view key, std::optional<bool> missing = {}) const;
  std::string text(std::string_view key, std::optional<std::string> missing = {}) const;
  /// Throws FileError for a missing key, too. The texts need not be UTF-8.
  std::vector<std::string_view> texts(std::string_view key) const;
  std::vector<std::int64_t> integers(std::string_view key) const;
  std::vector<double> numbers(std::string_view key) const;
  std::vector<bool> flags(std::string_view key) const;
  bool is_array(std::string_view key) const;

  /// Throws FileError: "file: key is <found>; expected <expected>".
  [[noreturn]] void fail(std::string_view key, std::string_view expected) const;
  /// Throws Unsupported: "file: key is <found>, which is not implemented; topkv runs <supported>".
  [[noreturn]] void unsupported(std::string_view key, std::string_view supported) const;

 private:
  class Parser;

  struct Value {
    std::uint32_t type = 0;     // of the format
    std::uint32_t element = 0;  // of an array
    std::int64_t count = 0;     // of an array
    std::span<const std::byte> bytes;
  };
  static GgufFile open_one(const std::filesystem::path& path);
  void add_parts(std::int64_t count);
  void add_part(GgufFile part);
  void expect(std::string_view key, std::int64_t value, std::string_view why) const;
  const Value* find(std::string_view key) const;
  const Value& array(std::string_view key, std::string_view expected) const;

  std::vector<MappedFile> files_;
  std::map<std::string, Value, std::less<>> values_;
  Tensors tensors_;
};

/// Of a path such as "folder/NAME-00002-of-00003.gguf".
struct GgufPartName {
  std::int64_t number = 0;  ///< 2
  std::int64_t count = 0;   ///< 3
  /// The path of another part of the same model.
  std::filesystem::path path_of(std::int64_t part) const;

  std::filesystem::path beginning;  ///< "folder/NAME"
};

/// Nothing for a path that does not end so, or whose numbers cannot be.
std::optional<GgufPartName> gguf_part_name(const std::filesystem::path& path);

/// Whether it is a file that begins as GGUF files do.
bool begins_as_gguf(const std::filesystem::path& path);

/// Whether a model is given as a file, which is to be GGUF, rather than as a directory.
bool is_model_file(const std::filesystem::path& model);

}  // namespace topkv
