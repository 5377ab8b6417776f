# Decides whether answers can be held to a JSON schema: XGrammar (C++17) says which tokens may follow.
# Debian does not package it. Its sources are fetched once from PyPI, as tools/fetch_xgrammar.sh says,
# into build/deps/xgrammar. To use a copy, or where PyPI cannot be reached, point -D TOPKV_XGRAMMAR_DIR=
# at the folder of an unpacked source package of that release.
#
# TOPKV_GRAMMARS ends up ON or OFF, with the sources in TOPKV_XGRAMMAR_DIR. Without it the library says,
# of every schema, that it was built so.

set(TOPKV_GRAMMARS AUTO CACHE STRING
  "Build answers held to a JSON schema: ON, OFF, or AUTO (when XGrammar's sources are there or can be fetched)")

topkv_fetch_sources(OPTION TOPKV_GRAMMARS NAME xgrammar DIR TOPKV_XGRAMMAR_DIR HEADER include/xgrammar/xgrammar.h
  LICENCE TOPKV_XGRAMMAR_LICENSE SOURCES "XGrammar" FOR "JSON schemas" HOLDS "cpp/, include/ and 3rdparty/ of XGrammar"
  COPY "its sources")
