/// \file
/// The kernels around the scans of scan_forward.cuh and scan_reverse.cuh, and the choice between one and two warpgroups
/// per block.
#include "kernels/kda/scan_forward.cuh"
#include "kernels/kda/scan_reverse.cuh"

#include <algorithm>

namespace moeplan::kernels::kda {
namespace {

template <int D, int groups, ScanKind kind>
__global__ void __launch_bounds__(scan_threads<groups>, 1) scan_up(const Launch launch, const ScanStates states) {
  forward_scan<D, groups, kind>(launch, states, blockIdx.x);
}
template <int D, int groups>
__global__ void __launch_bounds__(scan_threads<groups>, 1) scan_down(const Launch launch, const ScanStates states) {
  reverse_scan<D, groups, false>(launch, states, blockIdx.x);
}
/// Both directions of the backward side by side: the first half of the blocks goes up, the second down.
template <int D, int groups>
__global__ void __launch_bounds__(scan_threads<groups>, 1)
    scan_both(const Launch launch, const ScanStates up, const ScanStates down) {
  const unsigned half = gridDim.x / 2;
  if (blockIdx.x < half)
    forward_scan<D, groups, ScanKind::states>(launch, up, blockIdx.x);
  else
    reverse_scan<D, groups, true>(launch, down, blockIdx.x - half);
}

template <class Kernel, class... Arguments>
void queue(Kernel kernel, const char* name, const Launch& launch, int blocks_per_item, int threads, int shared,
           cudaStream_t stream, const Arguments&... arguments) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared), "shared memory of kda scan");
  kernel<<<static_cast<unsigned>(launch.max_segments) * launch.group_heads * blocks_per_item, threads, shared,
           stream>>>(launch, arguments...);
  check_launch(name, describe(launch));
}

/// One warpgroup per block while the blocks fit side by side; two share what they load otherwise.
bool two_groups(const Launch& launch, int blocks_per_item) {
  return std::int64_t(launch.max_segments) * launch.group_heads * blocks_per_item > 132;
}

template <ScanKind kind>
void up(const Launch& launch, int head_dim, const ScanStates& states, cudaStream_t stream) {
  constexpr int maps = kind == ScanKind::affine ? 2 : 1;
  const char* name = "kda forward scan";
  if (head_dim == 64)
    queue(scan_up<64, 1, kind>, name, launch, maps, scan_threads<1>, ForwardStage<64, 1, kind>::shared, stream, states);
  else if (two_groups(launch, 2 * maps))
    queue(scan_up<128, 2, kind>, name, launch, maps, scan_threads<2>, ForwardStage<128, 2, kind>::shared, stream,
          states);
  else
    queue(scan_up<128, 1, kind>, name, launch, 2 * maps, scan_threads<1>, ForwardStage<128, 1, kind>::shared, stream,
          states);
}

template <int D, int groups>
constexpr int both_shared = std::max(ForwardStage<D, groups, ScanKind::states>::shared,
                                     ReverseStage<D, groups>::shared);

}  // namespace

void scan_forward(const Launch& launch, int head_dim, ScanKind kind, const ScanStates& states, cudaStream_t stream) {
  if (kind == ScanKind::output)
    up<ScanKind::output>(launch, head_dim, states, stream);
  else
    up<ScanKind::affine>(launch, head_dim, states, stream);
}

void scan_reverse(const Launch& launch, int head_dim, const ScanStates& states, cudaStream_t stream) {
  const char* name = "kda reverse scan";
  if (head_dim == 64)
    queue(scan_down<64, 1>, name, launch, 1, scan_threads<1>, ReverseStage<64, 1>::shared, stream, states);
  else if (two_groups(launch, 2))
    queue(scan_down<128, 2>, name, launch, 1, scan_threads<2>, ReverseStage<128, 2>::shared, stream, states);
  else
    queue(scan_down<128, 1>, name, launch, 2, scan_threads<1>, ReverseStage<128, 1>::shared, stream, states);
}

void scan_both_ways(const Launch& launch, int head_dim, const ScanStates& up, const ScanStates& down,
                    cudaStream_t stream) {
  const char* name = "kda scans of the backward";
  if (head_dim == 64)
    queue(scan_both<64, 1>, name, launch, 2, scan_threads<1>, both_shared<64, 1>, stream, up, down);
  else if (two_groups(launch, 4))
    queue(scan_both<128, 2>, name, launch, 2, scan_threads<2>, both_shared<128, 2>, stream, up, down);
  else
    queue(scan_both<128, 1>, name, launch, 4, scan_threads<1>, both_shared<128, 1>, stream, up, down);
}

}  // namespace moeplan::kernels::kda
