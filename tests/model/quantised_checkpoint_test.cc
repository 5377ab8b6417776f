// Checkpoints that are quantised already, written here by what is known of their formats, sharing no
// code with the library: they compute what the same model computes whose weights are plain floats,
// and what is wrong with one is told in one line.
//
// gptq   qweight [in / n, out]: n = 32 / bits inputs of an output in a word, the first lowest;
//        qzeros [groups, out / n]: n outputs in a word, one less than the zero point ("gptq") or it
//        ("gptq_v2"); scales [groups, out]; g_idx [in]: the group of each input
// awq    qweight [in, out / 8] and qzeros [groups, out / 8]: output 8 c + {0, 2, 4, 6, 1, 3, 5, 7}[i]
//        is nibble i of word c; scales [groups, out]
// compressed-tensors   weight_packed [out, in / n]: n inputs in a word, the first lowest, as codes
//        without a sign; weight_scale [out, groups]; weight_shape; weight_zero_point [out / n, groups],
//        n outputs in a word. int-quantized: weight and weight_zero_point [out, groups] of I8
// All stand for scale * (code - zero point).
// fp8    weight of F8_E4M3, weight_scale_inv [out / 32, in / 32]; compressed-tensors' float-quantized:
//        weight_scale [out, 1] or [1]. They stand for scale * weight.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "tests/support/packed_case.h"
#include "tests/support/small_llama.h"
#include "tests/support/temp_directory.h"
#include "topkv/error.h"

namespace topkv {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

struct Kind {
  std::string name;
  std::string method;  // of quantization_config
  int bits = 4;
  std::int64_t group = 32;  // 0: a row
  bool symmetric = false;
  bool v2 = false;          // gptq
  bool shuffled = false;    // gptq: g_idx
  std::string format = {};  // compressed-tensors
  bool zero_bytes = false;  // packed_int's zero points are of I8
  std::int64_t block_rows = 1;  // floats; 0: all

  bool fp8() const { return method == "fp8" || format == "float-quantized"; }
};

/// A matrix as a quantiser leaves it.
struct Quantised {
  std::int64_t out, in, groups;
  std::vector<std::uint32_t> codes;   // [out, in], without a sign
  std::vector<std::uint32_t> zeros;   // [out, groups]
  std::vector<std::uint32_t> halves;  // f16 bits of the scales, [out, groups]
  std::vector<std::int32_t> group_of;
  bool fp8 = false;

  double value(std::int64_t o, std::int64_t i, std::int64_t g) const {
    const std::uint32_t code = codes[static_cast<std::size_t>(o * in + i)];
    if (fp8) return packed_case::fp8_code(code) * 256;
    return double{1} * code - zeros[static_cast<std::size_t>(o * groups + g)];
  }
  double scale(std::int64_t o, std::int64_t g) const {
    const std::uint32_t half = halves[static_cast<std::size_t>(o * groups + g)];
    return std::ldexp(1 + (half & 1023U) / 1024.0, static_cast<int>(half >> 10) - 15);
  }
  std::string floats() const {
    std::vector<double> values;
    for (std::int64_t o = 0; o < out; ++o) {
      for (std::int64_t i = 0; i < in; ++i) {
        const std::int64_t g = group_of[static_cast<std::size_t>(i)];
        values.push_back(scale(o, g) * value(o, i, g));
      }
    }
    return bytes_of_floats(values);
  }
};

Quantised random_matrix(std::int64_t out, std::int64_t in, const Kind& kind, std::mt19937& random) {
  const std::int64_t group = kind.group == 0 ? in : kind.group;
  Quantised matrix{out, in, in / group, {}, {}, {}, {}};
  const std::uint32_t most = (1U << kind.bits) - 1;
  std::uniform_int_distribution<std::uint32_t> code(0, most);
  std::uniform_int_distribution<std::uint32_t> mantissa(0, 1023);
  matrix.fp8 = kind.fp8();
  for (std::int64_t i = 0; i < out * in; ++i) {
    std::uint32_t one = code(random);
    if (matrix.fp8) one &= one >= 128 ? 0xb7U : 0x37U;  // neither NaN nor far larger than the others
    matrix.codes.push_back(one);
  }
  for (std::int64_t i = 0; i < out * matrix.groups; ++i) {
    const auto block = kind.block_rows == 0 ? 0 : i / matrix.groups / kind.block_rows;
    const std::int64_t first = block * kind.block_rows * matrix.groups + i % matrix.groups;
    matrix.zeros.push_back(kind.symmetric ? (most + 1) / 2 : code(random));
    matrix.halves.push_back(first != i ? matrix.halves[static_cast<std::size_t>(first)]
                                       : (kind.bits == 4 ? 8U : kind.fp8() ? 10U : 4U) << 10 |
                                             mantissa(random));
  }
  for (std::int64_t i = 0; i < in; ++i)
    matrix.group_of.push_back(static_cast<std::int32_t>(i / group));
  if (kind.shuffled) std::ranges::shuffle(matrix.group_of, random);
  return matrix;
}

void append_word(std::string& bytes, std::uint32_t word) {
  bytes.append(reinterpret_cast<const char*>(&word), 4);
}

std::string scales_of(const Quantised& m, bool outputs_first) {
  std::string bytes;
  const std::int64_t rows = outputs_first ? m.out : m.groups;
  const std::int64_t columns = outputs_first ? m.groups : m.out;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) {
      const std::int64_t at = outputs_first ? r * m.groups + c : c * m.groups + r;
      const auto half = static_cast<std::uint16_t>(m.halves[static_cast<std::size_t>(at)]);
      bytes.append(reinterpret_cast<const char*>(&half), 2);
    }
  }
  return bytes;
}

