#pragma once

namespace moeplan::cuda {

/// log(1 + e^x); past 20 it is x to the last bit of fp32.
__device__ __forceinline__ float softplus(float x) { return x > 20 ? x : log1pf(expf(x)); }

}  // namespace moeplan::cuda
