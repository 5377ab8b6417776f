#include "src/core/format/gguf_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/core/format/json_file.h"
#include "src/core/format/placeholder.h"
#include "src/core/text/printable.h"
#include "src/core/text/utf8.h"
#include "topkv/error.h"

namespace topkv {
namespace {

// Types of values, as the format numbers them.
enum Kind : std::uint32_t {
  u8,
  i8,
  u16,
  i16,
  u32,
  i32,
  f32,
  boolean,
  string,
  array_kind,
  u64,
  i64,
  f64,
  kinds
};
constexpr std::array<std::int64_t, kinds> sizes = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
constexpr std::array<std::string_view, kinds> kind_names = {
    "uint8", "int8",   "uint16", "int16",  "uint32", "int32",  "float32",
    "bool",  "string", "array",  "uint64", "int64",  "float64"};

constexpr std::int64_t max_elements = std::int64_t{1} << 23;  // of an array of texts or arrays
constexpr std::size_t max_name = 65535;
constexpr int max_array_depth = 4;  // of arrays in arrays
constexpr std::size_t max_dims = 4;

constexpr std::array<GgmlType, 32> types = {{
    {0, "f32", 1, 4},         {1, "f16", 1, 2},         {2, "q4_0", 32, 18},
    {3, "q4_1", 32, 20},      {6, "q5_0", 32, 22},      {7, "q5_1", 32, 24},
    {8, "q8_0", 32, 34},      {10, "q2_K", 256, 84},    {11, "q3_K", 256, 110},
    {12, "q4_K", 256, 144},   {13, "q5_K", 256, 176},   {14, "q6_K", 256, 210},
    {16, "iq2_xxs", 256, 66}, {17, "iq2_xs", 256, 74},  {18, "iq3_xxs", 256, 98},
    {19, "iq1_s", 256, 50},   {20, "iq4_nl", 32, 18},   {21, "iq3_s", 256, 110},
    {22, "iq2_s", 256, 82},   {23, "iq4_xs", 256, 136}, {24, "i8", 1, 1},
    {25, "i16", 1, 2},        {26, "i32", 1, 4},        {27, "i64", 1, 8},
    {28, "f64", 1, 8},        {29, "iq1_m", 256, 56},   {30, "bf16", 1, 2},
    {34, "tq1_0", 256, 54},   {35, "tq2_0", 256, 66},   {39, "mxfp4", 32, 17},
    {40, "nvfp4", 64, 36},    {41, "q1_0", 128, 18},
}};

constexpr const char* split_count = "split.count";
constexpr const char* split_number = "split.no";
constexpr const char* split_tensors = "split.tensors.count";
constexpr std::int64_t most_parts = 65535;

/// Files of some publishers are cut into pieces that are no files of their own: NAME.part1of2.
void refuse_piece(const std::filesystem::path& path) {
  constexpr std::string_view beginning = ".part";
  const std::string end = path.extension().string();
  const std::size_t of = end.find("of");
  const auto are_digits = [](std::string_view text) {
    return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
  };
  if (!end.starts_with(beginning) || of == end.npos ||
      !are_digits(std::string_view(end).substr(beginning.size(), of - beginning.size())) ||
      !are_digits(std::string_view(end).substr(of + 2))) {
    return;
  }
  const std::string whole = path.stem().string();
  throw FileError(fmt::format(
      "{}: is a piece of a file by its name; expected the whole: join the pieces, in their order "
      "(cat {}.part*{} > {} for fewer than ten)",
      path_text(path), printable(whole), printable(end.substr(of)), printable(whole)));
}

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

std::string_view text_at(const std::byte* from) {
  return {reinterpret_cast<const char*>(from + 8), load<std::uint64_t>(from)};
}

/// One number, as a JSON value.
nlohmann::json scalar(std::uint32_t kind, const std::byte* from) {
  switch (kind) {
    case u8:
      return load<std::uint8_t>(from);
    case i8:
      return load<std::int8_t>(from);
    case u16:
      return load<std::uint16_t>(from);
    case i16:
      return load<std::int16_t>(from);
    case u32:
      return load<std::uint32_t>(from);
    case i32:
      return load<std::int32_t>(from);
    case f32:
      return load<float>(from);
    case boolean:
      return load<std::uint8_t>(from) != 0;
    case u64:
      return load<std::uint64_t>(from);
    case i64:
      return load<std::int64_t>(from);
    default:
      return load<double>(from);
  }
}

std::string name_of_kind(std::uint32_t kind) {
  return kind < kinds ? std::string(kind_names[kind]) : fmt::format("type {}", kind);
}

}  // namespace

const GgmlType* find_ggml_type(std::uint32_t id) {
  const auto* const found = std::ranges::find(types, id, &GgmlType::id);
  return found == types.end() ? nullptr : &*found;
}

/// Walks the header once, from front to back.
class GgufFile::Parser {
 public:
  explicit Parser(GgufFile& file) : out_(file), bytes_(file.bytes(0)) {}

