#include "src/model/weights/safetensors_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/core/format/json_file.h"
#include "src/core/format/placeholder.h"
#include "src/core/text/printable.h"
#include "topkv/error.h"

namespace topkv {
namespace {

using Json = nlohmann::json;

constexpr std::size_t length_bytes = 8;

constexpr std::array<SafeTensorsDType, 22> dtypes = {{
    {"F64", 64, {}},    {"F32", 32, DType::f32}, {"F16", 16, DType::f16}, {"BF16", 16, DType::bf16},
    {"I64", 64, {}},    {"I32", 32, {}},         {"I16", 16, {}},         {"I8", 8, {}},
    {"U64", 64, {}},    {"U32", 32, {}},         {"U16", 16, {}},         {"U8", 8, {}},
    {"BOOL", 8, {}},    {"C64", 64, {}},         {"F8_E4M3", 8, {}},      {"F8_E5M2", 8, {}},
    {"F8_E8M0", 8, {}}, {"F8_E4M3FNUZ", 8, {}},  {"F8_E5M2FNUZ", 8, {}},  {"F6_E2M3", 6, {}},
    {"F6_E3M2", 6, {}}, {"F4", 4, {}},
}};

constexpr std::string_view known_dtypes = "one of the format, as F32, F16 or BF16";
constexpr std::string_view sizes_of_any = "an array of integers from 0 to 2^63 - 1";

/// Reads the header of a file of known size into entries.
class HeaderReader {
 public:
  HeaderReader(const std::filesystem::path& path, std::span<const std::byte> file)
      : path_(path_text(path)), file_(file) {}

  SafeTensorsFile::Entries read() {
    refuse_placeholder({reinterpret_cast<const char*>(file_.data()), file_.size()}, path_);
    const std::size_t header_bytes = header_length();
    const auto text = file_.subspan(length_bytes, header_bytes);
    data_ = file_.subspan(length_bytes + header_bytes);
    const Json header =
        parse_json({reinterpret_cast<const char*>(text.data()), text.size()}, path_);
    if (!header.is_object()) fail(fmt::format("header is {}", shown(header)), "a JSON object");
    SafeTensorsFile::Entries entries;
    for (const auto& [name, value] : header.items()) {
      if (name == "__metadata__") {
        read_metadata(value);
      } else {
        entries.emplace(name, entry(name, value));
      }
    }
    check_cover(entries);
    return entries;
  }

  /// Once it was read.
  std::int64_t bytes() const { return std::ssize(file_) - std::ssize(data_); }
  /// Once it was read.
  SafeTensorsFile::Metadata take_metadata() { return std::move(metadata_); }

 private:
  [[noreturn]] void fail(std::string_view found, std::string_view expected) const {
    throw FileError(fmt::format("{}: {}; expected {}", path_, found, expected));
  }
  [[noreturn]] void fail(std::string_view name, std::string_view found,
                         std::string_view expected) const {
    fail(fmt::format("tensor {} {}", shown(name), found), expected);
  }

  std::size_t header_length() const {
    if (file_.size() < length_bytes) {
      fail(fmt::format("file has {} bytes", file_.size()), "a safetensors file, 8 bytes or more");
    }
    std::uint64_t length = 0;
    for (std::size_t i = 0; i < length_bytes; ++i) {
      length |= std::to_integer<std::uint64_t>(file_[i]) << (8 * i);
    }
    if (length > static_cast<std::uint64_t>(max_json_bytes)) {
      fail(fmt::format("header length is {} bytes", length),
           fmt::format("at most {}", max_json_bytes));
    }
    if (length > file_.size() - length_bytes) {
      fail(fmt::format("header length is {} bytes", length),
           fmt::format("at most the {} bytes that follow it: the file was cut off, or is damaged",
                       file_.size() - length_bytes));
    }
    return static_cast<std::size_t>(length);
  }

  void read_metadata(const Json& value) {
    if (value.is_null()) return;
    const bool strings =
        value.is_object() &&
        std::all_of(value.begin(), value.end(), [](const Json& v) { return v.is_string(); });
    if (!strings) fail(fmt::format("__metadata__ is {}", shown(value)), "an object of strings");
    for (const auto& [key, text] : value.items()) metadata_.emplace(key, text.get<std::string>());
  }

  SafeTensorsFile::Entry entry(const std::string& name, const Json& value) const {
    if (!value.is_object()) {
      fail(name, fmt::format("is {}", shown(value)),
           "an object with dtype, shape and data_offsets");
    }
    SafeTensorsFile::Entry entry;
    entry.dtype = dtype(name, value);
    entry.shape = sizes(name, value, "shape");
    const std::vector<std::int64_t> offsets = sizes(name, value, "data_offsets");
    if (offsets.size() != 2) {
      fail(name, fmt::format("has data_offsets {}", shown_shape(offsets)), "[begin, end]");
    }
    const std::int64_t begin = offsets[0];
    const std::int64_t end = offsets[1];
    const auto data_bytes = static_cast<std::int64_t>(data_.size());
    if (begin > end || end > data_bytes) {
      fail(name, fmt::format("has data_offsets {}", shown_shape(offsets)),
           fmt::format("begin <= end <= {}, the size of the data: where the end is larger, the "
                       "file was cut off: fetch it again",
                       data_bytes));
    }
    const std::int64_t bytes = size_in_bytes(name, entry);
    if (end - begin != bytes) {
      fail(name,
           fmt::format("of dtype {} and shape {} has {} bytes of data (data_offsets {})",
                       entry.dtype.name, shown_shape(entry.shape), end - begin,
                       shown_shape(offsets)),
           fmt::format("{} bytes", bytes));
    }
    entry.bytes = data_.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(bytes));
    return entry;
  }

