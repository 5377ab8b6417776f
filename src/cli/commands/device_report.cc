#include "src/cli/commands/device_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "src/core/text/byte_text.h"
#include "topkv/error.h"

namespace topkv::cli {

std::string plan_table(const DevicePlan& plan) {
  std::string text = fmt::format("GPU memory, ceiling {}\n", byte_text(plan.ceiling));
  for (const MemoryItem& item : plan.items) {
    text += fmt::format("  {:<44} {:>10}\n", item.what, byte_text(item.bytes));
  }
  return text + fmt::format("  {:<44} {:>10}\n", "at most at a time", byte_text(plan.peak));
}

void check_indices(const Device& device, const AttentionShape& shape,
                   const RetrievalFlags& retrieval, std::int64_t tokens) {
  if (!device.is_cuda() || tokens == 0) return;
  std::int64_t bytes = 0;
  for (const std::string& index : retrieval.indices) {
    bytes += device_index_bytes(shape, retrieval_options(retrieval, shape.layers, index, 1), tokens,
                                device);
  }
  // As few bytes as rows can take: their dtype is not known here.
  if (retrieval.gpu_rows)
    bytes += std::min(*retrieval.gpu_rows, shape.context_bytes(DType::q4, tokens));
  const DeviceMemory memory = device.memory();
  if (bytes <= memory.ceiling - memory.used) return;
  throw OutOfMemory(
      fmt::format("GPU memory for the codes, or other key summaries, and rows of {} tokens",
                  tokens),
      bytes, memory.ceiling - memory.used,
      "raise --gpu-mem, use fewer tokens, use smaller codes such as --kv-index codes:k=16,v=8, "
      "search on the host (--kv-host-search), or use --kv-index exact, which has none; topkv plan "
      "shows what fits");
}

std::string warning_line(const std::string& warning) {
  return fmt::format("topkv: warning: {}", warning);
}

void print_warning(const std::string& warning) {
  fmt::print(stderr, "{}\n", warning_line(warning));
}

std::string memory_account(const Device& device) {
  if (!device.is_cuda()) return {};
  const DeviceMemory memory = device.memory();
  std::string text =
      fmt::format("{} at most, of {}", byte_text(memory.peak), byte_text(memory.ceiling));
  if (memory.driver > 0) {
    text += fmt::format("; the driver counts {} now, topkv {}", byte_text(memory.driver),
                        byte_text(memory.used));
  }
  return text;
}

}  // namespace topkv::cli
