// Indices of applications (topkv/register_index.h), as all other indices are made and used.
//
// A RegisteredIndex holds the application's KeyIndex. Nothing that this returns is trusted: results
// are checked, scored again by the stored keys and sorted.
//
// Threads: functions are safe from many threads, except those of one index as key_index.h says.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "index/common/index_factory.h"
#include "topkv/register_index.h"

namespace topkv {

/// Adds a registration. Throws InvalidArgument when the name is registered, or a registration lacks
/// a function. The caller has checked the name otherwise.
void add_registration(std::string_view name, IndexRegistration registration);

/// Returns the factory of an index "NAME" or "NAME:params". Null: no index with this name is
/// registered. Throws InvalidArgument for params that the index does not take.
std::shared_ptr<const IndexFactory> registered_factory(std::string_view spec);

/// Returns the names of all registered indices, in order.
std::vector<std::string> registered_names();

}  // namespace topkv
