// Contexts in files: a text is prefilled once, and its context is saved and loaded again.
//
//     topkv::save_context(*context, "book.tkv", {.model = model.fingerprint()});
//     auto loaded = topkv::load_context("book.tkv", {.device = device});
//     topkv::Session session(loaded.context, options, device);
//
// A loaded context gives the bits that the saved one gave. Its rows, indices and tails are read
// from the file, and nothing is built again.
//
// Any bytes may be given. A file that is damaged, or that was made to do harm, is refused, and
// never followed outside of its bytes. Checks cannot vouch for the text of a context, which steers
// answers.
//
// docs/reference/context-files.md describes the format byte by byte.
#pragma once

#include <cstddef>
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

/// How a prompt continues the text of a context.
struct ContextEnd {
  /// The end of the text behind its last token, which may be one token with the text that follows.
  /// A prompt begins with it.
  std::string text_left = {};
  bool chat = false;        ///< the text is part of a question in the model's chat template
  std::string system = {};  ///< with chat: the system message before the text; empty: none
};

/// A file whose text is a part of a context's text.
struct ContextSource {
  std::string name = {};   ///< the file's path, as it was given; at most 65,536 bytes
  std::int64_t begin = 0;  ///< its first byte in the text of the context's tokens
  std::int64_t bytes = 0;  ///< the size of its text
};

/// The origin of a context's rows. topkv keeps it beside the rows; whoever loads them compares it
/// with the model at hand.
struct ContextOrigin {
  /// The network: Model::fingerprint(), or a name that an application gives its own network.
  std::string model = {};
  std::string made_with = {};  ///< how the context was made, for people: one line
  /// The length that ModelConfig::load was given, for which keys are turned. 0: none, or unknown.
  std::int64_t length = 0;
  /// The tokens of the rows. Empty: unknown.
  std::vector<Token> tokens = {};
  ContextEnd end = {};
  /// The files of the text, in its order; none begins before the end of another. Empty: unknown.
  /// The text of a token is its bytes (Tokenizer::bytes_of_token), or the content of a special
  /// token. The text of the last file may go on behind the last token.
  std::vector<ContextSource> sources = {};
  /// Bytes that an application keeps beside the rows, such as the states of layers that it computes
  /// itself. topkv checks their checksum and nothing else. Empty: there are none.
  std::vector<std::byte> application_data = {};
};

/// A context that was loaded, and where its rows come from.
struct LoadedContext {
  std::shared_ptr<const Context> context;
  ContextOrigin origin;
};

/// Options of load_context.
struct ContextLoadOptions {
  /// Leaves the rows in the file, where they are read as they are needed. Rows may then be larger
  /// than the memory. Everything else is loaded.
  ///
  /// load_context does not check the checksums of mapped rows, nor whether they are finite;
  /// verify_context does.
  ///
  /// The file must not be changed while the context lives: reading a page that was cut off ends the
  /// process. Replacing the file by another one under its name is safe.
  bool mapped = false;
  std::int64_t memory_budget = 0;  ///< bytes that rows may take; 0: the memory that is free
  /// Specs of the indices and tails that are wanted. They are loaded if the file has them, and
  /// "exact" always is; no byte of others is read. Not set: all are loaded, and an unknown one is
  /// refused.
  std::optional<std::vector<std::string>> indices = {};
  /// The device of the sessions to come. For a CUDA device, rows in memory are page-locked, as rows
  /// that it prefilled are.
  Device device = {};
  ProgressFn progress = {};  ///< stage "load", in bytes
};

/// The description at the beginning of a context's file.
struct ContextFileInfo {
  std::int64_t version = 0;  ///< the version of the format
  std::string writer = {};   ///< the topkv that wrote the file
  AttentionShape shape = {};
  KvDType dtype = {};
  std::int64_t tokens = 0;
  /// For a session's own rows (Session::own_rows): the tokens of its context. -1: the file does not
  /// say, as for the rows of a text.
  std::int64_t tokens_before = -1;
  /// Specs of the indices and tails that this topkv knows, as Context::indices returns them.
  std::vector<std::string> indices = {};
  /// Specs of the indices that cannot be loaded, one line each. This topkv does not know them, as a
  /// later one may write them, or they share data with such an index. The rest of the file can be
  /// loaded if ContextLoadOptions::indices names the wanted indices.
  std::vector<std::string> unknown_indices = {};
  bool has_queries = false;                ///< the file has queries of the prefill
  std::string model = {}, made_with = {};  ///< as in ContextOrigin
  std::int64_t length = 0;                 ///< ContextOrigin::length
  ContextEnd end = {};                     ///< ContextOrigin::end
  bool has_token_ids = false;              ///< the file has ContextOrigin::tokens
  std::int64_t file_bytes = 0;             ///< size of the file
  /// Parts of file_bytes.
  std::int64_t rows_bytes = 0, index_bytes = 0, queries_bytes = 0, states_bytes = 0;
  std::int64_t application_bytes = 0;  ///< bytes of ContextOrigin::application_data
};

/// Returns whether there is a file that begins as a context's file does.
bool is_context_file(const std::filesystem::path& path);

/// Returns about how many bytes a context's file would have: rows, recurrent states, token ids, and
/// codes (`codes:…`, `mean`) with their axes. Other indices count as nothing, because their size is
/// unknown before they are built.
///
/// Throws InvalidArgument for an invalid spec, and for sizes beyond 64 bits.
std::int64_t expected_file_bytes(const AttentionShape& shape, std::int64_t tokens, KvDType dtype,
                                 const std::vector<std::string>& indices);

/// Saves a context to a file. The file appears when it is complete. Until then a file of that name
/// stays as it was and can be read.
///
/// - origin: origin.tokens is empty or has one id for each token of the context. Its texts are
///   UTF-8; model, made_with and the names of sources are kept as one line each.
/// - progress: stage "save", in bytes. An exception that it throws ends the save and reaches the
///   caller. Nothing has changed then, unless it was thrown in the last report, with done equal to
///   total: the file is complete by then.
///
/// Throws FileError when the file cannot be written; a lack of room is reported before anything is
/// written. Throws InvalidArgument for an origin that does not fit.
void save_context(const Context& context, const std::filesystem::path& path,
                  const ContextOrigin& origin = {}, const ProgressFn& progress = {});

/// Loads a context from a file.
///
/// Throws:
/// - FileError for an invalid file; the message names the file, the part, what was found and what
///   was expected;
/// - Unsupported for a file, or an index, of a later topkv;
/// - InvalidArgument for an invalid spec in options.indices;
/// - OutOfMemory when rows do not fit, before they are read, or when an index does not fit, as a
///   graph of hnsw may not;
/// - Error when a driver refuses to page-lock rows.
LoadedContext load_context(const std::filesystem::path& path,
                           const ContextLoadOptions& options = {});

/// Reads the description at the beginning of a context's file. Throws FileError for an invalid
/// file, and Unsupported for a file of a later topkv.
ContextFileInfo context_file_info(const std::filesystem::path& path);

/// Reads a context's file whole and checks all that load_context checks, mapped rows too. Rows are
/// not loaded into memory, and of indices one head for each thread is loaded at a time. For an
/// index that this topkv does not know, it checks the checksums alone.
///
/// progress: stage "verify", in bytes.
///
/// Throws FileError for a damaged file; the message names the first damaged part. Throws
/// Unsupported for a file of a later topkv, and OutOfMemory when one head of an index does not fit.
void verify_context(const std::filesystem::path& path, const ProgressFn& progress = {});

}  // namespace topkv
