# SPDX-License-Identifier: Apache-2.0
include(GoogleTest)

# ic_module(NAME SOURCES a.cc ... [DEPS module ...] [LIBRARIES target ...] [TESTS a_test.cc ...] [TEST_LIBRARIES target ...])
# Makes the library ic_NAME of src/NAME, and the test program NAME_test (ctest label: unit).
# DEPS are modules that the headers show; LIBRARIES are third-party targets that this module alone may use.
function(ic_module name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;LIBRARIES;TESTS;TEST_LIBRARIES" ${ARGN})
  set(visible)
  foreach(dep IN LISTS ARG_DEPS)
    list(APPEND visible ic_${dep})
  endforeach()
  add_library(ic_${name} STATIC ${ARG_SOURCES})
  target_link_libraries(ic_${name} PUBLIC ${visible} PRIVATE ic_options ${ARG_LIBRARIES} Threads::Threads)
  if(INFERCLUSTER_TESTS AND ARG_TESTS)
    ic_test(${name}_test LABEL unit SOURCES ${ARG_TESTS} LIBRARIES ic_${name} ${ARG_TEST_LIBRARIES})
  endif()
endfunction()

# ic_test(NAME LABEL unit|integration|crash|sim|fuzz|gpu|peer SOURCES ... LIBRARIES ... [TIMEOUT seconds])
function(ic_test name)
  cmake_parse_arguments(ARG "" "LABEL;TIMEOUT" "SOURCES;LIBRARIES" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  # A test's own code need not be fast, but it should build soon.
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  target_link_libraries(${name} PRIVATE ic_options ${ARG_LIBRARIES} GTest::gmock GTest::gtest GTest::gtest_main)
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 PROPERTIES LABELS "${ARG_LABEL}" TIMEOUT ${ARG_TIMEOUT})
endfunction()

# ic_gpu_test(NAME SOURCES ... LIBRARIES ... [TIMEOUT seconds]): an ic_test (label: gpu) that finds the doubles of the GPU's
# libraries (testing/gpu_double), also when it is started by hand.
function(ic_gpu_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;LIBRARIES" ${ARGN})
  ic_test(${name} LABEL gpu TIMEOUT ${ARG_TIMEOUT} SOURCES ${ARG_SOURCES} $<TARGET_OBJECTS:gpu_double_environment> LIBRARIES ${ARG_LIBRARIES})
  add_dependencies(${name} gpu_double_cuda gpu_double_cufile)
endfunction()
