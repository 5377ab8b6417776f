// The JSON that the engine's sources ask for by this name: Debian's library in place of its own
// wrapper. topkv gives the engine no JSON; the engine's code to read some must compile all the same.
#pragma once

#include <nlohmann/json.hpp>

using common_json = nlohmann::ordered_json;