  SafeTensorsDType dtype(const std::string& name, const Json& value) const {
    const auto found = value.find("dtype");
    if (found == value.end()) fail(name, "has no dtype", known_dtypes);
    if (found->is_string()) {
      const auto& wanted = found->get_ref<const std::string&>();
      const auto* known = std::find_if(dtypes.begin(), dtypes.end(),
                                       [&](const SafeTensorsDType& d) { return d.name == wanted; });
      if (known != dtypes.end()) return *known;
    }
    fail(name, fmt::format("has dtype {}", shown(*found)), known_dtypes);
  }

  /// An array of sizes or offsets.
  std::vector<std::int64_t> sizes(const std::string& name, const Json& value,
                                  const char* key) const {
    const auto found = value.find(key);
    if (found == value.end()) fail(name, fmt::format("has no {}", key), sizes_of_any);
    std::vector<std::int64_t> sizes;
    bool good = found->is_array();
    for (std::size_t i = 0; good && i < found->size(); ++i) {
      const Json& size = (*found)[i];
      good = size.is_number_unsigned() && size.get<std::uint64_t>() <= std::uint64_t{INT64_MAX};
      if (good) sizes.push_back(size.get<std::int64_t>());
    }
    if (!good) {
      fail(name, fmt::format("has {} {}", key, shown(*found)), sizes_of_any);
    }
    return sizes;
  }

  std::int64_t size_in_bytes(const std::string& name, const SafeTensorsFile::Entry& entry) const {
    // The product is taken in the order of the shape, so that [2^62, 4, 0] overflows too, as it
    // does in the reference implementation.
    std::int64_t bits = 1;
    bool overflow = false;
    for (const std::int64_t size : entry.shape) {
      overflow = overflow || __builtin_mul_overflow(bits, size, &bits);
    }
    overflow = overflow || __builtin_mul_overflow(bits, entry.dtype.bits, &bits);
    if (overflow) {
      fail(name, fmt::format("has shape {}", shown_shape(entry.shape)), "a size below 2^63 bits");
    }
    if (bits % 8 != 0) {
      fail(name,
           fmt::format("of dtype {} and shape {} has {} bits", entry.dtype.name,
                       shown_shape(entry.shape), bits),
           "whole bytes");
    }
    return bits / 8;
  }

  /// The data must be covered by the tensors exactly once: what no tensor owns could hide anything.
  void check_cover(const SafeTensorsFile::Entries& entries) const {
    struct Range {
      std::int64_t begin;
      std::int64_t end;
      const std::string* name;
    };
    std::vector<Range> ranges;
    for (const auto& [name, entry] : entries) {
      const std::int64_t begin = entry.bytes.data() - data_.data();
      ranges.push_back({begin, begin + static_cast<std::int64_t>(entry.bytes.size()), &name});
    }
    std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
      return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
    });
    std::int64_t covered = 0;
    for (const Range& range : ranges) {
      if (range.begin != covered) {
        fail(*range.name, fmt::format("begins at byte {} of the data", range.begin),
             fmt::format("{}, where the tensor before it ends ({})", covered,
                         range.begin < covered ? "they overlap" : "there is a hole"));
      }
      covered = range.end;
    }
    const auto data_bytes = static_cast<std::int64_t>(data_.size());
    if (covered != data_bytes) {
      fail(fmt::format("file has {} bytes of data", data_bytes),
           fmt::format("{}, where the last tensor ends", covered));
    }
  }

  std::string path_;
  std::span<const std::byte> file_;
  std::span<const std::byte> data_;
  SafeTensorsFile::Metadata metadata_;
};

}  // namespace

std::string shown_shape(std::span<const std::int64_t> shape) {
  constexpr std::size_t most = 16;
  const auto first = shape.first(std::min(shape.size(), most));
  return fmt::format("[{}{}]", fmt::join(first, ", "), shape.size() > most ? ", ..." : "");
}

SafeTensorsFile SafeTensorsFile::open(const std::filesystem::path& path) {
  SafeTensorsFile result;
  result.file_ = MappedFile::open(path);
  HeaderReader header(path, result.file_.bytes());
  result.entries_ = header.read();
  result.header_bytes_ = header.bytes();
  result.metadata_ = header.take_metadata();
  return result;
}

}  // namespace topkv
