// Products with packed weights as a share of reading their bytes once, beside plain bf16 ones, on
// the host or a GPU; and with many tokens, as floating-point operations. Then those of one token in
// some layers, one behind the other as decoding has them (on a GPU recorded, as there), without
// what lies between: q, k and v together, o, gate and up together, down. And, on a GPU, those of a
// token's experts.
//
//   packed_weights_bench [--device SPEC] [--layers-only]
//
// The limit is the streaming read bandwidth of the memory that they are in, measured beside.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>

#include "bench/gpu_bandwidth.h"
#include "bench/machine.h"
#include "src/core/math/convert.h"
#include "src/core/math/quantise.h"
#include "src/device/compute_device.h"
#include "topkv/error.h"

namespace {

using namespace topkv;

struct Shape {
  const char* name;
  std::int64_t out, in;
};

struct Weight {
  std::vector<double> values;  // of some rows
  Buffer storage;
  Matrix matrix;
};

constexpr std::int64_t checked_rows = 3;
constexpr Packing packings[] = {Packing::none, Packing::int8, Packing::int4, Packing::fp8};

const char* name_of(Packing packing) {
  switch (packing) {
    case Packing::none:
      return "bf16";
    case Packing::int8:
      return "int8";
    case Packing::int4:
      return "int4";
    case Packing::fp4:
      return "fp4";
    default:
      return "fp8";
  }
}

Matrix form_of(const Shape& shape, Packing packing) {
  Matrix form{nullptr, DType::bf16, shape.out, shape.in, packing};
  const bool grouped = packing == Packing::int4 || packing == Packing::fp8;
  form.group = grouped ? 128 : shape.in;
  form.has_offsets = packing == Packing::int4;
  return form;
}

/// A weight with the same few rows over and over.
Weight make(ComputeDevice& device, const Shape& shape, Packing packing,
            std::vector<std::byte>& host) {
  Weight weight;
  weight.matrix = form_of(shape, packing);
  Matrix& m = weight.matrix;
  host.assign(static_cast<std::size_t>(m.bytes()), std::byte{0});
  std::vector<float> row(static_cast<std::size_t>(m.in_features));
  for (std::int64_t r = 0; r < checked_rows; ++r) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      row[i] = static_cast<float>(
                   static_cast<int>((i + 13 * static_cast<std::size_t>(r)) * 7919 % 255) - 127) /
               128.0F;
    }
    if (m.packing == Packing::fp8) {
      // Bytes of e4m3, up to 0.9375; the scale makes up for codes that are 1/256 of that.
      for (std::size_t i = 0; i < row.size(); ++i) {
        const auto hash = (i + 13 * static_cast<std::size_t>(r)) * 7919;
        const auto byte = static_cast<unsigned>(hash % 0x38 + (hash / 0x38 % 2) * 0x80);
        const int exponent = static_cast<int>(byte >> 3U & 15U);
        const float fraction = static_cast<float>(byte & 7U) / 8;
        const float size =
            exponent == 0 ? std::ldexp(fraction, -6) : std::ldexp(1 + fraction, exponent - 7);
        row[i] = byte >= 128 ? -size : size;
        host[static_cast<std::size_t>(r * m.row_bytes()) + i] = static_cast<std::byte>(byte);
      }
      auto* scales = reinterpret_cast<float*>(host.data() + m.scales_at()) + r * m.groups();
      std::fill(scales, scales + m.groups(), 256.0F);
    } else if (!m.packed()) {
      from_float(row.data(), m.in_features, DType::bf16, host.data() + r * m.row_bytes());
    } else {
      const auto factors = [&](std::int64_t at) {
        return reinterpret_cast<float*>(host.data() + at) + r * m.groups();
      };
      quantise_row(m, row.data(),
                   {host.data() + r * m.row_bytes(), factors(m.scales_at()),
                    m.has_offsets ? factors(m.offsets_at()) : nullptr});
    }
    for (const float x : row) weight.values.push_back(x);
  }
  const auto repeat = [&](std::int64_t at, std::int64_t bytes) {
    for (std::int64_t r = checked_rows; r < m.out_features; ++r) {
      std::memcpy(host.data() + at + r * bytes, host.data() + at + r % checked_rows * bytes,
                  static_cast<std::size_t>(bytes));
    }
  };
  repeat(0, m.row_bytes());
  if (m.packed()) repeat(m.scales_at(), m.groups() * 4);
  if (m.has_offsets) repeat(m.offsets_at(), m.groups() * 4);
  weight.storage = device.allocate(m.bytes(), "weights");
  device.copy_in(host.data(), m.bytes(), weight.storage.data());
  m.data = weight.storage.data();
  return weight;
}

