# Which file may include what. Dependencies point one way, floor by floor:
#
#   core <- store, attention, index <- device <- context, gpu <- model <- eval, serve <- cli, bindings
#   core <- text <- model
#
# A room includes its own headers, those of the floors below it and include/topkv; nothing from a
# neighbour on its floor.
#
#   cmake -D ROOT=<source tree> -P check.cmake

cmake_minimum_required(VERSION 3.25)

set(rooms include/topkv src/core src/store src/attention src/device src/context src/text src/model
  src/eval src/serve src/cli index gpu bindings)

# What each room may include besides itself and include/topkv.
set(below_src_core)
set(below_src_store src/core)
set(below_src_attention src/core)
set(below_index src/core)
set(below_src_device src/core src/store src/attention index)
set(below_src_context ${below_src_device} src/device)
set(below_gpu ${below_src_device} src/device)
set(below_src_text src/core)
set(below_src_model ${below_src_context} src/context gpu src/text)
# What evaluates is written against the public interface; fidelity compares rows in a device's memory.
set(below_src_eval src/core src/device)
# What serves is, too.
set(below_src_serve src/core)
# The command is, too; its bench works on a device and a store.
set(below_src_cli src/core src/device src/store src/context src/eval src/serve)
set(below_bindings ${below_src_model} src/model src/eval)

# Headers that only some rooms may include: a pattern, and the rooms. gpu/ works on views alone.
set(limited CUDA FAISS HNSWLIB JINJA PYBIND11 CLI11 HTTPLIB OWNERS)
set(CUDA_headers "^(cuda|cublas|cudnn|curand|nvtx|nvml|cub/|thrust/|cooperative_groups)")
set(CUDA_rooms gpu)
set(FAISS_headers "^faiss/")
set(FAISS_rooms index)
set(HNSWLIB_headers "^hnswlib/")
set(HNSWLIB_rooms index)
set(JINJA_headers "^jinja/")
set(JINJA_rooms src/text)
set(PYBIND11_headers "^pybind11/")
set(PYBIND11_rooms bindings)
set(CLI11_headers "^CLI/")
set(CLI11_rooms src/cli)
set(HTTPLIB_headers "^httplib\\.h$")
set(HTTPLIB_rooms src/serve)
set(OWNERS_headers "^topkv/(chat_template|context|generation|key_index|session|model|tokenizer)\\.h$")
set(OWNERS_rooms ${rooms})
list(REMOVE_ITEM OWNERS_rooms gpu)

set(library_names FAISS HNSWLIB)
set(library_files faiss hnsw)

set(violations 0)
function(violation where what)
  message(SEND_ERROR "${where}: ${what}")
  math(EXPR violations "${violations} + 1")
  set(violations ${violations} PARENT_SCOPE)
endfunction()

# The room that a header named in a file of `room` lies in; empty for other people's headers.
function(find_room room header result)
  set(found "")
  if(header MATCHES "^topkv/")
    set(found include/topkv)
  else()
    foreach(candidate IN LISTS rooms)
      if(header MATCHES "^${candidate}/")
        set(found ${candidate})
      endif()
    endforeach()
  endif()
  set(${result} "${found}" PARENT_SCOPE)
endfunction()

set(files_seen 0)
foreach(room IN LISTS rooms)
  file(GLOB_RECURSE files RELATIVE ${ROOT}
    ${ROOT}/${room}/*.h ${ROOT}/${room}/*.cc ${ROOT}/${room}/*.cuh ${ROOT}/${room}/*.cu)
  string(MAKE_C_IDENTIFIER ${room} room_id)
  foreach(file IN LISTS files)
    math(EXPR files_seen "${files_seen} + 1")
    cmake_path(REMOVE_EXTENSION file OUTPUT_VARIABLE stem)
    file(STRINGS ${ROOT}/${file} lines REGEX "^[ \t]*#[ \t]*include[ \t]*[<\"]")
    foreach(line IN LISTS lines)
      string(REGEX REPLACE "^[^<\"]*[<\"]([^>\"]*).*$" "\\1" header "${line}")
      find_room(${room} "${header}" target)

      if(header MATCHES "\\.\\./")
        violation(${file} "includes ${header}: write the path from the root of the sources")
      elseif(target AND NOT target STREQUAL room AND NOT target STREQUAL "include/topkv"
             AND NOT target IN_LIST below_${room_id})
        violation(${file} "includes ${header}: ${room} may not include ${target}")
      elseif(NOT target AND line MATCHES "\"" AND NOT header MATCHES "/")
        violation(${file} "includes ${header}: write the path from the root of the sources")
      elseif(NOT target AND room STREQUAL "include/topkv" AND NOT header MATCHES "^[a-z0-9_]+$")
        violation(${file} "includes ${header}: public headers include only each other and the standard library")
      endif()

      foreach(name IN LISTS limited)
        if(header MATCHES "${${name}_headers}")
          list(APPEND ${name}_includers ${stem})
          if(NOT room IN_LIST ${name}_rooms)
            list(JOIN ${name}_rooms ", " allowed)
            violation(${file} "includes ${header}: only ${allowed} may")
          endif()
        endif()
      endforeach()
    endforeach()
  endforeach()
endforeach()

# A library is met under its own name: index/faiss_*, index/hnsw_*.
foreach(name files IN ZIP_LISTS library_names library_files)
  list(FILTER ${name}_includers INCLUDE REGEX "^index/")
  list(REMOVE_DUPLICATES ${name}_includers)
  if(NOT ${name}_includers)
    violation(index "no file includes ${name}")
  endif()
  set(others ${${name}_includers})
  list(FILTER others EXCLUDE REGEX "^index/${files}_[a-z0-9_]+$")
  if(others)
    violation(index "only files index/${files}_* include ${name}, found ${others}")
  endif()
endforeach()

if(files_seen EQUAL 0)
  violation("${ROOT}" "no sources here")
endif()
if(violations EQUAL 0)
  message(STATUS "${files_seen} files keep the include rules")
endif()
