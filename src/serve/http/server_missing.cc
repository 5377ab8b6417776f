// What stands in for server.cc where the HTTP library is missing.
#include "src/serve/http/server.h"
#include "topkv/error.h"

namespace topkv::serve {

void require_http() {
  throw Unsupported(
      "topkv serve: this topkv was built without an HTTP server; install the Debian package "
      "libcpp-httplib-dev and build it again");
}

bool serve(Service& /*service*/, const ServerOptions& /*options*/,
           const std::function<bool()>& /*stop*/, const std::function<void(int)>& /*ready*/) {
  require_http();
  return false;
}

}  // namespace topkv::serve