void write_gptq(FileTensors& tensors, const std::string& module, const Quantised& m,
                const Kind& kind) {
  const std::int64_t n = 32 / kind.bits;
  const std::uint32_t mask = (1U << kind.bits) - 1;
  std::string words;
  for (std::int64_t j = 0; j < m.in / n; ++j) {
    for (std::int64_t o = 0; o < m.out; ++o) {
      std::uint32_t word = 0;
      for (std::int64_t k = 0; k < n; ++k)
        word |= m.codes[static_cast<std::size_t>(o * m.in + j * n + k)] << (k * kind.bits);
      append_word(words, word);
    }
  }
  std::string zeros;
  for (std::int64_t g = 0; g < m.groups; ++g) {
    for (std::int64_t j = 0; j < m.out / n; ++j) {
      std::uint32_t word = 0;
      for (std::int64_t k = 0; k < n; ++k) {
        const std::uint32_t zero = m.zeros[static_cast<std::size_t>((j * n + k) * m.groups + g)];
        word |= (kind.v2 ? zero : (zero - 1) & mask) << (k * kind.bits);
      }
      append_word(zeros, word);
    }
  }
  std::string order;
  for (const std::int32_t g : m.group_of) append_word(order, static_cast<std::uint32_t>(g));
  tensors[module + "qweight"] = {"I32", {m.in / n, m.out}, words};
  tensors[module + "qzeros"] = {"I32", {m.groups, m.out / n}, zeros};
  tensors[module + "scales"] = {"F16", {m.groups, m.out}, scales_of(m, false)};
  tensors[module + "g_idx"] = {"I32", {m.in}, order};
}

void write_awq(FileTensors& tensors, const std::string& module, const Quantised& m) {
  constexpr int order[8] = {0, 2, 4, 6, 1, 3, 5, 7};
  const auto packed = [&](std::int64_t rows, const auto& value) {
    std::string words;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < m.out / 8; ++c) {
        std::uint32_t word = 0;
        for (int i = 0; i < 8; ++i) word |= value(r, 8 * c + order[i]) << (4 * i);
        append_word(words, word);
      }
    }
    return words;
  };
  tensors[module + "qweight"] = {"I32", {m.in, m.out / 8}, packed(m.in, [&](auto i, auto o) {
                                   return m.codes[static_cast<std::size_t>(o * m.in + i)];
                                 })};
  tensors[module + "qzeros"] = {"I32", {m.groups, m.out / 8}, packed(m.groups, [&](auto g, auto o) {
                                  return m.zeros[static_cast<std::size_t>(o * m.groups + g)];
                                })};
  tensors[module + "scales"] = {"F16", {m.groups, m.out}, scales_of(m, false)};
}

