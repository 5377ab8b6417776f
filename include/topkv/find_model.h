// Models by name: "org/name" is looked up in the cache folder that Hugging Face's own tools fill.
// Nothing is downloaded.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace topkv {

/// Which files of a model must be present.
enum class ModelFiles : std::uint8_t {
  all,          ///< the description and the weights
  description,  ///< config.json alone, for plans of a model whose weights are not here yet
};

/// Returns the path of a model, as Model::load, Model::plan, ModelConfig::load, Tokenizer::load and
/// ChatTemplate::load take it. Downloads nothing.
///
/// - A path of an existing file or folder is returned unchanged. A text that cannot be a name is
///   returned unchanged, too.
/// - "org/name" is the snapshot of the branch main in the cache folder.
/// - "org/name@revision" is the snapshot of another branch, a tag or a commit.
/// - A snapshot with one model in *.gguf files and no config.json gives the path of that file. A
///   model in several parts gives the path of its first part (NAME-00001-of-00003.gguf). Files whose
///   names begin with mmproj are encoders of images and do not count.
///
/// The cache folder is the first of these that is set: $HF_HUB_CACHE, $HUGGINGFACE_HUB_CACHE,
/// $HF_HOME/hub, $XDG_CACHE_HOME/huggingface/hub. Else it is ~/.cache/huggingface/hub.
///
/// Throws FileError:
/// - when the cache does not have the model; the message has the command that downloads it;
/// - when the snapshot is incomplete; the message names the missing file;
/// - when the snapshot has several models in *.gguf files and no config.json.
///
/// Safe from many threads while no thread changes the environment.
std::filesystem::path find_model(std::string_view model, ModelFiles files = ModelFiles::all);

}  // namespace topkv
