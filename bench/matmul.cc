// The forward pass's matrix products as a share of what the machine can do, measured beside them
// in one run: with many tokens, of the library's own peak; with one token, of the memory bandwidth
// that reading the weights once takes.
#include <fmt/format.h>

#include <cmath>

#include "bench/machine.h"
#include "src/core/math/convert.h"
#include "src/device/compute_device.h"

namespace {

struct Shape {
  const char* name;
  std::int64_t out, in;
};

}  // namespace

int main() {
  topkv::ComputeDevice& device = *topkv::host_device();
  const double peak = bench::matmul_peak();
  const double bandwidth = bench::read_bandwidth();
  fmt::print("oneDNN float32 peak {:.0f} GFLOP/s, streaming read {:.1f} GB/s\n\n", peak / 1e9,
             bandwidth / 1e9);
  fmt::print("{:<28} {:>7} {:>12} {:>16}\n", "weight [out, in], bf16", "tokens", "rate",
             "of the limit");
  for (const Shape& shape : {Shape{"needle-14m q/o", 384, 384},
                             {"needle-14m gate/up", 1024, 384},
                             {"needle-14m down", 384, 1024},
                             {"Llama-3-8B q/o", 4096, 4096},
                             {"Llama-3-8B gate/up", 14336, 4096}}) {
    std::vector<float> values(static_cast<std::size_t>(shape.out * shape.in));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(static_cast<int>(i * 7919 % 255) - 127) / 128.0F;
    std::vector<std::byte> stored(values.size() * 2);
    topkv::from_float(values.data(), static_cast<std::int64_t>(values.size()), topkv::DType::bf16,
                      stored.data());
    const topkv::Matrix weight{stored.data(), topkv::DType::bf16, shape.out, shape.in};
    for (const std::int64_t tokens : {1, 2048}) {
      std::vector<float> x(static_cast<std::size_t>(tokens * shape.in));
      for (std::size_t i = 0; i < x.size(); ++i)
        x[i] = static_cast<float>(static_cast<int>(i * 104729 % 199) - 99) / 100.0F;
      std::vector<float> out(static_cast<std::size_t>(tokens * shape.out));
      const double seconds = bench::median_seconds(7, [&] {
        device.matmul(weight, reinterpret_cast<const std::byte*>(x.data()), tokens, false,
                      out.data());
      });
      // The weights hold multiples of 1/128 below 1: exact in bf16, so float64 sums are the truth.
      for (const std::int64_t at :
           {std::int64_t{0}, tokens * shape.out / 2, tokens * shape.out - 1}) {
        double want = 0;
        double size = 0;
        for (std::int64_t j = 0; j < shape.in; ++j) {
          const double product =
              double{x[at / shape.out * shape.in + j]} * values[at % shape.out * shape.in + j];
          want += product;
          size += std::abs(product);
        }
        if (std::abs(out[at] - want) > 1e-5 * size) {
          fmt::print(stderr, "wrong product of {}: {} for {}\n", shape.name, out[at], want);
          return 1;
        }
      }
      const double flops = 2.0 * static_cast<double>(tokens * shape.out * shape.in) / seconds;
      const double bytes = 2.0 * static_cast<double>(shape.out * shape.in) / seconds;
      fmt::print("{:<28} {:>7} {:>12} {:>15.0f}%\n",
                 fmt::format("{} [{}, {}]", shape.name, shape.out, shape.in), tokens,
                 tokens == 1 ? fmt::format("{:.1f} GB/s", bytes / 1e9)
                             : fmt::format("{:.0f} GFLOP/s", flops / 1e9),
                 100 * (tokens == 1 ? bytes / bandwidth : flops / peak));
    }
  }
  fmt::print(
      "\nA weight of a few MB read for one token comes from the last-level cache and may exceed "
      "100 %.\n");
}
