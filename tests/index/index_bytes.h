// Indices as bytes of a file, in memory.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "index/common/index_factory.h"
#include "src/core/format/archive.h"
#include "topkv/error.h"
#include "topkv/index_spec.h"
#include "topkv/key_index.h"

namespace topkv::test {

/// Collects what is written.
class Written final : public Archive {
 public:
  bool reading() const override { return false; }
  std::string bytes;

 protected:
  void transfer(void* data, std::int64_t count) override {
    bytes.append(static_cast<const char*>(data), static_cast<std::size_t>(count));
  }
  std::int64_t left() const override { return 0; }
  [[noreturn]] void fail(std::string_view what) const override {
    throw InvalidArgument(std::string(what));
  }
};

/// Reads from bytes; throws FileError.
class Read final : public Archive {
 public:
  explicit Read(std::string_view bytes) : bytes_(bytes) {}
  bool reading() const override { return true; }
  void finish() const { check(bytes_.empty(), "there is more"); }

 protected:
  void transfer(void* data, std::int64_t count) override {
    check(count <= left(), "it ends too early");
    if (count == 0) return;
    std::memcpy(data, bytes_.data(), static_cast<std::size_t>(count));
    bytes_.remove_prefix(static_cast<std::size_t>(count));
  }
  std::int64_t left() const override { return std::ssize(bytes_); }
  [[noreturn]] void fail(std::string_view what) const override {
    throw FileError(std::string(what));
  }

 private:
  std::string_view bytes_;
};

/// What an index has learned of its keys, as bytes.
inline std::string written(HeadIndex& index, const KeyView& keys) {
  Written archive;
  index.transfer(keys, archive);
  return archive.bytes;
}

/// An index made of such bytes. Throws FileError.
inline std::unique_ptr<HeadIndex> read(const IndexSpec& spec, const KeyView& keys,
                                       const std::string& bytes) {
  auto index = spec.factory().make();
  Read archive(bytes);
  index->transfer(keys, archive);
  archive.finish();
  return index;
}

}  // namespace topkv::test
