#include "bench/machine.h"

#include <dnnl.h>

#include "src/core/memory/bandwidth.h"
#include "src/core/threads/threads.h"

namespace bench {

double read_bandwidth() { return topkv::read_bandwidth(); }

double matmul_peak() {
  constexpr std::int64_t n = 1024;
  const std::int64_t threads = topkv::thread_count();
  std::vector<float> a(n * n, 0.5F), b(n * n, 0.25F);
  for (std::size_t i = 0; i < a.size(); ++i) {
    a[i] = static_cast<float>(i % 97) * 0.01F;
    b[i] = static_cast<float>(i % 89) * 0.01F;
  }
  std::vector<float> c(static_cast<std::size_t>(threads) * n * n);
  constexpr int repeats = 4;
  const double seconds = median_seconds(7, [&] {
    topkv::parallel_for(threads, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        for (int r = 0; r < repeats; ++r) {
          dnnl_sgemm('N', 'T', n, n, n, 1, a.data(), n, b.data(), n, 0, c.data() + t * n * n, n);
        }
      }
    });
  });
  return 2.0 * n * n * n * repeats * static_cast<double>(threads) / seconds;
}

}  // namespace bench