void write_fp8(FileTensors& tensors, const std::string& module, const Quantised& m,
               const Kind& kind) {
  std::string bytes;
  for (const std::uint32_t code : m.codes) bytes += static_cast<char>(code);
  tensors[module + "weight"] = {"F8_E4M3", {m.out, m.in}, bytes};
  std::vector<double> scales;
  const std::int64_t step = kind.block_rows == 0 ? m.out : kind.block_rows;
  for (std::int64_t o = 0; o < m.out; o += step) {
    for (std::int64_t g = 0; g < m.groups; ++g) scales.push_back(m.scale(o, g));
  }
  const auto rows = static_cast<std::int64_t>(scales.size()) / m.groups;
  const std::string floats = bytes_of_floats(scales);
  if (kind.method == "fp8") {
    const Json shape = kind.block_rows == 0 ? Json::array() : Json{rows, m.groups};
    tensors[module + "weight_scale_inv"] = {"F32", shape, floats};
  } else if (kind.group != 0) {
    tensors[module + "weight_scale"] = {"F32", {rows, m.groups}, floats};
  } else if (kind.block_rows == 0) {
    tensors[module + "weight_scale"] = {"F32", {1}, floats};
  } else {
    tensors[module + "weight_scale"] = {"F32", {rows, 1}, floats};
  }
}

void write_compressed(FileTensors& tensors, const std::string& module, const Quantised& m,
                      const Kind& kind) {
  if (kind.fp8()) return write_fp8(tensors, module, m, kind);
  tensors[module + "weight_scale"] = {"F16", {m.out, m.groups}, scales_of(m, true)};
  std::string bytes;
  const int middle = 1 << (kind.bits - 1);
  std::string zeros;
  for (const std::uint32_t zero : m.zeros)
    zeros += static_cast<char>(static_cast<int>(zero) - middle);
  const bool zero_bytes = kind.zero_bytes || kind.format == "int-quantized";
  if (!kind.symmetric && zero_bytes)
    tensors[module + "weight_zero_point"] = {"I8", {m.out, m.groups}, zeros};
  if (kind.format == "int-quantized") {
    for (const std::uint32_t code : m.codes)
      bytes += static_cast<char>(static_cast<int>(code) - 128);
    tensors[module + "weight"] = {"I8", {m.out, m.in}, bytes};
    return;
  }
  const std::int64_t n = 32 / kind.bits;
  for (std::int64_t o = 0; o < m.out; ++o) {
    for (std::int64_t j = 0; j < m.in / n; ++j) {
      std::uint32_t word = 0;
      for (std::int64_t k = 0; k < n; ++k)
        word |= m.codes[static_cast<std::size_t>(o * m.in + j * n + k)] << (k * kind.bits);
      append_word(bytes, word);
    }
  }
  tensors[module + "weight_packed"] = {"I32", {m.out, m.in / n}, bytes};
  if (!kind.symmetric && !zero_bytes) {
    std::string words;
    for (std::int64_t j = 0; j < m.out / n; ++j) {
      for (std::int64_t g = 0; g < m.groups; ++g) {
        std::uint32_t word = 0;
        for (std::int64_t k = 0; k < n; ++k)
          word |= m.zeros[static_cast<std::size_t>((j * n + k) * m.groups + g)] << (k * kind.bits);
        append_word(words, word);
      }
    }
    tensors[module + "weight_zero_point"] = {"I32", {m.out / n, m.groups}, words};
  }
  if (kind.shuffled) {
    std::string order;
    for (const std::int32_t g : m.group_of) append_word(order, static_cast<std::uint32_t>(g));
    tensors[module + "weight_g_idx"] = {"I32", {m.in}, order};
  }
  const std::int64_t shape[] = {m.out, m.in};
  tensors[module + "weight_shape"] = {
      "I64", {2}, std::string(reinterpret_cast<const char*>(shape), sizeof shape)};
}

