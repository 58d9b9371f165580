# The executor's communication layer. moeplan_comm (ranks as threads, rendezvous, launch files, watchdog) needs nothing but
# moeplan_core; moeplan_nccl is built where NCCL's header and the CUDA run time are found; the library is loaded at run time.
moeplan_room(moeplan_comm GLOB executor/comm/*.cpp executor/rendezvous/*.cpp executor/launch/*.cpp LINK moeplan_core Threads::Threads)

# The plan's program, run: backends, arena, walk, optimizer, weights, data, adapters, checkpoints.
moeplan_room(moeplan_executor GLOB executor/backend/*.cpp executor/arena/*.cpp executor/state/*.cpp executor/walk/*.cpp executor/train/*.cpp executor/ranks/*.cpp executor/slice/*.cpp
                              executor/weights/*.cpp executor/data/*.cpp executor/adapter/*.cpp executor/checkpoint/*.cpp executor/monitor/*.cpp executor/calibrate/*.cpp
             LINK moeplan_load moeplan_reference moeplan_comm)

find_package(CUDAToolkit QUIET)
find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ENV NCCL_HOME PATH_SUFFIXES include)
if(TARGET CUDA::cudart_static AND NCCL_INCLUDE_DIR)
  add_library(moeplan_nccl STATIC executor/nccl/nccl.cpp executor/nccl/memory.cpp executor/nccl/world.cpp executor/nccl/library.cpp)
  target_include_directories(moeplan_nccl SYSTEM PRIVATE ${NCCL_INCLUDE_DIR} ${CUDAToolkit_INCLUDE_DIRS})
  target_link_libraries(moeplan_nccl PUBLIC moeplan_comm CUDA::cudart_static ${CMAKE_DL_LIBS})
  add_executable(nccl_suite tests/executor/nccl/nccl_suite.cpp tests/executor/comm/suite.cpp)
  target_link_libraries(nccl_suite PRIVATE moeplan_nccl)
else()
  message(STATUS "NCCL: nccl.h or the CUDA run time not found; moeplan_nccl is skipped")
endif()

# Faults of real processes: the runner, and what is loaded into the rank that fails. The shim knows x86-64 and glibc.
if(CMAKE_SYSTEM_NAME STREQUAL "Linux" AND CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  add_library(fault_shim MODULE tests/executor/faults/shim.cpp)
  target_compile_features(fault_shim PRIVATE cxx_std_20)
  target_link_libraries(fault_shim PRIVATE ${CMAKE_DL_LIBS})
  add_executable(fault_cells tests/executor/faults/fault_cells.cpp tests/executor/faults/cells.cpp)
  target_link_libraries(fault_cells PRIVATE moeplan_comm)
endif()