  void parse() {
    if (bytes_.size() < 4 || std::memcmp(bytes_.data(), "GGUF", 4) != 0) {
      refuse_placeholder({reinterpret_cast<const char*>(bytes_.data()), bytes_.size()},
                         out_.path());
      const std::string_view first(reinterpret_cast<const char*>(bytes_.data()),
                                   std::min<std::size_t>(bytes_.size(), 4));
      fail(
          fmt::format("begins with \"{}\", not with the letters GGUF; expected a GGUF file, or the "
                      "directory of a model",
                      printable(first)));
    }
    at_ = 4;
    const auto version = take<std::uint32_t>("the version");
    if (version != 2 && version != 3) {
      const bool swapped = version == 0x02000000U || version == 0x03000000U;
      throw Unsupported(fmt::format(
          "{}: GGUF {}; topkv reads versions 2 and 3, little-endian: convert the model again",
          path_text(out_.path()),
          swapped ? "of big-endian numbers" : fmt::format("version {}", version)));
    }
    const auto tensors = take<std::uint64_t>("the number of tensors");
    const auto values = take<std::uint64_t>("the number of metadata values");
    check_count("metadata values", values, 13);
    for (std::uint64_t i = 0; i < values; ++i) read_value();
    check_count("tensors", tensors, 24);
    for (std::uint64_t i = 0; i < tensors; ++i) read_tensor();
    place_tensors();
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw FileError(fmt::format("{}: {}", path_text(out_.path()), what));
  }

  std::size_t left() const { return bytes_.size() - at_; }

  const std::byte* take(std::uint64_t count, std::string_view what) {
    if (count > left()) {
      fail(
          fmt::format("ends within {}: {} bytes at {}, of which the file has {}; it was cut off, "
                      "or is damaged: fetch it again",
                      what, count, at_, left()));
    }
    const std::byte* from = bytes_.data() + at_;
    at_ += static_cast<std::size_t>(count);
    return from;
  }

  template <class T>
  T take(std::string_view what) {
    return load<T>(take(sizeof(T), what));
  }

  std::string_view take_text(std::string_view what) {
    const auto length = take<std::uint64_t>(what);
    return {reinterpret_cast<const char*>(take(length, what)), static_cast<std::size_t>(length)};
  }

  void check_count(std::string_view what, std::uint64_t count, std::uint64_t least_bytes) const {
    if (count <= left() / least_bytes) return;
    fail(
        fmt::format("says that it has {} {}, more than its {} bytes can hold; it was cut off, or "
                    "is damaged: fetch it again",
                    count, what, bytes_.size()));
  }

  std::string take_name(std::string_view what) {
    const std::string_view name = take_text(what);
    if (name.empty() || name.size() > max_name || valid_utf8_bytes(name) < name.size()) {
      fail(fmt::format("has {} of {} bytes at {}; expected UTF-8 of 1 to {}", what, name.size(),
                       at_ - name.size(), max_name));
    }
    return std::string(name);
  }

