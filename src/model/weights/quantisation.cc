#include "src/model/weights/quantisation.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "src/core/format/json_file.h"
#include "src/core/text/printable.h"

namespace topkv {
namespace {

using Json = nlohmann::json;

constexpr const char* key = "quantization_config";

constexpr std::int64_t mxfp4_group = 32;
constexpr std::int64_t most_group = std::int64_t{1} << 20;

/// Inputs that share a scale; -1 in the file: all.
std::int64_t group_of(const JsonObject& object, const char* name) {
  const std::int64_t group = object.integer(name, -1, most_group);
  if (group == 0) object.fail(name, "-1 or a number of inputs");
  return group < 0 ? 0 : group;
}

int bits_of(const JsonObject& object, const char* name, bool four_only) {
  const std::int64_t bits = object.integer(name, 1, 64);
  if (bits != 4 && (four_only || bits != 8)) {
    object.unsupported(name, four_only ? "4 bits" : "4 and 8 bits");
  }
  return static_cast<int>(bits);
}

/// Tools have either name for it. It decides what zero points are.
std::string read_gptq_format(const JsonObject& object) {
  constexpr const char* name = "checkpoint_format";
  constexpr const char* other = "format";
  const char* key = object.find(name) == nullptr && object.find(other) != nullptr ? other : name;
  std::string format = object.text(key, "gptq");
  if (format != "gptq" && format != "gptq_v2") object.unsupported(key, "gptq and gptq_v2");
  if (object.find(other) != nullptr && object.text(other) != format) {
    object.fail(other, fmt::format("{} (\"{}\") again", name, format));
  }
  return format;
}

Quantisation read_gptq(const JsonObject& object) {
  Quantisation how;
  how.method = Quantisation::Method::gptq;
  how.bits = bits_of(object, "bits", false);
  how.group = group_of(object, "group_size");
  how.symmetric = object.flag("sym", true);
  const std::string format = read_gptq_format(object);
  how.zeros_less_one = format == "gptq";
  how.needs_order = object.find("desc_act") != nullptr && object.flag("desc_act");
  constexpr const char* marlin = "is_marlin_format";
  constexpr const char* words = "pack_dtype";
  if (object.find(marlin) != nullptr && object.flag(marlin)) object.unsupported(marlin, "false");
  if (object.find(words) != nullptr && object.text(words) != "int32")
    object.unsupported(words, "\"int32\"");
  // Modules with settings of their own; those behind "-:" were left out.
  if (const Json* dynamic = object.find("dynamic"); dynamic != nullptr && !dynamic->empty()) {
    if (!dynamic->is_object()) object.fail("dynamic", "an object");
    for (const auto& [module, settings] : dynamic->items()) {
      if (!module.starts_with("-:")) object.unsupported("dynamic", "one setting for all modules");
    }
  }
  return how;
}

Quantisation read_awq(const JsonObject& object) {
  Quantisation how;
  how.method = Quantisation::Method::awq;
  how.bits = bits_of(object, "bits", true);
  how.group = group_of(object, "group_size");
  how.symmetric = false;
  if (!object.flag("zero_point", true)) object.unsupported("zero_point", "true");
  const std::string version = object.text("version", "gemm");
  if (version != "gemm" && version != "GEMM") object.unsupported("version", "gemm");
  return how;
}

/// Outputs and inputs that share a scale.
void read_block(const JsonObject& object, const char* name, Quantisation& how) {
  const Json* sizes = object.find(name);
  const auto size = [&](std::size_t at) {
    const Json& one = sizes->at(at);
    if (!one.is_number_integer() || one < 1 || one > most_group) {
      object.fail(name, fmt::format("two numbers from 1 to {}", most_group));
    }
    return one.get<std::int64_t>();
  };
  if (sizes == nullptr || !sizes->is_array() || sizes->size() != 2) {
    object.fail(name, "two numbers");
  }
  how.block_rows = size(0);
  how.group = size(1);
}

Quantisation read_fp8(const JsonObject& object) {
  Quantisation how;
  how.method = Quantisation::Method::block_fp8;
  how.bits = 8;
  if (object.text("fmt", "e4m3") != "e4m3") object.unsupported("fmt", "e4m3");
  constexpr const char* key_of_block = "weight_block_size";
  if (object.find(key_of_block) != nullptr) {
    read_block(object, key_of_block, how);
  } else if (object.contains(key_of_block)) {
    how.block_rows = 0;
  } else {
    object.unsupported(key_of_block, "blocks such as [128, 128], or null");
  }
  return how;
}

/// What compressed-tensors say of the weights of a group of modules.
void read_scheme(const JsonObject& weights, Quantisation& how) {
  how.bits = bits_of(weights, "num_bits", false);
  const char* type = how.fp8() ? "float" : "int";
  if (weights.text("type", "int") != type) weights.unsupported("type", fmt::format("\"{}\"", type));
  if (how.method != Quantisation::Method::packed_int && how.bits != 8) {
    weights.unsupported("num_bits", "8 bits in that format");
  }
  how.symmetric = weights.flag("symmetric", true);
  if (how.fp8() && !how.symmetric) weights.unsupported("symmetric", "true for floats");
  if (weights.find("actorder") != nullptr) {
    const std::string order = weights.text("actorder");
    how.needs_order = order == "group" || order == "dynamic";
    if (!how.needs_order && order != "weight" && order != "static") {
      weights.unsupported("actorder", "\"group\" and \"weight\"");
    }
  }
  if (const Json* dynamic = weights.find("dynamic"); dynamic != nullptr && *dynamic != false) {
    weights.unsupported("dynamic", "false: scales that are stored");
  }
  const std::string strategy = weights.text("strategy");
  if (strategy == "group" && !how.fp8()) {
    how.group = group_of(weights, "group_size");
  } else if (strategy == "tensor" && how.fp8()) {
    how.block_rows = 0;
  } else if (strategy == "block" && how.fp8()) {
    read_block(weights, "block_structure", how);
  } else if (strategy != "channel") {
    weights.unsupported("strategy", how.fp8() ? "\"channel\", \"block\" and \"tensor\" for floats"
                                              : "\"group\" and \"channel\" for integers");
  }
}

Quantisation read_compressed(const JsonObject& object, const Json& json,
                             const std::filesystem::path& file) {
  const std::string where = std::string(key) + ".";
  Quantisation how;
  const std::string format = object.text("format");
  if (format == "pack-quantized") {
    how.method = Quantisation::Method::packed_int;
  } else if (format == "int-quantized") {
    how.method = Quantisation::Method::plain_int8;
  } else if (format == "float-quantized") {
    how.method = Quantisation::Method::plain_fp8;
  } else {
    object.unsupported("format", "pack-quantized, int-quantized and float-quantized");
  }
  if (const Json* sparsity = object.find("sparsity_config");
      sparsity != nullptr && !sparsity->empty()) {
    const JsonObject checked(*sparsity, file, where + "sparsity_config.");
    if (checked.text("format", "dense") != "dense") {
      object.unsupported("sparsity_config", "dense weights");
    }
  }
  if (const Json* transforms = object.find("transform_config");
      transforms != nullptr && !transforms->empty()) {
    object.unsupported("transform_config", "weights for activations that are not rotated");
  }
  if (object.find("config_groups") == nullptr) object.fail("config_groups", "an object");
  const Json& groups = json.at("config_groups");
  const JsonObject checked(groups, file, where + "config_groups.");
  if (groups.size() != 1) object.unsupported("config_groups", "one setting for all modules");
  const std::string in_group =
      where + "config_groups." + printable_beginning(groups.begin().key()) + ".";
  const JsonObject group(groups.begin().value(), file, in_group);
  if (group.find("format") != nullptr && group.text("format") != format) {
    group.unsupported("format", fmt::format("one format for all modules (\"{}\")", format));
  }
  if (group.find("weights") == nullptr) group.fail("weights", "an object");
  read_scheme(JsonObject(*group.find("weights"), file, in_group + "weights."), how);
  return how;
}

}  // namespace

Quantisation Quantisation::parse(const Json& config, const std::filesystem::path& file) {
  const auto it = config.find(key);
  if (it == config.end() || it->is_null()) return {};
  const JsonObject object(*it, file, std::string(key) + ".");
  const std::string method = object.text("quant_method");
  if (method == "gptq") return read_gptq(object);
  if (method == "awq") return read_awq(object);
  if (method == "fp8") return read_fp8(object);
  if (method == "compressed-tensors") return read_compressed(object, *it, file);
  if (method == "mxfp4") {
    Quantisation how;
    how.method = Method::mxfp4;
    how.group = mxfp4_group;
    return how;
  }
  object.unsupported("quant_method", "gptq, awq, fp8, mxfp4 and compressed-tensors");
}

Quantisation Quantisation::load(const std::filesystem::path& directory) {
  const std::filesystem::path file = directory / "config.json";
  return parse(read_python_json_file(file), file);
}

std::string_view Quantisation::codes_name() const {
  switch (method) {
    case Method::gptq:
    case Method::awq:
      return "qweight";
    case Method::packed_int:
      return "weight_packed";
    default:
      return "weight";
  }
}

std::string Quantisation::text() const {
  const auto grouped = [&](const char* name) {
    const std::string scales =
        group == 0 ? "a scale for each output" : fmt::format("groups of {}", group);
    return fmt::format("{}, {} bits, {}{}", name, bits, scales, symmetric ? "" : ", zero points");
  };
  switch (method) {
    case Method::none:
      return {};
    case Method::gptq:
      return grouped("gptq");
    case Method::awq:
      return grouped("awq");
    case Method::packed_int:
    case Method::plain_int8:
      return grouped("compressed-tensors");
    case Method::mxfp4:
      return fmt::format("mxfp4 (e2m1), experts in groups of {}", group);
    case Method::block_fp8:
      if (group == 0) return "fp8 (e4m3), a scale for each matrix";
      return fmt::format("fp8 (e4m3), blocks of {} x {}", block_rows, group);
    case Method::plain_fp8:
      if (group != 0) {
        return fmt::format("compressed-tensors, fp8 (e4m3), blocks of {} x {}", block_rows, group);
      }
      return fmt::format("compressed-tensors, fp8 (e4m3), a scale for each {}",
                         block_rows == 0 ? "matrix" : "output");
  }
  return {};
}

}  // namespace topkv
