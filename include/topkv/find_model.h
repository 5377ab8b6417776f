// Models by name: "org/name", as Hugging Face's own tools have put them into their cache folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace topkv {

/// Which of a model's files shall be there.
enum class ModelFiles : std::uint8_t {
  all,          ///< its weights, too
  description,  ///< config.json, for plans of a model that has no weights yet
};

/// Where a model is: what Model::load, Model::plan, ModelConfig::load, Tokenizer::load and
/// ChatTemplate::load take. Nothing is fetched.
///
/// A path of a folder or file that is there is given back as it is; so is what can be no name.
/// "org/name" is looked for in the cache folder: $HF_HUB_CACHE, else $HF_HOME/hub, else
/// $XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub. There it is the snapshot of the
/// branch main; with "org/name@revision" that of another branch, a tag or a commit. Where a
/// snapshot has no config.json but one *.gguf file, it is that file.
/// Throws FileError with the line that downloads the model when it is not there, or the file that
/// lacks when the snapshot is not complete. Safe from many threads while none changes the
/// environment.
std::filesystem::path find_model(std::string_view model, ModelFiles files = ModelFiles::all);

}  // namespace topkv
