#include "src/model/weights/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <system_error>

#include "src/core/format/json_file.h"
#include "src/core/io/mapped_file.h"
#include "src/core/text/printable.h"
#include "src/model/weights/check_finite.h"
#include "topkv/error.h"

namespace topkv {
namespace {

namespace fs = std::filesystem;

/// A name within one directory, not a path that could leave it.
bool is_plain_file_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

/// A file of weights of this kind in the directory; empty: none.
fs::path find_file(const fs::path& directory, std::string_view begins, std::string_view ends) {
  std::error_code error;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.starts_with(begins) && name.ends_with(ends)) return at->path();
  }
  return {};
}

fs::path find_torch_file(const fs::path& directory) {
  return find_file(directory, "pytorch_model", ".bin");
}

/// Where neither file is there.
std::string what_to_do(const fs::path& directory) {
  const auto name = [](const fs::path& file) { return printable(file.filename().string()); };
  if (const fs::path shard = find_file(directory, "", ".safetensors"); !shard.empty())
    return fmt::format("the index beside {}: fetch the index, too", name(shard));
  if (const fs::path gguf = find_file(directory, "", ".gguf"); !gguf.empty())
    return fmt::format("safetensors, or the path of the GGUF file, {}", path_text(gguf));
  if (const fs::path torch = find_torch_file(directory); !torch.empty())
    return fmt::format("safetensors, because {} is not read: fetch the model as safetensors",
                       name(torch));
  return "the directory of a Hugging Face model saved as safetensors";
}

}  // namespace

bool has_weight_files(const fs::path& directory) {
  std::error_code error;
  const fs::directory_iterator readable(directory, error);
  if (error) return true;  // opening it says why
  return !find_file(directory, "", ".safetensors").empty() ||
         !find_file(directory, "", ".gguf").empty() || !find_torch_file(directory).empty();
}

SafeTensors SafeTensors::open(const fs::path& directory) {
  const fs::path single = directory / "model.safetensors";
  const fs::path index = directory / "model.safetensors.index.json";
  SafeTensors result;
  if (file_exists(single)) {
    result.source_ = single;
    result.files_.push_back(SafeTensorsFile::open(single));
    for (const auto& [name, entry] : result.files_[0].entries()) result.places_[name].file = 0;
  } else if (file_exists(index)) {
    result.source_ = index;
    result.open_shards();
  } else {
    throw FileError(fmt::format(
        "{}: has neither model.safetensors nor model.safetensors.index.json; expected {}",
        path_text(directory), what_to_do(directory)));
  }
  return result;
}

void SafeTensors::open_shards() {
  const nlohmann::json json = read_json_file(source_);
  const JsonObject root(json, source_);
  if (root.find("weight_map") == nullptr) root.fail("weight_map", "an object");
  const nlohmann::json& weight_map = json["weight_map"];
  const JsonObject checked(weight_map, source_, "weight_map.");

  std::map<std::string, std::size_t> opened;  // shard name -> files_
  std::int64_t header_bytes = 0;              // of all shards
  for (const auto& [tensor, value] : weight_map.items()) {
    const auto fail = [&, &tensor = tensor](std::string_view found, std::string_view expected) {
      throw FileError(fmt::format("{}: weight_map puts tensor {} into {}; expected {}",
                                  path_text(source_), shown(tensor), found, expected));
    };
    if (!value.is_string()) fail(shown(value), "the name of a file");
    const auto& shard = value.get_ref<const std::string&>();
    if (!is_plain_file_name(shard)) fail(shown(value), "a file in the directory of the index");
    const auto [it, is_new] = opened.try_emplace(shard, files_.size());
    if (is_new) {
      const fs::path path = source_.parent_path() / shard;
      if (!file_exists(path))
        fail(shown(value) + ", which is missing",
             "the shard beside the index: fetch it, too, or all files again");
      header_bytes += files_.emplace_back(SafeTensorsFile::open(path)).header_bytes();
      if (header_bytes > max_json_bytes)
        throw FileError(fmt::format(
            "{}: the headers of its shards have {} bytes up to {}; expected at most {} of all",
            path_text(source_), header_bytes, shown(value), max_json_bytes));
    }
    if (!files_[it->second].entries().contains(tensor)) {
      fail(shown(value), "a shard that holds it; this one does not");
    }
    places_[tensor].file = it->second;
  }
}