  void read_value() {
    const std::string key = take_name("the name of a metadata value");
    Value value;
    value.type = take<std::uint32_t>("a metadata value");
    const std::string what = fmt::format("metadata value {}", printable_beginning(key));
    if (value.type == array_kind) {
      value.element = take<std::uint32_t>(what);
      const auto count = take<std::uint64_t>(what);
      const std::size_t begin = at_;
      skip_elements(value.element, count, 1, what);
      value.count = static_cast<std::int64_t>(count);
      value.bytes = bytes_.subspan(begin, at_ - begin);
    } else {
      const std::size_t begin = at_;
      skip_one(value.type, what);
      value.bytes = bytes_.subspan(begin, at_ - begin);
    }
    if (!out_.values_.emplace(key, value).second) {
      fail(fmt::format("has {} twice; expected each once", what));
    }
  }

  void skip_one(std::uint32_t kind, const std::string& what) {
    if (kind == string) {
      take_text(what);
    } else if (kind < kinds && kind != array_kind) {
      take(static_cast<std::uint64_t>(sizes[kind]), what);
    } else {
      fail(fmt::format("{} is of type {}; expected one of GGUF's types, 0 to {}", what, kind,
                       kinds - 1));
    }
  }

  void skip_elements(std::uint32_t kind, std::uint64_t count, int depth, const std::string& what) {
    const bool plain = kind < kinds && kind != string && kind != array_kind;
    const auto least =
        plain ? static_cast<std::uint64_t>(sizes[kind]) : std::uint64_t{kind == string ? 8U : 12U};
    if (count > left() / least) {
      fail(
          fmt::format("{} is an array of {} elements, more than the file can hold; it was cut "
                      "off, or is damaged: fetch it again",
                      what, count));
    }
    if (plain) {
      take(count * least, what);
      return;
    }
    if (count > std::uint64_t{max_elements}) {
      fail(fmt::format("{} is an array of {} elements; expected at most {}", what, count,
                       max_elements));
    }
    if (kind == array_kind && depth == max_array_depth) {
      fail(fmt::format("{} has arrays more than {} deep", what, max_array_depth));
    }
    for (std::uint64_t i = 0; i < count; ++i) {
      if (kind == array_kind) {
        const auto inner = take<std::uint32_t>(what);
        const auto inner_count = take<std::uint64_t>(what);
        elements_ += inner_count;
        if (elements_ > std::uint64_t{max_elements}) {
          fail(fmt::format("{} has arrays of more than {} elements in all", what, max_elements));
        }
        skip_elements(inner, inner_count, depth + 1, what);
      } else {
        skip_one(kind, what);
      }
    }
  }

  void read_tensor() {
    Tensor tensor;
    const std::string name = take_name("the name of a tensor");
    const std::string what = fmt::format("tensor {}", printable_beginning(name));
    const auto dims = take<std::uint32_t>(what);
    if (dims == 0 || dims > max_dims) {
      fail(fmt::format("{} has {} dimensions; expected 1 to {}", what, dims, max_dims));
    }
    std::int64_t elements = 1;
    for (std::uint32_t d = 0; d < dims; ++d) {
      const auto size = take<std::uint64_t>(what);
      const bool fits =
          size >= 1 && size <= std::uint64_t{INT64_MAX} &&
          !__builtin_mul_overflow(elements, static_cast<std::int64_t>(size), &elements) &&
          elements <= INT64_MAX / 8;
      if (!fits) {
        fail(fmt::format(
            "{} has dimension {} of {} elements; expected 1 or more, and fewer than 2^60 in all",
            what, d, size));
      }
      tensor.shape.insert(tensor.shape.begin(), static_cast<std::int64_t>(size));
    }
    const auto type = take<std::uint32_t>(what);
    tensor.type = find_ggml_type(type);
    if (tensor.type == nullptr) {
      throw Unsupported(fmt::format(
          "{}: {} is of ggml's type {}, which topkv does not know: convert the model to "
          "another, q4_K or q8_0 for example",
          path_text(out_.path()), what, type));
    }
    if (tensor.shape.back() % tensor.type->inputs != 0) {
      fail(fmt::format("{} is of type {} and has rows of {}; expected a multiple of {}", what,
                       tensor.type->name, tensor.shape.back(), tensor.type->inputs));
    }
    const auto offset = take<std::uint64_t>(what);
    const std::int64_t bytes = elements / tensor.type->inputs * tensor.type->bytes;
    places_.push_back({offset, bytes});
    const auto [it, is_new] = out_.tensors_.emplace(name, std::move(tensor));
    if (!is_new) fail(fmt::format("has {} twice; expected each once", what));
    order_.push_back(it);
  }

