// Takes a GGUF file of the fixtures apart, to be changed and written again (gguf_writer.h). Shares
// no code with the library, and trusts the file.
#pragma once

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "tests/support/gguf_writer.h"

namespace topkv::gguf {

class Reader {
 public:
  explicit Reader(const std::filesystem::path& path) {
    std::ifstream stream(path, std::ios::binary);
    all_.assign(std::istreambuf_iterator<char>(stream), {});
  }

  File read() {
    File file;
    at_ = 4;
    file.version = next<std::uint32_t>();
    const auto tensors = next<std::uint64_t>();
    const auto values = next<std::uint64_t>();
    for (std::uint64_t i = 0; i < values; ++i) {
      const std::string key = next_text();
      const std::size_t begin = at_;
      skip(next<std::uint32_t>());
      file.values.push_back({key, all_.substr(begin, at_ - begin)});
    }
    std::vector<std::uint64_t> offsets;
    for (std::uint64_t i = 0; i < tensors; ++i) {
      Tensor tensor{next_text(), {}};
      tensor.dims.resize(next<std::uint32_t>());
      for (std::uint64_t& dim : tensor.dims) dim = next<std::uint64_t>();
      tensor.type = next<std::uint32_t>();
      offsets.push_back(next<std::uint64_t>());
      file.tensors.push_back(tensor);
    }
    const std::size_t data = (at_ + 31) / 32 * 32;
    for (std::size_t i = 0; i < offsets.size(); ++i) {  // with what aligns the next
      const std::size_t end = i + 1 < offsets.size() ? offsets[i + 1] : all_.size() - data;
      file.tensors[i].bytes = all_.substr(data + offsets[i], end - offsets[i]);
    }
    return file;
  }

 private:
  template <class T>
  T next() {
    T value;
    std::memcpy(&value, all_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  std::string next_text() {
    const auto size = next<std::uint64_t>();
    at_ += size;
    return all_.substr(at_ - size, size);
  }
  void skip(std::uint32_t kind) {
    constexpr std::size_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    if (kind == string) {
      next_text();
    } else if (kind == array) {
      const auto element = next<std::uint32_t>();
      const auto count = next<std::uint64_t>();
      for (std::uint64_t i = 0; i < count; ++i) skip(element);
    } else {
      at_ += sizes[kind];
    }
  }

  std::string all_;
  std::size_t at_ = 0;
};

}  // namespace topkv::gguf
