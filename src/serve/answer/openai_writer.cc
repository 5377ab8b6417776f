#include "src/serve/answer/openai_writer.h"

namespace topkv::serve {

std::string OpenAiWriter::opening() {
  std::string text;
  for (const std::string& chunk : responder_.opening()) text += sse(chunk);
  return text;
}

std::string OpenAiWriter::piece(const Event& event) {
  const std::string chunk = responder_.chunk(event);
  return chunk.empty() ? chunk : sse(chunk);
}

std::string OpenAiWriter::closing(const AnswerTotals& totals) {
  return (usage_ ? sse(responder_.usage_chunk(totals.usage)) : std::string()) + sse_done;
}

}  // namespace topkv::serve