  void place_tensors() {
    const std::int64_t alignment = out_.integer("general.alignment", 8, 1 << 20, 32);
    if (alignment % 8 != 0) out_.fail("general.alignment", "a multiple of 8");
    const auto step = static_cast<std::size_t>(alignment);
    const std::size_t begin = std::min((at_ + step - 1) / step * step, bytes_.size());
    const std::size_t room = bytes_.size() - begin;
    for (std::size_t i = 0; i < order_.size(); ++i) {
      const auto& [offset, size] = places_[i];
      const auto need = static_cast<std::uint64_t>(size);
      const std::string_view name = order_[i]->first;
      if (offset % step != 0) {
        fail(
            fmt::format("tensor {} begins at {} of the data; expected a multiple of {} "
                        "(general.alignment)",
                        printable_beginning(name), offset, alignment));
      }
      if (offset > room || need > room - offset) {
        fail(
            fmt::format("tensor {} has {} bytes at {} of the data, of which the file has {}; it "
                        "was cut off, or is damaged: fetch it again",
                        printable_beginning(name), need, offset, room));
      }
      order_[i]->second.bytes =
          bytes_.subspan(begin + static_cast<std::size_t>(offset), static_cast<std::size_t>(size));
    }
  }

  struct Place {
    std::uint64_t offset;  // in the data
    std::int64_t bytes;
  };

