// Contexts in files: a prefill is paid for once. docs/reference/context-files.md has the
// format, byte by byte.
//
// What is loaded gives the same bits as what was saved: rows, indices and tails, none of them built
// again. Any bytes may be given: a file that is damaged, or was made to do harm, is refused, never
// followed outside of what it holds. (What a context says is another matter: it steers answers.)
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "topkv/context.h"
#include "topkv/device.h"
#include "topkv/progress.h"
#include "topkv/types.h"

namespace topkv {

/// How a prompt goes on from a context's text.
struct ContextEnd {
  /// What the text has behind the last token: where it may be one token with what follows. A prompt
  /// begins with it.
  std::string text_left = {};
  bool chat = false;        ///< the text is in a question of the model's chat template
  std::string system = {};  ///< with that: the system message before it; empty: none
};

/// Where rows are from. topkv keeps it beside them; whoever loads them compares.
struct ContextOrigin {
  /// Model::fingerprint(), or what an application knows its network by.
  std::string model = {};
  std::string made_with = {};  ///< how, for people: one line
  /// That ModelConfig::load was given, for which keys are turned; 0: none, or not known.
  std::int64_t length = 0;
  std::vector<Token> tokens = {};  ///< whose rows these are; empty: not known
  ContextEnd end = {};
};

struct LoadedContext {
  std::shared_ptr<const Context> context;
  ContextOrigin origin;
};

struct ContextLoadOptions {
  /// Rows stay in the file and are read where they lie, as they are needed, so that they may be
  /// more than the memory. What else there is is loaded. Their checksums are then left to
  /// verify_context, as is whether they are finite. The file must not be changed while the context
  /// lives (replacing it by another of the name is no change): a page that is cut off ends the
  /// process.
  bool mapped = false;
  std::int64_t memory_budget = 0;  ///< bytes that rows may take; 0: what the machine has free
  /// Specs of indices and tails that are wanted: of these, and exact, those that the file has are
  /// loaded, and no byte of others is read. Not given: all, and one that is not known is refused.
  std::optional<std::vector<std::string>> indices = {};
  /// For sessions on a CUDA device: rows in memory are page-locked, as those that it prefilled.
  Device device = {};
  ProgressFn progress = {};  ///< stage "load", in bytes
};

/// What a file says of itself.
struct ContextFileInfo {
  std::int64_t version = 0;  ///< of the format
  std::string writer = {};   ///< the topkv that wrote it
  AttentionShape shape = {};
  KvDType dtype = {};
  std::int64_t tokens = 0;
  /// Of a session's own rows (Session::own_rows): the tokens of its context. -1: not said, as of
  /// rows of a text.
  std::int64_t tokens_before = -1;
  std::vector<std::string> indices = {};  ///< specs, as Context::indices has them
  /// Specs that this topkv does not know, as a later one may write them, and of those that have the
  /// heads of such a one; each one line. The rest can be loaded where ContextLoadOptions::indices
  /// names what is wanted of it.
  std::vector<std::string> unknown_indices = {};
  bool has_queries = false;
  std::string model = {}, made_with = {};  ///< ContextOrigin
  std::int64_t length = 0;                 ///< likewise
  ContextEnd end = {};
  bool has_token_ids = false;
  std::int64_t file_bytes = 0;
  std::int64_t rows_bytes = 0, index_bytes = 0, queries_bytes = 0;  ///< that they take in it
};

/// Whether there is a file that begins as contexts' files do.
bool is_context_file(const std::filesystem::path& path);

/// Bytes that a file of such a context has, about: rows, token ids and codes (`codes:…`, `mean`)
/// with their axes.
/// How large other indices are is not known before they are built: they count as nothing. Throws
/// InvalidArgument for a spec that is not understood, and rows beyond 64 bits.
std::int64_t expected_file_bytes(const AttentionShape& shape, std::int64_t tokens, KvDType dtype,
                                 const std::vector<std::string>& indices);

/// Writes a file that is seen when it is whole: until then what was there stays, and may be read.
/// origin.tokens: none, or as many as the context has, from 0 on. Texts of the origin are UTF-8;
/// model and made_with are kept as one line. progress: stage "save", in bytes; when it throws, so
/// does this, and nothing has changed, or, from the last report on, all is done. Throws FileError
/// (no room among them, before anything is written) and InvalidArgument.
void save_context(const Context& context, const std::filesystem::path& path,
                  const ContextOrigin& origin = {}, const ProgressFn& progress = {});

/// Throws FileError, which names the file, the part, what was found and what was expected,
/// OutOfMemory before rows are read when they do not fit, and afterwards for an index (a graph of
/// hnsw) that does not, Unsupported for a file or an index of a later topkv, InvalidArgument for a
/// spec that is not understood, and Error where a driver refuses to page-lock.
LoadedContext load_context(const std::filesystem::path& path,
                           const ContextLoadOptions& options = {});

/// Reads the beginning of a file. Throws as load_context does.
ContextFileInfo context_file_info(const std::filesystem::path& path);

/// Reads all of it and checks what load_context checks, with neither rows in memory nor more of
/// indices than a head for each thread.
/// Of indices that it does not know it checks the bytes alone. progress: stage "verify", in bytes.
/// Throws FileError naming the first part that is damaged, Unsupported for a file of a later topkv,
/// and OutOfMemory for a head that does not fit.
void verify_context(const std::filesystem::path& path, const ProgressFn& progress = {});

}  // namespace topkv