Json config_of_kind(const Kind& kind) {
  const Json group = kind.group == 0 ? Json(-1) : Json(kind.group);
  if (kind.method == "gptq") {
    return {{"quant_method", "gptq"},
            {"bits", kind.bits},
            {"group_size", group},
            {"desc_act", kind.shuffled},
            {"sym", kind.symmetric},
            {"checkpoint_format", kind.v2 ? "gptq_v2" : "gptq"}};
  }
  if (kind.method == "awq") {
    return {{"quant_method", "awq"}, {"bits", 4},         {"group_size", group},
            {"zero_point", true},    {"version", "gemm"}, {"modules_to_not_convert", nullptr}};
  }
  if (kind.method == "fp8") {
    const Json block = kind.block_rows == 0 ? Json(nullptr) : Json{kind.block_rows, kind.group};
    return {{"quant_method", "fp8"},
            {"fmt", "e4m3"},
            {"activation_scheme", kind.block_rows == 0 ? "static" : "dynamic"},
            {"weight_block_size", block}};
  }
  const char* strategy = kind.block_rows == 0 ? "tensor" : kind.group == 0 ? "channel" : "group";
  Json weights = {{"num_bits", kind.bits},
                  {"type", kind.fp8() ? "float" : "int"},
                  {"symmetric", kind.symmetric},
                  {"strategy", strategy},
                  {"dynamic", false}};
  if (kind.shuffled) weights["actorder"] = "group";
  if (kind.fp8() && kind.group != 0) {
    weights["strategy"] = "block";
    weights["block_structure"] = {kind.block_rows, kind.group};
  } else if (kind.group != 0) {
    weights["group_size"] = group;
  }
  return {{"quant_method", "compressed-tensors"},
          {"format", kind.format},
          {"ignore", {"lm_head"}},
          {"config_groups",
           {{"group_0", {{"targets", {"Linear"}}, {"input_activations", nullptr},
                         {"weights", weights}}}}}};
}

bool in_a_layer(const std::string& name) { return name.find("_proj.weight") != name.npos; }

class QuantisedCheckpoint : public testing::Test {
 protected:
  /// The checkpoint of this kind, and the same in floats. Embedding and output layer stay as they
  /// are.
  void write(const Kind& kind, const std::function<void(FileTensors&)>& change = {},
             const Json& config_changes = Json::object()) {
    std::mt19937 random(11);
    const FileTensors plain = random_tensors(sizes_);
    FileTensors floats = plain;
    FileTensors packed = plain;
    for (const auto& [name, tensor] : plain) {
      if (!in_a_layer(name)) continue;
      const Quantised matrix = random_matrix(tensor.shape[0], tensor.shape[1], kind, random);
      floats[name].bytes = matrix.floats();
      packed.erase(name);
      const std::string module = name.substr(0, name.size() - 6);
      if (kind.method == "gptq") write_gptq(packed, module, matrix, kind);
      if (kind.method == "awq") write_awq(packed, module, matrix);
      if (kind.method == "fp8") write_fp8(packed, module, matrix, kind);
      if (kind.method == "compressed-tensors") write_compressed(packed, module, matrix, kind);
    }
    if (change) change(packed);
    Json config = config_of(sizes_);
    floats_.write("model.safetensors", file_of(floats));
    floats_.write("config.json", config.dump());
    config["quantization_config"] = config_of_kind(kind);
    config["quantization_config"].update(config_changes);
    packed_.write("model.safetensors", file_of(packed));
    packed_.write("config.json", config.dump());
  }

  fs::path path() const { return packed_.path(); }
  std::string file(const char* name) const { return (path() / name).string() + ": "; }

  /// Load and plan say so.
  template <class E>
  void expect_refused(const std::string& beginning, const std::vector<std::string_view>& parts) {
    expect_error<E>([&] { Model::load(path()); }, beginning, parts);
    expect_error<E>([&] { Model::plan(path(), {}, {}, {}); }, beginning, parts);
  }

  const Sizes sizes_;
  TempDirectory packed_, floats_;
};

const std::string up = "model.layers.1.mlp.up_proj.";

std::vector<Kind> kinds() {
  return {{"gptq", "gptq"},
          {"gptq, symmetric, a row a group", "gptq", 4, 0, true},
          {"gptq v2", "gptq", 4, 32, false, true},
          {"gptq with desc_act", "gptq", 4, 32, false, false, true},
          {"gptq, symmetric, with desc_act", "gptq", 4, 32, true, false, true},
          {"gptq in 8 bits", "gptq", 8, 32, false},
          {"gptq in 8 bits, symmetric, v2, desc_act", "gptq", 8, 16, true, true, true},
          {"awq", "awq"},
          {"awq, a row a group", "awq", 4, 0},
          {"w4a16", "compressed-tensors", 4, 32, true, false, false, "pack-quantized"},
          {"w4a16 by channel", "compressed-tensors", 4, 0, true, false, false, "pack-quantized"},
          {"w8a16", "compressed-tensors", 8, 32, true, false, false, "pack-quantized"},
          {"w8 by channel", "compressed-tensors", 8, 0, true, false, false, "int-quantized"},
          {"fp8", "fp8", 8, 32, true, false, false, "", false, 32},
          {"w4a16 with zero points", "compressed-tensors", 4, 32, false, false, false,
           "pack-quantized"},
          {"w4a16 with zero points in bytes", "compressed-tensors", 4, 32, false, false, false,
           "pack-quantized", true},
          {"w4a16 with actorder", "compressed-tensors", 4, 32, true, false, true, "pack-quantized"},
          {"w8 with zero points", "compressed-tensors", 8, 32, false, false, false,
           "int-quantized"},
          {"fp8 by channel", "compressed-tensors", 8, 0, true, false, false, "float-quantized"},
          {"fp8 by tensor", "compressed-tensors", 8, 0, true, false, false, "float-quantized", false,
           0},
          {"fp8 by block", "compressed-tensors", 8, 32, true, false, false, "float-quantized", false,
           64},
          {"fp8 by matrix", "fp8", 8, 0, true, false, false, "", false, 0}};
}

