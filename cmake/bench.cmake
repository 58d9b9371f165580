# Benchmarks, where Google Benchmark is found: bench/<name>_bench.cpp becomes <name>_bench. Not part of the default build.
find_package(benchmark QUIET)
if(benchmark_FOUND)
  foreach(name engine simulate search)
    add_executable(${name}_bench EXCLUDE_FROM_ALL bench/${name}_bench.cpp)
    target_link_libraries(${name}_bench PRIVATE moeplan_planner benchmark::benchmark Threads::Threads)
    target_compile_definitions(${name}_bench PRIVATE MOEPLAN_SOURCE="${CMAKE_SOURCE_DIR}")
  endforeach()
endif()

# Searches that are timed as programs.
add_executable(megatron_search EXCLUDE_FROM_ALL bench/megatron_search.cpp)
target_link_libraries(megatron_search PRIVATE moeplan_planner)
target_compile_definitions(megatron_search PRIVATE MOEPLAN_SOURCE="${CMAKE_SOURCE_DIR}")

# The CUDA backend's operators; needs no library besides.
if(TARGET moeplan_cuda)
  foreach(name attention elementwise kda products scan sparse)
    add_executable(${name}_bench EXCLUDE_FROM_ALL bench/${name}.cpp)
    target_link_libraries(${name}_bench PRIVATE moeplan_cuda)
  endforeach()
  foreach(name grouped_linear grouped_adapter grouped_mxfp4 moe_block)   # the kernels under the operators
    add_executable(${name}_bench EXCLUDE_FROM_ALL bench/${name}.cu)
    target_link_libraries(${name}_bench PRIVATE moeplan_cuda)
  endforeach()
endif()
if(TARGET moeplan_cuda AND TARGET moeplan_nccl)
  add_executable(multi_gpu_bench EXCLUDE_FROM_ALL bench/multi_gpu.cpp bench/multi_gpu_experts.cpp)
  target_link_libraries(multi_gpu_bench PRIVATE moeplan_cuda_executor moeplan_nccl moeplan_planner)
  target_compile_definitions(multi_gpu_bench PRIVATE MOEPLAN_SOURCE="${CMAKE_SOURCE_DIR}")
endif()
