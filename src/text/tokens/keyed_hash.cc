#include "src/text/tokens/keyed_hash.h"

#include <bit>
#include <cstring>
#include <random>

namespace topkv {
namespace {

struct Key {
  std::uint64_t first;
  std::uint64_t second;
};

std::uint64_t random_bits(std::random_device& source) {
  return static_cast<std::uint64_t>(source()) << 32U | source();
}

const Key& key() {
  static const Key drawn = [] {
    std::random_device source;
    return Key{random_bits(source), random_bits(source)};
  }();
  return drawn;
}

class SipHash {
 public:
  explicit SipHash(const Key& key)
      : v0_(key.first ^ 0x736f6d6570736575U),
        v1_(key.second ^ 0x646f72616e646f6dU),
        v2_(key.first ^ 0x6c7967656e657261U),
        v3_(key.second ^ 0x7465646279746573U) {}

  void add(std::uint64_t word) {
    v3_ ^= word;
    round();
    v0_ ^= word;
  }

  std::uint64_t finish() {
    v2_ ^= 0xFFU;
    for (int i = 0; i < 3; ++i) round();
    return v0_ ^ v1_ ^ v2_ ^ v3_;
  }

 private:
  void round() {
    v0_ += v1_;
    v1_ = std::rotl(v1_, 13) ^ v0_;
    v0_ = std::rotl(v0_, 32);
    v2_ += v3_;
    v3_ = std::rotl(v3_, 16) ^ v2_;
    v0_ += v3_;
    v3_ = std::rotl(v3_, 21) ^ v0_;
    v2_ += v1_;
    v1_ = std::rotl(v1_, 17) ^ v2_;
    v2_ = std::rotl(v2_, 32);
  }

  std::uint64_t v0_, v1_, v2_, v3_;
};

}  // namespace

std::uint64_t keyed_hash(std::string_view bytes) {
  SipHash hash(key());
  const std::uint64_t length = static_cast<std::uint64_t>(bytes.size()) << 56U;
  for (; bytes.size() >= 8; bytes.remove_prefix(8)) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data(), 8);
    hash.add(word);
  }
  std::uint64_t rest = 0;
  std::memcpy(&rest, bytes.data(), bytes.size());
  hash.add(rest | length);
  return hash.finish();
}

std::uint64_t keyed_hash(std::uint64_t number) {
  SipHash hash(key());
  hash.add(number);
  return hash.finish();
}

}  // namespace topkv
