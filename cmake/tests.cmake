# One test program per room: tests/<room>/**/*_test.cpp. CUDA tests (tests/kernels/**/*cuda_test.cpp) only where nvcc is found.
include(GoogleTest)

function(moeplan_tests name)
  cmake_parse_arguments(T "" "" "GLOB;EXCLUDE;LINK" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${T_GLOB})
  if(T_EXCLUDE)
    list(FILTER sources EXCLUDE REGEX ${T_EXCLUDE})
  endif()
  if(sources)
    add_executable(${name} ${sources})
    target_link_libraries(${name} PRIVATE ${T_LINK} GTest::gtest GTest::gtest_main Threads::Threads)
    target_compile_definitions(${name} PRIVATE MOEPLAN_SOURCE="${CMAKE_SOURCE_DIR}")
    if(name STREQUAL core_tests)
      target_precompile_headers(${name} PRIVATE <gtest/gtest.h> ${moeplan_precompiled_program})
    else()
      target_precompile_headers(${name} REUSE_FROM core_tests)
    endif()
    # One ctest entry per test, so that the counts of test.sh are counts of behaviours.
    gtest_discover_tests(${name} NO_PRETTY_VALUES DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 600)
  endif()
endfunction()

moeplan_tests(core_tests GLOB tests/core/*_test.cpp LINK moeplan_core)
moeplan_tests(ops_tests GLOB tests/ops/*_test.cpp LINK moeplan_ops)
moeplan_tests(reference_tests GLOB tests/kernels/*_test.cpp EXCLUDE "cuda_test\\.cpp$" LINK moeplan_reference)
moeplan_tests(program_tests GLOB tests/program/*_test.cpp LINK moeplan_program)
moeplan_tests(sim_tests GLOB tests/sim/*_test.cpp LINK moeplan_sim)
moeplan_tests(planner_tests GLOB tests/planner/*_test.cpp LINK moeplan_planner)
moeplan_tests(comm_tests GLOB tests/executor/comm/*.cpp tests/executor/rendezvous/*.cpp tests/executor/launch/*.cpp LINK moeplan_comm)
moeplan_tests(executor_tests GLOB tests/executor/run/*_test.cpp LINK moeplan_executor moeplan_sim)
moeplan_tests(rules_tests GLOB tests/rules/*_test.cpp LINK moeplan_core)
if(TARGET moeplan)
  moeplan_tests(cli_tests GLOB tests/cli/*_test.cpp LINK moeplan_planner)
  foreach(suite cli_tests rules_tests)
    if(TARGET ${suite})
      target_compile_definitions(${suite} PRIVATE MOEPLAN_PROGRAM="$<TARGET_FILE:moeplan>")
      add_dependencies(${suite} moeplan)
    endif()
  endforeach()
endif()
if(TARGET moeplan_cuda)
  moeplan_tests(cuda_tests GLOB tests/kernels/*cuda_test.cpp tests/kernels/*cuda_test.cu LINK "moeplan_cuda;moeplan_reference")
  set_target_properties(cuda_tests PROPERTIES CUDA_STANDARD 20 CUDA_RUNTIME_LIBRARY Static)
  target_compile_options(cuda_tests PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>)
  moeplan_tests(cuda_executor_tests GLOB tests/executor/cuda/*_test.cpp LINK "moeplan_cuda_executor;moeplan_sim")
endif()

# Every fault in every phase, once, to real processes that share memory; fault_cells --backend cuda does it over NCCL.
if(TARGET moeplan AND TARGET fault_cells)
  add_test(NAME FaultCells.EveryFaultInEveryPhaseNamesTheRankAndLosesNoSave
           COMMAND fault_cells $<TARGET_FILE:moeplan> $<TARGET_FILE:fault_shim> ${CMAKE_SOURCE_DIR}/tests/executor/faults/model.json --trials 1 --at-once 12 --rank-timeout 8)
  set_tests_properties(FaultCells.EveryFaultInEveryPhaseNamesTheRankAndLosesNoSave PROPERTIES TIMEOUT 300)
  # In its second step, so that the limit is the program's own, which follows what a step takes.
  add_test(NAME FaultCells.ARankThatHangsIsNamedByACallThatWaitsForIt
           COMMAND fault_cells $<TARGET_FILE:moeplan> $<TARGET_FILE:fault_shim> ${CMAKE_SOURCE_DIR}/tests/executor/faults/model.json --only "hang forward" --first 4 --trials 1 --rank-timeout 0)
  # While a save is read or written and in a first step, whose length nobody predicts; then ranks that are slow there for longer than the limit, but go on.
  add_test(NAME FaultCells.ARankThatHangsInAFileOrInItsFirstStepIsNamed
           COMMAND fault_cells $<TARGET_FILE:moeplan> $<TARGET_FILE:fault_shim> ${CMAKE_SOURCE_DIR}/tests/executor/faults/model.json --only "hang load,hang save,hang forward,hang optimizer" --trials 2 --at-once 8 --rank-timeout 5)
  add_test(NAME FaultCells.ARankThatIsSlowThereIsWaitedFor
           COMMAND fault_cells $<TARGET_FILE:moeplan> $<TARGET_FILE:fault_shim> ${CMAKE_SOURCE_DIR}/tests/executor/faults/model.json --only "slow load,slow save,slow forward" --trials 1 --at-once 3 --rank-timeout 3)
endif()

# Our adapters, judged by stock PEFT.
find_program(MOEPLAN_PYTHON python3)
if(TARGET moeplan AND MOEPLAN_PYTHON)
  add_test(NAME Adapters.GiveTheSameLossInStockPeft COMMAND ${MOEPLAN_PYTHON} ${CMAKE_SOURCE_DIR}/tests/vectors/judge_adapter.py $<TARGET_FILE:moeplan>)
  set_tests_properties(Adapters.GiveTheSameLossInStockPeft PROPERTIES SKIP_REGULAR_EXPRESSION "^SKIPPED" TIMEOUT 600 ENVIRONMENT PYTHONDONTWRITEBYTECODE=1)
endif()

# Headers stand alone: each is compiled as the only include of a file.
file(GLOB_RECURSE headers RELATIVE ${CMAKE_SOURCE_DIR} CONFIGURE_DEPENDS core/*.hpp kernels/*.hpp sim/*.hpp planner/*.hpp executor/*.hpp cli/*.hpp)
set(header_sources)
foreach(header ${headers})
  file(STRINGS ${header} needs_cuda REGEX "#include [<\"](cuda|nccl|kernels/base/)")
  file(STRINGS ${header} device_code REGEX "#include \".*\\.cuh\"")  # nvcc compiles those with their .cu
  if(device_code OR (needs_cuda AND NOT TARGET moeplan_cuda))
    continue()
  endif()
  string(REPLACE "/" "__" stem ${header})
  set(source ${CMAKE_BINARY_DIR}/headers/${stem}.cpp)
  file(CONFIGURE OUTPUT ${source} CONTENT "#include \"${header}\"  // IWYU pragma: keep\n")
  list(APPEND header_sources ${source})
endforeach()
if(header_sources)
  add_library(headers_stand_alone OBJECT ${header_sources})
  target_link_libraries(headers_stand_alone PRIVATE moeplan_planner moeplan_executor CLI11::CLI11 Eigen3::Eigen)
  target_compile_options(headers_stand_alone PRIVATE -O0 -g0)
  if(TARGET moeplan_cuda)
    target_include_directories(headers_stand_alone SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  endif()
endif()

include(cmake/fuzz.cmake)
