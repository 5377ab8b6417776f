// How the matrices of a checkpoint are quantised already: quantization_config of config.json, read
// strictly. What it says decides which tensors stand for a matrix and how they are read; a matrix
// that is there as plain elements is taken as it is, whatever it says (modules that were left out
// when the others were quantised).
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "src/model/weights/checkpoint.h"
#include "src/model/weights/matrix_source.h"

namespace topkv {

struct Quantisation {
  enum class Method : std::uint8_t {
    none,
    gptq,        ///< qweight, qzeros, scales, g_idx (Frantar et al. 2022; AutoGPTQ's file)
    awq,         ///< the same names in another order, without g_idx (Lin et al. 2023; "gemm")
    packed_int,  ///< compressed-tensors' "pack-quantized": weight_packed, weight_scale
    plain_int8,  ///< compressed-tensors' "int-quantized": weight of I8, weight_scale
    block_fp8,   ///< "fp8": weight of F8_E4M3, weight_scale_inv for each block_rows x group, or for
                 ///< each matrix
    plain_fp8,   ///< compressed-tensors' "float-quantized": the same with weight_scale, for each
                 ///< output, block or matrix
    mxfp4,       ///< experts alone: blocks of 32 inputs in e2m1, each with a scale in e8m0
  };
  Method method = Method::none;
  int bits = 4;
  std::int64_t group = 0;       ///< inputs that share a scale; 0: all of a row
  std::int64_t block_rows = 1;  ///< outputs that do; 0: all of a matrix
  bool symmetric = true;        ///< codes' zero is the middle of their range
  /// gptq: what a file has for a zero point is one less than it (checkpoint_format "gptq").
  bool zeros_less_one = true;
  bool needs_order = false;  ///< each module says which group an input is in (g_idx)

  bool fp8() const { return method == Method::block_fp8 || method == Method::plain_fp8; }
  /// In a few words: "gptq, 4 bits in groups of 128"; empty for none.
  std::string text() const;
  /// The tensor of a matrix that has its codes, behind the module's name and a dot.
  std::string_view codes_name() const;

  /// Of the configuration's "quantization_config"; method none when there is no such key. Throws
  /// FileError, or Unsupported naming the key and the value.
  static Quantisation parse(const nlohmann::json& config, const std::filesystem::path& file);
  /// Of a model directory's config.json.
  static Quantisation load(const std::filesystem::path& directory);
};

/// What a matrix [out, in] is held as whose codes such a checkpoint has, but for the order of its
/// inputs, which only the file tells. Throws Unsupported, naming it by `what`, for groups that do
/// not go into its inputs.
Matrix quantised_form(const Quantisation& how, std::int64_t out, std::int64_t in,
                      const std::string& what);
Matrix mxfp4_form(std::int64_t out, std::int64_t in, const std::string& what);

/// An expert of a fused tensor of this name that is there as name + "_blocks" and "_scales"
/// (Method::mxfp4), likewise.
MatrixSource find_mxfp4(const SafeTensors& tensors, const std::string& name,
                        const Checkpoint::FusedExpert& which, std::int64_t out, std::int64_t in);

/// The matrix of these rows of a module ("model.layers.0.mlp.up_proj."), [rows.count, in], as such
/// a checkpoint has it. Throws FileError and Unsupported as find_matrix does; reads headers, and
/// the order of the inputs where there is one.
MatrixSource find_quantised(const SafeTensors& tensors, const std::string& module, MatrixRows rows,
                            std::int64_t in, const Quantisation& how);

}  // namespace topkv
