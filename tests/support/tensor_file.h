// safetensors files taken apart and put together, sharing no code with the library.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace topkv {

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// A tensor as its file has it.
struct FileTensor {
  std::string dtype;
  nlohmann::json shape;
  std::string bytes;
};
using FileTensors = std::map<std::string, FileTensor>;

inline FileTensors read_tensors(const std::filesystem::path& path) {
  const std::string file = read_file(path);
  std::uint64_t header = 0;
  std::memcpy(&header, file.data(), 8);
  FileTensors tensors;
  const nlohmann::json json = nlohmann::json::parse(file.substr(8, header));
  for (const auto& [name, entry] : json.items()) {
    if (name == "__metadata__") continue;
    const std::size_t begin = entry["data_offsets"][0];
    const std::size_t end = entry["data_offsets"][1];
    tensors[name] = {entry["dtype"], entry["shape"], file.substr(8 + header + begin, end - begin)};
  }
  return tensors;
}

inline std::string file_of(const FileTensors& tensors) {
  nlohmann::json header;
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {{"dtype", tensor.dtype},
                    {"shape", tensor.shape},
                    {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  const std::string text = header.dump();
  const std::uint64_t size = text.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &size, 8);
  return file + text + data;
}

}  // namespace topkv