TEST_F(QuantisedCheckpoint, LogitsAreThoseOfTheModelInFloats) {
  for (const Kind& kind : kinds()) {
    SCOPED_TRACE(kind.name);
    write(kind);
    const auto tokens = some_tokens(40, sizes_.vocab);
    expect_same(logits_both_ways(Model::load(path()), tokens),
                logits_both_ways(Model::load(floats_.path()), tokens));
    const std::int64_t packed = Model::plan(path(), {}, {}, {}).weights_bytes;
    EXPECT_LT(packed, Model::plan(floats_.path(), {}, {}, {}).weights_bytes / 2);
  }
}

TEST_F(QuantisedCheckpoint, PlainWeightsAreNotQuantisedWhateverTheConfigurationSays) {
  for (const std::size_t i : {0U, 13U}) {
    write(kinds()[i]);
    EXPECT_NE(Model::plan(path(), {}, {}, {}).quantised, "");
    std::filesystem::copy_file(floats_.path() / "model.safetensors", path() / "model.safetensors",
                               std::filesystem::copy_options::overwrite_existing);
    EXPECT_EQ(Model::plan(path(), {}, {}, {}).quantised, "");
    const auto tokens = some_tokens(9, sizes_.vocab);
    EXPECT_EQ(Model::load(path()).logits(tokens), Model::load(floats_.path()).logits(tokens));
  }
}

TEST_F(QuantisedCheckpoint, NamesOfTheBaseModelAreThoseOfTheModel) {
  write(kinds()[0]);
  const auto tokens = some_tokens(9, sizes_.vocab);
  const auto want = Model::load(path()).logits(tokens);
  write(kinds()[0], [](FileTensors& tensors) {
    FileTensors renamed;
    for (auto& [name, tensor] : tensors)
      renamed[name.starts_with("model.") ? name.substr(6) : name] = tensor;
    tensors = renamed;
  });
  EXPECT_EQ(Model::load(path()).logits(tokens), want);
}

TEST_F(QuantisedCheckpoint, ModulesThatWereLeftOutAreTakenAsTheyAre) {
  for (const std::size_t i : {0U, 9U, 12U, 13U}) {
    const Kind kind = kinds()[i];
    SCOPED_TRACE(kind.name);
    const auto tokens = some_tokens(12, sizes_.vocab);
    write(kind);
    const auto want = Model::load(path()).logits(tokens);
    FileTensors floats = read_tensors(floats_.path() / "model.safetensors");
    write(kind, [&](FileTensors& tensors) {
      std::erase_if(tensors, [](const auto& entry) { return entry.first.starts_with(up); });
      tensors[up + "weight"] = floats[up + "weight"];
    });
    expect_same(Model::load(path()).logits(tokens), want);
  }
}

TEST_F(QuantisedCheckpoint, IsNotRoundedOnceMore) {
  write(kinds()[0]);
  for (const WeightFormat format : {WeightFormat::int8, WeightFormat::int4}) {
    expect_error<Unsupported>([&] { Model::load(path(), {}, {}, {.weights = format}); },
                              file("model.safetensors"), {"quantised already", "stored"});
  }
}

