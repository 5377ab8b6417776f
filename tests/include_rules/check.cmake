# Which file may include what. Dependencies point one way, floor by floor:
#
#   core <- store, attention, index <- device <- context, gpu <- session <- model <- eval, serve <- cli, bindings
#   core <- text <- model
#
# A room includes its own headers, those of the floors below it and include/topkv; nothing from a
# neighbour on its floor.
#
# Some rooms have sub-rooms. Their dependencies point one way as well: the lists sub_* below name
# them from the lowest to the highest, and a sub-room includes its own headers and those of the
# sub-rooms before it. "." is the room's own folder.
#
#   cmake -D ROOT=<source tree> -P check.cmake

cmake_minimum_required(VERSION 3.25)

set(rooms include/topkv src/core src/store src/attention src/device src/context src/session src/text
  src/model src/eval src/serve src/cli index gpu bindings)

# What each room may include besides itself and include/topkv.
set(below_src_core)
set(below_src_store src/core)
set(below_src_attention src/core)
set(below_index src/core)
set(below_src_device src/core src/store src/attention index)
set(below_src_context ${below_src_device} src/device)
set(below_gpu ${below_src_device} src/device)
set(below_src_session ${below_src_context} src/context)
set(below_src_text src/core)
set(below_src_model ${below_src_session} src/session gpu src/text)
# What evaluates is written against the public interface; fidelity compares rows in a device's memory.
set(below_src_eval src/core src/device)
# What serves is, too.
set(below_src_serve src/core)
# The command is, too; its bench works on a device and a store.
set(below_src_cli src/core src/device src/store src/context src/eval src/serve)
set(below_bindings ${below_src_model} src/model src/eval)

# The sub-rooms, from the lowest to the highest.
set(sub_src_core text io threads math memory format .)
set(sub_index common codes exact graphs lists tails methods trained .)
set(sub_src_device . host)
set(sub_gpu runtime network attention codes entries build session .)
set(sub_src_context . file)
set(sub_src_model families weights config network . generate)
set(sub_src_eval tasks run report)
set(sub_src_text unicode pattern grammar tokens jinja files chat .)
set(sub_src_serve request answer run http)
set(sub_src_cli terminal flags . bench commands)

# Headers that a source file of any sub-room of their room may include, though its headers may not:
# operations on a device need the device, which owns them.
set(shared_gpu gpu/device.h gpu/long_work.h)

# Headers that only some rooms may include: a pattern, and the rooms. gpu/ works on views alone.
set(limited CUDA FAISS HNSWLIB JINJA XGRAMMAR PYBIND11 CLI11 HTTPLIB OWNERS)
set(CUDA_headers "^(cuda|cublas|cudnn|curand|nvtx|nvml|cub/|thrust/|cooperative_groups)")
set(CUDA_rooms gpu)
set(FAISS_headers "^faiss/")
set(FAISS_rooms index)
set(HNSWLIB_headers "^hnswlib/")
set(HNSWLIB_rooms index)
set(JINJA_headers "^jinja/")
set(JINJA_rooms src/text)
set(XGRAMMAR_headers "^xgrammar/")
set(XGRAMMAR_rooms src/text)
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

# The sub-room of a file of `room`: "." if the file lies in the room's own folder.
function(find_sub_room room file result)
  string(REGEX REPLACE "^${room}/" "" inside "${file}")
  set(${result} . PARENT_SCOPE)
  if(inside MATCHES "^([^/]+)/")
    set(${result} "${CMAKE_MATCH_1}" PARENT_SCOPE)
  endif()
endfunction()

set(files_seen 0)
foreach(room IN LISTS rooms)
  file(GLOB_RECURSE files RELATIVE ${ROOT}
    ${ROOT}/${room}/*.h ${ROOT}/${room}/*.cc ${ROOT}/${room}/*.cuh ${ROOT}/${room}/*.cu)
  string(MAKE_C_IDENTIFIER ${room} room_id)
  foreach(file IN LISTS files)
    math(EXPR files_seen "${files_seen} + 1")
    cmake_path(REMOVE_EXTENSION file OUTPUT_VARIABLE stem)
    find_sub_room(${room} "${file}" sub_room)
    list(FIND sub_${room_id} "${sub_room}" floor)
    if(DEFINED sub_${room_id} AND floor EQUAL -1)
      violation(${file} "lies in ${room}/${sub_room}, which is no sub-room that sub_${room_id} names")
    endif()
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

      if(DEFINED sub_${room_id} AND target STREQUAL room
         AND NOT (header IN_LIST shared_${room_id} AND file MATCHES "\\.(cc|cu)$"))
        find_sub_room(${room} "${header}" target_sub_room)
        list(FIND sub_${room_id} "${target_sub_room}" target_floor)
        if(target_floor GREATER floor)
          violation(${file} "includes ${header}: ${room}/${sub_room} may not include ${room}/${target_sub_room}")
        endif()
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

# A library is met under its own name: faiss_* and hnsw_* in the sub-rooms of index.
foreach(name files IN ZIP_LISTS library_names library_files)
  list(FILTER ${name}_includers INCLUDE REGEX "^index/")
  list(REMOVE_DUPLICATES ${name}_includers)
  if(NOT ${name}_includers)
    violation(index "no file includes ${name}")
  endif()
  set(others ${${name}_includers})
  list(FILTER others EXCLUDE REGEX "^index/[a-z]+/${files}_[a-z0-9_]+$")
  if(others)
    violation(index "only files index/*/${files}_* include ${name}, found ${others}")
  endif()
endforeach()

if(files_seen EQUAL 0)
  violation("${ROOT}" "no sources here")
endif()
if(violations EQUAL 0)
  message(STATUS "${files_seen} files keep the include rules")
endif()
