// Where the weights of a model come from, by the names that Hugging Face checkpoints of its family
// have for them ("model.layers.0.mlp.up_proj.weight"; families.h has what differs). A kind of file
// is one more Checkpoint.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/model/weights/matrix_source.h"
#include "topkv/model.h"

namespace topkv {

/// Owns the mapped files. Threads: const members are safe from many threads.
class Checkpoint {
 public:
  virtual ~Checkpoint() = default;

  /// Of a model directory: its safetensors, quantised as its config.json says. Of a file: a GGUF
  /// file. Throws FileError and Unsupported.
  static std::unique_ptr<Checkpoint> open(const std::filesystem::path& model);
  /// As open. Where the model has no weights yet (Model::has_weights), those that its config.json
  /// describes.
  static std::unique_ptr<Checkpoint> open_or_describe(const std::filesystem::path& model);

  /// What lists the tensors, for messages.
  virtual const std::filesystem::path& source() const = 0;
  /// What its matrices are quantised as already, in a few words ("gptq, 4 bits in groups of 128");
  /// empty: they are plain.
  virtual std::string quantised() const = 0;
  /// Tensors that have not been asked for, and would change what a network says that has a use for
  /// them.
  virtual std::vector<std::string> unread() const { return {}; }
  /// The network has no use for the tensor of this name, if there is one: unread leaves it out.
  virtual void leave(const std::string& /*name*/) const {}
  /// Whether there is a matrix or vector of this name. Throws FileError when there are two.
  virtual bool has(const std::string& name) const = 0;

  /// The matrix [rows.count, in] of these rows of a tensor, in the form that is asked for; the
  /// checkpoint outlives it. Throws FileError for one that is missing, of another shape or damaged,
  /// Unsupported for one that the format cannot hold; reads headers, and what says how the inputs
  /// are ordered.
  virtual MatrixSource matrix(const std::string& name, MatrixRows rows, std::int64_t in,
                              WeightFormat format) const = 0;
  /// A head of latent attention (LatentAttention), in the layer whose names begin with `layer`,
  /// "model.layers.3.".
  struct LatentHead {
    std::string layer;
    std::int64_t head = 0;
    std::int64_t heads = 0;
    std::int64_t nope_dim = 0;
    std::int64_t value_dim = 0;
    std::int64_t kv_rank = 0;
  };
  /// The matrix [kv_rank, nope_dim] of a head: its projection from latents to keys, transposed. Of
  /// one that is quantised and has to be transposed it is made of what the codes stand for, in
  /// float32. Throws as matrix does.
  virtual MatrixSource latent_keys(const LatentHead& of, WeightFormat format) const;
  /// The matrix [value_dim, kv_rank] of a head: its projection from latents to values.
  virtual MatrixSource latent_values(const LatentHead& of, WeightFormat format) const;
  /// Of a tensor that has a matrix of each expert, [experts, inputs, outputs] as transformers keeps
  /// them, or what stands for it: the matrix [out, in] of an expert whose output r is output first
  /// + r * step of the tensor's out * step. Throws as matrix does; Unsupported in kinds of files
  /// that have no such tensors.
  struct FusedExpert {
    std::int64_t expert = 0;
    std::int64_t experts = 0;
    std::int64_t first = 0;
    std::int64_t step = 1;
  };
  virtual MatrixSource fused_expert(const std::string& name, const FusedExpert& which,
                                    std::int64_t out, std::int64_t in, WeightFormat format) const;
  /// Of a tensor that has several matrices of each expert behind each other, [experts, parts,
  /// outputs, inputs] without a dimension of its own for the parts: the matrix [out, in] of a part.
  /// Throws as matrix does; Unsupported in kinds of files that have no such tensors.
  struct StackedExpert {
    std::int64_t expert = 0;
    std::int64_t experts = 0;
    std::int64_t part = 0;
    std::int64_t parts = 1;
  };
  virtual MatrixSource stacked_expert(const std::string& name, const StackedExpert& which,
                                      std::int64_t out, std::int64_t in, WeightFormat format) const;
  /// Widens a tensor [experts, to.size() / experts], likewise. Returns the bytes in the file.
  virtual std::int64_t fused_biases(const std::string& name, std::int64_t experts,
                                    std::span<float> to) const;

  /// Widens a vector of that many elements. Returns the bytes that it has in the file. Throws as
  /// matrix does, and for one that is not finite.
  virtual std::int64_t vector(const std::string& name, std::span<float> to) const = 0;

  /// Widens the weights of a convolution of each channel by itself, [channels, kernel]. As vector.
  virtual std::int64_t convolution(const std::string& name, std::int64_t channels,
                                   std::int64_t kernel, std::span<float> to) const = 0;

  /// Whether norms and decays are stored as the network uses them. Else a family's norm_offset is
  /// added to each weight of a norm, and of a decay there is the logarithm.
  virtual bool has_whole_vectors() const { return false; }

  /// Goes through all plain tensors that have been asked for, which takes as long as reading them:
  /// where what a network computes is not finite, to tell why. Throws FileError naming the first
  /// that is not finite itself. (Quantised ones are checked while they are made.)
  virtual void check_finite() const {}
};

/// What to tell of the tensors that have not been asked for, on one line; empty: nothing.
std::string unread_warning(const Checkpoint& checkpoint);

}  // namespace topkv
