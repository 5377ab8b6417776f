# Decides whether chat templates are built: they are rendered by llama.cpp's Jinja engine (C++17, no
# dependencies), whose sources Debian does not package. They are fetched once from PyPI, as
# tools/fetch_jinja.sh says, into build/deps/jinja. To use a copy, or where PyPI cannot be reached,
# point -D TOPKV_JINJA_DIR= at a folder with jinja/, unicode.h and unicode.cpp (common/ of llama.cpp).
#
# TOPKV_JINJA ends up ON or OFF, with the sources in TOPKV_JINJA_DIR. Without it the library says, of
# every chat template, that it was built so.

set(TOPKV_JINJA AUTO CACHE STRING
  "Build chat templates: ON, OFF, or AUTO (when the sources of the Jinja engine are there or can be fetched)")

topkv_fetch_sources(OPTION TOPKV_JINJA NAME jinja DIR TOPKV_JINJA_DIR HEADER jinja/runtime.h
  LICENCE TOPKV_JINJA_LICENSE LICENCE_IN .. SOURCES "the Jinja engine" FOR "chat templates"
  HOLDS "jinja/runtime.h and unicode.h of llama.cpp's common/" COPY "common/ of llama.cpp")
