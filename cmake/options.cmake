# SPDX-License-Identifier: Apache-2.0
# Warnings are errors, in our own targets only: ic_options is linked privately by ic_module().
add_library(ic_options INTERFACE)
target_compile_options(ic_options INTERFACE
  -Wall -Wextra -Wpedantic -Werror -Wshadow -Wconversion -Wsign-conversion -Wnon-virtual-dtor -Wold-style-cast
  -Wcast-qual -Wimplicit-fallthrough -fno-omit-frame-pointer)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # False alarms of g++ 12 inside the standard library at -O2.
  target_compile_options(ic_options INTERFACE -Wno-restrict -Wno-maybe-uninitialized -Wno-tsan)
endif()
target_include_directories(ic_options INTERFACE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR})
target_compile_definitions(ic_options INTERFACE INFERCLUSTER_VERSION="${PROJECT_VERSION}")

if(INFERCLUSTER_SANITIZE)
  add_compile_options(-fsanitize=${INFERCLUSTER_SANITIZE} -fno-sanitize-recover=all -g1)
  add_link_options(-fsanitize=${INFERCLUSTER_SANITIZE})
endif()

if(INFERCLUSTER_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
