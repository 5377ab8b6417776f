#include "src/serve/request/guard.h"

#include <algorithm>
#include <cctype>
#include <cstddef>

namespace topkv::serve {
namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(), [](unsigned char c) { return std::tolower(c); });
  return out;
}

}  // namespace

// The time depends on the length of what was given alone.
bool same_secret(std::string_view given, std::string_view secret) {
  if (secret.empty()) return given.empty();
  volatile unsigned char different = given.size() == secret.size() ? 0 : 1;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const auto a = static_cast<unsigned char>(given[i]);
    const auto b = static_cast<unsigned char>(secret[i % secret.size()]);
    different = static_cast<unsigned char>(different | (a ^ b));
  }
  return different == 0;
}

std::string_view bearer_key(std::string_view authorization) {
  constexpr std::string_view scheme = "bearer ";
  if (authorization.size() <= scheme.size() ||
      lower(authorization.substr(0, scheme.size())) != scheme)
    return {};
  return authorization.substr(scheme.size());
}

bool is_loopback_host_header(std::string_view host) {
  if (host.starts_with('[')) return host.substr(0, host.find(']') + 1) == "[::1]";
  const std::string name = lower(host.substr(0, host.find(':')));
  return name == "localhost" || is_loopback(name);
}

bool is_loopback(const std::string& host) {
  if (host == "localhost" || host == "::1") return true;
  return host.starts_with("127.") && host.find_first_not_of("0123456789.") == std::string::npos;
}

}  // namespace topkv::serve
