// What sessions over one context cost: the first one, which is there when others come, and each of
// these: time to open one, and bytes of heap, resident memory, address space and device memory,
// open, after its first token and after 8; what is left when all are closed. Sessions stand side by
// side, as a server's do. On a CUDA device what all of them take of it follows, by what for.
//
// Every session's first output is checked to be the first session's before anything is printed.
//
//   sessions_bench [sessions [device]]          default 1000 cpu
#include <fmt/format.h>
#include <malloc.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "bench/machine.h"
#include "src/device/compute_device.h"
#include "topkv/session.h"

namespace {

using topkv::AttentionShape;

/// Of this process, in bytes, but for the last two.
struct Held {
  double heap = 0, resident = 0, mapped = 0, device = 0;
  double threads = 0, files = 0;
};

Held held(const topkv::Device& device) {
  malloc_trim(0);
  Held now;
  const struct mallinfo2 heap = mallinfo2();
  now.heap = static_cast<double>(heap.uordblks) + static_cast<double>(heap.hblkhd);
  std::ifstream statm("/proc/self/statm");
  const auto page = static_cast<double>(sysconf(_SC_PAGESIZE));
  statm >> now.mapped >> now.resident;
  now.mapped *= page;
  now.resident *= page;
  if (device.is_cuda()) now.device = static_cast<double>(device.memory().used);
  for (const auto& [folder, count] :
       {std::pair{"/proc/self/task", &now.threads}, {"/proc/self/fd", &now.files}}) {
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++*count;
  }
  return now;
}

void print(const char* when, const Held& before, const Held& now, double count, double seconds) {
  const auto kib = [&](double from, double to) { return (to - from) / count / 1024; };
  fmt::print("  {:<22}{:>9.1f}{:>10.1f}{:>11.1f}{:>10.1f}{:>8.2f}{:>7.2f}{:>11.1f}\n", when,
             kib(before.heap, now.heap), kib(before.resident, now.resident),
             kib(before.mapped, now.mapped), kib(before.device, now.device),
             (now.threads - before.threads) / count, (now.files - before.files) / count,
             seconds / count * 1e6);
  std::fflush(stdout);
}

void print_items(const topkv::DeviceMemory& memory) {
  fmt::print("  of the device, MiB:");
  for (const topkv::MemoryItem& item : memory.items)
    fmt::print(" {} {:.2f};", item.what, static_cast<double>(item.bytes) / (1 << 20));
  fmt::print("\n");
}

std::vector<float> random(std::int64_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(generator);
  return values;
}

std::shared_ptr<const topkv::Context> context_of(const AttentionShape& shape) {
  constexpr std::int64_t tokens = 1024;
  topkv::ContextBuilder builder(shape, {.capacity = tokens});
  const auto rows = random(tokens * shape.kv_heads * shape.head_dim, 1);
  const auto view = topkv::TensorView::tokens_first(rows.data(), topkv::DType::f32, tokens,
                                                    shape.kv_heads, shape.head_dim);
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) builder.append(layer, view, view);
  return builder.freeze();
}

/// Values in a device's memory.
struct Tensor {
  Tensor(const topkv::Device& on, const std::vector<float>& values)
      : device(on), count(std::ssize(values)) {
    const auto lock = device.compute()->lock();
    buffer = device.compute()->allocate(count * 4, "bench");
    device.compute()->copy_in(values.data(), count * 4, buffer.data());
  }
  std::vector<float> get() const {
    const auto lock = device.compute()->lock();
    std::vector<float> values(static_cast<std::size_t>(count));
    device.compute()->copy_out(buffer.data(), count * 4, values.data());
    return values;
  }
  topkv::Device device;
  std::int64_t count;
  topkv::Buffer buffer;
};

void measure(const char* name, const AttentionShape& shape, const std::string& index,
             std::int64_t count, const topkv::Device& device) {
  const topkv::RetrievalOptions options{.index = index, .k = topkv::TopK::same(32)};
  const auto context = context_of(shape)->ready_for(options, {}, device);
  const Tensor q(device, random(shape.q_heads * shape.head_dim, 2));
  const Tensor k(device, random(shape.kv_heads * shape.head_dim, 3));
  const Tensor out(device, random(shape.q_heads * shape.head_dim, 4));
  const auto step = [&](topkv::Session& session) {
    for (std::int64_t layer = 0; layer < shape.layers; ++layer)
      session.attend(layer, q.buffer.floats(), k.buffer.floats(), k.buffer.floats(),
                     out.buffer.floats());
    return out.get();
  };
  std::vector<float> want;
  {
    topkv::Session warm(context, options, device);  // what the first one makes for all of them
    want = step(warm);
  }
  fmt::print("{}, index {}, {} sessions\n  {:<22}{:>9}{:>10}{:>11}{:>10}{:>8}{:>7}{:>11}\n", name,
             index, count, "KiB a session:", "heap", "resident", "addresses", "device", "threads",
             "files", "us each");
  const auto n = static_cast<double>(count);
  const Held none = held(device);
  std::unique_ptr<topkv::Session> one;
  const double opening_one =
      bench::seconds_of([&] { one = std::make_unique<topkv::Session>(context, options, device); });
  print("the first one, open", none, held(device), 1, opening_one);
  const Held before = held(device);
  std::vector<topkv::Session> sessions;
  sessions.reserve(static_cast<std::size_t>(count));
  const double opening = bench::seconds_of([&] {
    for (std::int64_t i = 0; i < count; ++i) sessions.emplace_back(context, options, device);
  });
  print("open", before, held(device), n, opening);
  const double first = bench::seconds_of([&] {
    for (topkv::Session& session : sessions) {
      if (step(session) == want) continue;
      fmt::print(stderr, "a session's output is not the first one's; nothing is measured\n");
      std::exit(1);
    }
  });
  print("after one token", before, held(device), n, first);
  const double more = bench::seconds_of([&] {
    for (int token = 1; token < 8; ++token) {
      for (topkv::Session& session : sessions) step(session);
    }
  });
  print("after 8 tokens", before, held(device), n, more);
  if (device.is_cuda()) print_items(device.memory());
  const double closing = bench::seconds_of([&] { sessions.clear(); });
  print("closed", before, held(device), n, closing);
  const double closing_one = bench::seconds_of([&] { one.reset(); });
  print("the first one, closed", none, held(device), 1, closing_one);
}

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t count = argc > 1 ? std::atoll(argv[1]) : 1000;
  const topkv::Device device = topkv::Device::open(argc > 2 ? argv[2] : "cpu");
  if (count < 1) {
    fmt::print(stderr, "sessions_bench [sessions [device]]: at least one session\n");
    return 1;
  }
  const AttentionShape needle{.layers = 8, .q_heads = 8, .kv_heads = 2, .head_dim = 64};
  const AttentionShape llama{.layers = 32, .q_heads = 32, .kv_heads = 8, .head_dim = 128};
  for (const char* index : {"exact", "codes", "retroinfer"})
    measure("needle-14m's shape", needle, index, count, device);
  measure("Llama-3-8B's shape", llama, "exact", std::max<std::int64_t>(1, count / 10), device);
  return 0;
}