/// Whether the product of x = 1 for all inputs is what the weights say, to their rounding.
bool right(const Weight& weight, const std::vector<float>& out) {
  for (std::int64_t o = 0; o < weight.matrix.out_features; ++o) {
    double want = 0;
    double size = 0;
    for (std::int64_t i = 0; i < weight.matrix.in_features; ++i) {
      const double w =
          weight.values[static_cast<std::size_t>(o % checked_rows * weight.matrix.in_features + i)];
      want += w;
      size += std::abs(w);
    }
    if (std::abs(out[static_cast<std::size_t>(o)] - want) > 0.02 * size) return false;
  }
  return true;
}

/// The products of one token in layers of a model of 7 billion parameters.
void time_layers(ComputeDevice& device, double bandwidth) {
  constexpr std::int64_t hidden = 3584;
  constexpr std::int64_t kv = 512;
  constexpr std::int64_t mlp = 18944;
  const std::int64_t layers = device.is_cuda() ? 8 : 2;
  const std::int64_t repeats = device.is_cuda() ? 4 : 1;  // of all of them, recorded together
  fmt::print("\n{:<26} {:>6} {:>12} {:>14} {:>8} {:>8} {:>8} {:>8}\n",
             fmt::format("a token's, {} layers", layers), "held", "us a layer", "of its bytes",
             "qkv", "o", "gate up", "down");
  const std::vector<float> ones(mlp, 1.0F);
  const Buffer x = device.allocate(mlp * 4, "x");
  const Buffer operand = device.allocate(mlp * 4, "operand");
  device.copy_in(ones.data(), mlp * 4, x.data());
  device.to_operand(x.floats(), mlp, operand.data());
  const Buffer out = device.allocate((hidden + 2 * kv + hidden + 2 * mlp + hidden) * 4, "out");
  std::vector<std::byte> host;
  for (const Packing packing : packings) {
    // What is multiplied together, of a layer.
    std::vector<std::vector<std::vector<Weight>>> weights;
    for (std::int64_t l = 0; l < layers; ++l) {
      weights.emplace_back();
      for (const std::vector<Shape>& together :
           {std::vector<Shape>{{"q", hidden, hidden}, {"k", kv, hidden}, {"v", kv, hidden}},
            {{"o", hidden, hidden}},
            {{"gate", mlp, hidden}, {"up", mlp, hidden}},
            {{"down", hidden, mlp}}}) {
        weights.back().emplace_back();
        for (const Shape& shape : together)
          weights.back().back().push_back(make(device, shape, packing, host));
      }
    }
    /// Of products [begin, end) of a layer: seconds, and the share of the bandwidth.
    const auto time = [&](std::size_t begin, std::size_t end) {
      std::int64_t bytes = 0;
      std::unique_ptr<Recording> recording;
      const auto token = [&] {
        device.replay(recording, [&] {
          for (std::int64_t repeat = 0; repeat < repeats; ++repeat) {
            for (const auto& layer : weights) {
              float* to = out.floats();
              for (std::size_t i = begin; i < end; ++i) {
                std::vector<Product> products;
                for (const Weight& weight : layer[i]) {
                  products.push_back({weight.matrix, nullptr, to});
                  to += weight.matrix.out_features;
                  bytes += weight.matrix.bytes();
                }
                device.products(products, operand.data(), 1, false);
              }
            }
          }
        });
        device.synchronize();
      };
      token();
      const std::int64_t of_token = bytes;
      const double seconds = bench::median_seconds(11, token);
      return std::pair(
          seconds / static_cast<double>(repeats * layers),
          fmt::format("{:.0f} %", 100 * static_cast<double>(of_token) / seconds / bandwidth));
    };
    const auto [seconds, share] = time(0, 4);
    fmt::print("{:<26} {:>6} {:>12.1f} {:>14} {:>8} {:>8} {:>8} {:>8}\n", "", name_of(packing),
               1e6 * seconds, share, time(0, 1).second, time(1, 2).second, time(2, 3).second,
               time(3, 4).second);
  }
}

struct Mixture {
  const char* name;
  std::int64_t hidden, intermediate, experts, per_token;
  Packing packing;
  std::int64_t group;
};