std::vector<fs::path> SafeTensors::files() const {
  std::vector<fs::path> paths;
  for (const SafeTensorsFile& file : files_) paths.push_back(file.path());
  return paths;
}

bool SafeTensors::has(std::string_view name) const { return places_.find(name) != places_.end(); }

const SafeTensorsFile& SafeTensors::file_of(std::string_view name) const {
  return files_[places_.find(name)->second.file];
}

const SafeTensorsFile::Entry& SafeTensors::stored(std::string_view name) const {
  return file_of(name).entries().find(name)->second;
}

const SafeTensorsFile::Entry& SafeTensors::entry(
    std::string_view name, std::span<const std::int64_t> expected_shape) const {
  const auto it = places_.find(name);
  if (it == places_.end()) {
    throw FileError(fmt::format(
        "{}: has no tensor {}; expected one of shape {}: fetch the weights again, or the "
        "config.json that belongs to them",
        path_text(source_), shown(name), shown_shape(expected_shape)));
  }
  const SafeTensorsFile::Entry& entry = stored(name);
  if (!std::ranges::equal(entry.shape, expected_shape)) {
    throw FileError(fmt::format("{}: tensor {} has shape {}; expected {}",
                                path_text(file_of(name).path()), shown(name),
                                shown_shape(entry.shape), shown_shape(expected_shape)));
  }
  it->second.read = true;
  return entry;
}

SafeTensors::Tensor SafeTensors::get(std::string_view name,
                                     std::span<const std::int64_t> expected_shape) const {
  const SafeTensorsFile::Entry& found = entry(name, expected_shape);
  if (!found.dtype.dtype) {
    throw Unsupported(fmt::format("{}: tensor {} has dtype {}; topkv reads F32, F16 and BF16",
                                  path_text(file_of(name).path()), shown(name), found.dtype.name));
  }
  return {found.bytes.data(), *found.dtype.dtype, found.shape};
}

std::span<const std::byte> SafeTensors::raw(std::string_view name,
                                            std::span<const std::int64_t> expected_shape,
                                            std::string_view dtype) const {
  const SafeTensorsFile::Entry& found = entry(name, expected_shape);
  if (found.dtype.name != dtype) {
    throw FileError(fmt::format("{}: tensor {} has dtype {}; expected {}",
                                path_text(file_of(name).path()), shown(name), found.dtype.name,
                                dtype));
  }
  return found.bytes;
}

bool SafeTensors::is_float(std::string_view name) const {
  return stored(name).dtype.dtype.has_value();
}

std::string_view SafeTensors::dtype(std::string_view name) const { return stored(name).dtype.name; }

std::span<const std::int64_t> SafeTensors::shape(std::string_view name) const {
  return stored(name).shape;
}

std::span<const std::byte> SafeTensors::bytes(std::string_view name) const {
  return stored(name).bytes;
}

const fs::path& SafeTensors::path_of(std::string_view name) const {
  return has(name) ? file_of(name).path() : source_;
}

void SafeTensors::check_finite() const {
  for (const auto& [name, place] : places_) {
    const SafeTensorsFile::Entry& tensor = stored(name);
    if (!place.read || !tensor.dtype.dtype) continue;
    topkv::check_finite(
        tensor.bytes.data(), *tensor.dtype.dtype, tensor.shape,
        fmt::format("{}: tensor {}", path_text(path_of(name)), printable_beginning(name)));
  }
}

std::vector<std::string> SafeTensors::names() const {
  std::vector<std::string> names;
  for (const auto& [name, place] : places_) names.push_back(name);
  return names;
}

std::vector<std::string> SafeTensors::unread() const {
  std::vector<std::string> names;
  for (const auto& [name, place] : places_) {
    if (!place.read) names.push_back(name);
  }
  return names;
}

}  // namespace topkv
