// What a tokenizer.json has beside a vocabulary that is whole: normalizer, pre-tokenizer, decoder,
// added tokens. The input is the rest of the file, behind the vocabulary. Its first byte says
// whether that is one of bytes or of SentencePiece's pieces.
#include <nlohmann/json.hpp>

#include "tests/fuzz/tokenizer_use.h"

namespace fuzz = topkv::fuzz;

namespace {

std::string utf8(unsigned code) {
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

/// GPT-2's spelling of bytes: those that can be seen are themselves, others U+0100 and on.
nlohmann::json bytes() {
  nlohmann::json vocabulary;
  unsigned next = 256;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool seen = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    vocabulary[utf8(seen ? byte : next++)] = byte;
  }
  vocabulary["aa"] = 256;
  return {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", {"a a"}}};
}

nlohmann::json pieces() {
  nlohmann::json vocabulary;
  for (unsigned byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", byte);
    vocabulary[name] = byte;
  }
  vocabulary["a"] = 256;
  vocabulary["aa"] = 257;
  vocabulary["\xe2\x96\x81"] = 258;
  return {{"type", "BPE"}, {"byte_fallback", true}, {"vocab", vocabulary}, {"merges", {"a a"}}};
}

}  // namespace

FUZZ_TARGET(tokenizer_parts)(const std::uint8_t* data, std::size_t size) {
  static const fuzz::Folder folder;
  static const std::string models[] = {"{\"model\": " + bytes().dump() + ",",
                                       "{\"model\": " + pieces().dump() + ","};
  if (size == 0) return 0;
  const auto file = folder.write(
      "tokenizer.json", models[data[0] % 2] + std::string(fuzz::text_of(data + 1, size - 1)));
  fuzz::accepts([&] { fuzz::use_tokenizer(file); }, folder.text());
  return 0;
}