/// The products of one token's experts, in layers whose experts are all different ones.
void time_experts(ComputeDevice& device, double bandwidth) {
  fmt::print("\n{:<26} {:>6} {:>12} {:>14} {:>8} {:>8}\n", "a token's experts", "held",
             "us a layer", "of its bytes", "gate up", "down");
  for (const Mixture& of :
       {Mixture{"gpt-oss-20b, 4 of 32", 2880, 2880, 32, 4, Packing::fp4, 32},
        Mixture{"gpt-oss-20b, 4 of 32", 2880, 2880, 32, 4, Packing::none, 0},
        Mixture{"qwen3-30b-a3b, 8 of 128", 2048, 768, 128, 8, Packing::int4, 128},
        Mixture{"qwen3-30b-a3b, 8 of 128", 2048, 768, 128, 8, Packing::int8, 0},
        Mixture{"qwen3-30b-a3b, 8 of 128", 2048, 768, 128, 8, Packing::fp8, 128},
        Mixture{"qwen3-30b-a3b, 8 of 128", 2048, 768, 128, 8, Packing::none, 0}}) {
    std::vector<Buffer> storage;
    const auto make_experts = [&](std::int64_t out, std::int64_t in) {
      ExpertMatrices weights;
      weights.form = {nullptr,
                      DType::bf16,
                      out,
                      in,
                      of.packing,
                      of.group > 0 ? of.group : in,
                      of.packing == Packing::int4};
      weights.stride = (weights.form.bytes() + 255) / 256 * 256;
      storage.push_back(device.allocate(weights.stride * of.experts, "experts"));
      const std::vector<std::byte> zeros(static_cast<std::size_t>(weights.stride));
      for (std::int64_t e = 0; e < of.experts; ++e) {
        weights.data.push_back(storage.back().data() + e * weights.stride);
        device.copy_in(zeros.data(), weights.stride, storage.back().data() + e * weights.stride);
      }
      weights.form.data = storage.back().data();
      return weights;
    };
    const ExpertMatrices gate = make_experts(of.intermediate, of.hidden);
    const ExpertMatrices up = make_experts(of.intermediate, of.hidden);
    const ExpertMatrices down = make_experts(of.hidden, of.intermediate);
    std::vector<std::int32_t> ids;
    for (std::int64_t e = 0; e < of.experts; ++e)
      ids.push_back(static_cast<std::int32_t>(e * 5 % of.experts));  // 5 divides none of them
    const std::int64_t widest = std::max(of.hidden, of.intermediate) * of.per_token;
    const Buffer chosen = device.allocate(of.experts * 4, "ids");
    device.copy_in(ids.data(), of.experts * 4, chosen.data());
    const Buffer x = device.allocate(widest * 4, "x");
    const Buffer operand = device.allocate(widest * 4, "operand");
    const std::vector<float> ones(static_cast<std::size_t>(widest), 1.0F);
    device.copy_in(ones.data(), widest * 4, x.data());
    device.to_operand(x.floats(), widest, operand.data());
    const Buffer out = device.allocate(2 * widest * 4, "out");
    const std::int64_t layers = of.experts / of.per_token;
    constexpr std::int64_t repeats = 4;
    const auto time = [&](bool with_gate_up, bool with_down) {
      std::unique_ptr<Recording> recording;
      const auto token = [&] {
        device.replay(recording, [&] {
          for (std::int64_t l = 0; l < repeats * layers; ++l) {
            const ExpertRows rows{
                reinterpret_cast<const std::int32_t*>(chosen.data()) + l % layers * of.per_token,
                of.per_token,
                {}};
            const ExpertProduct gate_up[] = {{&gate, nullptr, out.floats()},
                                             {&up, nullptr, out.floats() + widest}};
            const ExpertProduct last[] = {{&down, nullptr, out.floats()}};
            if (with_gate_up) device.expert_products(gate_up, operand.data(), of.per_token, rows);
            if (with_down) device.expert_products(last, operand.data(), 1, rows);
          }
        });
        device.synchronize();
      };
      token();
      const double seconds =
          bench::median_seconds(11, token) / static_cast<double>(repeats * layers);
      const std::int64_t bytes = of.per_token * ((with_gate_up ? 2 * gate.form.bytes() : 0) +
                                                 (with_down ? down.form.bytes() : 0));
      return std::pair(
          seconds, fmt::format("{:.0f} %", 100 * static_cast<double>(bytes) / seconds / bandwidth));
    };
    const auto [seconds, share] = time(true, true);
    fmt::print("{:<26} {:>6} {:>12.1f} {:>14} {:>8} {:>8}\n", of.name, name_of(of.packing),
               1e6 * seconds, share, time(true, false).second, time(false, true).second);
  }
}

}  // namespace

