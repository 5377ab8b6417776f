# What `cmake --install` lays down: the library and its headers, the command, a CMake package
# (find_package(topkv)) and a pkg-config file (topkv; a static library wants --static).
# tests/consumer builds a program against the result both ways.

include(CMakePackageConfigHelpers)

get_target_property(topkv_type topkv TYPE)
if(topkv_type STREQUAL "STATIC_LIBRARY")
  set(TOPKV_IS_STATIC TRUE)
else()
  set(TOPKV_IS_STATIC FALSE)
  # Before 1.0 a minor version may change the interface.
  set_target_properties(topkv PROPERTIES
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  # A program with a FAISS of its own must not meet the one inside libtopkv.so.
  target_link_options(topkv PRIVATE LINKER:--exclude-libs,ALL)
endif()

# The command finds libraries in its own installation first, then where they were at the build. As
# DT_RPATH, which the libraries that it loads inherit (DT_RUNPATH is not): tools/bundle.sh puts
# theirs there too.
set_property(TARGET topkv-cli APPEND PROPERTY INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
set_target_properties(topkv-cli PROPERTIES INSTALL_RPATH_USE_LINK_PATH TRUE)
target_link_options(topkv-cli PRIVATE LINKER:--disable-new-dtags)

install(TARGETS topkv EXPORT topkvTargets)
install(TARGETS topkv-cli)

set(printed ${PROJECT_BINARY_DIR}/src/cli/printed)
install(FILES ${printed}/topkv.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES ${printed}/topkv DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
install(FILES ${printed}/_topkv DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
install(FILES ${printed}/topkv.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/topkv TYPE INCLUDE FILES_MATCHING PATTERN "*.h")
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE TYPE DOC)
install(FILES ${PROJECT_SOURCE_DIR}/src/eval/tasks/wonderwords/LICENSE TYPE DOC RENAME LICENSE.wonderwords)
if(TOPKV_JINJA)  # whose code is compiled in, and is in no package that would have its licence
  install(FILES ${TOPKV_JINJA_LICENSE} TYPE DOC RENAME LICENSE.llama.cpp)
endif()
if(TOPKV_GRAMMARS)  # likewise
  install(FILES ${TOPKV_XGRAMMAR_LICENSE} TYPE DOC RENAME LICENSE.xgrammar)
endif()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/topkv)
install(EXPORT topkvTargets NAMESPACE topkv:: DESTINATION ${package_dir})
configure_package_config_file(cmake/topkvConfig.cmake.in ${PROJECT_BINARY_DIR}/topkvConfig.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/topkvConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/topkvConfig.cmake ${PROJECT_BINARY_DIR}/topkvConfigVersion.cmake
  cmake/Finddnnl.cmake DESTINATION ${package_dir})

# pkg-config. Folders are relative to the file, so that the installed tree may be moved.
file(RELATIVE_PATH TOPKV_PC_TO_PREFIX
  ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" TOPKV_PC_TO_PREFIX ${TOPKV_PC_TO_PREFIX})
if(TOPKV_IS_STATIC)
  set(TOPKV_PC_REQUIRES "tbb fmt libhwy-contrib libhwy libpcre2-8 libutf8proc")
  set(TOPKV_PC_LIBS "-lfaiss -ldnnl -llapack -lblas ${OpenMP_CXX_FLAGS} -lstdc++ -lm")
  # A FAISS or oneDNN outside the linker's own folders is named by its folder.
  foreach(library faiss DNNL::dnnl)
    get_target_property(file ${library} LOCATION)
    cmake_path(GET file PARENT_PATH folder)
    if(NOT folder IN_LIST CMAKE_CXX_IMPLICIT_LINK_DIRECTORIES)
      string(PREPEND TOPKV_PC_LIBS "-L${folder} ")
    endif()
  endforeach()
  if(TOPKV_CUDA)
    # Outside the linker's own folders, and the loader's too.
    set(folder ${CUDAToolkit_LIBRARY_DIR})
    string(APPEND TOPKV_PC_LIBS
      " -L${folder} -Wl,-rpath,${folder} -lcublas -lcudart_static -ldl -lrt -lpthread")
  endif()
endif()
configure_file(cmake/topkv.pc.in ${PROJECT_BINARY_DIR}/topkv.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/topkv.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