TEST_F(QuantisedCheckpoint, WhatTheConfigurationAsksForAndIsNotKnownIsNamed) {
  struct Case {
    Kind kind;
    Json changes;
    std::vector<std::string_view> says;
  };
  const Kind gptq = kinds()[0];
  const Kind awq = kinds()[7];
  const Kind w4 = kinds()[9];
  const auto changed = [&](const Kind& kind, const char* key, const Json& value) {
    Json config = config_of_kind(kind);
    config["config_groups"]["group_0"]["weights"][key] = value;
    return Json{{"config_groups", config["config_groups"]}};
  };
  const auto weights = [&](const char* key, const Json& value) { return changed(w4, key, value); };
  const auto weights8 = [&](const char* key, const Json& value) {
    return changed(kinds()[18], key, value);
  };
  const std::vector<Case> cases = {
      {gptq, {{"quant_method", "bitsandbytes"}}, {"quant_method is \"bitsandbytes\"", "gptq"}},
      {gptq, {{"bits", 3}}, {"bits is 3", "4 and 8"}},
      {gptq, {{"checkpoint_format", "marlin"}}, {"checkpoint_format is \"marlin\""}},
      {gptq, {{"dynamic", {{"+:lm_head", {{"bits", 8}}}}}}, {"dynamic is"}},
      {awq, {{"bits", 8}}, {"bits is 8", "4 bits"}},
      {awq, {{"version", "gemv"}}, {"version is \"gemv\"", "gemm"}},
      {awq, {{"zero_point", false}}, {"zero_point is false"}},
      {w4, {{"format", "marlin-24"}}, {"format is \"marlin-24\""}},
      {w4, weights("type", "float"), {"weights.type is \"float\""}},
      {kinds()[18], weights8("symmetric", false), {"weights.symmetric is false"}},
      {kinds()[13], {{"fmt", "e5m2"}}, {"fmt is \"e5m2\"", "e4m3"}},
      {w4, weights("strategy", "tensor"), {"weights.strategy is \"tensor\""}},
      {w4, weights("actorder", "other"), {"weights.actorder is \"other\""}},
      {w4, weights("num_bits", 2), {"weights.num_bits is 2"}},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.changes.dump());
    write(one.kind, {}, one.changes);
    expect_refused<Unsupported>(file("config.json") + "quantization_config.", one.says);
  }
  for (const auto& [changes, says] : std::vector<std::pair<Json, std::string_view>>{
           {{{"bits", "four"}}, "bits is \"four\""},
           {{{"bits", 4.5}}, "bits is 4.5"},
           {{{"group_size", 0}}, "group_size is 0"},
           {{{"group_size", -2}}, "group_size is -2"},
           {{{"sym", 1}}, "sym is 1"},
           {{{"quant_method", nullptr}}, "quant_method"}}) {
    SCOPED_TRACE(changes.dump());
    write(gptq, {}, changes);
    expect_refused<FileError>(file("config.json") + "quantization_config.", {says});
  }
  Json without = config_of_kind(kinds()[13]);
  without.erase("weight_block_size");
  write(kinds()[13]);
  Json config = config_of(sizes_);
  config["quantization_config"] = without;
  std::ofstream(path() / "config.json") << config.dump();
  expect_refused<Unsupported>(file("config.json") + "quantization_config.",
                              {"weight_block_size is missing", "[128, 128], or null"});
  for (const Json& block : {Json(128), Json({128}), Json({0, 128}), Json({128, -1}),
                            Json({"128", 128}), Json({128, std::int64_t{1} << 40})}) {
    SCOPED_TRACE(block.dump());
    write(kinds()[13], {}, {{"weight_block_size", block}});
    expect_refused<FileError>(file("config.json") + "quantization_config.weight_block_size is ",
                              {"two numbers"});
  }
}

TEST_F(QuantisedCheckpoint, GroupsThatDoNotFitAreRefused) {
  const std::string beginning = file("model.safetensors") + "module model.layers.0.";
  write(kinds()[0], {}, {{"group_size", 48}});
  expect_refused<Unsupported>(beginning, {"q_proj has 96 inputs in groups of 48", "32"});
  write(kinds()[0], {}, {{"group_size", 64}});
  expect_refused<Unsupported>(beginning, {"q_proj has 96 inputs in groups of 64"});
  write(kinds()[0], {}, {{"group_size", 96}});
  expect_refused<FileError>(file("model.safetensors"), {"q_proj.qzeros\" has shape [3, 20]", "[1, 20]"});
}

