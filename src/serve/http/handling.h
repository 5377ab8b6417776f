// What handlers of routes share: the note for the log, problems as responses, bodies.
#pragma once

#include <httplib.h>

#include <cstdint>
#include <string>

#include "src/core/threads/stopwatch.h"
#include "src/serve/answer/answer.h"
#include "src/serve/request/problem.h"

namespace topkv::serve {

/// A client that is gone before its answer, in the log; nginx' number.
inline constexpr int client_gone = 499;

/// What the log tells of the request that this thread handles.
struct Note {
  Stopwatch watch;
  std::string context;
  Usage usage;
  bool gone = false;
  int problem = 0;  // status of one that came after the response's
};
extern thread_local Note note;

/// Sets a response to a problem, in the form of the API that the path belongs to.
void set_problem(const httplib::Request& request, httplib::Response& response,
                 const Problem& problem);

/// Runs a handler whose problems are told.
template <class Work>
void answered(const httplib::Request& request, httplib::Response& response, const Work& work) {
  try {
    work();
  } catch (...) {
    set_problem(request, response, current_problem());
  }
}

/// Returns a name for an answer, which no other answer has.
std::string new_id(const std::string& prefix);

/// Returns a body of up to that many bytes. Throws Problem.
std::string read_body(const httplib::ContentReader& reader, std::int64_t most);

}  // namespace topkv::serve