int main(int argc, char** argv) try {
  std::string spec = "cpu";
  bool layers_only = false;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--device" && i + 1 < argc) {
      spec = argv[++i];
    } else if (flag == "--layers-only") {
      layers_only = true;
    } else {
      throw InvalidArgument(fmt::format("'{}': expected --device SPEC or --layers-only", flag));
    }
  }
  const Device opened = Device::open(spec, 0);
  ComputeDevice& device = *opened.compute();
  const auto lock = device.lock();
  device.prepare_packed();
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // a line as soon as it is known
  const double bandwidth = device.is_cuda() ? bench::gpu_read_bandwidth() : bench::read_bandwidth();
  fmt::print("{}: streaming read {:.1f} GB/s\n\n", device.name(), bandwidth / 1e9);
  if (layers_only) {
    time_layers(device, bandwidth);
    if (device.is_cuda()) time_experts(device, bandwidth);
    return 0;
  }
  fmt::print("{:<26} {:>6} {:>7} {:>12} {:>14} {:>13}\n", "weight [out, in]", "held", "tokens",
             "ms", "of its bytes", "arithmetic");
  std::vector<std::byte> host;
  for (const Shape& shape : {Shape{"7B q/o", 3584, 3584},
                             {"7B k/v", 512, 3584},
                             {"7B gate/up", 18944, 3584},
                             {"7B down", 3584, 18944},
                             {"7B lm_head", 152064, 3584}}) {
    for (const Packing packing : packings) {
      // Several copies, so that none is found in a cache.
      std::vector<Weight> copies;
      const std::int64_t bytes = form_of(shape, packing).bytes();
      const std::int64_t count = std::max<std::int64_t>(
          1, ((device.is_cuda() ? std::int64_t{400} << 20 : std::int64_t{100} << 20)) / bytes);
      for (std::int64_t i = 0; i < count; ++i) copies.push_back(make(device, shape, packing, host));
      for (const std::int64_t tokens : {1, 4, 16, 2048}) {
        if (tokens > 16 && !device.is_cuda() && shape.out > 4000) continue;  // minutes
        const std::int64_t used = tokens > 16 ? 1 : count;
        const std::vector<float> ones(static_cast<std::size_t>(tokens * shape.in), 1.0F);
        const Buffer x = device.allocate(tokens * shape.in * 4, "x");
        const Buffer operand = device.allocate(tokens * shape.in * 4, "operand");
        device.copy_in(ones.data(), tokens * shape.in * 4, x.data());
        device.to_operand(x.floats(), tokens * shape.in, operand.data());
        const Buffer out = device.allocate(tokens * shape.out * 4, "out");
        const auto all = [&] {
          for (std::int64_t i = 0; i < used; ++i)
            device.matmul(copies[static_cast<std::size_t>(i)].matrix, operand.data(), tokens, false,
                          out.floats());
          device.synchronize();
        };
        const double seconds = bench::median_seconds(5, all) / static_cast<double>(used);
        std::vector<float> got(static_cast<std::size_t>(tokens * shape.out));
        device.copy_out(out.data(), tokens * shape.out * 4, got.data());
        if (!right(copies.front(), got)) {
          fmt::print(stderr, "wrong product of {}\n", shape.name);
          return 1;
        }
        const double rate = static_cast<double>(bytes) / seconds;
        fmt::print(
            "{:<26} {:>6} {:>7} {:>12.4f} {:>14} {:>13}\n",
            fmt::format("{} [{}, {}]", shape.name, shape.out, shape.in), name_of(packing), tokens,
            1e3 * seconds, fmt::format("{:.0f} %", 100 * rate / bandwidth),
            fmt::format("{:.2f} TFLOP/s",
                        2e-12 * static_cast<double>(tokens * shape.out * shape.in) / seconds));
      }
    }
  }
  time_layers(device, bandwidth);
  if (device.is_cuda()) time_experts(device, bandwidth);
} catch (const topkv::Error& error) {
  fmt::print(stderr, "packed_weights_bench: {}\n", error.what());
  return 1;
}