  GgufFile& out_;
  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
  std::uint64_t elements_ = 0;  // of arrays in arrays
  std::vector<Place> places_;
  std::vector<Tensors::iterator> order_;
};

GgufFile GgufFile::open_one(const std::filesystem::path& path) {
  GgufFile file;
  file.files_.push_back(MappedFile::open(path));
  Parser(file).parse();
  return file;
}

GgufFile GgufFile::open(const std::filesystem::path& path) {
  refuse_piece(path);
  GgufFile file = open_one(path);
  const std::int64_t parts = file.integer(split_count, 0, most_parts, 0);
  if (parts > 1) file.add_parts(parts);
  return file;
}

void GgufFile::add_parts(std::int64_t count) {
  const std::int64_t number = integer(split_number, 0, count - 1) + 1;
  const auto name = gguf_part_name(path());
  if (!name || name->number != number || name->count != count) {
    throw FileError(fmt::format(
        "{}: is part {} of {} of a model (split.no, split.count); expected a name that ends in "
        "-{:05}-of-{:05}.gguf, for the other parts are found by their names: give the parts the "
        "names that they were published with",
        path_text(path()), number, count, number, count));
  }
  if (number > 1) {
    throw FileError(fmt::format("{}: is part {} of {} of a model; expected the first: {}",
                                path_text(path()), number, count, path_text(name->path_of(1))));
  }
  for (std::int64_t part = 2; part <= count; ++part) {
    const std::filesystem::path path_of_part = name->path_of(part);
    if (!file_exists(path_of_part)) {
      throw FileError(
          fmt::format("{}: is missing; expected part {} of {} of the model beside {}: fetch it",
                      path_text(path_of_part), part, count, path_text(path().filename())));
    }
    GgufFile found = open_one(path_of_part);
    found.expect(split_count, count, "as in the first part");
    found.expect(split_number, part - 1, "one less than in its name");
    if (has(split_tensors)) {
      found.expect(split_tensors, integer(split_tensors, 0, INT64_MAX), "as in the first part");
    }
    add_part(std::move(found));
  }
  if (has(split_tensors) && integer(split_tensors, 0, INT64_MAX) != std::ssize(tensors_)) {
    fail(split_tensors,
         fmt::format("{}, which the {} parts have together: one of them is of another model, or "
                     "of another version of it: fetch them again",
                     tensors_.size(), count));
  }
}

void GgufFile::expect(std::string_view key, std::int64_t value, std::string_view why) const {
  if (integer(key, 0, INT64_MAX) == value) return;
  fail(key, fmt::format("{}, {}: it is a part of another model, or was renamed", value, why));
}

void GgufFile::add_part(GgufFile part) {
  for (auto& [name, tensor] : part.tensors_) {
    tensor.file = files_.size();
    const auto [it, is_new] = tensors_.emplace(name, std::move(tensor));
    if (is_new) continue;
    throw FileError(fmt::format(
        "{}: has tensor {}, which {} has too; expected each once: it is a part of another model",
        path_text(part.path()), printable_beginning(name),
        path_text(path_of(it->second).filename())));
  }
  files_.push_back(std::move(part.files_.front()));
}

std::vector<std::filesystem::path> GgufFile::paths() const {
  std::vector<std::filesystem::path> paths;
  for (const MappedFile& file : files_) paths.push_back(file.path());
  return paths;
}

std::filesystem::path GgufPartName::path_of(std::int64_t part) const {
  std::filesystem::path path = beginning;
  path += fmt::format("-{:05}-of-{:05}.gguf", part, count);
  return path;
}

std::optional<GgufPartName> gguf_part_name(const std::filesystem::path& path) {
  constexpr std::string_view form = "-00000-of-00000.gguf";  // 0: a digit
  const std::string name = path.filename().string();
  if (name.size() <= form.size()) return {};
  const std::string_view end = std::string_view(name).substr(name.size() - form.size());
  GgufPartName found;
  std::int64_t* number = &found.number;
  for (std::size_t i = 0; i < form.size(); ++i) {
    if (form[i] != '0') {
      if (end[i] != form[i]) return {};
      if (end[i] == 'o') number = &found.count;
      continue;
    }
    if (end[i] < '0' || end[i] > '9') return {};
    *number = *number * 10 + (end[i] - '0');
  }
  if (found.number < 1 || found.number > found.count) return {};
  found.beginning = path.parent_path() / name.substr(0, name.size() - form.size());
  return found;
}

const GgufFile::Value* GgufFile::find(std::string_view key) const {
  const auto it = values_.find(key);
  return it == values_.end() ? nullptr : &it->second;
}

std::vector<std::string_view> GgufFile::keys() const {
  std::vector<std::string_view> keys;
  for (const auto& [key, value] : values_) keys.emplace_back(key);
  return keys;
}

std::string GgufFile::shown_value(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return "missing";
  if (value->type == array_kind) {
    return fmt::format("an array of {} {}s", value->count, name_of_kind(value->element));
  }
  if (value->type == string) {
    return shown_bytes(text_at(value->bytes.data()));
  }
  const nlohmann::json number = scalar(value->type, value->bytes.data());
  if (number.is_number_float()) return fmt::format("{}", number.get<double>());
  return shown(number);
}

void GgufFile::fail(std::string_view key, std::string_view expected) const {
  throw FileError(fmt::format("{}: {} is {}; expected {}", path_text(path()),
                              printable_beginning(key), shown_value(key), expected));
}

void GgufFile::unsupported(std::string_view key, std::string_view supported) const {
  throw Unsupported(fmt::format("{}: {} is {}, which is not implemented; topkv runs {}",
                                path_text(path()), printable_beginning(key), shown_value(key),
                                supported));
}

std::int64_t GgufFile::integer(std::string_view key, std::int64_t low, std::int64_t high,
                               std::optional<std::int64_t> missing) const {
  const Value* value = find(key);
  if (value == nullptr && missing) return *missing;
  if (value != nullptr && value->type != array_kind && value->type != string) {
    const nlohmann::json number = scalar(value->type, value->bytes.data());
    const bool fits = number.is_number_unsigned()
                          ? number.get<std::uint64_t>() <= std::uint64_t{INT64_MAX}
                          : number.is_number_integer();
    if (fits && number.get<std::int64_t>() >= low && number.get<std::int64_t>() <= high) {
      return number.get<std::int64_t>();
    }
  }
  fail(key, fmt::format("an integer from {} to {}", low, high));
}

double GgufFile::number(std::string_view key, double low, double high,
                        std::optional<double> missing) const {
  const Value* value = find(key);
  if (value == nullptr && missing) return *missing;
  if (value != nullptr && value->type != array_kind && value->type != string &&
      value->type != boolean) {
    const auto found = scalar(value->type, value->bytes.data()).get<double>();
    if (found >= low && found <= high) return found;
  }
  fail(key, fmt::format("a number from {} to {}", low, high));
}

bool GgufFile::flag(std::string_view key, std::optional<bool> missing) const {
  const Value* value = find(key);
  if (value == nullptr && missing) return *missing;
  if (value != nullptr && value->type == boolean)
    return load<std::uint8_t>(value->bytes.data()) != 0;
  fail(key, "true or false");
}

std::string GgufFile::text(std::string_view key, std::optional<std::string> missing) const {
  const Value* value = find(key);
  if (value == nullptr && missing) return *missing;
  if (value == nullptr || value->type != string) fail(key, "a text");
  const std::string_view found = text_at(value->bytes.data());
  if (valid_utf8_bytes(found) < found.size()) fail(key, "UTF-8");
  return std::string(found);
}

const GgufFile::Value& GgufFile::array(std::string_view key, std::string_view expected) const {
  const Value* value = find(key);
  if (value == nullptr || value->type != array_kind) fail(key, expected);
  return *value;
}

std::vector<std::string_view> GgufFile::texts(std::string_view key) const {
  const Value& value = array(key, "an array of texts");
  if (value.element != string) fail(key, "an array of texts");
  std::vector<std::string_view> texts;
  texts.reserve(static_cast<std::size_t>(value.count));
  const std::byte* from = value.bytes.data();
  for (std::int64_t i = 0; i < value.count; ++i) {
    texts.push_back(text_at(from));
    from += 8 + texts.back().size();
  }
  return texts;
}

std::vector<std::int64_t> GgufFile::integers(std::string_view key) const {
  constexpr std::string_view expected = "an array of integers of at most 32 bits";
  const Value& value = array(key, expected);
  if (value.element > i32) fail(key, expected);
  std::vector<std::int64_t> integers(static_cast<std::size_t>(value.count));
  const std::byte* from = value.bytes.data();
  for (std::int64_t& one : integers) {
    one = scalar(value.element, from).get<std::int64_t>();
    from += sizes[value.element];
  }
  return integers;
}

std::vector<double> GgufFile::numbers(std::string_view key) const {
  const Value& value = array(key, "an array of numbers");
  if (value.element != f32 && value.element != f64) fail(key, "an array of numbers");
  std::vector<double> numbers(static_cast<std::size_t>(value.count));
  const std::byte* from = value.bytes.data();
  for (double& one : numbers) {
    one = scalar(value.element, from).get<double>();
    from += sizes[value.element];
  }
  return numbers;
}

std::vector<bool> GgufFile::flags(std::string_view key) const {
  const Value& value = array(key, "an array of flags");
  if (value.element != boolean) fail(key, "an array of flags");
  std::vector<bool> flags;
  for (const std::byte byte : value.bytes) flags.push_back(byte != std::byte{0});
  return flags;
}

bool GgufFile::is_array(std::string_view key) const {
  const Value* value = find(key);
  return value != nullptr && value->type == array_kind;
}

bool begins_as_gguf(const std::filesystem::path& path) {
  if (!is_model_file(path)) return false;
  std::array<char, 4> first{};
  std::ifstream(path, std::ios::binary).read(first.data(), first.size());
  return std::string_view(first.data(), first.size()) == "GGUF";
}

bool is_model_file(const std::filesystem::path& model) {
  std::error_code error;
  return std::filesystem::is_regular_file(model, error);
}

}  // namespace topkv