TEST_F(QuantisedCheckpoint, TensorsThatAreMissingOrOfAnotherKindAreNamed) {
  struct Case {
    std::size_t kind;
    const char* tensor;
    std::vector<const char*> without;  // tensors that a module cannot do without
  };
  for (const Case& one : {Case{3, "qweight", {"qweight", "qzeros", "scales", "g_idx"}},
                          Case{7, "qweight", {"qweight", "qzeros", "scales"}},
                          Case{9, "weight_packed", {"weight_packed", "weight_scale"}},
                          Case{12, "weight", {"weight", "weight_scale"}},
                          Case{13, "weight", {"weight", "weight_scale_inv"}},
                          Case{14, "weight_packed", {"weight_zero_point"}},
                          Case{16, "weight_packed", {"weight_g_idx"}},
                          Case{17, "weight", {"weight", "weight_zero_point"}},
                          Case{18, "weight", {"weight", "weight_scale"}}}) {
    const Kind kind = kinds()[one.kind];
    SCOPED_TRACE(kind.name);
    const std::string beginning = file("model.safetensors");
    for (const char* name : one.without) {
      write(kind, [&](FileTensors& tensors) { tensors.erase(up + name); });
      expect_refused<FileError>(beginning, {"has no tensor", up + name});
    }
    write(kind, [&](FileTensors& tensors) {
      FileTensor& tensor = tensors[up + one.tensor];
      std::swap(tensor.shape[0], tensor.shape[1]);
    });
    expect_refused<FileError>(beginning, {up + one.tensor, "has shape"});
    write(kind, [&](FileTensors& tensors) {
      FileTensor& tensor = tensors[up + one.tensor];
      tensor.dtype = tensor.dtype == "I32" ? "U32" : "U8";
    });
    expect_refused<FileError>(beginning, {up + one.tensor, "has dtype U", "expected "});
  }
}

TEST_F(QuantisedCheckpoint, ValuesThatCannotBeAreNamed) {
  const std::string beginning = file("model.safetensors") + "module model.layers.1.mlp.up_proj has ";
  const auto load = [&] { Model::load(path()); };
  const auto put = [&](FileTensors& tensors, const char* name, std::size_t at, std::uint32_t word,
                       std::size_t size) {
    tensors[up + name].bytes.replace(at * size, size,
                                     std::string(reinterpret_cast<const char*>(&word), size));
  };
  write(kinds()[0], [&](FileTensors& t) { put(t, "scales", 5, 0x7e00U, 2); });
  expect_error<FileError>(load, beginning, {"scale nan of output 5, group 0"});
  write(kinds()[1], [&](FileTensors& t) { put(t, "qzeros", 0, 0x77777776U, 4); });
  expect_error<FileError>(load, beginning, {"zero point 7 of output 0", "symmetric", "8"});
  write(kinds()[0], [&](FileTensors& t) { put(t, "g_idx", 2, 3, 4); });
  expect_error<FileError>(load, beginning, {"g_idx 3 of input 2", "0 to 2"});
  write(kinds()[0], [&](FileTensors& t) { put(t, "g_idx", 2, 0xffffffffU, 4); });
  expect_error<FileError>(load, beginning, {"g_idx -1 of input 2"});
  write(kinds()[0], [&](FileTensors& t) { put(t, "g_idx", 2, 1, 4); });
  expect_error<Unsupported>(load, beginning, {"31 inputs in group 0", "32"});
  write(kinds()[13], [&](FileTensors& t) { put(t, "weight", 97, 0xff, 1); });
  expect_error<FileError>(load, beginning, {"NaN at [1, 1]"});
  // Zero points beside weights that are said to be symmetric: each says so too, or one does not.
  const auto all = kinds();
  const Kind& symmetric = *std::ranges::find(all, "w8 by channel", &Kind::name);
  for (const char zero : {'\0', '\1'}) {
    write(symmetric, [&](FileTensors& t) {
      const auto rows = t[up + "weight"].shape[0];
      std::string zeros(static_cast<std::size_t>(rows), '\0');
      zeros[3] = zero;
      t[up + "weight_zero_point"] = {"I8", {rows, 1}, zeros};
    });
    if (zero == 0) {
      load();
    } else {
      expect_error<FileError>(load, beginning, {"zero point 129 of output 3", "symmetric", "128"});
    }
  }
  write(kinds()[13], [&](FileTensors& t) { put(t, "weight_scale_inv", 4, 0x7f800000U, 4); });
  expect_error<FileError>(load, beginning, {"scale inf of output 32, group 1"});
  write(kinds()[9], [&](FileTensors& t) { put(t, "weight_shape", 0, 319, 4); });
  expect_error<FileError>(load, beginning, {"weight_shape [319, 96]", "[320, 96]"});
}

}  // namespace
}  // namespace topkv
