// Ask a long text: prefill it once, then put each question to a session of its own.
//
//   ask_text MODEL_DIR TEXT_FILE QUESTION...
#include <cstdio>
#include <fstream>
#include <sstream>

#include "topkv/error.h"
#include "topkv/model.h"

int main(int argc, char** argv) try {
  if (argc < 4) {
    std::fprintf(stderr, "usage: ask_text MODEL_DIR TEXT_FILE QUESTION...\n");
    return 2;
  }
  const auto model = topkv::Model::load(argv[1]);
  const topkv::Tokenizer& tokenizer = model.tokenizer();

  std::ifstream file(argv[2]);
  if (!file) throw topkv::FileError(std::string(argv[2]) + ": cannot be opened for reading");
  std::stringstream text;
  text << file.rdbuf();

  std::vector<topkv::Token> tokens = tokenizer.encode(text.str());
  if (model.config().bos >= 0) tokens.insert(tokens.begin(), model.config().bos);
  const auto context = model.prefill(
      tokens, {.attention = {.mode = topkv::Prefill::window}}, [](const topkv::Progress& p) {
        std::fprintf(stderr, "\r%lld of %lld tokens read", static_cast<long long>(p.done),
                     static_cast<long long>(p.total));
      });
  std::fprintf(stderr, "\n");

  for (int i = 3; i < argc; ++i) {
    topkv::Session session(context, {.index = "exact", .k = topkv::TopK::same(64)});
    topkv::Utf8Stream stream;
    std::printf("%s", argv[i]);
    model.generate(session, tokenizer.encode(argv[i]), {.max_tokens = 24}, [&](topkv::Token token) {
      std::printf("%s", stream.push(tokenizer.bytes_of_token(token)).c_str());
      std::fflush(stdout);
      return true;
    });
    std::printf("%s\n", stream.finish().c_str());
  }
} catch (const topkv::Error& error) {
  std::fprintf(stderr, "ask_text: %s\n", error.what());
  return 1;
}
