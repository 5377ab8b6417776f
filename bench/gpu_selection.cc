// Selection and sparse attention of one layer, for one token or for a question, beside dense
// attention in the same run: rows and what stands for them lie in the GPU's memory. The settings
// are those in which the papers of Quest, SparQ and Squeezed Attention time their kernels; their
// speed-ups are printed beside. Results are checked against float64 before they are timed.
//
// usage: gpu_selection_bench [quest|sparq|squeezed|question|codes ...]
#include "bench/gpu_selection.h"

#include <array>

#include "bench/gpu_bandwidth.h"
#include "bench/gpu_cudnn.h"
#include "src/device/compute_device.h"

namespace {

int run(const std::vector<std::string>& wanted) {
  if (topkv::gpu_count() == 0) {
    fmt::print("skipped: no GPU: {}\n", topkv::gpu_reason());
    return 0;
  }
  const std::unique_ptr<topkv::gpu::CudnnAttention> cudnn = bench::open_cudnn();
  cudaDeviceProp properties{};
  TOPKV_CUDA(cudaGetDeviceProperties(&properties, 0));
  const double bandwidth = bench::gpu_read_bandwidth();
  fmt::print("{}: {:.0f} GB/s read\n", properties.name, bandwidth / 1e9);
  const auto has = [&](const char* name) {
    return wanted.empty() || std::find(wanted.begin(), wanted.end(), name) != wanted.end();
  };
  constexpr std::int64_t ki = 1024;
  using bench::codes;
  using bench::quest;
  using bench::sparq;
  using bench::squeezed;
  if (has("quest")) {
    quest({1, 32, 1, 128, 32 * ki, 4}, 2048, "7.03x (RTX 4090)", cudnn.get(), bandwidth);
    quest({8, 32, 1, 128, 32 * ki, 1}, 2048, "-", cudnn.get(), bandwidth);
    quest({1, 8, 4, 128, 128 * ki, 4}, 2048, "-", cudnn.get(), bandwidth);
  }
  if (has("sparq")) {
    sparq({64, 32, 1, 128, 4 * ki, 1}, 32, 128, "3.02x (A100), 4.17x (A10G)", cudnn.get(),
          bandwidth);
    sparq({1, 32, 1, 128, 128 * ki, 2}, 32, 128, "-", cudnn.get(), bandwidth);
  }
  if (has("squeezed")) {
    for (const std::int64_t rows : {128 * ki, 512 * ki})
      squeezed({1, 32, 1, 128, rows, rows == 128 * ki ? 2 : 1},
               {{70, "-"}, {80, "-"}, {90, "4.2x (one H100, 512 Ki)"}}, cudnn.get(), bandwidth);
  }
  if (has("question") && cudnn != nullptr) {
    for (const std::int64_t rows : {128 * ki, 512 * ki})
      bench::question({1, 32, 1, 128, rows, 1}, {1 * ki, 4 * ki},
                      {{70, "-"}, {80, "-"}, {90, "4.3x"}}, *cudnn);
  }
  if (has("codes")) {
    codes({1, 32, 1, 128, 32 * ki, 4}, 64, cudnn.get(), bandwidth);
    codes({1, 8, 4, 128, 128 * ki, 4}, 64, cudnn.get(), bandwidth);
    codes({1, 8, 4, 128, 512 * ki, 2}, 64, cudnn.get(), bandwidth);
  }
  return 0;
}

}  // namespace

int main(int count, char** words) {
  const std::vector<std::string> wanted(words + 1, words + count);
  for (const std::string& word : wanted) {
    constexpr std::array names{"quest", "sparq", "squeezed", "question", "codes"};
    if (std::find(names.begin(), names.end(), word) != names.end()) continue;
    fmt::print(stderr, "usage: {} [quest|sparq|squeezed|question|codes ...]\n", words[0]);
    return 2;
  }
  try {
    return run(wanted);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
