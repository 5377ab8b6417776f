// Lists of near keys that stay where they are (key_lists.h). A search scores the centroids of all
// lists, then the keys of the lists whose centroids score highest: for the heads of a GQA group
// those of any of them, so that a key is read once.
//
// Lists are short, a few tens of keys: of long ones a search reads several times as many keys to
// find as much, for attention's queries lie far from keys, and what they look for is spread.
//
// For fixed sets of keys: what is added after build joins the lists that there are, which grow
// longer, and of other text many become rare, each of which every search scores; no key is lost.
#pragma once

#include <memory>
#include <string_view>

#include "topkv/index_spec.h"

namespace topkv {

/// spec: the whole string; options: what follows "ivf:". Throws InvalidArgument.
///
///   size   keys of a list, about
///   share  a query reads one of so many keys, but 48 times as many as are wanted at least (the
///   wanted
///          are k and a margin: some 4,600 keys for k = 64); fewer: better recall, slower search
std::shared_ptr<const IndexFactory> ivf_factory(std::string_view spec, std::string_view options);

}  // namespace topkv
