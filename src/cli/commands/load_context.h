// Contexts in files, loaded to be asked with the index and the tail that flags or the file name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/cli/flags/options.h"
#include "src/cli/terminal/progress_bar.h"
#include "topkv/context_file.h"
#include "topkv/device.h"

namespace topkv::cli {

/// Of the file's indices the first that is more than rows in place, where no flag names one.
void name_index_of_file(RetrievalFlags& retrieval, const ContextFileInfo& info);

/// Throws FileError where the file has rows of a session, or the index that is named can neither be
/// loaded nor built over its rows: before any of them is read. Warns of indices of the file that
/// are not known.
void check_asked(const std::string& file, const ContextFileInfo& info,
                 const RetrievalFlags& retrieval);

/// Throws FileError where a context was made with another model, or with other flags of it.
/// fingerprint, made_with: as the file says. own: the fingerprint of the model at hand.
void check_model_of(const std::string& file, const std::string& fingerprint,
                    const std::string& made_with, const std::string& own, const ModelFlags& model);

/// Throws FileError for token ids of a file that the model's vocabulary has not.
void check_ids(const std::string& file, const std::vector<Token>& tokens, std::int64_t vocabulary);

/// "FILE: has indices that this topkv does not know, …": of a file that has some.
std::string unknown_indices_text(const std::string& file, const ContextFileInfo& info);

struct AskedFile {
  std::string file;
  bool mapped = false;
  std::int64_t memory = 0;  ///< that rows may take; 0: what the machine has free
  bool quiet = false;       ///< nothing is told of it
};

/// info: of the file, before the model was loaded; own: the model's fingerprint. retrieval names
/// one index. Tells the context's size on standard error, unless quiet. Throws what load_context
/// and ready_for do, FileError where the file is of another model or has been replaced, and
/// Interrupted.
LoadedContext load_asked(const AskedFile& file, const ContextFileInfo& info,
                         const ModelFlags& model, const RetrievalFlags& retrieval,
                         const std::string& own, const Device& device, ProgressBar& progress);

}  // namespace topkv::cli
