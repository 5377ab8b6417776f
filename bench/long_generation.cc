// One session that generates a hundred thousand tokens with a small model: memory must grow by the
// session's rows, and codes of these, alone. Prints resident memory, that of rows (in whole huge
// pages once an array of them is as long), that of codes (SessionStats::coded_bytes), and what is
// left, as it goes on; fails when that grows by more than 16 MiB after the first twentieth.
//
// On a CUDA device its memory is printed too; beside a copy of the codes it is bounded alike.
//
//   long_generation_bench MODEL [tokens [index [device]]]          default 100000 exact cpu
#include <fmt/format.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "bench/machine.h"
#include "topkv/model.h"

namespace {

constexpr double mib = 1 << 20;
constexpr std::int64_t huge_page = 2 << 20;

double resident() {
  malloc_trim(0);
  std::ifstream statm("/proc/self/statm");
  double mapped = 0;
  double pages = 0;
  statm >> mapped >> pages;
  return pages * static_cast<double>(sysconf(_SC_PAGESIZE));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "long_generation_bench MODEL [tokens [index [device]]]\n");
    return 1;
  }
  // Free memory at the end of an arena goes back in the first one alone: what codes are made in
  // anew would stay in a thread's.
  mallopt(M_ARENA_MAX, 1);
  const std::int64_t total = argc > 2 ? std::atoll(argv[2]) : 100'000;
  const std::string index = argc > 3 ? argv[3] : "exact";
  const topkv::Device device = topkv::Device::open(argc > 4 ? argv[4] : "cpu");
  const topkv::Model model = topkv::Model::load(argv[1], device);
  const auto text = model.tokenizer().encode("The grass is green. The sky is blue. Once upon a");
  const topkv::RetrievalOptions options = {
      .index = index, .k = topkv::TopK::same(16), .window = 256, .capacity = total + 1024};
  const auto context = model.prefill(text)->ready_for(options, {}, device);
  topkv::Session session(context, options, device);
  const topkv::AttentionShape& shape = context->shape();
  const std::int64_t token_bytes = model.config().kv_bytes_per_token(context->dtype());
  const std::int64_t arrays = 2 * shape.layers * shape.kv_heads;
  fmt::print("{} bytes of rows a token\n{:>8}{:>10}{:>10}{:>11}{:>10}{:>10}{:>10}\n", token_bytes,
             "tokens", "RSS MiB", "rows MiB", "codes MiB", "rest MiB", "GPU MiB", "tokens/s");
  std::fflush(stdout);
  // Of more than one draw, so that the text is not one that repeats itself.
  const topkv::SamplingOptions sampling{.temperature = 1, .seed = 1};
  std::vector<topkv::Token> prompt = text;
  const std::int64_t part = std::max<std::int64_t>(1, total / 20);
  double settled = 0, worst = 0;
  double settled_gpu = 0, worst_gpu = 0;
  for (std::int64_t done = 0; done < total;) {
    std::int64_t got = 0;
    const double seconds = bench::seconds_of([&] {
      while (got < part) {  // again after an end token
        const auto result = model.generate(
            session, prompt,
            {.max_tokens = std::min(part - got, std::int64_t{1000}), .sampling = sampling});
        got += std::max<std::int64_t>(1, std::ssize(result.tokens));
        prompt = {result.tokens.empty() ? text.front() : result.tokens.back()};
      }
    });
    done += got;
    const std::int64_t array = session.own_tokens() * token_bytes / arrays;
    const std::int64_t page = array < huge_page ? 4096 : huge_page;
    const auto rows = static_cast<double>((array + page - 1) / page * page * arrays);
    const auto codes = static_cast<double>(session.stats().coded_bytes);
    const double all = resident();
    const double rest = all - rows - codes;
    const double gpu = device.is_cuda() ? static_cast<double>(device.memory().used) : 0;
    fmt::print("{:>8}{:>10.1f}{:>10.1f}{:>11.1f}{:>10.1f}{:>10.1f}{:>10.1f}\n",
               session.own_tokens(), all / mib, rows / mib, codes / mib, rest / mib, gpu / mib,
               static_cast<double>(got) / seconds);
    std::fflush(stdout);
    if (done == got) {
      settled = rest;
      settled_gpu = gpu - codes;
    }
    worst = std::max(worst, rest);
    worst_gpu = std::max(worst_gpu, gpu - codes);
  }
  if (worst > settled + 16 * mib) {
    fmt::print(stderr, "what is neither rows nor codes grew from {:.1f} to {:.1f} MiB\n",
               settled / mib, worst / mib);
    return 1;
  }
  if (worst_gpu > settled_gpu + 16 * mib) {
    fmt::print(stderr, "memory of the device beside codes grew from {:.1f} to {:.1f} MiB\n",
               settled_gpu / mib, worst_gpu / mib);
    return 1;
  }
  return 0;
}
