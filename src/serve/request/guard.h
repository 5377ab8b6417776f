// Who may ask. Pure functions.
#pragma once

#include <string>
#include <string_view>

namespace topkv::serve {

/// Whether the two are the same, in a time that tells nothing of where they differ.
bool same_secret(std::string_view given, std::string_view secret);

/// The key of "Authorization: Bearer KEY"; empty: none.
std::string_view bearer_key(std::string_view authorization);

/// Whether a Host header names this machine as loopback does: a page of another site whose name
/// leads here ("DNS rebinding") has that name in it.
bool is_loopback_host_header(std::string_view host);

/// Of an address that a server is bound to.
bool is_loopback(const std::string& host);

}  // namespace topkv::serve
