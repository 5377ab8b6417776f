// The contexts of a server, by name: those it was started with, and those that clients have it
// read. Texts are read one after the other by a thread of their own.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "src/serve/request/request.h"
#include "src/serve/request/served_context.h"
#include "src/serve/run/promised_memory.h"
#include "topkv/chat_template.h"
#include "topkv/model.h"

namespace topkv::serve {

/// How texts of clients are read.
struct ReadingOptions {
  PrefillOptions prefill;      ///< with the index, where it is one
  RetrievalOptions retrieval;  ///< of sessions over them
  /// Receives how a text is read, and what its tokens attended in each layer, [layers], once it is
  /// read. Called by the thread that reads. May be empty.
  std::function<void(const std::string& name, const PrefillAttention& attention,
                     std::span<const PrefillShare> shares)>
      on_read = {};
};

struct ContextInfo {
  std::string name;
  std::string state;  ///< "waiting", "reading", "ready" or "failed"
  bool chat = false;
  std::int64_t done = 0;  ///< of the tokens that it has, or will have
  std::int64_t tokens = 0;
  std::int64_t rows_bytes = 0;
  std::int64_t index_bytes = 0;
  std::string index;    ///< that sessions search
  std::string error;    ///< of "failed"
  std::string warning;  ///< what the vocabulary cannot spell of its text; empty: nothing
};

/// Safe from many threads.
class Contexts {
 public:
  static constexpr std::size_t most = 64;         ///< of all states
  static constexpr std::size_t most_waiting = 4;  ///< to be read

  /// Model, template (null: the model has none) and memory outlive it.
  Contexts(const Model& model, const ChatTemplate* chat, ReadingOptions options,
           PromisedMemory& memory);
  /// Ends what is being read.
  ~Contexts();
  Contexts(const Contexts&) = delete;  // a thread works on it
  Contexts& operator=(const Contexts&) = delete;

  /// One that is ready, when the server starts. Throws InvalidArgument for a name that is taken, or
  /// none.
  void add(ServedContext context);

  /// Has a text read. Throws Problem: 409 for a name that is taken, 429 where too many wait, 400
  /// for a chat where there is no template, or none in which a text can be kept; what else
  /// ChatTemplate::render throws.
  void create(ContextRequest request);
  /// Throws Problem 404. Requests over it are answered to their end; reading ends.
  void remove(const std::string& name);
  /// For answers over it. Throws Problem: 404 for none of the name, 409 where it is not ready.
  std::shared_ptr<const ServedContext> find(const std::string& name) const;

  bool has(const std::string& name) const;
  std::vector<ContextInfo> list() const;
  /// Throws Problem 404.
  ContextInfo info(const std::string& name) const;

 private:
  struct Entry;

  void check_chat(const ContextRequest& request) const;
  void read_all();
  void read(Entry& entry);
  ContextInfo info_of(const Entry& entry) const;
  std::shared_ptr<Entry> entry_of(const std::string& name) const;

  const Model& model_;
  const ChatTemplate* chat_;
  ReadingOptions options_;
  PromisedMemory& memory_;
  mutable std::mutex mutex_;  // of all below, and of entries
  std::condition_variable changed_;
  std::map<std::string, std::shared_ptr<Entry>> entries_;
  std::deque<std::shared_ptr<Entry>> waiting_;
  bool ends_ = false;
  std::thread reader_;
};

}  // namespace topkv::serve
